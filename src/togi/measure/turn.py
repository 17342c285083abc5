"""One turn of one candidate, in its own child: some passes over all samples, timed, with what the kernel says of them.

The parent decides whose turn it is and what the times mean (``race``); building the candidate is left to the trial.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from togi.core.callers import Callers
from togi.core.records import Record
from togi.machine.nvml import Gpu, energy_mj, read_gpu
from togi.measure.counters import Counters, frequency_mhz, read_counters
from togi.measure.energy import EnergyMeter
from togi.measure.streams import Wait, wait_for
from togi.measure.threads import spread_threads, spread_while_running

if TYPE_CHECKING:
    from togi.subject.inputs import Inputs

Clock = Callable[[], int]
"""Nanoseconds, monotonic."""
Run = Callable[[int], int]
"""So many passes over all samples; answers the nanoseconds among them that do not count."""
GivenAs = Callable[[Any, Any], tuple[Any, Any]]
"""Makes of the arguments of a sample what a caller would give instead, before each call; that does not count."""

TURN_MS = 60.0
"""What a turn should last: long against the switch between processes, short against a drift of the machine."""
_MOST_TIMES = 64
"""Times kept per turn; shorter passes are timed several at once, which also keeps the timer's own cost out."""
_MOST_TIMES_OF_CALLERS = 8
"""The same of several callers: starting them together, and waiting for the last, takes a tenth of a millisecond."""
_WAITED = 0.95
"""Share of the calls that take no longer than ``call_ms``."""
_CLOCKS_RISE_S = 0.5
"""How long a CUDA device is kept busy before anything counts: idle ones lower their clocks, and raise them over some
tenths of a second."""
_CLOCKS_LOW_S = 0.2
"""For so long energy is not counted."""
_STEADY_PASSES, _STEADY_LONG_PASSES = 5, 2
_LONG_PASS_MS = 100.0
_FALLING = 0.98


class Turn(Record):
    """What one turn found. Seconds unless the name says otherwise."""

    times_ms: tuple[float, ...]
    """One pass over all samples divided by the number of its calls; passes too short to time alone are averaged."""
    passes: int
    wall_s: float
    call_ms: float | None = None
    """What 95 of 100 calls take at most, next to the other callers. None: there is one, who waits for ``pass_ms``."""
    waiting_s: float = 0.0
    """Thread-seconds in which threads of this process were ready to run and got no core."""
    cpu_s: float = 0.0
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
        """The turn in one number: the lower quartile of its times, in ms per call.

        Disturbances only ever add time, and come in bursts shorter than a turn. The lower quartile leaves up to three
        disturbed passes of four out without resting on one lucky pass, as the minimum does.
        """
        return sorted(self.times_ms)[(len(self.times_ms) - 1) // 4]


def call_ms_of(turns: Sequence[Turn]) -> float | None:
    """What a call took next to the other callers, in the median of the turns. None: there was one caller."""
    calls_ms = [turn.call_ms for turn in turns if turn.call_ms is not None]
    return statistics.median(calls_ms) if calls_ms else None


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
    energy_mj: float | None = None
    """What the whole GPU took for a call, once its clocks had risen for a while; None: it does not tell."""


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
    callers: Callers | None = None,
    limit_s: float = 3.0,
    clock: Clock = time.perf_counter_ns,
    device: str = "cpu",
    read_energy: Callable[[], float | None] = energy_mj,
    given_as: GivenAs | None = None,
) -> Warmup:
    """Call until the times stop falling: no pass faster by 2 % in five (in two where one takes 0.1 s and more), on a
    CUDA device for half a second at least. Bounded by ``limit_s``, counted from the end of the first call, but at least
    one pass. With ``callers`` every one of them makes each pass; the first call is one alone.

    Whatever ``call`` raises goes through.
    """
    began, least_s = clock(), 0.0 if device == "cpu" else _CLOCKS_RISE_S
    wait = wait_for(device)
    timer = _timer(clock, wait)
    first_ms = timer(_passes(call, samples[:1], wait, clock, given_as))
    run, warm_from = _passes_of(callers, call, samples, wait, clock, given_as)[0], clock()
    best_ms, passes, since_best = float("inf"), 0, 0
    meter = EnergyMeter(clock, after_s=_CLOCKS_LOW_S, read=read_energy) if device != "cpu" else None
    calls = len(samples) * (callers.count if callers else 1)
    while passes == 0 or (
        (spent_s := (clock() - warm_from) * 1e-9) < limit_s and (since_best < _steady(best_ms) or spent_s < least_s)
    ):
        if device == "cpu":
            spread_threads()
        took_ms = timer(run)
        passes, since_best = passes + 1, 0 if took_ms < best_ms * _FALLING else since_best + 1
        best_ms = min(best_ms, took_ms)
        if meter is not None:
            meter.note(passes * calls)
    return Warmup(
        first_call_ms=first_ms,
        pass_ms=best_ms,
        passes=passes,
        wall_s=(clock() - began) * 1e-9,
        steady=since_best >= _steady(best_ms),
        energy_mj=meter.mj_per_call if meter is not None else None,
    )


def _steady(pass_ms: float) -> int:
    """So many passes without a faster one. A long one is many operations long, and seconds are dear."""
    return _STEADY_PASSES if pass_ms < _LONG_PASS_MS else _STEADY_LONG_PASSES


