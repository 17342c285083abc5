"""TensorRT's engines and timings, kept from process to process: building them takes minutes, reading them a second.

ONNX Runtime names an engine's file by the structure of the model, not by its weights or sizes (onnxruntime issues 6455
and 32254), so that two models of one structure would share one. Here each model has a folder of its own, by all of its
bytes. What is built goes into a folder of this process first, since a trial may be killed while a file is written.

Source: https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html#configurations
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from togi.core.caches import cache_folder, private
from togi.core.plain_files import sha256_of

_MOST_BYTES = 4 << 30
_LONGEST_S = 86_400.0
"""No engine takes a day to build."""
_TIMINGS = "timings"
"""Of kernels, for any model: they hold no weights."""


@contextmanager
def kept_engines(model: Path, built_as: str, home: Path | None = None) -> Iterator[dict[str, str]]:
    """Options of the provider under which it finds what was built of this model before. What it builds within is kept,
    unless the block raises, which also drops what was kept of this model: an engine may be what cannot be read. Nothing
    is kept where the cache folder cannot be written, or is not this user's alone.

    Args:
        model: the ONNX file; weights in files next to it count too.
        built_as: what an engine depends on besides: versions, the device, the provider's other options.
        home: what is kept for all; None: togi's own cache folder.
    """
    cache = (home or cache_folder()) / "tensorrt"
    engines, timings = cache / _key(model, built_as), cache / _TIMINGS
    with ExitStack() as stack:
        try:
            own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".building-", dir=private(cache))))
            for folder in (engines, timings):
                shutil.copytree(private(folder), own / folder.name)
        except OSError:
            own = None
        if own is None:
            yield {}
            return
        try:
            yield {
                "trt_engine_cache_enable": "1",
                "trt_engine_cache_path": str(own / engines.name),
                "trt_timing_cache_enable": "1",
                "trt_timing_cache_path": str(own / timings.name),
            }
        except Exception:  # foreign code: TensorRT, which says in many ways that it cannot read an engine
            shutil.rmtree(engines, ignore_errors=True)
            raise
        with contextlib.suppress(OSError):
            for folder in (engines, timings):
                _publish(own / folder.name, folder)
            _trim(cache, engines)


def built_here(options: dict[str, str]) -> str:
    """Name what an engine depends on besides the model, as far as ONNX Runtime's names of files do not say it."""
    installed = (
        (distribution.metadata["Name"], distribution.version) for distribution in importlib.metadata.distributions()
    )
    versions = sorted({(name, version) for name, version in installed if name.startswith(("onnxruntime", "tensorrt"))})
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return repr((device, versions, sorted(options.items())))


def _key(model: Path, built_as: str) -> str:
    digest = hashlib.sha256(built_as.encode())
    for file in sorted(path for path in model.parent.iterdir() if path.name.startswith(model.name)):
        digest.update(sha256_of(file).encode())
    return digest.hexdigest()[:32]


def _publish(built: Path, kept: Path) -> None:
    """A file is there as a whole or not at all; of two processes that build the same, the later one stays."""
    for file in built.iterdir():
        os.replace(file, kept / file.name)


def _trim(kept: Path, newest: Path) -> None:
    """The models that were built or read longest ago go, and what killed processes left."""
    os.utime(newest)
    for abandoned in kept.glob(".building-*"):
        if abandoned.stat().st_mtime < time.time() - _LONGEST_S:
            shutil.rmtree(abandoned, ignore_errors=True)
    models = [path for path in kept.iterdir() if path.name != _TIMINGS and not path.name.startswith(".")]
    total = 0
    for folder in sorted(models, key=lambda path: -path.stat().st_mtime):
        total += sum(file.stat().st_size for file in folder.iterdir())
        if total > _MOST_BYTES and folder != newest:
            shutil.rmtree(folder, ignore_errors=True)
