"""The technique ``flush_denormal``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from togi.core.errors import Refused
from togi.core.records import Facts, Stage
from togi.techniques.base import Applies, Options, Refuses, Technique

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate

_DENORMAL = 5e-324


class FlushDenormal(Technique):
    """Treat denormal numbers as zero during a call.

    What it does: sets the processor's flush-to-zero mode round each call, in the calling thread and in PyTorch's worker
    threads. Numbers below about 1e-38 (float32) are calculated in microcode on many processors, a hundred cycles each.
    The threads of ONNX Runtime and OpenVINO flush by a setting of their own, as long as they live: the session's
    ``session.set_denormal_as_zero``, and ``CPU_DENORMALS_OPTIMIZATION`` of the compiled model. A saved artifact holds
    it.

    When it applies: on a CPU, to floating-point models.

    When it refuses: a pass over the first sample shows no denormal number in weights, inputs or intermediates (so
    there is nothing to flush), or the processor has no such mode.

    Claim: recurrent networks and filters that decay towards zero, and pruned or strongly regularised weights, run as
    fast as others do. ``togi explain flush_denormal --prove`` measures it here.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.set_flush_denormal.html,
    https://github.com/microsoft/onnxruntime/blob/main/include/onnxruntime/core/session/onnxruntime_session_options_config_keys.h
    and https://docs.openvino.ai/2025/api/c_cpp_api/group__ov__runtime__cpu__prop__cpp__api.html

    Cost and risk: results below the smallest normal number become zero. With several threads each call sets the
    mode in PyTorch's workers and takes it back, so that no other model of the process flushes: two parallel regions
    more. The threads of ncnn are left as they are.
    """

    id = "flush_denormal"
    stage = Stage.RUNTIME
    devices = frozenset({"cpu"})

    def applies(self, facts: Facts) -> Applies | Refuses:
        floating = any("float" in dtype for dtype in facts.parameter_dtypes)
        if facts.parameter_dtypes and not floating:
            return Refuses("it has no floating-point parameters")
        if facts.denormals is False:
            return Refuses("a pass over the first sample meets no denormal number, so there is nothing to flush")
        return Applies()

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return 1.1 if facts.denormals else 1.0

    def configure(self, candidate: Candidate, options: Options) -> Candidate:
        return candidate.with_(flushes_denormals=True)

    def repro_setting(self, options: Options) -> str:
        return "torch.set_flush_denormal(True)"

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        if not _can_flush():
            raise Refused("this processor or build of PyTorch cannot flush denormals")
        own_threads = candidate.program is not None and not candidate.program.allocates_with_torch
        threads = 1 if own_threads else candidate.threads
        return candidate.with_(contexts=(*candidate.contexts, lambda: flushing(threads)))


@contextmanager
def flushing(threads: int | None = None) -> Iterator[None]:
    """Flush-to-zero for the calling thread and its workers of PyTorch's, for the block; then these have its mode again.

    Args:
        threads: that operators inside use. None: as many as they would now.
    """
    import torch

    before = _flushes()
    threads = torch.get_num_threads() if threads is None else threads
    torch.set_flush_denormal(True)
    try:
        _share_mode(threads)
        yield
    finally:
        torch.set_flush_denormal(before)
        _share_mode(threads)


@contextmanager
def kept_mode() -> Iterator[None]:
    """Afterwards the calling thread flushes as it did before: libraries set it in the thread that loads a model."""
    import torch

    before = _flushes()
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _share_mode(threads: int) -> None:
    from togi.torch_internals.openmp import share_floating_point_mode

    if threads > 1:
        share_floating_point_mode(threads)


def _flushes() -> bool:
    """Whether the calling thread does. There is no getter; this multiplication is done by the same thread."""
    return _DENORMAL * 1.0 == 0.0


def _can_flush() -> bool:
    """By the calling thread alone, as it starts no worker: a process that loads an artifact may still fork."""
    with flushing(threads=1):
        return _flushes()
