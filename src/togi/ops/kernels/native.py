"""The operators on the CPU through the compiled kernel: strided inputs of any floating dtype are read in place.

Threads: at most ``torch.get_num_threads()``, started per call inside of the kernel and gone when it returns. The
interpreter is free meanwhile (ctypes releases its lock).

The kernels are shared libraries: compiled once per machine, compiler and source, then loaded from a cache.
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
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from togi.core.caches import cache_folder, private, processor
from togi.core.locks import locked
from togi.core.proven import Proven

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
        return _cached(private(cache_folder() / "kernels") / name, compiler, source)
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
        with locked(path.with_suffix(".lock")):  # where files cannot be locked, all compile: as right, only slower
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


def _key(compiler: str, source: Path | None = None) -> str:
    binary = Path(compiler).resolve()
    status = binary.stat()
    parts = [
        (source or SOURCE).read_text(encoding="utf-8"),
        *FLAGS,
        str(binary),
        str(status.st_size),
        str(status.st_mtime_ns),
        processor(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


PROVEN = Proven(part="C++ kernels of togi.ops", cpu="2026-11-21")


_DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
_FORMATS = {"xyxy": 0, "xywh": 1, "cxcywh": 2}
_KINDS = {"intersection": 0, "iou": 1, "giou": 2, "diou": 3, "ciou": 4}
_SAW_NEGATIVE, _NO_MEMORY = 1, 2
_MOST_ROWS = 2**31 - 1
"""Rows are counted in 32 bits next to the 32 bits of a float."""


class _View(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("column_stride", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("format", ctypes.c_int32),
    ]


@final
class _Loaded:
    """The library made of ``source``, loaded by the first thread that needs it, or why it cannot be."""

    def __init__(self, source: Path | None = None) -> None:
        self.source = source
        self.lock = threading.Lock()
        self.library: ctypes.CDLL | None = None
        self.reason: str | None = None

    def get(self) -> ctypes.CDLL:
        with self.lock:
            if self.library is None and self.reason is None:
                try:
                    self.library = load_library(self.source)
                except KernelUnavailableError as error:
                    self.reason = str(error)
        if self.library is None:
            raise KernelUnavailableError(self.reason)
        return self.library


_loaded = _Loaded()
_loaded_nms = _Loaded(NMS_SOURCE)


def _after_fork() -> None:  # another thread of the parent may have held the lock; it does not exist here
    _loaded.lock = threading.Lock()
    _loaded_nms.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def why_not() -> str | None:
    """None where the kernel is there, else the reason. Compiles on the first call."""
    try:
        _loaded.get()
    except KernelUnavailableError as error:
        return str(error)
    return None


def match(
    anchors: Tensor, boxes: Tensor, format: str, undefined: str, results: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
) -> bool:
    """Fills ``results`` = (best, index, column best, column index, tied); those of size 0 are not wanted.

    True where a box has a negative size, here and in the other two.
    """
    return _run("togi_match", anchors, boxes, format, _undefined(undefined), *map(_pointer, results))


def topk(anchors: Tensor, boxes: Tensor, format: str, undefined: str, values: Tensor, indices: Tensor) -> bool:
    """Fills ``values`` and ``indices``, both [N, k] with 1 <= k <= M."""
    k = ctypes.c_int64(values.shape[1])
    return _run("togi_topk", anchors, boxes, format, _undefined(undefined), k, _pointer(values), _pointer(indices))


def matrix(anchors: Tensor, boxes: Tensor, kind: str, format: str, undefined: str, out: Tensor) -> bool:
    """Fills ``out`` [N, M]."""
    kind_code = ctypes.c_int32(_KINDS[kind])
    return _run("togi_matrix", anchors, boxes, format, kind_code, _undefined(undefined), _pointer(out))


def nms(planes: Tensor, ends: Tensor, threshold: float, kept: Tensor) -> None:
    """Fills ``kept`` bool [N] for ``planes`` [5, N] (corners and area, contiguous); class c ends at ``ends[c]``."""
    status: int = _loaded_nms.get().togi_nms(
        _pointer(planes),
        ctypes.c_int64(planes.shape[1]),
        ctypes.c_int32(planes.dtype == torch.float64),
        _pointer(ends),
        ctypes.c_int64(len(ends)),
        ctypes.c_double(threshold),
        _pointer(kept),
        ctypes.c_int32(torch.get_num_threads()),
    )
    if status == _NO_MEMORY:
        raise MemoryError(f"togi_nms: no memory for {planes.shape[1]} boxes")


def _run(name: str, anchors: Tensor, boxes: Tensor, format: str, *rest: object) -> bool:
    if max(len(anchors), len(boxes)) > _MOST_ROWS:
        raise ValueError(f"{max(len(anchors), len(boxes))} boxes in one call; give at most {_MOST_ROWS}")
    views = [ctypes.byref(_view(t, format)) for t in (anchors, boxes)]
    status: int = getattr(_loaded.get(), name)(*views, *rest, ctypes.c_int32(torch.get_num_threads()))
    if status == _NO_MEMORY:
        raise MemoryError(f"{name}: no memory for {len(anchors)} x {len(boxes)} boxes")
    return status == _SAW_NEGATIVE


def _view(tensor: Tensor, format: str) -> _View:
    return _View(
        tensor.data_ptr(), len(tensor), tensor.stride(0), tensor.stride(1), _DTYPES[tensor.dtype], _FORMATS[format]
    )


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr() if tensor.numel() else None)


def _undefined(undefined: str) -> ctypes.c_int32:
    return ctypes.c_int32(undefined == "zero")
