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

    What it does: sets the processor's flush-to-zero mode round each call. Numbers below about 1e-38 (float32) are
    calculated in microcode on many processors, a hundred cycles each.

    When it applies: on a CPU, to floating-point models.

    When it refuses: a pass over the first sample shows no denormal number in weights, inputs or intermediates (so
    there is nothing to flush), or the processor has no such mode.

    Claim: recurrent networks and filters that decay towards zero, and pruned or strongly regularised weights, run as
    fast as others do. ``togi explain flush_denormal --prove`` measures it here.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.set_flush_denormal.html

    Cost and risk: results below the smallest normal number become zero. The mode belongs to a thread: worker threads
    inherit it when they start, and keep it. Where they run already, only the calling thread flushes (said in a note).
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
        with flushing():
            _share_flushed()  # starts the worker threads while the mode is on: they inherit it
        return candidate

    def repro_setting(self, options: Options) -> str:
        return "torch.set_flush_denormal(True)"

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        with flushing():
            share = _share_flushed()
        if share == 0:
            raise Refused("this processor or build of PyTorch cannot flush denormals")
        candidate = candidate.with_(contexts=(*candidate.contexts, flushing))
        return candidate if share == 1 else candidate.noting(
            "only the calling thread flushes denormals: the other worker threads were running before"
        )  # fmt: skip


@contextmanager
def flushing() -> Iterator[None]:
    """Flush-to-zero for the calling thread (and for threads it starts), for the block."""
    import torch

    before = _DENORMAL * 1.0 == 0.0  # there is no getter; this multiplication is done by the same thread
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _share_flushed() -> float:
    """Share of a large tensor (float32, over all worker threads) whose denormals are flushed now."""
    import torch

    bits = torch.ones(1 << 20, dtype=torch.int32)  # the integer 1 is the smallest float32 denormal
    return float(((bits.view(torch.float32) * 1.0).view(torch.int32) == 0).double().mean())
