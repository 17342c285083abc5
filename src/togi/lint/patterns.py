"""Patterns as people write them in .gitignore, ``exclude`` and ``per-file-ignores``.

As in git, later lines and deeper files win, ``!`` takes a file back, and a trailing ``/`` means folders. Not read:
.git/info/exclude and the user's global file.
"""

from __future__ import annotations

import codecs
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from togi.core.plain_files import read_plain
from togi.lint.globs import Glob, glob

LARGEST_BYTES, MOST_PATTERNS = 1_000_000, 5_000
"""Of a .gitignore: longer ones were generated, and each pattern is compared with each file."""


@dataclass(frozen=True)
class Patterns:
    """The lines that were written in one folder."""

    folder: str
    """Absolute, with forward slashes and one at the end."""
    lines: tuple[Glob, ...]

    def ignores(self, path: str, is_folder: bool) -> bool | None:
        """Whether the absolute ``path`` is left out: the last line that matches decides. None when no line does."""
        relative = self._relative(path)
        for line in reversed(self.lines):
            if line.matches(relative, is_folder):
                return line.includes
        return None

    def without_those_for(self, path: str) -> Patterns:
        """Drops the lines that match the folder ``path`` or one above it: the user named it, so it is checked."""
        if not slashes(path).startswith(self.folder):
            return self  # the folder of the lines itself, or one above it: what it is called says nothing
        folders = self.way_to(path)
        elsewhere = (line for line in self.lines if not any(line.matches(folder, True) for folder in folders))
        return Patterns(self.folder, tuple(elsewhere))

    def way_to(self, path: str) -> list[str]:
        """``path`` and the folders above it, the outermost first, relative to the folder of the lines."""
        names = self._relative(path).split("/")
        return ["/".join(names[:count]) for count in range(1, len(names) + 1)]

    def _relative(self, path: str) -> str:
        return slashes(path).removeprefix(self.folder).lstrip("/")


@dataclass(frozen=True)
class GitIgnore:
    """The .gitignore files that apply in one folder: its own, and those of the folders above up to the repository."""

    files: tuple[Patterns, ...] = ()
    """The outermost first."""

    def below(self, folder: str, tell: Callable[[str, str], None] = lambda _path, _why: None) -> GitIgnore:
        """Adds the .gitignore of ``folder``, which lies directly below. ``tell`` hears of one that cannot be
        used."""
        file = os.path.join(folder, ".gitignore")
        try:
            lines = _read(file)
        except OSError as error:
            if os.path.lexists(file):
                tell(file, f"is left out, so files that it names are checked: {error.strerror or error}")
            return self
        return GitIgnore((*self.files, Patterns(_as_folder(folder), lines))) if lines else self

    def ignores(self, path: str, is_folder: bool) -> bool:
        """``path`` is absolute, and the folder it lies in is not ignored itself."""
        for file in reversed(self.files):
            answer = file.ignores(path, is_folder)
            if answer is not None:
                return answer
        return False


def git_ignore_above(folder: Path) -> GitIgnore:
    """Reads the folders above the named ``folder``, from the root of its repository down; outside of one, nothing.

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
    ignored = GitIgnore()
    for parent in reversed(above):
        ignored = ignored.below(str(parent))
    return GitIgnore(tuple(file.without_those_for(str(folder)) for file in ignored.files))


@functools.lru_cache(maxsize=1000)
def patterns(folder: Path, lines: tuple[str, ...]) -> Patterns:
    """``exclude``, written in ``folder``. Raises ValueError for what is not a pattern."""
    return Patterns(_as_folder(str(folder)), tuple(_parsed(lines)))


def matches(path: Path, folder: Path, pattern: str) -> bool:
    """Whether the file ``path``, or a folder above it up to ``folder``, matches ``pattern`` written in ``folder``."""
    written = patterns(folder, (pattern,))
    *folders, file = written.way_to(str(path))
    return any(
        line.includes and (line.matches(file, False) or any(line.matches(name, True) for name in folders))
        for line in written.lines
    )


def check_pattern(pattern: str) -> None:
    """Raises ValueError for what is not a pattern."""
    list(_parsed((pattern,)))


def slashes(path: str) -> str:
    """Writes a path with forward slashes, as patterns and people do."""
    return path.replace("\\", "/") if os.sep == "\\" else path


def _as_folder(path: str) -> str:
    return slashes(path).rstrip("/") + "/"


def _read(path: str) -> tuple[Glob, ...]:
    """Raises OSError."""
    data = read_plain(path, LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise OSError(f"it is larger than {LARGEST_BYTES:,} bytes")
    # As the names of files are read, so that bytes are compared with bytes, as in git.
    text = data.removeprefix(codecs.BOM_UTF8).decode(sys.getfilesystemencoding(), "surrogateescape")
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    globs = tuple(itertools.islice(_parsed(lines, strict=False), MOST_PATTERNS + 1))
    if len(globs) > MOST_PATTERNS:
        raise OSError(f"it holds more than {MOST_PATTERNS:,} patterns")
    return globs


def _parsed(lines: Iterable[str], *, strict: bool = True) -> Iterator[Glob]:
    """Blank lines and comments left out; git skips what is not a pattern, so a .gitignore is not read strictly."""
    for line in lines:
        try:
            pattern = glob(line)
        except ValueError:
            if strict:
                raise
            continue
        if pattern is not None:
            yield pattern
