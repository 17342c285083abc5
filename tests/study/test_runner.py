"""What is tried, and how long: with trials that only take time, by a clock that they alone move."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.study.stand_ins import FAST, MACHINE, NEXT, REFERENCE_MS, Clock, Does, Said, open_study, pool_of, trial
from togi.core.choices import Effort
from togi.core.errors import SubjectError
from togi.core.recipe import PartKey, ProgramRecipe
from togi.core.records import REFERENCE_RECIPE, Facts, Interval, Outcome, Recipe, Timing, Trial, measured
from togi.decide.faster import BETWEEN_PROCESSES, conclusive
from togi.study.failures import OutOfTime
from togi.study.open_study import OpenStudy
from togi.study.runner import StudyRunner
from togi.techniques import recipe

CALLS = {"conv2d": 63, "batch_norm": 46, "hardswish": 21, "relu": 19, "add": 10, "linear": 1}
TIMES_S = {"reference": 4.0, "openvino": 6.0, "onnxruntime": 7.0, "torchscript": 5.0, "eager": 5.0}
"""Of a MobileNet's trials on two cores."""
REFERENCE = trial(REFERENCE_RECIPE, 1.0)
COMPILED = recipe(torch_compile={"mode": "default", "freezing": True}, no_grad={})


class Simulated:
    """Trials that only take time."""

    def __init__(self, clock: Clock, slower_x: float = 1.0) -> None:
        self._clock, self._slower_x = clock, slower_x

    def attempt(self, candidate: Recipe, timeout_s: float) -> Trial:
        engine = next((c.technique for c in candidate.choices if c.technique in TIMES_S), "eager")
        takes_s = TIMES_S["reference" if candidate.is_reference else engine] * self._slower_x
        self._clock.now_s += min(takes_s, timeout_s)
        if takes_s > timeout_s:
            return Trial(recipe=candidate, outcome=Outcome.TIMED_OUT)
        speedup_x = {"openvino": 3.0, "onnxruntime": 2.5}.get(engine, 1.0)
        interval = Interval(median=speedup_x, low=speedup_x * 0.98, high=speedup_x * 1.02)
        phases_s = {"start": 0.5, "build": 0.1, "verify": 1.0, "warm": 0.4, "measure": 2.0}
        timing = Timing(latency_ms=interval, speedup_x=interval)
        return Trial(recipe=candidate, outcome=Outcome.OK, timing=timing, cost_s=takes_s, phases_s=phases_s)

    def measure_again(self, disturbed: Trial) -> Trial:
        raise AssertionError("nothing disturbs it")


class Planned:
    """Trials that end as planned."""

    def __init__(self, *trials: Trial) -> None:
        self._trials, self.timeouts_s = list(trials), list[float]()

    def attempt(self, _candidate: Recipe, timeout_s: float) -> Trial:
        self.timeouts_s.append(timeout_s)
        return self._trials.pop(0)

    def measure_again(self, disturbed: Trial) -> Trial:
        raise AssertionError("nothing of it is warm")


def explored(folder: Path, *, slower_x: float = 1.0, loading_s: float = 9.0, **settings: Any) -> StudyRunner:
    """What ``run_study`` does before race and proof."""
    clock = Clock()
    facts = Facts(machine=MACHINE, module_class="MobileNetV3", functions=CALLS, latency_ms=13.0)
    only = ("openvino", "onnxruntime", "torchscript", "channels_last")
    folder.mkdir(exist_ok=True)
    study = open_study(folder, clock=clock, loading_s=loading_s, facts=facts, only=only, **settings)
    runner = StudyRunner(study, Simulated(clock, slower_x))
    clock.now_s += 5.0  # capture and truth
    runner.try_reference()
    runner.explore(study.budget.explore_s(race=False), first_gain=True)
    runner.explore(study.budget.explore_s())
    return runner


@pytest.mark.parametrize("loading_s", [3.0, 60.0])
def test_quick_ends_half_a_minute_after_loading_with_a_gain_that_can_be_proven(
    tmp_path: Path, loading_s: float
) -> None:
    study = explored(tmp_path, effort="quick", loading_s=loading_s).study
    assert any(BETWEEN_PROCESSES.faster(found.speedup_x) for found in measured(study.log.trials()))
    assert study.budget.loaded is not None
    assert study.clock() + study.budget.proof_s <= study.budget.loaded + 30.0


