"""What source rules know of a file: its syntax tree, names, values and hot places, without executing it."""
