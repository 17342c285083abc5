"""A runner of turns in this process, for what is compared where it lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from togi.measure.turn import GivenAs, Turn, Warmup, take_turn, warm

if TYPE_CHECKING:
    from togi.subject.inputs import Inputs


@dataclass(frozen=True)
class LocalRunner:
    """Takes part in a race (``race.Runner``). One caller."""

    name: str
    call: Callable[..., Any]
    samples: Sequence[Inputs]
    device: str = "cpu"
    given_as: GivenAs | None = None
    """How the arguments of each sample are given; None: as they are."""

    def warm(self, limit_s: float) -> Warmup:
        return warm(self.call, self.samples, limit_s=limit_s, device=self.device, given_as=self.given_as)

    def turn(self, passes: int) -> Turn:
        return take_turn(self.call, self.samples, passes, device=self.device, given_as=self.given_as)
