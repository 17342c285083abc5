"""When a measurement is repeated, continued or doubted, with processes that are as fast as planted."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.study.stand_ins import REFERENCE_MS, Clock, Does, Process
from togi.core.records import REFERENCE_RECIPE, Outcome, Recipe, Timing
from togi.core.settings import Settings
from togi.decide.faster import BETWEEN_PROCESSES
from togi.measure import rounds_needed
from togi.study.measurement import Stopwatch
from togi.study.time_budget import TimeBudget
from togi.techniques import recipe
from togi.worker.supervise import TrialEnded

FAST = recipe(openvino={}, no_grad={})


class Bench:
    """A stopwatch with its clock, and processes that it can time."""

    def __init__(self, *, earlier_ms: tuple[float, ...] = (), **settings: Any) -> None:
        self.clock = Clock()
        chosen = Settings(**{"effort": "thorough", **settings})
        budget = TimeBudget(chosen, started=self.clock(), clock=self.clock)
        self.stopwatch = Stopwatch(chosen, budget, earlier_ms=earlier_ms, clock=self.clock, sleep=self.clock.sleep)

    def process(self, of: Recipe, does: Does) -> Process:
        return Process(self.clock, of.label, of, does)

    def time(self, does: Does, reference: Does | None = None, budget_s: float = 3.0) -> Timing:
        started = self.process(REFERENCE_RECIPE, reference or Does())
        return self.stopwatch.time(self.process(FAST, does), started, budget_s)


def test_a_candidate_is_timed_next_to_the_reference() -> None:
    timing = Bench().time(Does.faster(2.0))
    assert timing.speedup_x.median == pytest.approx(2.0)
    assert timing.reference_ms == pytest.approx(REFERENCE_MS)
    assert timing.latency_ms.median == pytest.approx(REFERENCE_MS / 2)


def test_the_reference_next_to_itself_is_exactly_as_fast() -> None:
    bench = Bench()
    reference = bench.process(REFERENCE_RECIPE, Does())
    timing = bench.stopwatch.time(reference, reference, 0.0)
    assert (timing.speedup_x.low, timing.speedup_x.high) == (1.0, 1.0)
    assert len(timing.rounds_ms) == rounds_needed()
    assert bench.stopwatch.slowest_ms == math.inf, "alone it is faster than in any comparison"


def test_what_seems_faster_is_measured_on_until_it_is_sure_or_the_time_is_up() -> None:
    """Every second turn is slow while it is measured for the first time: from as fast to twice as fast."""
    rounds = []
    for limit_s in (60.0, 4.0):
        bench = Bench(time_limit_s=limit_s)
        wavering = Does(ms=lambda turn: 5.0 + 4.9 * (turn % 3 == 0) if turn < 40 else 5.0)
        timing = bench.time(wavering, budget_s=3.0)
        rounds.append(len(timing.rounds_ms))
        assert BETWEEN_PROCESSES.faster(timing.speedup_x) is (limit_s == 60.0)
    assert rounds[0] > 2 * rounds[1]


@pytest.mark.parametrize(("busy_turns", "paused"), [(0, 0), (12, 1)])
def test_a_busy_machine_is_waited_for(busy_turns: int, paused: int) -> None:
    bench = Bench()
    bench.time(Does.faster(2.0))
    bench.clock.slept_s.clear()
    timing = bench.time(Does.faster(2.0), Does(ms=lambda turn: 100.0 if turn < busy_turns else REFERENCE_MS))
    assert len(bench.clock.slept_s) == paused
    assert not bench.stopwatch.doubt(timing)


def test_what_is_disturbed_to_the_end_is_doubted() -> None:
    bench = Bench()
    bench.time(Does.faster(2.0))
    timing = bench.time(Does.faster(2.0), Does(ms=15.0))
    assert bench.stopwatch.doubt(timing) == (
        "disturbed: the reference took 1.5 times as long as at its best in this study"
    )


@pytest.mark.parametrize(("reference_ms", "doubted"), [(10.5, False), (15.0, False), (19.0, False), (800.0, True)])
def test_a_session_that_is_disturbed_from_its_start_is_told_by_earlier_ones(reference_ms: float, doubted: bool) -> None:
    """What was 10 ms in an earlier session: somewhat slower is another day, 80 times is a neighbour."""
    bench = Bench(earlier_ms=(10.0, 12.0))
    assert (reference_ms > bench.stopwatch.slowest_ms) is doubted
    timing = bench.time(Does.faster(2.0), Does(ms=reference_ms), budget_s=0.1)
    doubt = bench.stopwatch.doubt(timing)
    assert doubt == "disturbed: the reference took 80.0 times as long as at its best in this study" * doubted


def test_a_machine_that_is_slower_since_for_good_is_not_doubted_in_every_measurement() -> None:
    """One that is half as fast as in an earlier session, and shared with nobody: else each trial is measured four
    times, and no race and no proof counts."""
    bench = Bench(earlier_ms=(10.0,))
    fast, slower = Does(ms=12.0), Does(ms=25.0)
    assert bench.stopwatch.doubt(bench.time(fast, slower)).startswith("disturbed: the reference took 2.5 times")
    processes = bench.process(FAST, fast), bench.process(REFERENCE_RECIPE, slower)
    again = bench.stopwatch.time(*processes, 3.0, again=True)
    assert not bench.stopwatch.doubt(again, again=True)
    assert not bench.stopwatch.doubt(bench.time(fast, slower))
    assert bench.stopwatch.slowest_ms == pytest.approx(1.3 * 25.0), "of this session"
    assert bench.stopwatch.doubt(bench.time(fast, Does(ms=50.0))), "a neighbour that comes is told as ever"


def test_of_a_first_call_the_time_of_a_start_is_kept() -> None:
    timing = Bench(objective="first-call").time(Does.faster(2.0))
    assert timing.start_ms == timing.latency_ms.median
    assert Bench().time(Does.faster(2.0)).start_ms is None


def test_a_slow_model_has_the_time_that_its_rounds_take() -> None:
    bench = Bench()
    slow = bench.process(FAST, Does(ms=1000.0))
    enough_s = bench.stopwatch.enough_s(3.0, [slow, slow])
    assert rounds_needed() * 2.0 < enough_s < 60.0
    assert bench.stopwatch.enough_s(3.0, [bench.process(FAST, Does(ms=10.0))]) == 3.0


@pytest.mark.parametrize(("limit_s", "enough_s"), [(300.0, 120.0), (8 * 3600.0, 7200.0)])
def test_what_no_round_of_is_quick_may_take_a_quarter_of_the_time_that_is_left(limit_s: float, enough_s: float) -> None:
    bench = Bench(time_limit_s=limit_s)
    assert bench.stopwatch.enough_s(3.0, [bench.process(FAST, Does(ms=1e6))]) == enough_s


def test_of_a_pass_of_half_a_minute_something_is_concluded_in_an_hour() -> None:
    bench = Bench(time_limit_s=3600.0)
    timing = bench.time(Does(ms=15e3), Does(ms=30e3))
    assert timing.speedup_x.has_ends
    assert BETWEEN_PROCESSES.faster(timing.speedup_x)


@pytest.mark.parametrize("whose", ["candidate", "reference"])
def test_who_ends_in_a_turn_is_named(whose: str) -> None:
    bench = Bench()
    ending = Does(ends={"turn": (Outcome.CRASHED, "killed")})
    with pytest.raises(TrialEnded, match="killed") as ended:
        bench.time(ending if whose == "candidate" else Does(), None if whose == "candidate" else ending)
    assert ended.value.trial.recipe == (FAST if whose == "candidate" else REFERENCE_RECIPE)


def test_what_is_cut_off_after_too_few_rounds_for_an_interval_was_not_measured() -> None:
    ends = {"turn": (Outcome.TIMED_OUT, "the time was over")}
    with pytest.raises(TrialEnded, match="the time was over"):
        Bench().time(Does.faster(2.0, ends=ends, turns=5, cut_off=True))


@pytest.mark.parametrize("turns", [20, 40, 100, 200])
def test_what_was_measured_counts_where_the_time_is_over_while_more_is(turns: int) -> None:
    """Some turns are slow, so that it is measured on, and its process is cut off in that."""
    ends = {"turn": (Outcome.TIMED_OUT, "the time was over")}
    wavering = Does(ms=lambda turn: 5.0 + 4.9 * (turn % 3 == 0), ends=ends, turns=turns, cut_off=True)
    assert 0 < len(Bench().time(wavering).rounds_ms) < turns


def test_what_ends_by_itself_while_more_is_measured_ends_its_trial() -> None:
    ends = {"turn": (Outcome.CRASHED, "killed")}
    wavering = Does(ms=lambda turn: 5.0 + 4.9 * (turn % 3 == 0), ends=ends, turns=10)
    with pytest.raises(TrialEnded, match="killed"):
        Bench().time(wavering)
