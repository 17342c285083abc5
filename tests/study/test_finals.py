"""The choice rests on a proof: what was saved is measured again, and may give way to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.study.stand_ins import FAST, NEXT, SLOW, WRONG, Does, compose, open_study, pool_of, trial
from togi.artifact.manifest import Saved, read_manifest
from togi.core.choices import AccuracyMeasure
from togi.core.recipe import PartKey, ProgramRecipe
from togi.core.records import REFERENCE_RECIPE, Accuracy, ErrorReport, Outcome, Recipe, Trial
from togi.decide.paired import flips
from togi.study.finals import Decision, Finals
from togi.study.open_study import OpenStudy
from togi.techniques import recipe
from togi.worker.messages import Purpose
from togi.worker.supervise import Limits

REFERENCE = trial(REFERENCE_RECIPE, 1.0)
COMPILED = recipe(torch_compile={"mode": "default", "freezing": False}, no_grad={})
NO_FILE_FORM = Does(saved=Saved(unsaveable="it runs the live module"))
WRONG_BEYOND = Saved(wrong="it clips 300")


def decided(folder: Path, study: OpenStudy) -> Decision:
    keep = folder / "artifacts"
    keep.mkdir(exist_ok=True)
    decision = Finals(study, keep).decide()
    assert list(keep.iterdir()) == ([] if decision.folder is None else [decision.folder])
    return decision


def proven(study: OpenStudy) -> list[Recipe]:
    """Recipes that were loaded from their files to be proven."""
    return pool_of(study).loaded_recipes


def test_what_was_chosen_is_proven_by_what_did_not_choose_it(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 2.0))
    assert chosen(decided(tmp_path, study)) == FAST
    assert pool_of(study).checked == [Purpose.PROOF]


def chosen(decision: Decision) -> Recipe | None:
    return None if decision.chosen.trial is None else decision.chosen.trial.recipe


def raced(study: OpenStudy) -> set[Recipe]:
    """Whose first process took turns."""
    built = [process for process in pool_of(study).processes if not process.name.endswith(".togi")]
    return {process.recipe for process in built if "turn" in process.asked and not process.recipe.is_reference}


def test_the_fastest_is_saved_and_its_proof_is_its_last_trial(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0), trial(NEXT, 2.0))
    pool_of(study).loaded[FAST] = [Does.faster(2.9)]
    decision = decided(tmp_path, study)
    assert chosen(decision) == FAST
    assert decision.chosen.trial == study.log.last(FAST)
    assert decision.chosen.trial is not None
    assert decision.chosen.trial.measured is not None
    assert decision.chosen.trial.measured.speedup_x.median == pytest.approx(2.9)
    assert decision.folder is not None
    assert proven(study) == [FAST]


def test_what_is_not_faster_from_its_files_gives_way_to_the_next(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0), trial(NEXT, 2.0))
    pool_of(study).loaded[FAST] = [Does.faster(1.02)]
    decision = decided(tmp_path, study)
    assert chosen(decision) == NEXT
    assert any("loaded from its files it is not faster beyond doubt" in note for note in study.notes)


def test_a_proof_much_slower_than_the_trial_lets_others_compete(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0), trial(NEXT, 2.5), trial(SLOW, 1.5))
    pool_of(study).loaded |= {FAST: [Does.faster(2.0)], NEXT: [Does.faster(2.4)]}
    assert chosen(decided(tmp_path, study)) == NEXT
    assert proven(study) == [FAST, NEXT]


def test_where_no_proof_bears_it_out_the_original_wins(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0))
    pool_of(study).loaded[FAST] = [Does.faster(1.0)]
    assert chosen(decided(tmp_path, study)) == REFERENCE_RECIPE
    assert proven(study) == [FAST, REFERENCE_RECIPE]


def test_the_original_is_handed_back_also_when_the_time_is_up(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0), trial(NEXT, 2.0), time_limit_s=0.1)
    pool_of(study).loaded[FAST] = [Does.faster(1.0)]
    decision = decided(tmp_path, study)
    assert proven(study) == [FAST, REFERENCE_RECIPE]
    assert chosen(decision) == REFERENCE_RECIPE
    assert decision.folder is not None
    assert "it could not be proven within the time limit" in " ".join(study.notes)


def test_finalists_that_are_near_each_other_are_started_again(tmp_path: Path) -> None:
    """One is faster in the first processes and slower in those started again by more: all of them decide."""
    near = [REFERENCE, trial(FAST, 3.0), trial(NEXT, 2.95), trial(SLOW, 1.5)]
    study = open_study(tmp_path, *near, trial_timeout_s=7, trial_memory_bytes="1GiB")
    pool_of(study).loaded |= {
        FAST: [Does.faster(3.0), Does.faster(2.4)],
        NEXT: [Does.faster(2.95), Does.faster(2.95)],
    }
    decision = decided(tmp_path, study)
    assert proven(study) == [FAST, NEXT, FAST, NEXT]
    assert pool_of(study).limits[-1] == Limits(timeout_s=7.0, memory_bytes=1 << 30), "those of a trial"
    assert chosen(decision) == NEXT
    raced = [note for note in study.notes if note.startswith("The race: ")]
    assert raced
    assert ".togi" not in " ".join(raced), "recipes are called by their names, not by those of folders"


def test_where_little_time_is_left_no_rival_is_proven(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0), trial(NEXT, 2.95), time_limit_s=12)
    assert chosen(decided(tmp_path, study)) == FAST
    assert proven(study) == [FAST]


def test_what_extends_the_choice_and_is_near_it_is_not_proven_beside_it(tmp_path: Path) -> None:
    """It could not become the choice, and would take the time of one that can."""
    laden = recipe(channels_last={}, openvino={}, no_grad={})
    study = open_study(tmp_path, REFERENCE, trial(laden, 3.09), trial(FAST, 3.0), trial(SLOW, 1.5))
    assert chosen(decided(tmp_path, study)) == FAST
    assert proven(study) == [FAST]


@pytest.mark.parametrize(("proof_x", "left"), [(2.05, []), (1.97, []), (1.5, [FAST])])
def test_what_won_the_race_stays_the_choice_where_its_proof_is_of_another_moment(
    tmp_path: Path, proof_x: float, left: list[Recipe]
) -> None:
    """``drop_unused_rows`` was the fastest of a race beyond doubt, and OpenVINO alone was chosen: what a proof measures
    is of another moment, and the race's own figures of both are not."""
    laden = recipe(channels_last={}, openvino={}, no_grad={})
    study = open_study(tmp_path, REFERENCE, trial(FAST, 2.0), trial(laden, 2.05))
    pool_of(study).built[laden] = [Does.faster(2.2)]
    pool_of(study).loaded[laden] = [Does.faster(proof_x)]
    decision = decided(tmp_path, study)
    assert any(f"{laden.label} is the fastest beyond doubt" in note for note in study.notes)
    assert proven(study) == [laden, *left]
    assert chosen(decision) == proven(study)[-1]


