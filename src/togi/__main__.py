"""``python -m togi``: the same as ``togi``, which does not search the working folder for modules."""

import sys

from togi.core.interpreter import without_working_folder

if not sys.flags.safe_path:
    sys.path[:] = without_working_folder()

from togi.cli import main

main()