@pytest.mark.parametrize(("effort", "least"), [("normal", 4), ("thorough", 12)])
def test_more_effort_tries_more(tmp_path: Path, effort: str, least: int) -> None:
    tried = explored(tmp_path / effort, effort=effort).tried
    assert tried >= least
    assert tried > explored(tmp_path / "quick", effort="quick").tried


@pytest.mark.parametrize(("given_s", "gained"), [(None, True), (40.0, False)])
def test_on_a_busy_machine_an_effort_still_leaves_time_for_an_engine(
    tmp_path: Path, given_s: float | None, gained: bool
) -> None:
    """Everything takes four times as long. A given limit holds all the same."""
    study = explored(tmp_path, effort="quick", time_limit_s=given_s, slower_x=4.0).study
    assert study.search.gained() == gained
    assert isinstance(study.progress, Said)
    assert any("the study may take 1:29 in place of 39 s" in text for text in study.progress.messages) is gained
    assert pool_of(study).deadline.at == study.budget.ends_at, "from the reference on nothing is waited for longer"


def test_the_efforts_are_for_half_a_minute_for_minutes_and_for_the_night() -> None:
    assert [effort.time_limit_s for effort in Effort] == [30.0, 300.0, None]


FAILED = Trial(recipe=REFERENCE_RECIPE, outcome=Outcome.OUT_OF_MEMORY, reason="it needed 9 GiB")


@pytest.mark.parametrize(("earlier", "then", "starts"), [(REFERENCE, None, 0), (FAILED, REFERENCE, 1)])
def test_a_reference_that_failed_is_tried_once_more(
    tmp_path: Path, earlier: Trial, then: Trial | None, starts: int
) -> None:
    attempts = Planned(*filter(None, [then]))
    study = open_study(tmp_path, earlier)
    StudyRunner(study, attempts).try_reference()
    assert len(attempts.timeouts_s) == starts
    assert study.log.last(REFERENCE_RECIPE) != FAILED


def test_a_reference_that_fails_twice_leaves_nothing_to_tune(tmp_path: Path) -> None:
    attempts = Planned(FAILED, FAILED)
    with pytest.raises(SubjectError, match=r"its reference .* did not: it needed 9 GiB"):
        StudyRunner(open_study(tmp_path), attempts).try_reference()
    assert len(attempts.timeouts_s) == 2


def test_a_reference_that_the_studys_limit_cuts_off_is_not_kept(tmp_path: Path) -> None:
    """Another study with more time tries it again."""
    clock = Clock()
    study = open_study(tmp_path, clock=clock, time_limit_s=2)
    pool_of(study).deadline.at = clock() + 2.0
    with pytest.raises(OutOfTime, match="the time limit was over while the original was still in"):
        StudyRunner(study, Simulated(clock)).try_reference()
    assert study.log.trials() == []
    assert {late.recipe for late in study.given_up} == {REFERENCE_RECIPE}
    assert study.log.claim(REFERENCE_RECIPE), "nobody works on it"


def test_who_is_interrupted_gives_up_the_claim(tmp_path: Path) -> None:
    class Interrupted:
        def attempt(self, candidate: Recipe, timeout_s: float) -> Trial:
            raise KeyboardInterrupt

    study = open_study(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        StudyRunner(study, Interrupted()).try_reference()
    assert study.log.claim(REFERENCE_RECIPE)


def test_the_original_as_it_is_called_today_is_tried_once(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE)
    runner = StudyRunner(study, Planned(trial(Recipe(), 0.9)))
    runner.try_original()
    runner.try_original()
    assert runner.tried == 1


def test_processes_of_what_is_not_among_the_fastest_are_ended(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 1.5), only=("onnxruntime",))
    study.processes.warm(FAST)
    StudyRunner(study, Planned(trial(NEXT, 3.0))).explore(100.0, trials=1)
    (process,) = pool_of(study).processes
    assert process.closed


def composed_of(**engines: str) -> ProgramRecipe:
    return ProgramRecipe.of({PartKey(path=path): recipe(**{engine: {}}) for path, engine in engines.items()})