def test_what_cannot_be_loaded_gives_way_to_the_next_and_says_so_in_its_trial(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0), trial(NEXT, 2.0))
    pool_of(study).loaded[FAST] = [Does(ends={"start": (Outcome.FAILED, "a library is missing")})]
    assert chosen(decided(tmp_path, study)) == NEXT
    last = study.log.last(FAST)
    assert last is not None
    assert last.reason == "it could not be saved: a library is missing"


def test_where_nothing_can_be_saved_the_fastest_is_named_without_files(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0))
    pool_of(study).built |= {FAST: [NO_FILE_FORM], REFERENCE_RECIPE: [NO_FILE_FORM]}
    decision = decided(tmp_path, study)
    assert chosen(decision) == FAST
    assert decision.folder is None
    why = "it has no file form here: it runs the live module."
    assert study.notes == [f"{FAST.label} was set aside: {why}", f"The original was not saved: {why}"]


def test_what_hung_while_it_was_saved_is_no_choice_without_files_either(tmp_path: Path) -> None:
    """Not even where the time is over and the original is not saved."""
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0))
    hangs = Does(ends={"save": (Outcome.TIMED_OUT, "it was still in save")}, cut_off=True)
    pool_of(study).built |= {FAST: [hangs], REFERENCE_RECIPE: [hangs]}
    decision = decided(tmp_path, study)
    assert chosen(decision) == REFERENCE_RECIPE
    assert decision.folder is None


@pytest.mark.parametrize(
    "original",
    [NO_FILE_FORM, Does(saved=WRONG_BEYOND), Does(ends={"save": (Outcome.TIMED_OUT, "late")}, cut_off=True)],
    ids=["no file form", "its export is wrong too", "cut off"],
)
@pytest.mark.parametrize("when", ["saved", "loaded"])
def test_what_is_wrong_beyond_the_samples_is_no_choice_without_files_either(
    tmp_path: Path, original: Does, when: str
) -> None:
    """Nor is it one when the study goes on, or ends before its finals."""
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0))
    pool_of(study).built[REFERENCE_RECIPE] = [original]
    if when == "saved":
        pool_of(study).built[FAST] = [Does.faster(3.0, saved=WRONG_BEYOND)]
    else:
        pool_of(study).loaded[FAST] = [Does.faster(3.0, error=WRONG)]
    decision = decided(tmp_path, study)
    assert chosen(decision) == REFERENCE_RECIPE
    assert decision.folder is None
    last = study.log.last(FAST)
    assert last is not None
    assert last.outcome is Outcome.WRONG
    later = Finals(study, tmp_path / "later").without_files().trial
    assert later is not None
    assert later.recipe == REFERENCE_RECIPE


