"""``python -m togi``: the same as ``togi``, which does not search the working folder for modules."""

import sys

from togi.core.interpreter import without_working_folder

if not getattr(sys.flags, "safe_path", False):  # Python 3.10 has no -P
    sys.path[:] = without_working_folder()

from togi.cli import main

main()
