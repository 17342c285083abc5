"""From what the user names to the files that are checked.

A named file is always checked. A named folder is walked: Python files and notebooks, without what git ignores, without
``exclude``, and without folders that hold no code of the project. Stubs (.pyi) have no code that runs and are left out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from togi.lint.gitignore import GitIgnore, git_ignore_above
from togi.lint.patterns import matches
from togi.lint.result import Problem
from togi.lint.settings import CheckSettings, Overrides, SettingsFinder

SUFFIXES = (".py", ".ipynb")
LEFT_OUT = frozenset(
    [
        *(".bzr", ".direnv", ".eggs", ".git", ".hg", ".hypothesis", ".ipynb_checkpoints", ".mypy_cache", ".nox"),
        *(".pyenv", ".pytest_cache", ".pytype", ".ruff_cache", ".svn", ".tox", ".venv", ".vscode"),
        *("__pycache__", "__pypackages__", "_build", "buck-out", "build", "dist", "node_modules"),
        *("site-packages", "venv"),
    ]
)
"""Names of folders that are not walked into; name one on the command line to have it checked."""


@dataclass(frozen=True)
class CheckedFile:
    path: Path
    """Absolute."""
    shown: str
    """As the user would type it."""
    settings: CheckSettings


@dataclass
class Discovery:
    """``files`` without repeats, in the order in which they were met."""

    files: list[CheckedFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def discover(paths: Sequence[Path], given: Overrides) -> Discovery:
    """The files to check. Raises SettingsError for a pyproject.toml that cannot be used."""
    return _Walk(given).run(paths)


def shown(path: Path) -> str:
    """Relative to the working folder where it lies below it, with forward slashes."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


class _Walk:
    def __init__(self, given: Overrides) -> None:
        self._found = Discovery()
        self._settings = SettingsFinder(given)
        self._exclude = given.exclude
        self._here = Path.cwd()
        self._folders: set[tuple[int, int]] = set()
        self._files: set[str] = set()

    def run(self, paths: Sequence[Path]) -> Discovery:
        for path in paths:
            absolute = Path(os.path.abspath(path))
            try:
                status = absolute.stat()
            except (OSError, ValueError) as error:
                self._problem(absolute, f"cannot be read: {_reason(error)}")
                continue
            if stat.S_ISDIR(status.st_mode):
                self._folder(absolute, git_ignore_above(absolute))
            elif stat.S_ISREG(status.st_mode):
                self._file(absolute)
            else:
                self._problem(absolute, "is neither a file nor a folder: name Python files, notebooks or folders")
        return self._found

    def _folder(self, top: Path, above: GitIgnore) -> None:
        """Depth first, without recursion: a tree may be deeper than Python's stack."""
        waiting: list[tuple[Path, GitIgnore]] = [(top, above)]
        while waiting:
            folder, outer = waiting.pop()
            if not self._first_visit(folder):
                continue
            ignored = outer.below(folder)
            settings = self._settings.of(folder)
            inside: list[tuple[Path, GitIgnore]] = []
            for entry in self._entries(folder):
                path = folder / entry.name
                if _is_folder(entry):
                    if entry.name not in LEFT_OUT and not self._left_out(path, True, ignored, settings):
                        inside.append((path, ignored))
                elif entry.name.endswith(SUFFIXES) and not self._left_out(path, False, ignored, settings):
                    self._regular(entry, path)
            waiting += reversed(inside)

    def _entries(self, folder: Path) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                yield from sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self._problem(folder, f"cannot be listed: {_reason(error)}. Its files were not checked")

    def _first_visit(self, folder: Path) -> bool:
        """False for a folder that was walked already: a symlink loop ends here."""
        try:
            status = folder.stat()
        except OSError as error:
            self._problem(folder, f"cannot be read: {_reason(error)}")
            return False
        identity = (status.st_dev, status.st_ino)
        if identity in self._folders:
            return False
        self._folders.add(identity)
        return True

    def _left_out(self, path: Path, is_folder: bool, ignored: GitIgnore, settings: CheckSettings) -> bool:
        return (
            ignored.ignores(str(path), is_folder)
            or bool(settings.exclude and matches(path, settings.folder, settings.exclude))
            or bool(self._exclude and matches(path, self._here, self._exclude))
        )

    def _regular(self, entry: os.DirEntry[str], path: Path) -> None:
        """A pipe or a dangling link named x.py is nothing to read."""
        try:
            status = entry.stat()
        except OSError:
            return
        if stat.S_ISREG(status.st_mode):
            self._file(path)

    def _file(self, path: Path) -> None:
        """A symbolic link to a file that is checked anyway adds nothing."""
        real = os.path.realpath(path) if path.is_symlink() else str(path)
        if real not in self._files:
            self._files.add(real)
            self._found.files.append(CheckedFile(path, shown(path), self._settings.of(path.parent)))

    def _problem(self, path: Path, message: str) -> None:
        self._found.problems.append(Problem(path=shown(path), message=message))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
