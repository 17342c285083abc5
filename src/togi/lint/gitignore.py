"""Which files git leaves out, read from .gitignore files without running git.

Rules as in gitignore(5): later lines and deeper files win, ``!`` takes a file back, a trailing ``/`` means folders. Not
read: .git/info/exclude and the user's global file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from togi.lint.patterns import compiled


@dataclass(frozen=True)
class _Line:
    pattern: re.Pattern[str]
    keeps: bool
    folders_only: bool


@dataclass(frozen=True)
class GitIgnore:
    """The .gitignore files that speak for one folder: its own, and those of the folders above up to the repository."""

    files: tuple[tuple[str, tuple[_Line, ...]], ...] = ()
    """Folder (absolute, with forward slashes and one at the end) and lines, outermost first."""

    def below(self, folder: Path) -> GitIgnore:
        """With the .gitignore of ``folder`` itself, which lies directly below."""
        lines = _read(folder / ".gitignore")
        return GitIgnore((*self.files, (_slashed(folder), lines))) if lines else self

    def ignores(self, path: str, is_folder: bool) -> bool:
        """``path`` is absolute, and the folder it lies in is not ignored itself."""
        if not self.files:
            return False
        path = path.replace("\\", "/")
        for folder, lines in reversed(self.files):
            relative = path.removeprefix(folder)
            for line in reversed(lines):
                if (is_folder or not line.folders_only) and line.pattern.fullmatch(relative):
                    return not line.keeps
        return False


def git_ignore_above(folder: Path) -> GitIgnore:
    """What the folders above ``folder`` say, from the root of its repository down. Nothing outside of a repository."""
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
        found = found.below(parent)
    return found


def _read(path: Path) -> tuple[_Line, ...]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(line for raw in text.splitlines() if (line := _line(raw)) is not None)


def _line(raw: str) -> _Line | None:
    text = re.sub(r"(?<!\\)\s+$", "", raw)
    if not text or text.startswith("#"):
        return None
    keeps = text.startswith("!")
    pattern = text[1:] if keeps else text
    if not pattern.strip("/"):
        return None
    try:
        return _Line(compiled(pattern), keeps, pattern.endswith("/"))
    except re.error:
        return None


def _slashed(folder: Path) -> str:
    return folder.as_posix().rstrip("/") + "/"
