"""Energy that a GPU takes for a call, by the counter that NVML keeps.

The counter goes on in steps, some tens of milliseconds apart, so what is read is the energy up to the last step, not up
to now. Calls are therefore counted from one step to another, and not over a time that is chosen here.
"""

from __future__ import annotations

from collections.abc import Callable

from togi.machine.nvml import energy_mj

_FEWEST_STEPS = 2
"""Between the first and the last that is seen: one alone may be a late one."""
_EVERY_NS = 2_000_000
"""Asking takes some hundredths of a millisecond, in which the device rests."""


class EnergyMeter:
    """Of one device, from ``after_s`` on. ``clock``: in ns; ``read``: the counter in mJ, or None where it has none."""

    def __init__(
        self, clock: Callable[[], int], *, after_s: float = 0.0, read: Callable[[], float | None] = energy_mj
    ) -> None:
        self._clock, self._read = clock, read
        self._next_ns = clock() + int(after_s * 1e9)
        self._last: float | None = None
        self._steps: list[tuple[int, float]] = []

    def note(self, calls: int) -> None:
        """So many calls are done since it began; call it after every few of them."""
        if (now_ns := self._clock()) < self._next_ns:
            return
        self._next_ns = now_ns + _EVERY_NS
        counter_mj = self._read()
        if counter_mj is not None and self._last is not None and counter_mj != self._last:
            self._steps.append((calls, counter_mj))
        self._last = counter_mj

    @property
    def mj_per_call(self) -> float | None:
        """All that the device takes meanwhile, its idle power included; None: it does not tell, or too few steps."""
        if len(self._steps) <= _FEWEST_STEPS:
            return None
        (first, began), (last, ended) = self._steps[0], self._steps[-1]
        return (ended - began) / (last - first) if ended > began and last > first else None
