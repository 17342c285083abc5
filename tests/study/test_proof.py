"""What was saved is loaded in a fresh process, verified and measured, or set aside with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.study.stand_ins import (
    FAITHFUL,
    FAST,
    MACHINE,
    NEXT,
    REFERENCE_MS,
    WRONG,
    Does,
    compose,
    open_study,
    pool_of,
    trial,
)
from togi.artifact.manifest import Link, Saved, check_files, part_folder, read_manifest
from togi.core.records import REFERENCE_RECIPE, ErrorReport, Facts, Outcome, Trial
from togi.decide.faster import BETWEEN_PROCESSES, conclusive
from togi.measure import together
from togi.study.open_study import OpenStudy
from togi.study.proof import Prover
from togi.subject.domain import Domain
from togi.worker.messages import Purpose
from togi.worker.protocol import AskedAtOnce
from togi.worker.supervise import AT_ONCE

REFERENCE = trial(REFERENCE_RECIPE, 1.0)
CHAIN = (Link(engine="openvino", folder="openvino", meta={}),)


def proven(folder: Path, study: OpenStudy, before: Trial) -> Trial | None:
    """The proof of what is saved of its recipe; None where it was set aside."""
    prover = Prover(study, folder / "artifacts")
    prover.save_and_prove(before.recipe)
    assert (before.recipe in prover.proven) is not (before.recipe in prover.unusable)
    assert len(list((folder / "artifacts").iterdir())) == len(prover.proven), "no folder of what was set aside is left"
    return study.log.last(before.recipe) if before.recipe in prover.proven else None


def test_what_was_loaded_from_its_files_is_the_last_trial(tmp_path: Path) -> None:
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before)
    pool_of(study).loaded[FAST] = [Does.faster(2.9, mib=20)]
    proof = proven(tmp_path, study, before)
    assert proof is not None
    assert proof.measured is not None
    assert proof.measured.speedup_x.median == pytest.approx(2.9)
    assert proof.measured.timing.start_ms == 500.0
    assert proof.footprint is not None
    assert proof.footprint.total_bytes == 20 << 20
    (folder,) = (tmp_path / "artifacts").iterdir()
    assert folder.name.startswith(f"{study.log.id[:12]}-{FAST.id}")
    assert read_manifest(folder).proof == proof


def test_the_original_is_not_timed_again(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE)
    proof = proven(tmp_path, study, REFERENCE)
    assert proof is not None
    assert proof.timing is not None
    assert proof.timing.model_copy(update={"start_ms": None}) == REFERENCE.timing
    assert "turn" not in pool_of(study).processes[-1].asked


def test_a_proof_that_the_machine_disturbed_leaves_the_time_as_it_was(tmp_path: Path) -> None:
    before = trial(FAST, 3.0, reason="it could not be proven within the time limit")
    study = open_study(tmp_path, REFERENCE, before, earlier_ms=(REFERENCE_MS / 3,), time_limit_s=10)
    proof = proven(tmp_path, study, before)
    assert proof is not None
    assert before.timing is not None
    assert proof.timing == before.timing.model_copy(update={"start_ms": 500.0})
    assert proof.reason == "", "it was set aside by an earlier run"
    assert any("so its time before that counts" in note for note in study.notes)


@pytest.mark.parametrize("at", ["warm", "turn", "footprint", "callers"])
@pytest.mark.parametrize("callers", [1, 4])
def test_a_proof_that_the_time_limit_cut_off_after_verification_leaves_the_time_as_it_was(
    tmp_path: Path, at: str, callers: int
) -> None:
    """What was not asked by two at once serves one call at a time."""
    before = trial(FAST, 3.0, reason="it could not be proven within the time limit")
    study = open_study(tmp_path, REFERENCE, before, facts=Facts(machine=MACHINE, module_class="Net", callers=callers))
    pool_of(study).built[FAST] = [Does.faster(3.0, saved=Saved(links=CHAIN))]
    pool_of(study).loaded[FAST] = [Does.faster(3.0, ends={at: (Outcome.TIMED_OUT, "late")}, cut_off=True)]
    proof = proven(tmp_path, study, before)
    assert proof is not None
    if callers > 1 and at == "callers":  # it is not asked for
        assert study.notes == []
        return
    assert proof == before.model_copy(update={"reason": ""})
    waiting = ", and callers wait for each other" in study.notes[0]
    assert "its time before that counts" in study.notes[0]
    assert waiting is (callers == 1)
    (folder,) = (tmp_path / "artifacts").iterdir()
    assert [link.one_at_a_time for link in read_manifest(folder).chain] == [callers == 1]


@pytest.mark.parametrize("callers", [1, 4])
@pytest.mark.parametrize("at", ["start", "warm", "turn", "footprint"])
def test_a_program_of_parts_keeps_its_trial_where_the_time_limit_cuts_off_its_proof(
    tmp_path: Path, at: str, callers: int
) -> None:
    """It ran from the same files there. Where two were not tried at once, each of its parts serves one."""
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before, facts=Facts(machine=MACHINE, module_class="Net", callers=callers))
    late = Does.faster(3.0, ends={at: (Outcome.TIMED_OUT, "late")}, cut_off=True)
    pool_of(study).loaded[FAST] = [Does.faster(3.0), late]
    compose(study, tmp_path, FAST)
    assert proven(tmp_path, study, before) == before
    (note,) = study.notes
    assert note.startswith("The time limit was over ")
    (folder,) = (tmp_path / "artifacts").iterdir()
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    assert (manifest.proof, len(manifest.parts)) == (before, 1)
    (link,) = read_manifest(part_folder(folder, 0)).chain
    assert link.one_at_a_time is ("callers wait for each other" in note) is (callers == 1)


def test_a_program_of_parts_is_not_loaded_once_more_where_too_little_time_is_left_to_verify_it(tmp_path: Path) -> None:
    before = trial(FAST, 3.0, phases_s={"start": 1.0, "verify": 40.0, "measure": 4.0})
    study = open_study(tmp_path, REFERENCE, before, time_limit_s=30)
    compose(study, tmp_path, FAST)
    assert proven(tmp_path, study, before) == before
    assert pool_of(study).checked == [Purpose.TRIAL]
    assert "in its trial it ran from the same files and was verified" in study.notes[0]


@pytest.mark.parametrize(("ran", "cut_off"), [(False, True), (True, False)])
def test_a_program_of_parts_is_set_aside_where_its_trial_is_of_other_files_or_its_proof_hangs(
    tmp_path: Path, ran: bool, cut_off: bool
) -> None:
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before)
    hangs = Does.faster(3.0, ends={"start": (Outcome.TIMED_OUT, "hangs")}, cut_off=cut_off)
    pool_of(study).loaded[FAST] = [*[Does.faster(3.0)] * ran, hangs]
    compose(study, tmp_path, FAST, ran=ran)
    assert proven(tmp_path, study, before) is None


@pytest.mark.parametrize("at", ["warm", "turn"])
def test_what_hangs_in_its_proof_is_set_aside(tmp_path: Path, at: str) -> None:
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before)
    pool_of(study).loaded[FAST] = [Does.faster(3.0, ends={at: (Outcome.TIMED_OUT, "hangs")})]
    assert proven(tmp_path, study, before) is None


def test_what_is_slower_from_its_files_is_said_to_be(tmp_path: Path) -> None:
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before)
    pool_of(study).loaded[FAST] = [Does.faster(1.02)]
    assert proven(tmp_path, study, before) is not None
    (note,) = study.notes
    assert note.startswith(f"{FAST.label} was 3.00 x as fast while it was built, but loaded from its files it is not")


@pytest.mark.parametrize(
    ("speeds_x", "from_files", "together"),
    [((1.0, 1.4, 1.9), False, True), ((0.7, 0.9, 1.5), False, False), ((0.7, 0.9, 1.5), True, True)],
)
def test_a_proof_that_points_to_it_without_being_sure_counts_together_with_the_trial(
    tmp_path: Path, speeds_x: tuple[float, ...], from_files: bool, together: bool
) -> None:
    """And always where the trial ran from the same files, as that of a program's parts does."""
    before = trial(FAST, 1.4)
    study = open_study(tmp_path, REFERENCE, before, time_limit_s=25)
    pool_of(study).loaded[FAST] = [Does(ms=lambda turn: 100 * REFERENCE_MS / speeds_x[turn % len(speeds_x)])]
    pool_of(study).built[REFERENCE_RECIPE] = [Does(ms=100 * REFERENCE_MS)]
    if from_files:
        pool_of(study).built[FAST] = pool_of(study).loaded[FAST]
        compose(study, tmp_path, FAST, ran=False)
    proof = proven(tmp_path, study, before)
    assert proof is not None
    assert proof.timing is not None
    assert before.timing is not None
    assert (proof.timing.rounds_ms[: len(before.timing.rounds_ms)] == before.timing.rounds_ms) is together


