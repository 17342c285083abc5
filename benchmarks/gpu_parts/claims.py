"""What techniques that concern CUDA claim, measured as ``togi explain ID --prove`` does.

On a CPU those of them that can run there and are quick to build; the others are skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu_parts.row import Row, attempt

from togi.claims.claim import Verdict
from togi.claims.prove import prove
from togi.techniques import all_techniques
from togi.techniques.base import Technique

ON_CPU = ("fold_batch_norm", "no_grad", "expandable_segments", "cudnn_benchmark", "tf32", "cuda_graph")
"""Two that run there, and those that must say why they cannot."""


def rows(device: str) -> Iterator[Row]:
    """A claim that does not hold here is a failure: its page says something else."""
    for technique in all_techniques().values():
        if "cuda" in technique.devices and (device == "cuda" or technique.id in ON_CPU):
            yield attempt(
                technique.id, "the claim holds, at least in part", proven, technique, device, proves=(technique.id,)
            )


def proven(technique: Technique, device: str) -> tuple[bool | None, str]:
    found = prove(technique.id, device=device)
    held = found.verdict in (Verdict.HOLDS, Verdict.HOLDS_IN_PART)
    return None if found.verdict is Verdict.UNTESTED else held, found.sentence
