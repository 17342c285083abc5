"""The folder that a study hands back: the chosen recipe, its files and its proof. Loads without pickle."""
