"""How a trial ends: measured, not right, or with whatever its process does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.study.stand_ins import FAST, MACHINE, NEXT, WRONG, Clock, Does, Pool, open_study, pool_of
from togi.core.errors import SubjectError
from togi.core.records import REFERENCE_RECIPE, ErrorReport, Facts, Outcome
from togi.study.attempts import Attempts
from togi.worker.launch import NoTimeLeft, ServerNotStarted


def test_a_trial_is_verified_and_measured(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    pool_of(study).built[FAST] = [Does.faster(2.0, mib=7)]
    found = Attempts(study).attempt(FAST, 60.0)
    assert (found.recipe, found.outcome, found.reason) == (FAST, Outcome.OK, "")
    assert found.measured is not None
    assert found.measured.speedup_x.median == pytest.approx(2.0)
    assert found.footprint is not None
    assert found.footprint.total_bytes == 7 << 20
    assert found.cost_s > 0
    assert study.processes.warm(FAST) in pool_of(study).processes[:2], "it is kept for the race"


@pytest.mark.parametrize(("mib", "fits"), [(7, True), (8, True), (9, False)])
def test_what_does_not_fit_is_timed_for_a_moment(tmp_path: Path, mib: int, fits: bool) -> None:
    """It cannot be chosen, however fast it is."""
    study = open_study(tmp_path, max_memory_bytes=8 << 20)
    pool_of(study).built[FAST] = [Does.faster(2.0, mib=mib)]
    found = Attempts(study).attempt(FAST, 60.0)
    assert (found.outcome, found.footprint and found.footprint.total_bytes) == (Outcome.OK, mib << 20)
    assert found.measured is not None
    assert found.measured.speedup_x.median == pytest.approx(2.0)
    asked = pool_of(study).processes[-1].asked
    assert asked.count("footprint") == 1 + fits, "again after it was timed"
    assert (asked.count("turn") > 5) is fits


def test_what_is_wrong_is_not_measured(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    pool_of(study).built[FAST] = [Does(error=WRONG)]
    found = Attempts(study).attempt(FAST, 60.0)
    assert found.outcome is Outcome.WRONG
    assert found.measured is None
    assert pool_of(study).processes[-1].closed


@pytest.mark.parametrize(
    ("at", "outcome"), [("start", Outcome.FAILED), ("warm", Outcome.CRASHED), ("turn", Outcome.TIMED_OUT)]
)
def test_how_its_process_ends_is_how_the_trial_does(tmp_path: Path, at: str, outcome: Outcome) -> None:
    study = open_study(tmp_path)
    pool_of(study).built[FAST] = [Does(ends={at: (outcome, "no more")})]
    found = Attempts(study).attempt(FAST, 60.0)
    assert (found.outcome, found.reason, found.stage) == (outcome, "no more", at)


@pytest.mark.parametrize(
    ("ends", "outcome"), [({}, Outcome.OK), ({"start": (Outcome.CRASHED, "no more")}, Outcome.CRASHED)]
)
def test_the_rest_of_the_truth_is_none_of_its_costs(tmp_path: Path, ends: dict[str, Any], outcome: Outcome) -> None:
    study = open_study(tmp_path)
    study.subject.facts = study.subject.facts.model_copy(update={"train": True})
    pool_of(study).built[FAST] = [Does.faster(2.0)]
    pool_of(study).rest_of_truth[FAST] = Does(builds_s=500.0, ends=ends)
    found = Attempts(study).attempt(FAST, 60.0)
    assert (found.recipe, found.outcome) == (FAST, outcome)
    assert found.cost_s < 100
    assert found.reason == ("no more" if ends else "")


def test_validation_data_that_the_original_cannot_answer_end_the_study(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    pool_of(study).rest_of_truth[FAST] = Does(ends={"start": (Outcome.FAILED, "a sample of no use")})
    with pytest.raises(SubjectError, match="a sample of no use"):
        Attempts(study).attempt(FAST, 60.0)


def test_validation_data_are_not_waited_for_where_there_is_no_time(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    does = Does(ends={"start": (Outcome.TIMED_OUT, "the time was over")}, cut_off=True)
    pool_of(study).rest_of_truth[FAST] = does
    assert Attempts(study).attempt(FAST, 60.0).outcome is Outcome.TIMED_OUT


def test_the_time_of_the_proof_is_not_given_to_validation_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = open_study(tmp_path)
    pool, left_s = pool_of(study), list[float]()
    monkeypatch.setattr(pool, "complete_truth", lambda _, facts, *__: left_s.append(pool.deadline.left_s) or facts)
    with pool.deadline.within(study.budget.proof_s + 50.0):
        Attempts(study).attempt(FAST, 60.0)
    assert left_s == [pytest.approx(50.0)]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(NoTimeLeft("the time was over"), Outcome.TIMED_OUT), (ServerNotStarted("no library"), Outcome.FAILED)],
)
def test_a_process_that_cannot_be_started_ends_the_trial(tmp_path: Path, error: Exception, outcome: Outcome) -> None:
    class NotStarted(Pool):
        def start(self, recipe, *rest):  # type: ignore[no-untyped-def]
            if recipe == FAST:
                raise error
            return super().start(recipe, *rest)

    study = open_study(tmp_path)
    study.subject.pool = NotStarted(Clock(), tmp_path)  # type: ignore[assignment]
    found = Attempts(study).attempt(FAST, 60.0)
    assert (found.outcome, found.reason, found.stage) == (outcome, str(error), "start")


def test_a_reference_that_does_not_start_again_is_no_trial_of_the_candidate(tmp_path: Path) -> None:
    """The candidate was not judged, and the reference's trial of before stands."""
    study = open_study(tmp_path)
    pool_of(study).built[REFERENCE_RECIPE] = [Does(ends={"start": (Outcome.OUT_OF_MEMORY, "no memory was left")})]
    found = Attempts(study).attempt(FAST, 60.0)
    assert (found.recipe, found.outcome) == (FAST, Outcome.UNSTABLE)
    assert "no memory was left" in found.reason


