"""``python -m togi``: the same as ``togi``."""

import sys

if not sys.flags.safe_path:
    # Python searches the working folder first, where a json.py would hide the library's. ``togi`` does not search it.
    sys.path.append(sys.path.pop(0))

from togi.cli import main

main()
