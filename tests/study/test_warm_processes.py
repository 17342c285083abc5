"""Which processes a study keeps, and when it starts one again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.study.stand_ins import FAST, MACHINE, NEXT, Does, open_study, pool_of
from togi.artifact.manifest import Saved, read_manifest
from togi.core.choices import Objective
from togi.core.records import REFERENCE_RECIPE, Facts, Outcome
from togi.worker.messages import Purpose
from togi.worker.supervise import Limits, TrialEnded


def test_a_process_that_has_ended_since_is_started_again(tmp_path: Path) -> None:
    """The system may end a paused one when memory runs out."""
    study = open_study(tmp_path)
    processes = study.processes
    reference, fast, alive = processes.reference(), processes.warm(FAST), processes.warm(NEXT)
    assert fast is not None
    for process in (reference, fast):
        process.end(Outcome.OUT_OF_MEMORY, "the system had run out of memory", "measure")
    assert processes.reference() is processes.reference() is not reference
    assert processes.warm(FAST) is processes.warm(FAST) is not fast
    assert processes.warm(NEXT) is alive
    assert [process.recipe for process in pool_of(study).processes] == [
        *(REFERENCE_RECIPE, FAST, NEXT),
        *(REFERENCE_RECIPE, FAST),
    ]


def test_what_cannot_be_built_again_is_noted(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    pool_of(study).built[FAST] = [Does(ends={"start": (Outcome.FAILED, "its compiler is gone")})]
    assert study.processes.warm(FAST) is None
    assert study.notes == [f"{FAST.label} could not be built again: its compiler is gone"]


def test_processes_have_the_limits_of_a_trial(tmp_path: Path) -> None:
    study = open_study(tmp_path, trial_timeout_s=7, trial_memory_bytes="1GiB")
    study.processes.warm(FAST)
    study.processes.start(NEXT, 2.0)
    limits = Limits(timeout_s=7.0, memory_bytes=1 << 30)
    assert pool_of(study).limits == [limits, Limits(timeout_s=2.0, memory_bytes=1 << 30, gives_way=True)]


def test_what_is_not_wanted_for_the_race_is_ended(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    reference, fast, next_ = study.processes.reference(), study.processes.warm(FAST), study.processes.warm(NEXT)
    study.processes.prune([NEXT])
    closed = {process.recipe for process in pool_of(study).processes if process.closed}
    assert closed == {FAST}
    assert study.processes.warm(FAST) is not fast
    assert study.processes.warm(NEXT) is next_
    assert study.processes.reference() is reference
    study.processes.close()
    assert all(process.closed for process in pool_of(study).processes)


@pytest.mark.parametrize(("device", "limit", "freed"), [("cuda", 1, True), ("cpu", None, True), ("cpu", 1, False)])
def test_kept_processes_give_their_memory_back_unless_a_limit_of_the_user_did_not_suffice(
    tmp_path: Path, device: str, limit: int | None, freed: bool
) -> None:
    facts = Facts(machine=MACHINE, module_class="Net", device=device)
    study = open_study(tmp_path, facts=facts, trial_memory_bytes=limit)
    assert not study.processes.free_memory(), "nothing is kept"
    study.processes.warm(FAST)
    assert study.processes.free_memory() is freed
    assert [process.closed for process in pool_of(study).processes] == [freed]


def test_a_program_that_is_put_together_anew_is_loaded_anew(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    study.processes.compose(FAST, tmp_path / "composed")
    before = study.processes.warm(FAST)
    assert pool_of(study).loaded_recipes == [FAST]
    assert before is not None
    study.processes.compose(FAST, tmp_path / "again")
    assert pool_of(study).processes[0].closed
    assert study.processes.warm(FAST) is not before


def test_a_program_that_is_tried_is_not_proven_by_that(tmp_path: Path) -> None:
    """Trial and proof are loaded from the same files; validation data must not confirm what they chose."""
    study = open_study(tmp_path)
    study.processes.compose(FAST, tmp_path / "composed")
    study.processes.start(FAST)
    study.processes.warm(FAST)
    assert pool_of(study).checked == [Purpose.TRIAL, Purpose.TRIAL]


def test_where_the_first_call_is_raced_a_process_is_saved_to_be_started_from(tmp_path: Path) -> None:
    study = open_study(tmp_path, objective="first-call")
    study.processes.reference()
    (process,) = pool_of(study).processes
    assert process.asked == ["start", "save", "starts"]
    (folder,) = pool_of(study).folder.iterdir()
    assert read_manifest(folder).objective is Objective.FIRST_CALL


def test_what_has_no_file_form_has_no_first_call(tmp_path: Path) -> None:
    study = open_study(tmp_path, objective="first-call")
    pool_of(study).built[FAST] = [Does(saved=Saved(unsaveable="it runs the live module"))]
    with pytest.raises(TrialEnded, match="no file form that could be started from: it runs the live module"):
        study.processes.make_ready(study.processes.start(FAST))