def test_an_original_that_was_killed_in_its_trial_is_tried_again(tmp_path: Path) -> None:
    """By whoever looks for memory, say: without it nothing could be chosen."""
    study = open_study(tmp_path)
    pool_of(study).built[REFERENCE_RECIPE] = [Does(ends={"turn": (Outcome.CRASHED, "killed by SIGKILL")}), Does()]
    assert Attempts(study).attempt(REFERENCE_RECIPE, 60.0).outcome is Outcome.OK
    assert len(pool_of(study).processes) == 2


@pytest.mark.parametrize(
    ("device", "limit", "attempts", "outcome"),
    [("cuda", 1, 2, Outcome.OK), ("cpu", None, 2, Outcome.OK), ("cpu", 1, 1, Outcome.OUT_OF_MEMORY)],
)
def test_what_does_not_fit_beside_paused_processes_is_tried_without_them(
    tmp_path: Path, device: str, limit: int | None, attempts: int, outcome: Outcome
) -> None:
    """A paused process keeps its memory; the user's limit on a trial of the CPU is the same without it."""
    facts = Facts(machine=MACHINE, module_class="Net", device=device)
    study = open_study(tmp_path, facts=facts, trial_memory_bytes=limit)
    study.processes.warm(NEXT)
    full = Does(ends={"start": (Outcome.OUT_OF_MEMORY, "it held 9 GiB")})
    pool_of(study).built[FAST] = [full, Does.faster(2.0)]
    assert Attempts(study).attempt(FAST, 60.0).outcome is outcome
    assert [process.recipe for process in pool_of(study).processes].count(FAST) == attempts


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_cache_of_what_is_kept_paused_is_given_back(tmp_path: Path, device: str) -> None:
    """The reference's too: other trials want the device's memory while both are stopped."""
    study = open_study(tmp_path, facts=Facts(machine=MACHINE, module_class="Net", device=device))
    Attempts(study).attempt(REFERENCE_RECIPE, 60.0)
    Attempts(study).attempt(FAST, 60.0)
    reference, fast = (process.asked for process in pool_of(study).processes)
    rests = int(device == "cuda")
    assert (reference.count("rest"), fast.count("rest")) == (2 * rests, rests)
    assert fast[-1] == ("rest" if rests else "footprint")


def test_an_original_that_mixes_up_its_callers_is_said_to(tmp_path: Path) -> None:
    study = open_study(tmp_path, facts=Facts(machine=MACHINE, module_class="Net", callers=3))
    problem = "output is another when 3 call at once"
    error = ErrorReport(faithful=False, units=0.0, rmse=0.0, max_abs=0.0, problems=(problem,))
    pool_of(study).built[REFERENCE_RECIPE] = [Does(error=error)]
    assert Attempts(study).attempt(REFERENCE_RECIPE, 60.0).outcome is Outcome.OK
    assert study.notes == [f"The original itself is not right for several callers: {problem}."]


