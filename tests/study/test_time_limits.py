"""How long a study takes, by a clock that only its steps move."""

from __future__ import annotations

import functools
from typing import Any
from unittest.mock import MagicMock

import pytest

from togi.core.choices import Effort
from togi.core.records import Facts, Interval, Machine, Outcome, Recipe, Timing, Trial
from togi.core.settings import Settings
from togi.decide.faster import BETWEEN_PROCESSES
from togi.search import Search
from togi.study.progress import Progress
from togi.study.runner import REFERENCE_RECIPE, StudyRunner
from togi.techniques import all_techniques
from togi.worker.deadline import Deadline

MACHINE = Machine(cpu_model="cpu", cpu_cores=2, memory_bytes=2**34, threads=2, os="linux", python="3.11")
CALLS = {"conv2d": 63, "batch_norm": 46, "hardswish": 21, "relu": 19, "add": 10, "linear": 1}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("togi.study.runner.time.monotonic", made)
    return made


TIMES_S = {"reference": 4.0, "openvino": 6.0, "onnxruntime": 7.0, "torchscript": 5.0, "eager": 5.0}
"""Of a MobileNet's trials on two cores."""


def simulated(clock: Clock, candidate: Recipe, timeout_s: float) -> Trial:
    """A trial that only takes time."""
    engine = next((c.technique for c in candidate.choices if c.technique in TIMES_S), "eager")
    takes_s = TIMES_S["reference" if candidate == REFERENCE_RECIPE else engine]
    clock.now_s += min(takes_s, timeout_s)
    if takes_s > timeout_s:
        return Trial(recipe=candidate, outcome=Outcome.TIMED_OUT)
    speedup_x = {"openvino": 3.0, "onnxruntime": 2.5}.get(engine, 1.0)
    interval = Interval(median=speedup_x, low=speedup_x * 0.98, high=speedup_x * 1.02)
    phases_s = {"start": 0.5, "build": 0.1, "verify": 1.0, "warm": 0.4, "measure": 2.0}
    timing = Timing(latency_ms=interval, speedup_x=interval)
    return Trial(recipe=candidate, outcome=Outcome.OK, timing=timing, cost_s=takes_s, phases_s=phases_s)


def runner_with(clock: Clock, latency_ms: float = 13.0, loading_s: float = 9.0, **settings: Any) -> StudyRunner:
    """As it stands once the subject is loaded."""
    facts = Facts(machine=MACHINE, module_class="MobileNetV3", functions=CALLS, latency_ms=latency_ms)
    logged: list[Trial] = []
    log = MagicMock(trials=lambda: logged, append=logged.append, claimed=frozenset, notes=[])
    chosen = Settings(only=("openvino", "onnxruntime", "torchscript", "channels_last"), **settings)
    search = Search(facts, chosen, all_techniques(), clock=clock)
    started = clock.now_s
    clock.now_s += loading_s
    pool = MagicMock(deadline=Deadline())
    arguments: Any = (pool, "net.py:make", facts, None, chosen, log, search, Progress(), started)
    runner = StudyRunner(*arguments, loaded=clock.now_s)
    runner.attempt = functools.partial(simulated, clock)  # type: ignore[method-assign]
    return runner


def explored(clock: Clock, runner: StudyRunner) -> StudyRunner:
    """What ``run_study`` does before race and proof."""
    clock.now_s += 5.0  # capture and truth
    runner.try_reference()
    runner.explore(runner.explore_s(race=False), first_gain=True)
    runner.explore(runner.explore_s())
    return runner


@pytest.mark.parametrize("loading_s", [3.0, 60.0])
def test_quick_ends_half_a_minute_after_loading_with_a_gain_that_can_be_proven(clock: Clock, loading_s: float) -> None:
    runner = explored(clock, runner_with(clock, effort="quick", loading_s=loading_s))
    gains = [t for t in runner.log.trials() if t.timing and BETWEEN_PROCESSES.faster(t.timing.speedup_x)]
    assert gains
    assert runner.loaded is not None
    assert clock.now_s + runner.proof_s() <= runner.loaded + 30.0


@pytest.mark.parametrize(("effort", "least"), [("normal", 4), ("thorough", 12)])
def test_more_effort_tries_more(clock: Clock, effort: str, least: int) -> None:
    runner = explored(clock, runner_with(clock, effort=effort))
    assert runner.tried >= least
    assert runner.tried > explored(clock, runner_with(clock, effort="quick")).tried


@pytest.mark.parametrize(
    ("settings", "limit_s"),
    [
        ({"effort": "quick"}, 9.0 + 30.0),
        ({"effort": "normal"}, 9.0 + 300.0),
        ({"effort": "thorough"}, None),
        ({"effort": "quick", "time_limit_s": 20.0}, 20.0),
        ({"effort": "quick", "time_limit_s": 300.0}, 300.0),
        ({"effort": "thorough", "time_limit_s": "8h"}, 8 * 3600.0),
    ],
)
def test_a_given_limit_is_of_the_whole_and_an_efforts_own_begins_after_loading(
    clock: Clock, settings: dict[str, Any], limit_s: float | None
) -> None:
    assert runner_with(clock, **settings).limit_s == limit_s


def test_a_slow_subject_makes_an_efforts_own_limit_longer_and_no_other(clock: Clock) -> None:
    """Thirty passes of 2 s are its truth, reference and proof: half a minute would leave nothing to try anything in."""
    assert runner_with(clock, latency_ms=2000.0, effort="quick").limit_s == 9.0 + 180.0
    assert runner_with(clock, latency_ms=2000.0, effort="quick", time_limit_s=40.0).limit_s == 40.0


def test_on_a_busy_machine_an_effort_still_leaves_time_for_an_engine(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything takes four times as long. A given limit holds all the same."""
    monkeypatch.setattr(f"{__name__}.TIMES_S", {name: 4 * took_s for name, took_s in TIMES_S.items()})
    said: list[str] = []
    for given_s, gained in ((None, True), (40.0, False)):
        runner = runner_with(clock, effort="quick", time_limit_s=given_s)
        monkeypatch.setattr(runner.progress, "message", said.append)
        explored(clock, runner)
        assert runner.search.gained() == gained
    assert runner.limit_s == 40.0
    longer = [text for text in said if "took" in text]
    assert longer == [
        "trying the original took 16 s, so the study may take 1:29 in place of 39 s; --time-limit sets another limit"
    ]


def test_the_efforts_are_for_half_a_minute_for_minutes_and_for_the_night() -> None:
    assert [effort.time_limit_s for effort in Effort] == [30.0, 300.0, None]
