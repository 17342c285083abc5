"""Where in the user's own code an exception came from: the one line of a traceback that people look for."""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path

_OWN = str(Path(__file__).parent.parent)
_FOREIGN = ("site-packages", "dist-packages", "<frozen", f"{Path(inspect.__file__).parent}/")


def user_place(error: BaseException) -> str:
    """``file:line in function: code: Type: message`` for the last frame that is the user's own."""
    kind = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {(error.text or '').strip()}: {kind}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    if not frames:
        return kind
    last = frames[-1]
    code = f": {last.line}" if last.line else ""
    return f"{last.filename}:{last.lineno} in {last.name}{code}: {kind}"


def _is_users(filename: str) -> bool:
    return not filename.startswith(_OWN) and not any(part in filename for part in _FOREIGN)
