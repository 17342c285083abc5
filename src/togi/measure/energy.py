"""Energy that a GPU takes for a call, by the counter that NVML keeps.

The counter goes on in steps, some tens of milliseconds apart, so what is read is the energy up to the last step, not up
to now. Calls are therefore counted from one step to another, and not over a time that is chosen here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from togi.machine.nvml import energy_mj

_FEWEST_STEPS = 2
"""Between the first and the last that is seen: one alone may be a late one."""


@final
class EnergyMeter:
    """Of one device. ``read``: the counter in millijoules, or None where it has none."""

    def __init__(self, read: Callable[[], float | None] = energy_mj) -> None:
        self._read = read
        self._last: float | None = read()
        self._steps: list[tuple[int, float]] = []

    def note(self, calls: int) -> None:
        """So many calls are done; asked for after each few of them."""
        if self._last is None:
            return
        now = self._read()
        if now is not None and now != self._last:
            self._steps.append((calls, now))
            self._last = now

    @property
    def mj_per_call(self) -> float | None:
        """All that the device takes meanwhile, its idle power included; None: it does not tell, or too few steps."""
        if len(self._steps) <= _FEWEST_STEPS:
            return None
        (first, began), (last, ended) = self._steps[0], self._steps[-1]
        return (ended - began) / (last - first) if ended > began and last > first else None
