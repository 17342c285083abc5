"""Compiled kernels: shared libraries of C++, compiled once per machine, compiler and source, then loaded from a cache.

The cache is a folder of the user's own (``kernels`` in ``togi.core.caches.cache_folder``). A file
there is named after everything that decides what is in it: source, flags, compiler and processor. It is compiled
under another name and moved into place, so that nobody ever loads half a library; processes that come at the same
time wait for the first.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from togi.core.caches import cache_folder, private, processor
from togi.core.locks import locked

COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-pthread",
    "-fno-math-errno",
    "-fno-trapping-math",
)
"""Of all libraries."""
_TIMEOUT_S = 180


class KernelUnavailableError(Exception):
    """There is no compiled kernel here; the message says why. Callers fall back to torch and keep the reason."""


class KernelLibrary:
    """A library that is compiled of one file, loaded by the first thread that needs it, or why it cannot be.

    Args:
        flags: of this file besides ``FLAGS``.
    """

    def __init__(self, source: Path, flags: Sequence[str] = ()) -> None:
        self.source = source
        self.flags = tuple(flags)
        self._lock = threading.Lock()
        self._loaded: ctypes.CDLL | None = None
        self._reason: str | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._new_lock)

    def get(self) -> ctypes.CDLL:
        """Raises KernelUnavailableError: no compiler, a compiler that fails, or a library that cannot be loaded."""
        with self._lock:
            if self._loaded is None and self._reason is None:
                try:
                    self._loaded = self.load()
                except KernelUnavailableError as error:
                    self._reason = str(error)
        if self._loaded is None:
            raise KernelUnavailableError(self._reason)
        return self._loaded

    def why_not(self) -> str | None:
        """The reason why it is not there; None where it is. Compiles on the first call."""
        try:
            self.get()
        except KernelUnavailableError as error:
            return str(error)
        return None

    def load(self) -> ctypes.CDLL:
        """Load it from the cache where it is there (milliseconds), else compile it now (seconds). Raises as ``get``."""
        compiler = find_compiler()
        name = f"{self.source.stem}-{self.key(compiler)}.so"
        try:
            return self._cached(private(cache_folder() / "kernels") / name, compiler)
        except OSError:  # not ours to write or not to be loaded from (read-only, noexec): for this process only
            folder = Path(tempfile.mkdtemp(prefix="togi-kernel-"))
            try:
                return self._cached(folder / name, compiler)
            except OSError as error:
                raise KernelUnavailableError(f"the compiled kernel cannot be stored or loaded: {error}") from error
            finally:
                shutil.rmtree(folder, ignore_errors=True)  # a loaded library lives on without its file

    def key(self, compiler: str) -> str:
        """The key: a hash of everything that decides what is in the file."""
        binary = Path(compiler).resolve()
        status = binary.stat()
        parts = [
            self.source.read_text(encoding="utf-8"),
            *FLAGS,
            *self.flags,
            str(binary),
            str(status.st_size),
            str(status.st_mtime_ns),
            processor(),
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]

    def _cached(self, path: Path, compiler: str) -> ctypes.CDLL:
        if not path.exists():
            try:  # where files cannot be locked, all compile: as right, only slower
                with locked(path.with_suffix(".lock")):
                    if not path.exists():  # not made by another process while this one waited
                        self._compile(path, compiler)
            except TimeoutError:  # that one is stopped
                self._compile(path, compiler)
        return ctypes.CDLL(str(path))

    def _compile(self, path: Path, compiler: str) -> None:
        handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
        os.close(handle)
        try:
            command = [compiler, *FLAGS, *self.flags, "-o", unfinished, str(self.source)]
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
            os.chmod(unfinished, 0o700)
            os.replace(unfinished, path)
        except subprocess.TimeoutExpired as error:
            raise KernelUnavailableError(f"{compiler} took longer than {_TIMEOUT_S} s") from error
        finally:
            Path(unfinished).unlink(missing_ok=True)

    def _new_lock(self) -> None:
        """Make the lock anew in a forked child: another thread of the parent may have held it, and does not exist
        here."""
        self._lock = threading.Lock()


def find_compiler() -> str:
    """The path of the C++ compiler: ``$CXX`` where set, else the first of ``COMPILERS``."""
    if sys.platform == "win32":
        raise KernelUnavailableError("the native kernel is built with GCC or Clang, which Windows does not bring")
    wanted = os.environ.get("CXX")
    compiler = next(filter(None, map(shutil.which, [wanted] if wanted else COMPILERS)), None)
    if compiler is None:
        looked_for = f"$CXX={wanted}" if wanted else ", ".join(COMPILERS)
        raise KernelUnavailableError(f"no C++ compiler found (looked for {looked_for}); install g++ to have it")
    return compiler
