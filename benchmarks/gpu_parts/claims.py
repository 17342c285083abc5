"""What techniques that concern CUDA claim, measured as ``togi explain ID --prove`` does.

On models of the device's size. Two rows each: whether the result is right, and whether it is as fast as is claimed. On
a CPU those of them that can run there and are quick to build; the others are skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from benchmarks.gpu_parts.row import Row, attempt

from togi.claims.claim import ClaimVerdict, MeasuredClaim
from togi.claims.prove import prove
from togi.techniques import Remedy, all_remedies

ON_CPU = ("fold_batch_norm", "no_grad", "expandable_segments", "cudnn_benchmark", "tf32", "cuda_graph")
"""Two that run there, and those that must say why they cannot."""


def rows(device: str) -> Iterator[Row]:
    """A claim that does not hold here is a failure: its page says something else. Those of CUDA alone come first."""
    concerned = [
        one for one in all_remedies().values() if "cuda" in one.devices and (device == "cuda" or one.id in ON_CPU)
    ]
    for one in sorted(concerned, key=lambda one: "cpu" in one.devices):
        yield attempt(f"{one.id}, its result", "as right as it promises", right, one, device, proves=(one.id,))
        yield attempt(f"{one.id}, its claim", "it holds, at least in part", as_claimed, one, device, speed_of=(one.id,))


@cache
def proof(technique: Remedy, device: str) -> MeasuredClaim:
    return prove(technique.id, device=device)


def right(technique: Remedy, device: str) -> tuple[bool | None, str]:
    found = proof(technique, device)
    return found.right, found.sentence


def as_claimed(technique: Remedy, device: str) -> tuple[bool | None, str]:
    found = proof(technique, device)
    held = found.verdict in (ClaimVerdict.HOLDS, ClaimVerdict.HOLDS_IN_PART)
    return None if found.verdict is ClaimVerdict.UNTESTED else held, found.sentence