def test_two_processes_that_are_faster_beyond_doubt_and_differ_are_a_gain(tmp_path: Path) -> None:
    """2.2 times as fast in the trial and 1.4 in the proof: of both together nothing could be concluded."""
    before = trial(FAST, 2.2)
    study = open_study(tmp_path, REFERENCE, before, time_limit_s=30)
    pool_of(study).loaded[FAST] = [Does(ms=100 * REFERENCE_MS / 1.4)]
    pool_of(study).built[REFERENCE_RECIPE] = [Does(ms=100 * REFERENCE_MS)]
    compose(study, tmp_path, FAST, ran=False)
    proof = proven(tmp_path, study, before)
    assert proof is not None
    assert proof.measured is not None
    assert before.timing is not None
    assert not conclusive(together(before.timing, proof.measured.timing).speedup_x)
    assert proof.measured.speedup_x.median == pytest.approx(1.4)


@pytest.mark.parametrize("limit_s", [100.0, 24.0])
def test_a_proof_that_is_not_sure_is_measured_on_while_there_is_time(tmp_path: Path, limit_s: float) -> None:
    """Every other turn is disturbed at first: between 1.2 and 2.2 times as fast."""
    before = trial(FAST, 1.7)
    study = open_study(tmp_path, REFERENCE, before, time_limit_s=limit_s)
    calm_s = study.clock() + 15.0
    disturbed = Does(ms=lambda turn: REFERENCE_MS / (1.2 + turn % 2 if study.clock() < calm_s else 2.0))
    pool_of(study).loaded[FAST] = [disturbed]
    proof = proven(tmp_path, study, before)
    assert proof is not None
    assert proof.measured is not None
    assert BETWEEN_PROCESSES.faster(proof.measured.speedup_x) is (limit_s == 100.0)
    assert study.budget.left_s > 0


