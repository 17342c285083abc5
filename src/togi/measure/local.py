"""A runner of turns in this process, for what is compared where it lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from togi.measure.turn import Turn, Warmup, take_turn, warm

if TYPE_CHECKING:
    from togi.subject.inputs import Inputs


@dataclass(frozen=True)
class LocalRunner:
    """Takes part in a race (``race.Runner``). One caller; the arguments of each sample are given as they are."""

    name: str
    call: Callable[..., Any]
    samples: Sequence[Inputs]
    device: str = "cpu"

    def warm(self, limit_s: float) -> Warmup:
        return warm(self.call, self.samples, limit_s=limit_s, device=self.device)

    def turn(self, passes: int) -> Turn:
        return take_turn(self.call, self.samples, passes, device=self.device)
