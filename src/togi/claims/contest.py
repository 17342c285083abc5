"""Several ways to compute the same, side by side in one process: memory one by one, times in turns."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from togi.claims.claim import Measured
from togi.core.quantities import first_line
from togi.measure.allocator import freed_memory_returned
from togi.measure.memory import peak_resident_bytes

Way = Callable[[], Any]


def contest(ways: Mapping[str, Way], *, budget_s: float = 20.0, rounds: int = 7) -> tuple[Measured, ...]:
    """Peak and median time of every way. One that raises is reported with what it raised.

    The peak is the rise of the resident set, so it counts what torch's allocator does not see, and the result. Rounds
    go on until each way had ``rounds`` turns or ``budget_s`` is over; everyone has had at least one by then. A way that
    could not be begun before is reported as such: what matters most comes first.
    """
    peaks: dict[str, int] = {}
    errors: dict[str, str] = {}
    deadline = time.monotonic() + budget_s
    for name, way in ways.items():
        if time.monotonic() > deadline:
            errors[name] = f"not measured: the {budget_s:g} s for it were over"
            continue
        try:
            way()  # compilers and caches first
            peaks[name] = _peak_bytes(way)
        except Exception as error:  # the ways under test may forbid themselves: that is a result
            errors[name] = f"{type(error).__name__}: {first_line(error)}"
    times = _take_turns({name: ways[name] for name in peaks}, deadline, rounds)
    return tuple(
        Measured(
            name=name,
            peak_bytes=peaks.get(name),
            median_ms=statistics.median(times[name]) if name in times else None,
            note=errors.get(name, ""),
        )
        for name in ways
    )


def row(rows: Sequence[Measured], name: str) -> Measured:
    return next(way for way in rows if way.name == name)


def _peak_bytes(way: Way) -> int:
    gc.collect()
    with freed_memory_returned():
        return peak_resident_bytes(lambda: _drop(way()))


def _take_turns(ways: Mapping[str, Way], deadline: float, rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            _drop(way())
            times[name].append((time.perf_counter() - started) * 1e3)
        if time.monotonic() > deadline:
            break
    return times


def _drop(_: Any) -> None:
    """Gives up what was computed before the clock or the memory is read."""