@pytest.mark.parametrize(
    ("does", "why", "outcome"),
    [
        (
            Does(saved=Saved(unsaveable="it runs the live module")),
            "it has no file form here: it runs the live module",
            Outcome.OK,
        ),
        (Does(saved=Saved(wrong="it clips 300")), "it is wrong beyond the samples: it clips 300", Outcome.WRONG),
        (
            Does(ends={"save": (Outcome.FAILED, "a library is missing")}),
            "it could not be saved: a library is missing",
            Outcome.OK,
        ),
        (Does(ends={"start": (Outcome.FAILED, "no compiler")}), "it could not be built again", Outcome.OK),
    ],
    ids=["no file form", "wrong beyond the samples", "fails", "is not built again"],
)
def test_what_cannot_be_saved_is_set_aside_and_its_trial_says_why(
    tmp_path: Path, does: Does, why: str, outcome: Outcome
) -> None:
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before)
    pool_of(study).built[FAST] = [does]
    assert proven(tmp_path, study, before) is None
    last = study.log.last(FAST)
    assert last == before.model_copy(update={"reason": why, "outcome": outcome})
    assert study.notes[-1] == f"{FAST.label} was set aside: {why}."


@pytest.mark.parametrize(
    ("does", "why"),
    [
        (Does(error=WRONG), "loaded from its files, its error is 90 x eager's own"),
        (Does(error=None), "loaded from its files, it was not verified"),
        (Does(ends={"start": (Outcome.FAILED, "a library is missing")}), "a library is missing"),
    ],
)
def test_what_cannot_be_proven_is_set_aside(tmp_path: Path, does: Does, why: str) -> None:
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before)
    pool_of(study).loaded[FAST] = [does]
    assert proven(tmp_path, study, before) is None
    last = study.log.last(FAST)
    assert last is not None
    assert last.reason.startswith(f"it could not be saved: {why}")


@pytest.mark.parametrize("cut_off", [False, True])
def test_what_hangs_is_timed_out_from_then_on_and_what_was_cut_off_is_not(tmp_path: Path, cut_off: bool) -> None:
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before)
    hangs = {"save": (Outcome.TIMED_OUT, "it was still in save after 15 s")}
    pool_of(study).built[FAST] = [Does(ends=hangs, cut_off=cut_off)]
    assert proven(tmp_path, study, before) is None
    last = study.log.last(FAST)
    assert last is not None
    assert last.outcome is (Outcome.OK if cut_off else Outcome.TIMED_OUT)
    assert "it was still in save after 15 s" in study.notes[-1]


WRONG_AT_ONCE = AskedAtOnce(problems=("output is another when 2 call at once (it cannot serve threads)",))
FAILS_AT_ONCE = AskedAtOnce(note="it fails when 2 call at once: one call at a time")


@pytest.mark.parametrize(
    ("asked", "callers", "notes"),
    [(WRONG_AT_ONCE, 1, None), (FAILS_AT_ONCE, 1, (FAILS_AT_ONCE.note,)), (WRONG_AT_ONCE, 4, ())],
)
def test_what_is_wrong_only_where_several_call_is_not_proven(
    tmp_path: Path, asked: AskedAtOnce, callers: int, notes: tuple[str, ...] | None
) -> None:
    """Where it was raced for several callers, verification asked them all. What fails at once gives no wrong answer."""
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before, facts=Facts(machine=MACHINE, module_class="Net", callers=callers))
    pool_of(study).loaded[FAST] = [Does.faster(3.0, at_once=asked)]
    proof = proven(tmp_path, study, before)
    assert (None if proof is None else proof.notes) == notes
    if proof is None:
        assert "loaded from its files, output is another when 2 call at once" in study.notes[-1]


