"""``python -m togi``: the same as ``togi``."""

from togi.cli import main

main()
