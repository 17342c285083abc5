"""Finds the files to check from the paths that the user names.

A named path is always checked. A named folder is walked: Python files and notebooks, without what git ignores, without
``exclude``, and without folders that hold no code of the project. Stubs (.pyi) have no code that runs and are left out.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from togi.lint.finding import Note, Problem
from togi.lint.notebooks import SUFFIX
from togi.lint.patterns import GitIgnore, Patterns, git_ignore_above, patterns, slashes
from togi.lint.settings import CheckSettings, Overrides, SettingsFinder

SUFFIXES = (".py", SUFFIX)
MODEL = re.compile(r".*\.(?:togi|pt2|ts|pt|pth)(?:\?.*)?", re.DOTALL)
"""A file that holds a model. Loading one may run it, so togi loads it only where the user names it as a subject."""
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

    @property
    def judged(self) -> str:
        """By what rules judge the kind of file: its path in its project, wherever the user stands. Where no project is
        to be seen, its own folder stands for one."""
        return slashes(str(self.path.relative_to(self.settings.project or self.path.parent.parent)))


@dataclass
class Discovery:
    """``files`` without repeats, in the order in which they were met."""

    files: list[CheckedFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def discover(paths: Sequence[Path], overrides: Overrides) -> Discovery:
    """The files to check. Raises SettingsError for a pyproject.toml that cannot be used."""
    return _FolderWalk(overrides).run(paths)


def is_excluded(path: Path, overrides: Overrides) -> bool:
    """Whether ``exclude`` of the settings leaves out an absolute path, or a folder above it, that nobody named. Raises
    SettingsError as ``discover`` does."""
    settings = SettingsFinder(overrides).of(path.parent)
    written = ((settings.folder, settings.exclude), (Path.cwd(), overrides.exclude))
    return any(
        each.ignores(str(folder), folder != path)
        for where, lines in written
        if lines and path.is_relative_to(where)
        for each in [patterns(where, lines)]
        for folder in (path, *path.parents)
        if folder != where and folder.is_relative_to(where)
    )


class _FolderWalk:
    def __init__(self, overrides: Overrides) -> None:
        self._found = Discovery()
        self._settings = SettingsFinder(overrides)
        self._exclude = overrides.exclude
        self._here = Path.cwd()
        self._folders: set[tuple[int, int]] = set()
        self._files: set[str] = set()

    def run(self, paths: Sequence[Path]) -> Discovery:
        for path in paths:
            absolute = os.path.abspath(path)
            try:
                status = os.stat(absolute)
            except (OSError, ValueError) as error:
                self._problem(absolute, f"cannot be read: {_reason(error)}")
                continue
            if MODEL.fullmatch(absolute):
                self._problem(absolute, "is a model, which is loaded only where it is named alone, or with --subject")
            elif stat.S_ISDIR(status.st_mode):
                self._folder(absolute)
            elif stat.S_ISREG(status.st_mode):
                self._file(absolute, os.path.islink(absolute), self._settings.of(Path(absolute).parent))
            else:
                self._problem(absolute, "is neither a file nor a folder: name Python files, notebooks or folders")
        return self._found

    def _folder(self, top: str) -> None:
        """Depth first, without recursion: a tree may be deeper than Python's stack. What a link leads to counts as a
        part of the tree only where it lies in it, or in its repository: else ``--fix`` would write anywhere."""
        inside_of = _tree(top)
        waiting: list[tuple[str, GitIgnore]] = [(top, git_ignore_above(Path(top)))]
        while waiting:
            folder, outer = waiting.pop()
            if not self._first_visit(folder):
                continue
            ignored = outer.below(folder, self._problem)
            settings = self._settings.of(Path(folder))
            excluded = self._excluded(settings, top)
            inside: list[tuple[str, GitIgnore]] = []
            for entry in self._entries(folder):
                is_folder = _is_folder(entry)
                is_code = entry.name not in LEFT_OUT if is_folder else entry.name.endswith(SUFFIXES)
                if not is_code or ignored.ignores(entry.path, is_folder):
                    continue
                if any(exclusion.ignores(entry.path, is_folder) for exclusion in excluded):
                    continue
                if entry.is_symlink() and not _lies_in(entry.path, inside_of):
                    self._note(entry.path, "leads out of the folder that was named, so it was left out: name it")
                    continue
                if is_folder:
                    inside.append((entry.path, ignored))
                elif _is_regular(entry):
                    self._file(entry.path, entry.is_symlink(), settings)
            waiting += reversed(inside)

    def _excluded(self, settings: CheckSettings, top: str) -> list[Patterns]:
        """``exclude`` of the project and of the call, without what speaks of the folder that was named."""
        excludes = ((settings.folder, settings.exclude), (self._here, self._exclude))
        return [patterns(folder, lines).without_those_for(top) for folder, lines in excludes if lines]

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                yield from sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self._problem(folder, f"cannot be listed: {_reason(error)}. Its files were not checked")

    def _first_visit(self, folder: str) -> bool:
        """False for a folder that was walked already: a symlink loop ends here."""
        try:
            status = os.stat(folder)
        except OSError as error:
            self._problem(folder, f"cannot be read: {_reason(error)}")
            return False
        identity = (status.st_dev, status.st_ino)
        if identity in self._folders:
            return False
        self._folders.add(identity)
        return True

    def _file(self, path: str, is_link: bool, settings: CheckSettings) -> None:
        """A symbolic link to a file that is checked anyway adds nothing."""
        real = os.path.realpath(path) if is_link else path
        if real not in self._files:
            self._files.add(real)
            self._found.files.append(CheckedFile(Path(path), self._shown(path), settings))

    def _problem(self, path: str, message: str) -> None:
        self._found.problems.append(Problem(path=self._shown(path), message=message))

    def _note(self, path: str, message: str) -> None:
        self._found.notes.append(Note(path=self._shown(path), message=message))

    def _shown(self, path: str) -> str:
        """Relative to the working folder where it lies below it, with forward slashes."""
        here = os.path.join(self._here, "")
        return slashes(path.removeprefix(here)) or "."


def _tree(top: str) -> str:
    """The real path of the repository that holds ``top``, else of ``top``."""
    real = Path(os.path.realpath(top))
    return str(next((folder for folder in (real, *real.parents) if (folder / ".git").exists()), real))


def leads_out(path: Path) -> bool:
    """Whether a link on the way to a file leads out of the repository, or folder, in which this process works."""
    real = os.path.realpath(path)
    return real != os.path.abspath(path) and not _lies_in(real, _tree(os.curdir))


def _lies_in(path: str, tree: str) -> bool:
    """Whether ``path`` leads to something in ``tree``, and not to what git keeps there for itself."""
    real = os.path.realpath(path)
    below = real.removeprefix(os.path.join(tree, ""))
    return real == tree or (below != real and ".git" not in below.split(os.sep))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_regular(entry: os.DirEntry[str]) -> bool:
    """A pipe or a dangling link named x.py is nothing to read."""
    try:
        return stat.S_ISREG(entry.stat().st_mode)
    except OSError:
        return False


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