def test_files_that_need_more_memory_than_the_limit_are_not_chosen(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0, mib=5), trial(NEXT, 2.0, mib=4), max_memory_bytes=8 << 20)
    pool_of(study).loaded |= {FAST: [Does.faster(3.0, mib=9)], NEXT: [Does.faster(2.0, mib=4)]}
    assert chosen(decided(tmp_path, study)) == NEXT


def test_where_nothing_fits_nothing_is_proven(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 3.0), max_memory_bytes=1 << 20)
    decision = decided(tmp_path, study)
    assert chosen(decision) is None
    assert "10.0 MiB" in decision.chosen.reason
    assert proven(study) == []


@pytest.mark.parametrize(
    ("trials", "takes_part"),
    [
        ([trial(FAST, 3.0), trial(NEXT, 2.9), trial(SLOW, 0.9)], {FAST, NEXT}),
        ([trial(FAST, 1.045)], {FAST}),
        ([trial(FAST, 3.0), trial(SLOW, 0.9)], set()),
        ([trial(SLOW, 0.9)], set()),
    ],
    ids=["several", "unsure", "one is surely faster", "none is faster"],
)
def test_a_race_takes_place_where_it_can_change_the_choice(
    tmp_path: Path, trials: list[Trial], takes_part: set[Recipe]
) -> None:
    study = open_study(tmp_path, REFERENCE, *trials)
    decided(tmp_path, study)
    assert raced(study) == takes_part


def composed_of(**engines: str) -> ProgramRecipe:
    return ProgramRecipe.of({PartKey(path=path): recipe(**{engine: {}}) for path, engine in engines.items()})


def test_what_another_study_put_together_cannot_be_chosen(tmp_path: Path) -> None:
    """Its files are there."""
    here, there = composed_of(a="openvino"), composed_of(a="torchscript")
    study = open_study(tmp_path, REFERENCE, trial(there, 3.0), trial(here, 2.0))
    study.processes.compose(here, Path("here"))
    assert [each.recipe for each in study.trials()] == [REFERENCE_RECIPE, here]
    found = Finals(study, tmp_path).choice().trial
    assert found is not None
    assert found.recipe == here


def test_of_a_part_what_is_chosen_anew_is_saved_anew(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(FAST, 2.0))
    finals = Finals(study, tmp_path / "artifacts")
    first = finals.save_only()
    assert chosen(first) == FAST
    assert finals.save_only() is first
    study.log.append(trial(NEXT, 3.0))
    assert chosen(finals.save_only()) == NEXT
    assert chosen(finals.save_only(FAST)) == FAST, "what is asked for"
    for each in (FAST, NEXT):
        finals.set_aside(each, "the program was not right with it")
    assert finals.save_only().folder is None
    assert set(finals.unusable) == {FAST, NEXT}


def test_what_takes_longer_to_prove_than_there_is_time_gives_way_to_what_does_not(tmp_path: Path) -> None:
    """Compiled code is compiled again in the process that proves it. A gain must not be lost to that."""
    took = {"build": 40.0, "verify": 1.0}
    slow_proof = trial(COMPILED, 3.0, phases_s=took)
    study = open_study(tmp_path, REFERENCE, slow_proof, trial(NEXT, 2.0, phases_s=took), time_limit_s=30)
    for each in (COMPILED, NEXT):
        study.processes.warm(each)
    assert chosen(decided(tmp_path, study)) == NEXT
    assert proven(study) == [NEXT]
    why = "saving and proving it takes about 43 s, and 30 s were left"
    assert f"{COMPILED.label} was set aside: {why}." in study.notes


def test_where_nothing_else_is_faster_it_is_tried_all_the_same(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, trial(COMPILED, 3.0, phases_s={"build": 40.0}), time_limit_s=30)
    assert chosen(decided(tmp_path, study)) == COMPILED
    assert proven(study) == [COMPILED]


