"""The version of togi: a file of its own, so that no room imports the package that stands above all rooms."""

__version__ = "0.1.0"
