"""The model of a file that source rules ask: syntax tree, names, values, hot places; nothing is executed."""
