"""What a study that begins takes from the journal."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.study.stand_ins import FAST, MACHINE, NEXT, SLOW, Said, signature, trial
from togi.core.records import REFERENCE_RECIPE, Facts, Outcome, Trial
from togi.core.settings import Settings
from togi.journal import Journal
from togi.study.open_study import OpenStudy
from togi.study.tuned_subject import TunedSubject
from togi.techniques import recipe
from togi.worker.deadline import Deadline


def session(journal: Journal, name: str = "net.py:make", *, resume: bool = True, **settings: Any) -> OpenStudy:
    pool: Any = SimpleNamespace(export_s=0.0, deadline=Deadline())  # no process is started
    subject = TunedSubject(pool, name, Facts(machine=MACHINE, module_class="Net"), signature(), Settings(**settings))
    return OpenStudy.open(subject, "", journal, Said(), started=time.monotonic(), resume=resume)


def test_the_same_study_goes_on_with_its_trials_unless_it_begins_anew(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        first = session(journal)
        first.log.append(trial(FAST, 3.0))
        assert session(journal).log.id == first.log.id
        assert session(journal).search.finalists(4) == (FAST,)
        assert session(journal, resume=False).log.trials() == []


def test_what_the_machine_disturbed_is_tried_again_by_the_same_command(tmp_path: Path) -> None:
    """And counts as long as nothing else is known of it."""
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        first = session(journal)
        for tried in (REFERENCE_RECIPE, FAST, NEXT):
            first.log.append(trial(tried, 3.0, outcome=Outcome.UNSTABLE, cost_s=400.0))
        first.log.append(trial(NEXT, 3.0))
        second = session(journal)
        cost_s = second.search.cost_s(FAST)
        assert second.search.next() == REFERENCE_RECIPE
        assert [second.log.claim(tried) for tried in (FAST, NEXT)] == [True, False]
        assert not session(journal).log.claim(FAST), "another works on it"
        second.log.append(trial(FAST, 3.0))
        third = session(journal)
        assert not third.log.claim(FAST)
        assert set(third.search.finalists(4)) == {FAST, NEXT}
        assert cost_s > 2 * session(journal, resume=False).search.cost_s(FAST), "what it took is known"


@pytest.mark.parametrize(("minutes", "again"), [(3, [False, True, False, False]), (20, [True, True, False, False])])
def test_what_had_less_time_than_now_or_was_missing_is_tried_again(
    tmp_path: Path, minutes: int, again: list[bool]
) -> None:
    """With --trial-timeout 20m, or once it is installed: nothing else would have it tried in this study."""
    late, missing, hanging, wrong = FAST, NEXT, SLOW, recipe(torch_compile={"mode": "default"}, no_grad={})
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        log = session(journal, trial_timeout_s=180.0).log
        log.append(trial(REFERENCE_RECIPE, 1.0))
        log.append(Trial(recipe=late, outcome=Outcome.TIMED_OUT, stage="build", cost_s=180.4))
        log.append(Trial(recipe=missing, outcome=Outcome.MISSING, stage="build", cost_s=9.0))
        log.append(Trial(recipe=hanging, outcome=Outcome.TIMED_OUT, stage="measure", cost_s=30.0))
        log.append(Trial(recipe=wrong, outcome=Outcome.WRONG, cost_s=30.0))
        second = session(journal, trial_timeout_s=60.0 * minutes)
        untried = {left.technique for left in second.search.untried()}
        names = ("openvino", "onnxruntime", "torchscript", "torch_compile")
        assert [name in untried for name in names] == again
        assert [second.log.claim(each, second.settles) for each in (late, missing, hanging, wrong)] == again


@pytest.mark.parametrize(("given", "again"), [("1GiB", False), ("1.2GiB", False), ("2GiB", True)])
def test_what_needed_more_memory_than_it_might_take_is_tried_again_where_it_may_take_more(
    tmp_path: Path, given: str, again: bool
) -> None:
    """What others had taken of the machine is no fault of a recipe."""
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        log = session(journal).log
        log.append(Trial(recipe=FAST, outcome=Outcome.OUT_OF_MEMORY, memory_bytes=1 << 30, cost_s=9.0))
        second = session(journal, trial_memory_bytes=given)
        assert ("openvino" in {left.technique for left in second.search.untried()}) is again
        assert second.log.claim(FAST, second.settles) is again


def test_what_earlier_sessions_took_counts_once(tmp_path: Path) -> None:
    """A finalist has a record of its race and one of its proof too."""
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        log = session(journal).log
        for tried, cost_s in ((REFERENCE_RECIPE, 4.0), (FAST, 30.0), (FAST, 30.0), (FAST, 30.0)):
            log.append(trial(tried, 3.0, cost_s=cost_s))
        assert session(journal).earlier_s == 34.0
        log.decide(log.header.model_copy(update={"took_s": 50.0}))
        assert session(journal).earlier_s == 50.0


def test_the_reference_of_an_earlier_session_tells_how_long_a_proof_takes(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        first = session(journal)
        before = first.budget.proof_s
        first.log.append(trial(REFERENCE_RECIPE, 1.0, phases_s={"start": 30.0}))
        assert session(journal).budget.proof_s == pytest.approx(before + 2 * 30.0)


@pytest.mark.parametrize(("reference_ms", "doubted"), [(19.0, False), (800.0, True)])
def test_a_session_that_is_disturbed_from_its_start_is_told_by_the_journal(
    tmp_path: Path, reference_ms: float, doubted: bool
) -> None:
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        session(journal).log.append(trial(FAST, 3.0))
        timing = trial(NEXT, 2.0).timing
        assert timing is not None
        slowed = timing.model_copy(update={"rounds_ms": ((reference_ms, 1.0),) * 12})
        assert bool(session(journal).stopwatch.doubt(slowed)) is doubted


def test_a_study_learns_from_the_others_of_its_journal_unless_it_begins_anew(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        first = session(journal, "one.py:make")
        for tried, speedup_x in ((REFERENCE_RECIPE, 1.0), (recipe(onnxruntime={}, no_grad={}), 5.0)):
            first.log.append(trial(tried, speedup_x))
        learned = session(journal, "other.py:make").experience
        assert learned.used == 1
        assert "onnxruntime 5.00x" in learned.sentence({"onnxruntime"})
        assert session(journal, "other.py:make", resume=False).experience.used == 0
        assert session(journal, "one.py:make").experience.used == 0  # its own trials are known
