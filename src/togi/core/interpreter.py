"""New Python processes that run togi's own code, and the folders in which Python finds it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_HOME = str(Path(__file__).parents[2])
"""The folder that holds the package ``togi``."""
OWN_PATHS = "import sys; sys.path = [*filter(None, sys.path)]"


def python(code: str, *arguments: str, interpreter: str = "") -> list[str]:
    """Returns the command that runs ``code`` in a new interpreter.

    The working folder is not searched: ``-P``, which Python 3.10 does not have, and without it the empty path is taken
    out before anything but ``sys`` is imported. The import path of this process stands behind the interpreter's own, so
    that the same togi is found, and a ``socket.py`` in a folder that the caller put first hides nothing.

    ``interpreter``: of another environment (``togi.core.other_python``), which finds its own packages.
    """
    if interpreter:
        return [interpreter, "-c", f"{OWN_PATHS}\n{code}", *arguments]
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    paths = f"import sys; sys.path = [*filter(None, sys.path), *{without_working_folder()!r}]"
    return [sys.executable, *safe, "-c", f"{paths}\n{code}", *arguments]


def without_working_folder() -> list[str]:
    """``sys.path`` without the working folder, in which anybody's ``nt.py`` may lie: Python tries to import that, on
    Linux too. The folder of togi itself stays."""
    here = os.path.realpath(os.curdir)
    return [path for path in sys.path if path == _HOME or (os.path.isabs(path) and os.path.realpath(path) != here)]