@pytest.mark.parametrize(
    ("outcome", "stage", "again"),
    [
        (Outcome.TIMED_OUT, AT_ONCE, True),
        (Outcome.CRASHED, AT_ONCE, True),
        (Outcome.TIMED_OUT, "verify", False),
        (Outcome.WRONG, AT_ONCE, False),
    ],
)
def test_what_hangs_where_two_call_is_proven_anew_with_callers_that_wait_for_each_other(
    tmp_path: Path, outcome: Outcome, stage: str, again: bool
) -> None:
    """And not what hangs elsewhere."""
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before)
    pool_of(study).built[FAST] = [Does.faster(3.0, saved=Saved(links=CHAIN))]
    hangs = Does.faster(3.0, ends={"callers": (outcome, "it hangs")}, stage=stage)
    pool_of(study).loaded[FAST] = [hangs, Does.faster(3.0)]
    proof = proven(tmp_path, study, before)
    if not again:
        assert proof is None
        return
    assert proof is not None
    what = "hangs" if outcome is Outcome.TIMED_OUT else "ends its process"
    assert proof.notes == (f"it {what} where 2 call at once, so callers wait for each other",)
    assert pool_of(study).loaded_recipes == [FAST, FAST]
    (folder,) = (tmp_path / "artifacts").iterdir()
    assert [link.one_at_a_time for link in read_manifest(folder).chain] == [True]


def test_what_is_approximate_says_by_how_much(tmp_path: Path) -> None:
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before)
    tie = ErrorReport(faithful=True, units=2.0, rmse=1e-7, max_abs=1e-7)
    pool_of(study).loaded[FAST] = [Does.faster(3.0, error=tie)]
    proof = proven(tmp_path, study, before)
    assert proof is not None
    assert proof.error == tie != FAITHFUL


def test_another_run_of_the_same_study_keeps_its_artifact(tmp_path: Path) -> None:
    before, keep = trial(FAST, 3.0), tmp_path / "artifacts"
    study = open_study(tmp_path, REFERENCE, before)
    name = f"{study.log.id[:12]}-{FAST.id}"
    other, *gone = (keep / f"{name}{end}.togi" for end in (f"-{os.getppid()}", "-99999999", ""))
    for folder in (other, *gone):
        folder.mkdir(parents=True)
    prover = Prover(study, keep)
    prover.save_and_prove(FAST)
    assert sorted(keep.iterdir()) == sorted([other, prover.proven[FAST]])


@pytest.mark.parametrize("fails", ["built again", "saved", "proven"])
def test_an_artifact_of_an_earlier_run_stays_where_no_other_takes_its_place(tmp_path: Path, fails: str) -> None:
    """Also that of a process which had the same id, as each has in a container that is started anew."""
    before, keep = trial(FAST, 3.0), tmp_path / "artifacts"
    study = open_study(tmp_path, REFERENCE, before)
    ended = (Outcome.CRASHED, "killed")
    if fails == "proven":
        pool_of(study).loaded[FAST] = [Does(ends={"start": ended}), Does()]
    else:
        pool_of(study).built[FAST] = [Does(ends={"start" if fails == "built again" else "save": ended}), Does()]
    name = f"{study.log.id[:12]}-{FAST.id}"
    earlier = [keep / f"{name}-{pid}.togi" for pid in (99999999, os.getpid())]
    for folder in earlier:
        folder.mkdir(parents=True)
    prover = Prover(study, keep)
    prover.save_and_prove(FAST)
    assert sorted(keep.iterdir()) == sorted(earlier)
    prover.save_and_prove(FAST)
    assert [*keep.iterdir()] == [prover.proven[FAST]]
    assert prover.proven[FAST].name == f"{name}-{os.getpid()}-2.togi"


def test_a_part_is_saved_without_a_proof(tmp_path: Path) -> None:
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before)
    prover = Prover(study, tmp_path / "artifacts")
    folder = prover.save(FAST, before)
    assert folder is not None
    assert read_manifest(folder).proof == before
    assert pool_of(study).loaded_recipes == []
    pool_of(study).built[NEXT] = [Does(saved=Saved(unsaveable="it runs the live module"))]
    assert prover.save(NEXT, trial(NEXT, 2.0)) is None
    assert set(prover.unusable) == {NEXT}


def test_values_for_which_it_was_not_proven_are_told(tmp_path: Path) -> None:
    before = trial(FAST, 3.0)
    study = open_study(tmp_path, REFERENCE, before)
    pool_of(study).built[FAST] = [Does.faster(3.0, saved=Saved(domains=(Domain(high=4.0),)))]
    assert proven(tmp_path, study, before) is not None
    assert any("refuses values for which it was not proven: it takes calls where" in note for note in study.notes)
