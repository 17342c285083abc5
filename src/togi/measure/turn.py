"""One turn of one candidate, in its own child: some passes over all samples, timed, with what the kernel says of them.

The parent decides whose turn it is and what the times mean (``race``); building the candidate is left to the trial.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from togi.core.proven import Proven
from togi.core.records import Record
from togi.machine.nvml import Gpu, read_gpu
from togi.measure.counters import Counters, frequency_mhz, read_counters
from togi.measure.threads import spread_threads

if TYPE_CHECKING:
    from togi.subject.inputs import Inputs

PROVEN = Proven(part="timing of a turn", cpu="2026-11-21", cuda=None)


Clock = Callable[[], int]
"""Nanoseconds, monotonic."""
Wait = Callable[[], object]

TURN_MS = 60.0
"""What a turn should last: long against the switch between processes, short against a drift of the machine."""
_MOST_TIMES = 64
"""Times kept per turn; shorter passes are timed several at once, which also keeps the timer's own cost out."""
_CLOCKS_RISE_S = 0.5
"""How long a CUDA device is kept busy before anything counts: idle ones lower their clocks, and raise them over some
tenths of a second."""
_STEADY_PASSES = 5
_FALLING = 0.98


class Turn(Record):
    """What one turn found. Seconds unless the name says otherwise."""

    times_ms: tuple[float, ...]
    """One pass over all samples divided by the number of samples; passes too short to time alone are averaged."""
    passes: int
    wall_s: float
    waiting_s: float = 0.0
    """Thread-seconds in which threads of this process were ready to run and got no core."""
    cpu_s: float = 0.0
    involuntary: int = 0
    stolen_s: float = 0.0
    neighbours_s: float = 0.0
    """Processor time of all other processes; counted in ticks, so a single turn's may be slightly negative."""
    machine_s: float = 0.0
    """Time of all cores, idle or not."""
    throttled_s: float = 0.0
    frequency_mhz: float | None = None
    """Of the cores, or of a CUDA device's multiprocessors; None where nobody tells."""
    gpu_slowed_by: tuple[str, ...] = ()
    """Why the device ran below its clock: heat, the power limit."""
    gpu_neighbours: tuple[str, ...] = ()
    """Other processes that computed on the device meanwhile."""

    @property
    def pass_ms(self) -> float:
        """The turn in one number: the lower quartile of its times, in ms per sample.

        Disturbances only ever add time, and come in bursts shorter than a turn. The lower quartile leaves up to three
        disturbed passes of four out without resting on one lucky pass, as the minimum does.
        """
        return sorted(self.times_ms)[(len(self.times_ms) - 1) // 4]


class Warmup(Record):
    """What happened until the times stopped falling."""

    first_call_ms: float
    """The very first call, on one sample: lazy initialisation, just-in-time compilation, autotuning."""
    pass_ms: float
    """The fastest pass over all samples seen (all of it, not divided by the number of samples)."""
    passes: int
    """Passes run."""
    wall_s: float
    steady: bool
    """False: the time limit came before the times had stopped falling."""


def choose_passes(pass_ms: float, turn_ms: float = TURN_MS) -> int:
    """How many passes of ``pass_ms`` make a turn of about ``turn_ms``; at least 1."""
    return max(1, round(turn_ms / max(pass_ms, 1e-4)))


def untimed_passes(passes: int) -> int:
    """How many passes go before a turn of ``passes``."""
    return 2 if passes > 1 else 0


def warm(
    call: Callable[..., Any],
    samples: Sequence[Inputs],
    *,
    limit_s: float = 3.0,
    clock: Clock = time.perf_counter_ns,
    device: str = "cpu",
) -> Warmup:
    """Call until the times stop falling: no pass faster by 2 % in five, on a CUDA device for half a second at least.
    Bounded by ``limit_s``, counted from the end of the first call, but at least one pass.

    Whatever ``call`` raises goes through.
    """
    began, least_s = clock(), 0.0 if device == "cpu" else _CLOCKS_RISE_S
    wait = _wait_for(device)
    timer = _timer(clock, wait)
    first_ms = timer(_pass(call, samples[:1], wait))
    run, warm_from = _pass(call, samples, wait), clock()
    best_ms, passes, since_best = float("inf"), 0, 0
    while passes == 0 or (
        (spent_s := (clock() - warm_from) * 1e-9) < limit_s and (since_best < _STEADY_PASSES or spent_s < least_s)
    ):
        if device == "cpu":
            spread_threads()
        took_ms = timer(run)
        passes, since_best = passes + 1, 0 if took_ms < best_ms * _FALLING else since_best + 1
        best_ms = min(best_ms, took_ms)
    return Warmup(
        first_call_ms=first_ms,
        pass_ms=best_ms,
        passes=passes,
        wall_s=(clock() - began) * 1e-9,
        steady=since_best >= _STEADY_PASSES,
    )


def take_turn(
    call: Callable[..., Any],
    samples: Sequence[Inputs],
    passes: int,
    *,
    clock: Clock = time.perf_counter_ns,
    device: str = "cpu",
    counters: Callable[[], Counters] = read_counters,
) -> Turn:
    """Time ``passes`` passes over all samples. Whatever ``call`` raises goes through.

    Where a turn has several passes, two untimed ones go first: caches and clocks belong to whoever ran before, and
    threads have to be running to be spread over the cores. Python's garbage collector is off while the clock runs.

    A call is over when its results are there: on CUDA each is waited for, so that what is measured is latency, the same
    for short and long ones. How much a device can do when calls are queued (throughput) is another question.

    Args:
        call: the candidate; called as ``call(*sample.args, **sample.kwargs)``, its output is dropped at once.
        samples: at least one; on ``device``.
        passes: at least 1; see ``choose_passes``.
        clock: nanoseconds.
        device: ``cpu`` or ``cuda``.
    """
    wait = _wait_for(device)
    run, timer = _pass(call, samples, wait), _timer(clock, wait)
    _settle(run, passes, device)
    before, began = counters(), clock()
    with _no_garbage_collection():
        times = [timer(run, count) / (count * len(samples)) for count in _blocks(passes)]
    wall_s, after = (clock() - began) * 1e-9, counters()
    return _turn(tuple(times), passes, wall_s, before, after, device)


def _turn(
    times_ms: tuple[float, ...], passes: int, wall_s: float, before: Counters, after: Counters, device: str
) -> Turn:
    cpu_s = after.cpu_s - before.cpu_s
    gpu = (read_gpu(busy_since_s=wall_s) if device == "cuda" else None) or Gpu()
    return Turn(
        times_ms=times_ms,
        passes=passes,
        wall_s=wall_s,
        waiting_s=after.waiting_s_since(before),
        cpu_s=cpu_s,
        involuntary=after.involuntary - before.involuntary,
        stolen_s=after.stolen_s - before.stolen_s,
        neighbours_s=after.busy_s - before.busy_s - cpu_s,
        machine_s=after.machine_s - before.machine_s,
        throttled_s=after.throttled_s - before.throttled_s,
        frequency_mhz=gpu.clock_mhz if device == "cuda" else frequency_mhz(),
        gpu_slowed_by=gpu.slowed_by,
        gpu_neighbours=gpu.busy_neighbours,
    )


def _pass(call: Callable[..., Any], samples: Sequence[Inputs], wait: Wait) -> Callable[[], None]:
    calls = [(sample.args, sample.kwargs) for sample in samples]

    def run() -> None:
        for args, kwargs in calls:
            call(*args, **kwargs)
            wait()

    return run


def _settle(run: Callable[[], None], passes: int, device: str) -> None:
    """The untimed passes: half of them start the threads, which are then spread."""
    half = untimed_passes(passes) // 2
    for _ in range(half):
        run()
    if device == "cpu":
        spread_threads()
    for _ in range(half):
        run()


def _blocks(passes: int) -> list[int]:
    """``passes`` in at most 64 near-equal parts: how many passes are timed at once."""
    parts = min(passes, _MOST_TIMES)
    return [passes // parts + (part < passes % parts) for part in range(parts)]


def _timer(clock: Clock, wait: Wait) -> Callable[..., float]:
    """``timer(run, count=1)``: milliseconds that ``count`` runs take together."""

    def timer(run: Callable[[], Any], count: int = 1) -> float:
        wait()
        began = clock()
        for _ in range(count):
            run()
        return (clock() - began) * 1e-6

    return timer


def _wait_for(device: str) -> Wait:
    """Returns when the device has done what it was given; calls on the CPU have when they return."""
    if device != "cuda":
        return lambda: None
    import torch

    return torch.cuda.synchronize


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