@pytest.mark.parametrize(("limit_s", "tried"), [(60.0, True), (1.0, False)])
def test_a_program_is_put_together_only_where_there_is_time_for_it(tmp_path: Path, limit_s: float, tried: bool) -> None:
    composed = composed_of(a="openvino")
    study, attempts = open_study(tmp_path, REFERENCE, time_limit_s=limit_s), Planned(trial(composed, 2.0))
    study.processes.compose(composed, Path("before"))
    study.processes.warm(composed)
    runner = StudyRunner(study, attempts)
    allowed_s = study.budget.explore_s(race=False)
    assert (runner.try_composed(composed, Path("now")) is not None) is tried
    assert attempts.timeouts_s == [allowed_s] * tried
    assert pool_of(study).processes[0].closed, "what was put together before with the same parts is gone"


def test_trials_end_with_the_seconds_since_the_study_began(tmp_path: Path) -> None:
    study = explored(tmp_path, effort="quick").study
    ended_s = [found.ended_s for found in study.log.trials()]
    assert ended_s == sorted(filter(None, ended_s))
    assert ended_s[0] == pytest.approx(9.0 + 5.0 + 4.0)
    assert math.isfinite(study.budget.left_s)


class ByEngine(dict[Recipe, list[Does]]):
    """What processes of any recipe with an engine do."""

    def __init__(self, **engines: Does) -> None:
        super().__init__()
        self._engines = engines

    def __missing__(self, asked: Recipe) -> list[Does]:
        return [next((does for engine, does in self._engines.items() if asked.find(engine)), Does())]


def planted(
    folder: Path,
    *firsts: Recipe,
    earlier_ms: tuple[float, ...] = (),
    before: tuple[Trial, ...] = (),
    limit_bytes: int | None = None,
    **engines: Does,
) -> StudyRunner:
    """Of a study of 100 s whose compiler takes a minute. ``before``: its trials of an earlier session."""
    engines = {"torch_compile": Does.faster(3.0, builds_s=60.0), **engines}
    with_compiler = MACHINE.model_copy(update={"compiler": "c++"})
    facts = Facts(machine=with_compiler, module_class="Net", functions=CALLS, latency_ms=REFERENCE_MS)
    settings = {"time_limit_s": 100.0, "only": tuple(engines), "max_memory_bytes": limit_bytes}
    study = open_study(folder, REFERENCE, *before, facts=facts, firsts=firsts, earlier_ms=earlier_ms, **settings)
    pool_of(study).built = ByEngine(**engines)  # type: ignore[assignment]
    return StudyRunner(study)


def tried_in(study: OpenStudy) -> list[Recipe]:
    """The recipes of its processes, in the order in which they were started."""
    return [process.recipe for process in pool_of(study).processes if not process.recipe.is_reference]


def test_a_trial_that_outruns_its_forecast_gives_way_to_cheaper_engines_and_goes_on(tmp_path: Path) -> None:
    runner = planted(tmp_path, COMPILED, openvino=Does())
    study = runner.study
    left_s = study.budget.explore_s()
    runner.explore(left_s, first_gain=True)
    tried = tried_in(study)
    assert tried[0] == COMPILED
    assert tried[1].find("openvino"), "a third of the time is over, and this is sooner done"
    assert tried.count(COMPILED) == 1, "it went on where it was"
    assert pool_of(study).limits[1].timeout_s == pytest.approx(left_s / 3, rel=0.1)
    last = study.log.last(COMPILED)
    assert last is not None
    assert last.outcome is Outcome.OK
    assert last.cost_s > 60.0, "what it took before it gave way counts"
    assert study.search.gained()
    gave_way = study.given_up[0]
    assert gave_way.reason.endswith("and gave way to other trials")


def test_what_gave_way_is_ended_with_its_study(tmp_path: Path) -> None:
    runner = planted(tmp_path, COMPILED, openvino=Does(), torch_compile=Does(builds_s=1e6))
    runner.explore(runner.study.budget.explore_s())
    (process,) = (process for process in pool_of(runner.study).processes if process.recipe == COMPILED)
    assert runner.study.log.last(COMPILED) is None
    runner.study.processes.close()
    assert process.closed


def test_where_nothing_is_cheaper_a_trial_has_more_time(tmp_path: Path) -> None:
    runner = planted(tmp_path, COMPILED)
    runner.explore(runner.study.budget.explore_s(), first_gain=True)
    assert tried_in(runner.study) == [COMPILED]
    assert runner.study.search.gained()


