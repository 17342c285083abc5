"""New Python processes that run togi's own code."""

from __future__ import annotations

import sys


def python(code: str, *arguments: str) -> list[str]:
    """Returns the command that runs ``code`` in a new interpreter.

    The import path of this process stands behind the interpreter's own: the same togi is found, and a ``socket.py`` in a
    folder that the caller put first hides nothing. For the same reason ``-P``: the working folder is not searched.
    """
    return [sys.executable, "-P", "-c", f"import sys; sys.path += {sys.path!r}\n{code}", *arguments]