def test_what_the_machine_disturbs_is_unstable(tmp_path: Path) -> None:
    study = open_study(tmp_path, earlier_ms=(1.0,), time_limit_s=1)
    found = Attempts(study).attempt(FAST, 60.0)
    assert found.outcome is Outcome.UNSTABLE
    assert found.reason.startswith("disturbed: the reference took 10.0 times as long")


@pytest.mark.parametrize(
    ("at", "limit", "kept"),
    [("turn", None, True), ("turn", 1 << 30, True), ("footprint", None, True), ("footprint", 1 << 30, False)],
)
@pytest.mark.parametrize("cut_off", [True, False])
def test_what_was_measured_counts_where_the_limit_ends_it_afterwards(
    tmp_path: Path, at: str, cut_off: bool, limit: int | None, kept: bool
) -> None:
    """Without its memory, unless that decides: then it is measured before."""
    study = open_study(tmp_path, max_memory_bytes=limit)
    late = {at: (Outcome.TIMED_OUT, "the time was over")}
    wavering = Does(ms=lambda turn: 5.0 + 4.9 * (turn % 3 == 0), ends=late, turns=20, cut_off=cut_off)
    pool_of(study).built[FAST] = [wavering]
    found = Attempts(study).attempt(FAST, 60.0)
    if not (cut_off and kept):
        assert found.outcome is Outcome.TIMED_OUT
        return
    assert (found.outcome, found.footprint is None) == (Outcome.OK, limit is None)
    assert found.measured is not None
    assert found.measured.speedup_x.median == pytest.approx(2.0)


def test_what_was_measured_counts_where_the_limit_ends_it_at_rest(tmp_path: Path) -> None:
    study = open_study(tmp_path, facts=Facts(machine=MACHINE, module_class="Net", device="cuda"))
    pool_of(study).built[FAST] = [Does.faster(2.0, ends={"rest": (Outcome.TIMED_OUT, "it was late")}, cut_off=True)]
    found = Attempts(study).attempt(FAST, 60.0)
    assert found.outcome is Outcome.OK
    assert found.measured is not None
    assert found.footprint is not None


def test_no_turn_is_begun_that_the_deadline_would_cut_off(tmp_path: Path) -> None:
    """The reference would be gone with it."""
    study = open_study(tmp_path)
    pool_of(study).built |= {FAST: [Does(ms=500.0)], REFERENCE_RECIPE: [Does(ms=1000.0)]}
    study.processes.reference()
    deadline, began = pool_of(study).deadline, study.clock()
    with deadline.within(10.0):
        found = Attempts(study).attempt(FAST, 60.0)
        assert study.clock() < began + 10.0
    assert found.measured is not None
    assert found.footprint is not None


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.UNSTABLE])
def test_what_was_not_disturbed_counts_where_it_is_measured_again(tmp_path: Path, outcome: Outcome) -> None:
    """Its interval was too wide to conclude anything from, and so is another: more rounds make it narrower."""
    study = open_study(tmp_path)
    pool_of(study).built[FAST] = [Does(ms=lambda turn: 10.0 / (1.2 + turn % 2))]
    attempts = Attempts(study)
    before = attempts.attempt(FAST, 60.0).model_copy(update={"outcome": outcome})
    again = attempts.measure_again(before)
    assert before.timing is not None
    assert again.timing is not None
    rounds = len(before.timing.rounds_ms)
    assert (len(again.timing.rounds_ms) > 1.5 * rounds) is (outcome is Outcome.OK)


@pytest.mark.parametrize(("cut_off", "stays"), [(True, True), (False, False)])
def test_what_was_measured_stays_where_the_limit_ends_it_when_it_is_measured_again(
    tmp_path: Path, cut_off: bool, stays: bool
) -> None:
    study = open_study(tmp_path)
    attempts, pool = Attempts(study), pool_of(study)
    before = attempts.attempt(FAST, 60.0)
    ends = {"turn": (Outcome.TIMED_OUT, "late")}
    pool.processes[-1].does = Does(ends=ends, cut_off=cut_off)
    pool.deadline.at = study.clock() if cut_off else math.inf
    assert (attempts.measure_again(before).outcome is Outcome.OK) is stays