def take_turn(
    call: Callable[..., Any],
    samples: Sequence[Inputs],
    passes: int,
    *,
    callers: Callers | None = None,
    clock: Clock = time.perf_counter_ns,
    device: str = "cpu",
    counters: Callable[[], Counters] = read_counters,
    gpu_state: Callable[..., Gpu | None] = read_gpu,
    given_as: GivenAs | None = None,
) -> Turn:
    """Time ``passes`` passes over all samples. Whatever ``call`` raises goes through.

    Where a turn has several passes, two untimed ones go first: caches and clocks belong to whoever ran before, and
    threads have to be running to be spread over the cores. Python's garbage collector is off while the clock runs.

    A call is over when its results are there: on CUDA each is waited for, so that what is measured is latency, the same
    for short and long ones. How many calls are answered in a time (throughput) is measured with several callers: each
    makes every pass, and the time of a pass is divided by all their calls. On CUDA each has a stream of its own, and
    waits for that alone (``callers_on``).

    Args:
        call: the candidate; called as ``call(*sample.args, **sample.kwargs)``, its output is dropped at once.
        samples: at least one; on ``device``.
        passes: at least 1; see ``choose_passes``.
        callers: who call at once; None: this thread, one call after the other.
        clock: nanoseconds.
        device: ``cpu`` or ``cuda``.
        gpu_state: what a CUDA device says of its last seconds; called as ``read_gpu``.
        given_as: also of several callers, whose requests are then made before the clock runs.
    """
    wait = wait_for(device)
    run, waited_ns = _passes_of(callers, call, samples, wait, clock, given_as)
    timer, calls = _timer(clock, wait), len(samples) * (callers.count if callers else 1)
    _settle(run, passes, device)
    waited_ns.clear()
    before, began = counters(), clock()
    alone = passes == 1 and device == "cpu"  # no pass goes before that would have woken the threads
    with _no_garbage_collection(), spread_while_running() if alone else nullcontext():
        times = [timer(run, count) / (count * calls) for count in _blocks(passes, callers)]
    wall_s, after = (clock() - began) * 1e-9, counters()
    gpu = gpu_state(busy_since_s=wall_s) or Gpu() if device == "cuda" else None
    turn = _turn(tuple(times), passes, wall_s, before, after, gpu)
    if callers is None:
        return turn
    call_ms = sorted(waited_ns)[round(_WAITED * (len(waited_ns) - 1))] * 1e-6
    # where there are more threads than cores, waiting for one is part of what is measured, and no disturbance
    return turn.model_copy(update={"call_ms": call_ms, "waiting_s": 0.0})


def _turn(
    times_ms: tuple[float, ...], passes: int, wall_s: float, before: Counters, after: Counters, gpu: Gpu | None
) -> Turn:
    cpu_s = after.cpu_s - before.cpu_s
    return Turn(
        times_ms=times_ms,
        passes=passes,
        wall_s=wall_s,
        waiting_s=after.waiting_s_since(before),
        cpu_s=cpu_s,
        stolen_s=after.stolen_s - before.stolen_s,
        neighbours_s=after.busy_s - before.busy_s - cpu_s,
        machine_s=after.machine_s - before.machine_s,
        throttled_s=after.throttled_s - before.throttled_s,
        frequency_mhz=frequency_mhz() if gpu is None else gpu.clock_mhz,
        gpu_slowed_by=() if gpu is None else gpu.slowed_by,
        gpu_neighbours=() if gpu is None else gpu.busy_neighbours,
    )


def _passes(
    call: Callable[..., Any], samples: Sequence[Inputs], wait: Wait, clock: Clock, given_as: GivenAs | None
) -> Run:
    calls = [(sample.args, sample.kwargs) for sample in samples]

    def run(count: int) -> int:
        spared_ns = 0
        for _ in range(count):
            for args, kwargs in calls:
                if given_as is not None:
                    began = clock()
                    args, kwargs = given_as(args, kwargs)
                    wait()
                    spared_ns += clock() - began
                call(*args, **kwargs)
                wait()
        return spared_ns

    return run


def _passes_of(
    callers: Callers | None,
    call: Callable[..., Any],
    samples: Sequence[Inputs],
    wait: Wait,
    clock: Clock,
    given_as: GivenAs | None,
) -> tuple[Run, list[int]]:
    """Passes of each of the callers, and a list that takes what every call of theirs took, in ns."""
    waited_ns: list[int] = []
    if callers is None:
        return _passes(call, samples, wait, clock, given_as), waited_ns
    calls = [(sample.args, sample.kwargs) for sample in samples]

    def run(count: int) -> int:
        requests = count * callers.count * len(calls)
        given, spared_ns = calls, 0
        if given_as is not None:
            began = clock()
            given = [given_as(*calls[number % len(calls)]) for number in range(requests)]
            wait()
            spared_ns = clock() - began

        def request(number: int) -> None:
            args, kwargs = given[number % len(given)]
            began = clock()
            call(*args, **kwargs)
            callers.after()
            waited_ns.append(clock() - began)

        callers.answer(request, requests)
        return spared_ns

    return run, waited_ns


def _settle(run: Run, passes: int, device: str) -> None:
    """The untimed passes: half of them start the threads, which are then spread."""
    half = untimed_passes(passes) // 2
    run(half)
    if device == "cpu":
        spread_threads()
    run(half)


def _blocks(passes: int, callers: Callers | None = None) -> list[int]:
    """``passes`` in at most 64 near-equal parts (of callers 8): how many passes are timed at once."""
    parts = min(passes, _MOST_TIMES_OF_CALLERS if callers else _MOST_TIMES)
    return [passes // parts + (part < passes % parts) for part in range(parts)]


def _timer(clock: Clock, wait: Wait) -> Callable[..., float]:
    """``timer(run, count=1)``: milliseconds that ``count`` passes take together."""

    def timer(run: Run, count: int = 1) -> float:
        wait()
        began = clock()
        spared_ns = run(count)
        return (clock() - began - spared_ns) * 1e-6

    return timer


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