def test_what_the_machine_disturbed_is_measured_again_before_anything_costly(tmp_path: Path) -> None:
    """The reference is ten times as slow as in an earlier session, and nobody else has the processor."""
    runner = planted(tmp_path, earlier_ms=(REFERENCE_MS / 10,), openvino=Does.faster(2.0))
    runner.explore(runner.study.budget.explore_s(), first_gain=True)
    (tried,) = tried_in(runner.study)
    assert tried.find("openvino")
    assert [ended.outcome for ended in runner.study.log.trials()[1:]] == [Outcome.UNSTABLE, Outcome.OK]
    assert runner.study.search.gained()
    assert isinstance(runner.study.progress, Said)
    assert any("is measured again: disturbed" in text for text in runner.study.progress.messages)


def test_an_interval_that_says_nothing_is_measured_again_before_anything_costly(tmp_path: Path) -> None:
    """Every other turn was disturbed, on a machine that looked quiet: between 1.2 and 2.2 times as fast."""
    said: list[str] = []

    def wavers(turn: int) -> float:
        return REFERENCE_MS / (2.0 if any("is measured again" in text for text in said) else 1.2 + turn % 2)

    runner = planted(tmp_path, openvino=Does(ms=wavers))
    assert isinstance(runner.study.progress, Said)
    said = runner.study.progress.messages
    runner.explore(runner.study.budget.explore_s(), first_gain=True)
    first, last = measured(runner.study.log.trials()[1:])
    assert not conclusive(first.speedup_x)
    assert BETWEEN_PROCESSES.points_to_faster(first.speedup_x)
    assert runner.study.search.gained(), last.speedup_x


def test_what_does_not_fit_is_not_measured_again(tmp_path: Path) -> None:
    wavers = Does(ms=lambda turn: REFERENCE_MS / (1.2 + turn % 2), mib=9)
    runner = planted(tmp_path, limit_bytes=8 << 20, openvino=wavers)
    runner.explore(runner.study.budget.explore_s(), first_gain=True)
    assert isinstance(runner.study.progress, Said)
    assert any(trial.recipe.find("openvino") for trial in runner.study.log.trials())
    assert not any("measured again" in text for text in runner.study.progress.messages)


def test_what_is_slower_is_not_measured_again(tmp_path: Path) -> None:
    runner = planted(tmp_path, earlier_ms=(REFERENCE_MS / 10,), openvino=Does(ms=3 * REFERENCE_MS))
    runner.explore(runner.study.budget.explore_s(), first_gain=True)
    assert isinstance(runner.study.progress, Said)
    assert not any("openvino" in text and "measured again" in text for text in runner.study.progress.messages)


def test_trials_leave_time_to_compile_the_best_once_more(tmp_path: Path) -> None:
    """In the process that proves it."""
    runner = planted(tmp_path, COMPILED, torch_compile=Does.faster(3.0, builds_s=20.0), openvino=Does(builds_s=3.0))
    study = runner.study
    runner.explore(study.budget.explore_s())
    best, others = study.log.last(COMPILED), len(study.log.trials())
    assert best is not None
    assert best.phases_s["build"] == 20.0
    assert others > 3
    assert study.budget.left_s >= study.budget.proof_s >= 20.0


def test_trials_leave_time_to_build_the_best_of_an_earlier_session_once_more(tmp_path: Path) -> None:
    """No process of it is left, and it cannot be proven without one."""
    best = trial(FAST, 3.0, phases_s={"start": 1.0, "build": 40.0, "measure": 4.0}, cost_s=45.0)
    runner = planted(tmp_path, before=(best,), openvino=Does(builds_s=40.0), onnxruntime=Does(builds_s=3.0))
    study = runner.study
    runner.try_reference()
    runner.explore(study.budget.explore_s())
    assert len(tried_in(study)) > 2
    assert study.search.finalists(1) == (FAST,)
    assert study.budget.left_s >= 40.0 + study.budget.proof_s
    study.processes.warm(FAST)
    study.allow_for_best()
    assert study.budget.rebuilding_s == 0.0


