"""The race of the finalists, with processes that are as fast as planted."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.study.stand_ins import FAST, NEXT, REFERENCE_MS, SLOW, Clock, Does, open_study, pool_of, trial
from togi.core.records import REFERENCE_RECIPE, Outcome, Recipe
from togi.decide.faster import BETWEEN_PROCESSES
from togi.study.final_race import FinalRace
from togi.study.open_study import OpenStudy

REFERENCE = trial(REFERENCE_RECIPE, 1.0)


def speedup_x(study: OpenStudy, of: Recipe) -> float:
    last = study.log.last(of)
    assert last is not None
    assert last.measured is not None
    return last.measured.speedup_x.median


def test_those_that_race_are_named_fastest_first_and_timed_anew(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0), trial(NEXT, 2.9))
    pool_of(study).built |= {FAST: [Does.faster(2.5)], NEXT: [Does.faster(2.8)]}
    assert FinalRace(study).of_trials([FAST, NEXT]) == (NEXT, FAST, REFERENCE_RECIPE)
    assert [speedup_x(study, each) for each in (FAST, NEXT)] == [pytest.approx(2.5), pytest.approx(2.8)]
    assert any(note.startswith("The race: ") for note in study.notes)


@pytest.mark.parametrize(("left_s", "raced"), [(45.0, (FAST, NEXT, SLOW)), (30.0, (FAST, NEXT)), (15.0, ())])
def test_as_many_race_as_there_is_time_for_before_the_proof(
    tmp_path: Path, left_s: float, raced: tuple[Recipe, ...]
) -> None:
    """A round of three takes 1.5 s here, and a dozen are needed; the proof takes 7 s and more."""
    study = open_study(tmp_path, REFERENCE, *(trial(each, 1.0) for each in (FAST, NEXT, SLOW)), time_limit_s=left_s)
    pool_of(study).built |= {each: [Does(ms=500.0)] for each in (FAST, NEXT, SLOW, REFERENCE_RECIPE)}
    FinalRace(study).of_trials([FAST, NEXT, SLOW])
    taken = {process.recipe for process in pool_of(study).processes if "turn" in process.asked}
    assert taken - {REFERENCE_RECIPE} == set(raced)
    nothing = "No time was left for a race of the finalists: their trials decide."
    assert (nothing in study.notes) is (not raced)


@pytest.mark.parametrize(
    ("reference_ms", "left_s", "pauses", "recorded"),
    [
        (lambda _turn: REFERENCE_MS, math.inf, 0, True),
        (lambda turn: 10 * REFERENCE_MS if turn < 9 else REFERENCE_MS, math.inf, 1, True),
        (lambda _turn: 10 * REFERENCE_MS, math.inf, 1, False),
        (lambda _turn: 10 * REFERENCE_MS, 8.0, 0, False),
    ],
    ids=["quiet", "quiet again", "busy", "busy and no time"],
)
def test_a_race_that_is_disturbed_as_a_whole_is_repeated_once(
    tmp_path: Path, reference_ms: Callable[[int], float], left_s: float, pauses: int, recorded: bool
) -> None:
    clock = Clock()
    limit_s = None if math.isinf(left_s) else left_s
    study = open_study(
        tmp_path, REFERENCE, trial(FAST, 3.0), clock=clock, earlier_ms=(REFERENCE_MS / 1.5,), time_limit_s=limit_s
    )
    pool_of(study).built |= {REFERENCE_RECIPE: [Does(ms=reference_ms)], FAST: [Does.faster(2.5)]}
    running = study.processes.warm(FAST)
    assert running is not None
    FinalRace(study).run([running], 5.0)
    assert len(clock.slept_s) == pauses
    assert speedup_x(study, FAST) == pytest.approx(2.5 if recorded else 3.0)
    assert any(note.startswith("The race: ") for note in study.notes) is recorded
    assert any("race could not be used (disturbed" in note for note in study.notes) is not recorded


def test_what_leaves_the_race_keeps_what_its_trial_measured(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0), trial(NEXT, 2.9))
    pool_of(study).built[NEXT] = [Does(ends={"turn": (Outcome.CRASHED, "killed")})]
    FinalRace(study).of_trials([FAST, NEXT])
    assert speedup_x(study, NEXT) == 2.9


@pytest.mark.parametrize(
    ("cut_off", "late_s", "outcome"),
    [(False, 0.0, Outcome.TIMED_OUT), (True, 0.0, Outcome.OK), (True, 60.0, Outcome.TIMED_OUT)],
    ids=["by its own limit", "when the time was over", "long after its race had to be"],
)
def test_what_hangs_in_the_race_is_no_choice_any_more(
    tmp_path: Path, cut_off: bool, late_s: float, outcome: Outcome
) -> None:
    clock = Clock()
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0), trial(NEXT, 2.9), clock=clock)
    ends = {"turn": (Outcome.TIMED_OUT, "it was still in measure after 15 s")}
    pool_of(study).built |= {
        FAST: [Does.faster(3.0, ends=ends, turns=4, cut_off=cut_off)],
        NEXT: [Does(ms=lambda turn: 1e3 * late_s if turn == 4 and late_s else REFERENCE_MS / 2.9)],
    }
    FinalRace(study).of_trials([FAST, NEXT])
    last = study.log.last(FAST)
    assert last is not None
    assert last.outcome is outcome
    said = f"{FAST.label} was set aside: in the race of the finalists it was still in measure after 15 s."
    assert (said in study.notes) is (outcome is Outcome.TIMED_OUT)
    assert study.log.last(NEXT) is not None


def test_what_the_race_measured_undisturbed_counts_though_another_was_disturbed(tmp_path: Path) -> None:
    """It left when a neighbour went, and the rounds that it shared are few."""
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0), trial(NEXT, 2.9), earlier_ms=(REFERENCE_MS / 1.5,))
    pool_of(study).built |= {
        REFERENCE_RECIPE: [Does(ms=lambda turn: 10 * REFERENCE_MS if turn < 8 else REFERENCE_MS)],
        FAST: [Does.faster(2.5)],
        NEXT: [Does.faster(2.8, ends={"turn": (Outcome.CRASHED, "killed")}, turns=6)],
    }
    FinalRace(study).of_trials([FAST, NEXT])
    assert [speedup_x(study, each) for each in (FAST, NEXT)] == [pytest.approx(2.5), 2.9]


def test_who_is_faster_than_whom_is_told_by_the_last_race_of_both(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 2.5), trial(NEXT, 2.8), trial(SLOW, 1.5))
    race = FinalRace(study)
    race.of_trials([FAST, NEXT, SLOW])
    assert race.told_apart == {(NEXT, FAST), (NEXT, SLOW), (FAST, SLOW)}
    pool_of(study).built[FAST] = [Does.faster(2.8)]
    race.run([study.processes.start(FAST), study.processes.start(NEXT)], 10.0, again=True)
    assert race.told_apart == {(NEXT, SLOW), (FAST, SLOW)}


def wavering(*speedups_x: float) -> Any:
    return lambda turn: REFERENCE_MS / speedups_x[turn % len(speedups_x)]


@pytest.mark.parametrize(("again", "together"), [(False, False), (True, True)])
def test_what_other_processes_of_a_recipe_measured_counts_together(tmp_path: Path, again: bool, together: bool) -> None:
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before)
    pool_of(study).built[FAST] = [Does.faster(2.0)]
    running = study.processes.warm(FAST)
    assert running is not None
    result = FinalRace(study).run([running], 10.0, again=again)
    last = study.log.last(FAST)
    assert last is not None
    assert last.timing is not None
    assert before.timing is not None
    earlier = len(before.timing.rounds_ms) if together else 0
    assert len(last.timing.rounds_ms) == result.rounds + earlier


@pytest.mark.parametrize(("speeds_x", "together"), [((1.0, 1.3, 1.7), True), ((0.7, 0.9, 1.5), False)])
def test_a_race_that_points_to_it_without_being_sure_counts_together_with_the_trial(
    tmp_path: Path, speeds_x: tuple[float, ...], together: bool
) -> None:
    """A program of a second a call has a few rounds in its race: they do not undo what its trial was sure of."""
    before = trial(FAST, 1.4)
    study = open_study(tmp_path, REFERENCE, before)
    pool_of(study).built[FAST] = [Does(ms=wavering(*speeds_x))]
    running = study.processes.warm(FAST)
    assert running is not None
    result = FinalRace(study).run([running], 1.3)
    last = study.log.last(FAST)
    assert last is not None
    assert last.timing is not None
    assert before.timing is not None
    assert len(last.timing.rounds_ms) == result.rounds + len(before.timing.rounds_ms) * together
    assert BETWEEN_PROCESSES.faster(last.timing.speedup_x) is together


@pytest.mark.parametrize(("known_x", "concluded"), [(1.4, True), (None, False)])
def test_rounds_that_are_too_few_by_themselves_count_with_those_of_the_trial(
    tmp_path: Path, known_x: float | None, concluded: bool
) -> None:
    """Of a model of 19 s a pass, say, and where the trial was disturbed they are all there is."""
    before = trial(FAST, known_x or 1.4, outcome=Outcome.OK if known_x else Outcome.UNSTABLE)
    study = open_study(tmp_path, REFERENCE, before)
    pool_of(study).built |= {FAST: [Does.faster(1.5)]}
    running = study.processes.warm(FAST)
    assert running is not None
    result = FinalRace(study).run([running], 0.06)
    assert 0 < result.rounds < 6
    last = study.log.last(FAST)
    assert last is not None
    assert last.timing is not None
    assert before.timing is not None
    assert len(last.timing.rounds_ms) == len(before.timing.rounds_ms) + result.rounds * concluded
    assert any("too few to conclude" in note for note in study.notes) is not concluded


def test_where_no_time_is_left_no_reference_is_started_for_a_race(tmp_path: Path) -> None:
    """Its process may have ended with the time."""
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0), trial(NEXT, 2.9), time_limit_s=5)
    assert FinalRace(study).of_trials([FAST, NEXT]) == (FAST, NEXT, REFERENCE_RECIPE)
    assert pool_of(study).processes == []
    assert study.notes == ["No time was left for a race of the finalists: their trials decide."]