def test_of_an_earlier_session_only_what_leaves_time_for_the_proof_is_built_again(tmp_path: Path) -> None:
    """Three of them are near each other, and the limit is over before all are built."""
    took = {"start": 1.0, "build": 40.0}
    near = [trial(each, speedup_x, phases_s=took) for each, speedup_x in ((FAST, 3.0), (NEXT, 2.95), (SLOW, 2.9))]
    study = open_study(tmp_path, REFERENCE, *near, time_limit_s=70)
    pool = pool_of(study)
    pool.built |= {each.recipe: [Does.faster(3.0, builds_s=40.0)] for each in near}
    pool.loaded |= {each.recipe: [Does.faster(3.0)] for each in near}
    pool.deadline.at = study.budget.ends_at
    decision = decided(tmp_path, study)
    assert chosen(decision) == FAST
    assert decision.folder is not None
    built = [process.recipe for process in pool.processes if not process.name.endswith(".togi")]
    assert [recipe for recipe in built if not recipe.is_reference] == [FAST]
    assert study.budget.left_s > 0


def test_what_has_to_be_built_again_is_no_way_out(tmp_path: Path) -> None:
    """The process of the slower one was ended, as that of whatever may not lead is."""
    took = {"build": 60.0}
    slow_proof = trial(COMPILED, 3.0, phases_s={"build": 40.0})
    study = open_study(tmp_path, REFERENCE, slow_proof, trial(NEXT, 2.0, phases_s=took), time_limit_s=30)
    study.processes.warm(COMPILED)
    assert chosen(decided(tmp_path, study)) == COMPILED


def test_where_no_process_may_be_asked_a_program_of_parts_has_its_files(tmp_path: Path) -> None:
    """The time limit was over in exploring, or in the race: nothing else has any."""
    program = composed_of(a="openvino")
    study = open_study(tmp_path, trial(program, 2.0))
    compose(study, tmp_path, program)
    decision = Finals(study, tmp_path / "artifacts").in_time()
    assert chosen(decision) == program
    assert decision.folder is not None
    assert read_manifest(decision.folder).proof == decision.chosen.trial
    (tmp_path / "whole").mkdir()
    whole = open_study(tmp_path / "whole", trial(FAST, 2.0))
    decision = Finals(whole, tmp_path / "artifacts").in_time()
    assert (chosen(decision), decision.folder) == (FAST, None)


def accepted_by_half() -> ErrorReport:
    """By the half of the validation data that chooses; the other half waits for its files."""
    accuracy = Accuracy(measure=AccuracyMeasure.AGREEMENT, confirmation=False, drop=flips(0, 300, 300))
    return WRONG.model_copy(update={"accuracy": accuracy})


@pytest.mark.parametrize("late", [False, True], ids=["it has no file form", "the time is over"])
def test_what_half_of_the_validation_data_did_not_confirm_is_no_choice_without_files(
    late: bool, tmp_path: Path
) -> None:
    """Of many recipes the luckiest looks best by the half that chose."""
    lowered, saved = recipe(openvino={}, bf16_openvino={}, no_grad={}), NO_FILE_FORM.saved
    tried = trial(lowered, 3.0, error=accepted_by_half()), trial(SLOW, 1.5)
    study = open_study(tmp_path, REFERENCE, *tried, min_agreement=0.99, data="data.py:f")
    pool_of(study).built |= {
        lowered: [Does.faster(3.0, saved=saved, error=accepted_by_half())],
        SLOW: [Does.faster(1.5, saved=saved)],
        REFERENCE_RECIPE: [NO_FILE_FORM],
    }
    (tmp_path / "artifacts").mkdir()
    finals = Finals(study, tmp_path / "artifacts")
    decision = finals.in_time() if late else finals.decide()
    assert chosen(decision) == SLOW
    assert decision.folder is None
    (said,) = [note for note in study.notes if "did not confirm it" in note]
    assert said.startswith(f"{lowered.label} was set aside: one half of the validation data accepted it")
    assert ("--time-limit" in said) is late


@pytest.mark.parametrize("of_parts", [True, False])
def test_a_race_that_decides_whether_anything_is_faster_takes_the_time_of_the_proof(
    tmp_path: Path, of_parts: bool
) -> None:
    """If its trial is a proof by itself: else there would be no files."""
    program = composed_of(a="openvino") if of_parts else FAST
    study = open_study(tmp_path, REFERENCE, trial(program, 1.5, ends=0.4), time_limit_s=6)
    assert study.budget.left_s < study.budget.proof_s
    if of_parts:
        compose(study, tmp_path, program)
    decision = decided(tmp_path, study)
    assert decision.finalists[0] == program
    assert (chosen(decision) == program) is of_parts
