"""Puts this folder on the import path, for ``small_models``."""
