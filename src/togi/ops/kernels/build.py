"""The native kernels as shared libraries: compiled once per machine, compiler and source, then loaded from a cache.

The cache is a folder of the user's own (``$XDG_CACHE_HOME/togi/kernels``, else ``~/.cache/togi/kernels``). A file
there is named after everything that decides what is in it: source, flags, compiler and processor. It is compiled
under another name and moved into place, so that nobody ever loads half a library; processes that come at the same
time wait for the first.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import final

SOURCE = Path(__file__).with_name("boxes.cpp")
NMS_SOURCE = Path(__file__).with_name("nms.cpp")
COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-pthread",
    "-ffp-contract=off",  # a fused multiply-add rounds once: other bits than the eager formula
    "-fno-math-errno",
    "-fno-trapping-math",
)
_TIMEOUT_S = 180


@final
class KernelUnavailableError(Exception):
    """There is no native kernel here; the message says why. Callers fall back to torch and keep the reason."""


def load_library(source: Path | None = None) -> ctypes.CDLL:
    """The compiled ``source`` (``SOURCE`` by default): from the cache where it is there (milliseconds), else compiled
    now (seconds).

    Raises:
        KernelUnavailableError: no compiler, a compiler that fails, or a library that cannot be loaded.
    """
    source = source or SOURCE
    compiler = find_compiler()
    name = f"{source.stem}-{_key(compiler, source)}.so"
    try:
        return _cached(_private(_cache_folder()) / name, compiler, source)
    except OSError:  # not ours to write or not to be loaded from (read-only, noexec): for this process only
        folder = Path(tempfile.mkdtemp(prefix="togi-kernel-"))
        try:
            return _cached(folder / name, compiler, source)
        except OSError as error:
            raise KernelUnavailableError(f"the compiled kernel cannot be stored or loaded: {error}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # a loaded library lives on without its file


def find_compiler() -> str:
    """The path of the C++ compiler: ``$CXX`` where set, else the first of ``COMPILERS``."""
    if sys.platform == "win32":
        raise KernelUnavailableError("the native kernel is built with GCC or Clang, which Windows does not bring")
    wanted = os.environ.get("CXX")
    found = next(filter(None, map(shutil.which, [wanted] if wanted else COMPILERS)), None)
    if found is None:
        looked_for = f"$CXX={wanted}" if wanted else ", ".join(COMPILERS)
        raise KernelUnavailableError(f"no C++ compiler found (looked for {looked_for}); install g++ to have it")
    return found


def _cached(path: Path, compiler: str, source: Path) -> ctypes.CDLL:
    if not path.exists():
        with _turn(path.with_suffix(".lock")):
            if not path.exists():  # not made by another process while this one waited
                _compile(path, compiler, source)
    return ctypes.CDLL(str(path))


def _compile(path: Path, compiler: str, source: Path) -> None:
    handle, made = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    os.close(handle)
    try:
        command = [compiler, *FLAGS, "-o", made, str(source)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            lines = (
                [line for line in done.stderr.splitlines() if "error" in line]
                or done.stderr.splitlines()
                or ["nothing said"]
            )
            raise KernelUnavailableError(f"{compiler} exited with {done.returncode}: {lines[0]}")
        os.chmod(made, 0o700)
        os.replace(made, path)
    except subprocess.TimeoutExpired as error:
        raise KernelUnavailableError(f"{compiler} took longer than {_TIMEOUT_S} s") from error
    finally:
        Path(made).unlink(missing_ok=True)


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """One process compiles, the others wait. Where files cannot be locked, all compile: as right, only slower."""
    import fcntl

    with path.open("w") as lock:
        with suppress(OSError):  # some network file systems
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "togi" / "kernels"


def _private(folder: Path) -> Path:
    """``folder``, made if need be. Code is loaded from it, so nobody else may be able to write there."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{folder} can be written by others")
    return folder


def _key(compiler: str, source: Path | None = None) -> str:
    binary = Path(compiler).resolve()
    status = binary.stat()
    parts = [
        (source or SOURCE).read_text(),
        *FLAGS,
        str(binary),
        str(status.st_size),
        str(status.st_mtime_ns),
        _processor(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _processor() -> str:
    """What ``-march=native`` looks at: a home folder may be shared by machines with different processors."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
    return "\n".join(line for line in lines if line.split("\t")[0].split(":")[0].strip() in told)
