"""Patterns as people write them in .gitignore, ``exclude`` and ``per-file-ignores`` (gitignore(5), read by pathspec).

As in git, later lines and deeper files win, ``!`` takes a file back, and a trailing ``/`` means folders. Not read:
.git/info/exclude and the user's global file. pathspec is imported when the first pattern is met.
"""

from __future__ import annotations

import codecs
import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec
    from pathspec.pattern import Pattern


@final
@dataclass(frozen=True)
class _Line:
    """One pattern. While a tree is walked, it must match an entry itself, not merely a folder above the entry: such a
    folder was walked into because a later line took it back."""

    pattern: Pattern
    any_folder: bool
    """It has no slash inside, or only those of a leading ``**/``, so it is compared with names."""
    folders_only: bool
    below: bool
    """It ends with ``/**``: it means everything below a folder, and not the folder."""

    def matches(self, path: str, is_folder: bool) -> bool:
        """``path`` is relative to the folder in which the line was written."""
        if self.folders_only and not is_folder:
            return False
        above, _, name = path.rpartition("/")
        end = "/" if self.folders_only else ""
        if self.any_folder:
            return self.pattern.match_file(name + end) is not None
        if self.below:
            return self.pattern.match_file(path) is not None
        if self.pattern.match_file(path + end) is None:
            return False
        return not above or self.pattern.match_file(f"{above}/") is None


@final
@dataclass(frozen=True)
class Patterns:
    """The lines that were written in one folder."""

    folder: str
    """Absolute, with forward slashes and one at the end."""
    lines: tuple[_Line, ...]

    def ignores(self, path: str, is_folder: bool) -> bool | None:
        """Whether the absolute ``path`` is left out: the last line that matches decides. None when no line does."""
        relative = self._relative(path)
        for line in reversed(self.lines):
            if line.matches(relative, is_folder):
                return line.pattern.include
        return None

    def without_those_for(self, path: str) -> Patterns:
        """Without the lines that match the folder ``path`` or one above it: the user named it, so it is checked."""
        if not slashes(path).startswith(self.folder):
            return self  # the folder of the lines itself, or one above it: what it is called says nothing
        parts = self._relative(path).split("/")
        folders = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        kept = (line for line in self.lines if not any(line.matches(folder, True) for folder in folders))
        return Patterns(self.folder, tuple(kept))

    def _relative(self, path: str) -> str:
        return slashes(path).removeprefix(self.folder).lstrip("/")


@final
@dataclass(frozen=True)
class GitIgnore:
    """The .gitignore files that apply in one folder: its own, and those of the folders above up to the repository."""

    files: tuple[Patterns, ...] = ()
    """The outermost first."""

    def below(self, folder: str) -> GitIgnore:
        """With the .gitignore of ``folder`` itself, which lies directly below."""
        lines = _read(os.path.join(folder, ".gitignore"))
        return GitIgnore((*self.files, Patterns(_as_folder(folder), lines))) if lines else self

    def ignores(self, path: str, is_folder: bool) -> bool:
        """``path`` is absolute, and the folder it lies in is not ignored itself."""
        for file in reversed(self.files):
            answer = file.ignores(path, is_folder)
            if answer is not None:
                return answer
        return False


def git_ignore_above(folder: Path) -> GitIgnore:
    """What the folders above the named ``folder`` say, from the root of its repository down; outside of one, nothing.

    What they say of ``folder`` itself does not count: it was named.
    """
    above: list[Path] = []
    for parent in (folder, *folder.parents):
        if parent != folder:
            above.append(parent)
        if (parent / ".git").exists():
            break
    else:
        return GitIgnore()
    found = GitIgnore()
    for parent in reversed(above):
        found = found.below(str(parent))
    return GitIgnore(tuple(file.without_those_for(str(folder)) for file in found.files))


@functools.lru_cache(maxsize=1000)
def patterns(folder: Path, lines: tuple[str, ...]) -> Patterns:
    """``exclude``, written in ``folder``. Raises ValueError for what is no pattern."""
    return Patterns(_as_folder(str(folder)), tuple(_parsed(lines)))


@functools.lru_cache(maxsize=1000)
def _spec(pattern: str) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines([pattern], backend="simple")


def matches(path: Path, folder: Path, pattern: str) -> bool:
    """Whether the file ``path``, or a folder above it up to ``folder``, matches ``pattern`` written in ``folder``."""
    text, top = slashes(str(path)), _as_folder(str(folder))
    return bool(_spec(pattern).match_file(text.removeprefix(top).lstrip("/")))


def check_pattern(pattern: str) -> None:
    """Raises ValueError for what is no pattern."""
    for line in _parsed((pattern,)):
        if line.pattern.include is None:
            raise ValueError("it matches nothing")


def slashes(path: str) -> str:
    """With forward slashes, as patterns and people write them."""
    return path.replace("\\", "/") if os.sep == "\\" else path


def _as_folder(path: str) -> str:
    return slashes(path).rstrip("/") + "/"


def _read(path: str) -> tuple[_Line, ...]:
    try:
        data = Path(path).read_bytes()
    except OSError:
        return ()
    # As the names of files are read, so that bytes are compared with bytes, as in git.
    text = data.removeprefix(codecs.BOM_UTF8).decode(sys.getfilesystemencoding(), "surrogateescape")
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return tuple(line for line in _parsed(lines, strict=False) if line.pattern.include is not None)


def _parsed(lines: Iterable[str], *, strict: bool = True) -> Iterator[_Line]:
    """Blank lines and comments left out; git skips what is no pattern, so a .gitignore is not read strictly."""
    for raw in lines:
        text = raw.rstrip(" ")
        if not text or text.startswith("#"):
            continue
        try:
            (pattern,) = _spec(raw).patterns
        except (ValueError, re.error) as error:  # pathspec does not see to all of its regular expressions
            if strict:
                raise ValueError(str(error)) from None
            continue
        yield _line(pattern, text.removeprefix("!"))


def _line(pattern: Pattern, text: str) -> _Line:
    rest = text.removeprefix("/")
    anchored = rest != text
    while rest.startswith("**/"):
        rest, anchored = rest[3:], False
    any_folder = not anchored and "/" not in rest.rstrip("/")
    return _Line(pattern, any_folder, text.endswith("/"), not any_folder and text.endswith(("/**", "/**/")))