def test_what_becomes_the_best_when_it_is_measured_again_has_time_for_its_proof_too(tmp_path: Path) -> None:
    runner = planted(tmp_path, COMPILED, earlier_ms=(REFERENCE_MS / 10,), torch_compile=Does.faster(3.0, builds_s=20.0))
    runner.explore(runner.study.budget.explore_s(), first_gain=True)
    assert [ended.outcome for ended in runner.study.log.trials()[1:]] == [Outcome.UNSTABLE, Outcome.OK]
    assert runner.study.budget.compiling_s >= 20.0


def test_the_search_knows_that_the_proof_of_the_best_leaves_less_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it proposes what is cut off, and exploring ends with that."""
    runner = planted(tmp_path, COMPILED, torch_compile=Does.faster(3.0, builds_s=20.0), openvino=Does(builds_s=3.0))
    study, until, allow = runner.study, list[float](), runner.study.search.allow

    def allowed(seconds: float) -> None:
        until.append(study.clock() + seconds)
        allow(seconds)

    monkeypatch.setattr(study.search, "allow", allowed)
    runner.explore(study.budget.explore_s())
    assert until == pytest.approx([until[0], until[0] - study.budget.compiling_s])
    assert study.budget.compiling_s >= 20.0


def test_what_was_disturbed_in_an_earlier_session_has_another_turn_and_no_more(tmp_path: Path) -> None:
    attempts = Planned(*(trial(each, 2.0, outcome=Outcome.UNSTABLE) for each in (FAST, Recipe())))
    study = open_study(tmp_path, REFERENCE, trial(FAST, 2.0, outcome=Outcome.UNSTABLE), trial(NEXT, 2.0))
    study.log.append(trial(Recipe(), 0.9, outcome=Outcome.UNSTABLE))
    runner = StudyRunner(study, attempts)
    for _ in range(2):
        runner.try_each([FAST, NEXT])
        runner.try_original()
    assert runner.tried == len(attempts.timeouts_s) == 2


def test_where_the_limit_cuts_off_the_reference_that_takes_turns_another_study_tries_the_recipe(tmp_path: Path) -> None:
    runner = planted(tmp_path, FAST, openvino=Does.faster(2.0))
    study = runner.study
    pool = pool_of(study)

    def until_the_limit(turn: int) -> float:
        if turn == 4:
            pool.deadline.at = study.clock()
        return REFERENCE_MS

    ends = {"turn": (Outcome.TIMED_OUT, "the time was over")}
    pool.built[REFERENCE_RECIPE] = [Does(ms=until_the_limit, ends=ends, turns=5, cut_off=True)]
    runner.explore(100.0, first_gain=True)
    assert [ended.recipe for ended in study.log.trials()] == [REFERENCE_RECIPE]
    assert study.given_up[0].recipe == FAST
    assert study.given_up[0].reason == "the reference that took turns with it ended: the time was over"
    assert study.log.claim(FAST), "nobody works on it"


@pytest.mark.parametrize("speedup_x", [2.0, 1.0])
def test_after_the_first_gain_of_a_program_it_is_known_how_long_race_and_proof_take(
    tmp_path: Path, speedup_x: float
) -> None:
    """Not before: the original's own trial would have the gain wait."""
    composed = composed_of(a="openvino")
    study = open_study(tmp_path, time_limit_s=100.0)
    pool_of(study).built |= {composed: [Does.faster(speedup_x)], REFERENCE_RECIPE: [Does()]}
    before_s = study.budget.explore_s() - study.budget.explore_s(race=False)
    study.processes.compose(composed, Path("now"))
    assert StudyRunner(study).try_composed(composed, Path("now")) is not None
    after_s = study.budget.explore_s() - study.budget.explore_s(race=False)
    assert (study.log.last(REFERENCE_RECIPE) is not None) is (speedup_x > 1.0)
    assert (after_s > before_s) is (speedup_x > 1.0), "less of it is for the race"
    assert {each.recipe for each in measured(study.log.trials())} >= {composed}


def test_the_original_is_not_begun_where_it_would_be_cut_off(tmp_path: Path) -> None:
    study = open_study(tmp_path, trial(REFERENCE_RECIPE, 1.0, cost_s=30.0), time_limit_s=40)
    runner = StudyRunner(study, Planned())
    assert 0 < study.budget.explore_s() < 30.0
    runner.try_original()
    assert runner.tried == 0
