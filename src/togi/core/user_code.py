"""Origins of code: whose a line is, and where in the user's own code something happened.

Paths may come from another machine (a recorded traceback), so they are judged by their text; nothing is looked up.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sysconfig
import traceback
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from types import CodeType, FrameType


def _folder_of(package: str) -> str:
    """Also where it is not an installed package: a clone of togi, a torch that was built from source."""
    spec = importlib.util.find_spec(package)
    return f"{Path(spec.origin).parent}/" if spec is not None and spec.origin else "<not installed>"


_OWN = (f"{Path(__file__).parent.parent}/", _folder_of("torch"))
_STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}/"
_FRAMEWORK = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?:torch|torchgen|functorch|numpy|triton|togi)[/\\]|^torch[/\\]"
)
_PACKAGE = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_OTHER_STANDARD_LIBRARY = re.compile(r"[/\\]lib(?:64)?[/\\]python3[^/\\]*[/\\]", re.IGNORECASE)
_TYPED_IN = ("<ipython", "<stdin>", "<string>")
_PRINTED = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)(?:\n\s*(?P<code>[^\n]*))?')


class Origin(IntEnum):
    """Whose code it is, the most telling first."""

    USER = 0
    """In a file of the user's own, or typed in."""
    PACKAGE = 1
    """An installed package that uses torch (timm, transformers): its line is where an operation was written."""
    LIBRARY = 2
    """torch, NumPy, the standard library, togi itself, generated code."""


@functools.lru_cache(maxsize=8192)
def origin(path: str) -> Origin:
    """Whose code ``path``, the file name of a code object, is."""
    if path.startswith("<"):
        return Origin.USER if path.startswith(_TYPED_IN) else Origin.LIBRARY
    if path.startswith(_OWN) or _FRAMEWORK.search(path):
        return Origin.LIBRARY
    if _PACKAGE.search(path):
        return Origin.PACKAGE
    if path.startswith(_STANDARD_LIBRARY) or _OTHER_STANDARD_LIBRARY.search(path):
        return Origin.LIBRARY
    return Origin.USER


def is_users(path: str) -> bool:
    """Whether it is the user's own code, or a package's that uses torch: where an operation was written."""
    return origin(path) <= Origin.PACKAGE


def user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Frames of a call stack from ``frame`` (``sys._getframe()``) outwards, innermost first: the user's own, and those
    of packages that use torch. What is called ``<string>`` is left out, as it is a dataclass's own method, mostly."""
    while frame is not None:
        path = frame.f_code.co_filename
        if is_users(path) and path != "<string>":
            yield frame
        frame = frame.f_back


def place_in(frame: FrameType) -> str:
    """``file.py:12 in name``."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """A function's, and those of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def names_in(code: CodeType) -> list[str]:
    """The global names (and attributes) that a function mentions, those of the functions in it too, in their order."""
    return list(dict.fromkeys(name for part in codes_in(code) for name in part.co_names))


def printed_frames(text: str, widest: Origin = Origin.PACKAGE) -> list[traceback.FrameSummary]:
    """The frames that a printed traceback names, outermost first, whose code is ``widest`` or closer to the user."""
    return [
        traceback.FrameSummary(printed["path"], int(printed["line"]), printed["function"], line=printed["code"] or "")
        for printed in _PRINTED.finditer(text)
        if origin(printed["path"]) <= widest
    ]


def user_place(error: BaseException) -> str:
    """``file:line in function: code: Type: message`` for the last frame that is the user's own."""
    kind = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {(error.text or '').strip()}: {kind}"
    frames = frames_of(error, Origin.USER)
    if not frames:
        return kind
    last = frames[-1]
    code = f": {last.line}" if last.line else ""
    return f"{last.filename}:{last.lineno} in {last.name}{code}: {kind}"


def error_line(error: BaseException) -> str:
    """``net.py:12 (`if x.sum() > 0:`)``: the last line of the user's, or of a package that uses torch; empty where the
    error passed none. Files of packages are named from the package on."""
    frames = frames_of(error, Origin.PACKAGE)
    if not frames:
        return ""
    last = frames[-1]
    name = re.split(r"[/\\](?:site|dist)-packages[/\\]", last.filename)[-1]
    return f"{name}:{last.lineno}" + (f" (`{last.line}`)" if last.line else "")


def user_traceback(error: BaseException) -> str:
    """The traceback of ``error`` with the user's frames only, and its message.

    Without a frame of the user's: those of installed packages; without these the innermost frame.
    """
    everything = traceback.extract_tb(error.__traceback__)
    frames = frames_of(error, Origin.USER) or frames_of(error, Origin.PACKAGE) or list(everything[-1:])
    return "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)]).rstrip()


def frames_of(error: BaseException, widest: Origin = Origin.PACKAGE) -> list[traceback.FrameSummary]:
    """The frames that an error passed, outermost first, whose code is ``widest`` or closer to the user."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if origin(frame.filename) <= widest]
