"""A cache of what Inductor compiled, from run to run: its probes of the processor alone take 5 to 9 s in an empty
folder.

Torch's own folder for it is shared with whatever else the user runs, and a trial may be killed at any moment, also
while a linker writes a library that would then fail to load for good. So the processes of a run have a folder of their
own, which begins as a copy of what is kept, and what a trial left there is kept once the trial was built and verified.
Without torch: Inductor's names of files are taken as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from togi.core.caches import cache_folder, private, processor

_LARGEST_FILE_BYTES = 16 << 20
"""No kernel has as much, and what is kept is copied for each run."""
_MOST_BYTES = 64 << 20


def inductor_folder(run: Path) -> Path:
    """The folder in which the processes of a run compile. ``run``: the run's own."""
    return run / "inductor"


class InductorCache:
    """The cache as one run uses it. ``run``: its folder. A run that compiles nothing copies nothing."""

    def __init__(self, run: Path) -> None:
        self.folder = inductor_folder(run)
        self._kept: Path | None = None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Begin with what is kept, and keep what is compiled within, unless it raises. What another trial was writing
        when it ended is left out."""
        if self._kept is None:
            self._kept = _of_this_machine()
            with contextlib.suppress(OSError):  # nowhere to keep anything: compiled anew
                shutil.copytree(private(self._kept), self.folder, dirs_exist_ok=True)
        before = self._files()
        yield
        with contextlib.suppress(OSError):
            for file in self._files() - before:
                _keep(self.folder / file, private(self._kept) / file)
            _trim(self._kept)

    def _files(self) -> set[Path]:
        paths = (path for path in self.folder.rglob("*") if path.is_file() and path.suffix != ".lock")
        return {path.relative_to(self.folder) for path in paths if path.stat().st_size <= _LARGEST_FILE_BYTES}


def _of_this_machine() -> Path:
    versions = (importlib.metadata.version("torch"), sys.version, processor())
    return cache_folder() / "inductor" / hashlib.sha256("\0".join(versions).encode()).hexdigest()[:16]


def _keep(file: Path, target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        shutil.copy2(file, beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _trim(folder: Path) -> None:
    """The oldest go."""
    files = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: -path.stat().st_mtime)
    kept_bytes = 0
    for path in files:
        kept_bytes += path.stat().st_size
        if kept_bytes > _MOST_BYTES:
            path.unlink(missing_ok=True)
