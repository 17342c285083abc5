"""A cache of what Inductor compiled, from run to run: its probes of the processor alone take 5 to 9 s in an empty
folder, and each header of torch that it compiles beforehand takes as long again.

Torch's own folders for both are shared with whatever else the user runs, and a trial may be killed at any moment, also
while a linker writes a library that would then fail to load for good. So the processes of a run have folders of their
own, which begin as a copy of what is kept, and what a trial left there is kept once the trial was built and verified.
Without torch: Inductor's names of files are taken as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from togi.core.caches import cache_folder, private, processor
from togi.torch_internals.compiled_headers import compiled_headers_folder

_LARGEST_FILE_BYTES = 16 << 20
"""No kernel has as much, and what is kept is copied for each run."""
_MOST_BYTES = 64 << 20
_MOST_HEADER_BYTES = 1 << 30
"""torch.compile has one header and AOTInductor two, of 150 MiB each: those of two versions of torch."""
_MOST_COPIED_BYTES = 512 << 20
"""Of headers, where the run is on another disk (or in memory): a few versions of flags."""
_COPIED_WITHIN_S = 3600.0
"""A file: what takes longer was left by a run that was killed."""


def inductor_folder(run: Path) -> Path:
    """The folder in which the processes of a run compile. ``run``: the run's own."""
    return run / "inductor"


def temporary_folder(run: Path) -> Path:
    """What the processes of a run have for temporary files. ``run``: the run's own."""
    return run / "tmp"


class InductorCache:
    """The cache as one run uses it. ``run``: its folder. A run that compiles nothing copies nothing."""

    def __init__(self, run: Path) -> None:
        self.folder = inductor_folder(run)
        self._headers = CompiledHeaders(run)
        self._kept: Path | None = None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Begin with what is kept, and keep what is compiled within, unless it raises. What another trial was writing
        when it ended is left out. Headers are kept in any case."""
        if self._kept is None:
            self._kept = _of_this_machine("inductor")
            with contextlib.suppress(OSError):  # nowhere to keep anything: compiled anew
                shutil.copytree(private(self._kept), self.folder, dirs_exist_ok=True)
            self._headers.hand_over()
        before = self._files()
        try:
            yield
        finally:
            self._headers.keep()
        with contextlib.suppress(OSError):
            for file in self._files() - before:
                _copy(self.folder / file, private(self._kept) / file)
            _trim(_oldest_last(path for path in self._kept.rglob("*") if path.is_file()), _MOST_BYTES)

    def _files(self) -> set[Path]:
        paths = (path for path in self.folder.rglob("*") if path.is_file() and path.suffix != ".lock")
        return {path.relative_to(self.folder) for path in paths if path.stat().st_size <= _LARGEST_FILE_BYTES}


class CompiledHeaders:
    """The headers of torch that a run finds compiled. ``run``: its folder.

    A header follows from torch, the compiler and its flags, and from nothing of a model. Torch calls it by a hash of
    all that it includes and of the compiler's command. gcc passes over one that another compiler wrote. It also passes
    over one that was not written to its end, which the first bytes say; such a one is not kept.

    What is kept is never written again, since Inductor compiles only what is missing. So a run has it as a second name
    of the same file (a copy, if it is on another disk), and taking the name away leaves the file.

    Those of clang are left out: they hold the paths and times of their sources, and are good in their own place alone.
    """

    def __init__(self, run: Path) -> None:
        self.folder = compiled_headers_folder(temporary_folder(run))

    def hand_over(self) -> None:
        """The run begins with what is kept."""
        with contextlib.suppress(OSError):  # nowhere to keep anything: compiled anew
            kept = private(_headers_of_this_machine())
            os.utime(kept)  # when they were used last
            self.folder.mkdir(parents=True, exist_ok=True)
            to_copy_bytes = _MOST_COPIED_BYTES
            for header in _oldest_last(_whole_headers(kept)):
                if not _link(header, self.folder / header.name):
                    to_copy_bytes -= header.stat().st_size
                    if to_copy_bytes >= 0:
                        _copy(header, self.folder / header.name)

    def keep(self) -> None:
        """What the run has compiled until now."""
        with contextlib.suppress(OSError):
            kept = private(_headers_of_this_machine())
            new = [header for header in _whole_headers(self.folder) if not (kept / header.name).exists()]
            for header in new:
                _write_to_disk(header)
                if not _link(header, kept / header.name):
                    _copy(header, kept / header.name)
            if new:
                _trim_headers(kept)


def _headers_of_this_machine() -> Path:
    """A compiler that was replaced begins anew: Inductor would not make a header again that gcc passes over."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    status = os.stat(path) if path else None
    changed = f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}" if path and status else ""
    return _of_this_machine("headers", name, changed)


def _of_this_machine(kind: str, *also: str) -> Path:
    versions = (importlib.metadata.version("torch"), sys.version, processor(), *also)
    return cache_folder() / kind / hashlib.sha256("\0".join(versions).encode()).hexdigest()[:16]


def _whole_headers(folder: Path) -> list[Path]:
    """Those of gcc that were written to their end: it writes the first bytes last (gcc/c-family/c-pch.cc)."""
    return [path for path in folder.glob("[!.]*.gch") if not path.is_symlink() and _begins_with(path, b"gpch")]


def _trim_headers(kept: Path) -> None:
    """Of too many go those of other compilers, processors and versions of torch, first what was used longest ago."""
    _trim(_oldest_last(kept.iterdir()), _MOST_HEADER_BYTES)
    left_bytes = _MOST_HEADER_BYTES - _size_bytes(kept)
    for other in _oldest_last(kept.parent.glob("[0-9a-f]" * 16)):
        if other != kept and not other.is_symlink():
            left_bytes -= _size_bytes(other)
            if left_bytes < 0:
                shutil.rmtree(other, ignore_errors=True)


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _begins_with(file: Path, expected: bytes) -> bool:
    with contextlib.suppress(OSError), file.open("rb") as opened:
        return opened.read(len(expected)) == expected
    return False


def _write_to_disk(file: Path) -> None:
    """Before it has a name by which later runs know it: a machine that fails may keep the name and lose the content."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _link(file: Path, target: Path) -> bool:
    """Make ``target`` another name of the file, unless there is one; whether the two disks allow it."""
    try:
        os.link(file, target)
    except FileExistsError:
        pass
    except OSError:
        return False
    return True


def _copy(file: Path, target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = target.with_name(f".{uuid.uuid4().hex}-{target.name}")
    try:
        shutil.copy2(file, beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _oldest_last(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: -path.stat().st_mtime)


def _trim(files: Iterable[Path], most_bytes: int) -> None:
    """The last ones go, and what was copied half when a run was killed."""
    kept_bytes = 0
    for path in files:
        status = path.stat()
        kept_bytes += status.st_size
        half = path.name.startswith(".") and time.time() - status.st_ctime > _COPIED_WITHIN_S
        if kept_bytes > most_bytes or half:
            path.unlink(missing_ok=True)
