"""Validation data from end to end: one half judges a recipe where it is tried, the other where it was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from togi.artifact.save import write_manifest
from togi.core.choices import AccuracyMeasure
from togi.core.errors import SubjectError, TogiError
from togi.core.judging import Judging
from togi.core.records import Facts, Outcome, Recipe, Trial
from togi.decide.faithful import accept
from togi.machine.describe import machine
from togi.subject.inputs import samples_of
from togi.subject.validation import as_validation, hash_of
from togi.techniques import recipe
from togi.techniques.half_precision import emulated
from togi.worker.messages import Purpose
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef, Survey
from togi.worker.supervise import Limits, TrialEnded

FILE = """
import time
import torch
import togi

def model():
    torch.manual_seed(0)
    return torch.nn.Linear(16, 4), torch.randn(8, 16)

def validation():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 16, generator=generator) for _ in range(80)]

def timed():
    return [model()[1]] + validation()

class Slow(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.1)
        return super().forward(x)

def slow():
    torch.manual_seed(0)
    return Slow(16, 4), torch.randn(8, 16)

def hits(outputs):
    if torch.equal(outputs[0], model()[0](validation()[-1])):
        raise ValueError("a sample at the end")
    return float(outputs[0].argmax(1).eq(3).float().mean())

def larger():
    return validation() + [torch.ones(9, 16)]

def loader():
    rows = torch.arange(64 * 16.0).reshape(64, 16)
    data = torch.utils.data.TensorDataset(rows, torch.arange(64))
    return torch.utils.data.DataLoader(data, batch_size=32)
"""
INT8 = recipe(onnxruntime={"spinning": False}, int8_onnxruntime={"how": "dynamic"}, no_grad={})
STATIC = recipe(onnxruntime={"spinning": False}, int8_onnxruntime={"how": "static"}, no_grad={})
"""It clips what lies beyond the samples: validation data hold such values, and the proof must allow for them."""
INT8_AND_BF16 = recipe(openvino={}, int8_openvino={"preset": "performance", "rest": "bf16"}, no_grad={})
QUIET = (Limits(), lambda _: None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    (tmp_path / "models.py").write_text(FILE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def from_file(name: str) -> Any:
    """What a function of the file returns."""
    functions: dict[str, Any] = {}
    exec(FILE, functions)
    return functions[name]()


def pool(data: str, model: str = "model", **judging: Any) -> WorkerPool:
    judging = Judging(max_drop=0.2, **({"measure": AccuracyMeasure.AGREEMENT} | judging))
    subject = SubjectRef.here("locator", f"models.py:{model}")
    return WorkerPool(subject, machine(), device="cpu", seed=0, judging=judging, data=data, calibrates=True)


@pytest.mark.thorough
@pytest.mark.parametrize("int8", [INT8, STATIC, INT8_AND_BF16], ids=["dynamic", "static", "static and bf16"])
def test_a_recipe_is_judged_on_one_half_and_its_files_on_the_other(folder: Path, int8: Recipe) -> None:
    if int8 is INT8_AND_BF16 and emulated(Facts(machine=machine(), module_class=""), "bfloat16", ""):
        pytest.skip("this CPU has no bfloat16 instructions")
    (_, samples), validation = from_file("model"), as_validation(from_file("validation"), "validation")
    with pool("models.py:validation") as processes:
        survey, _ = processes.survey(*QUIET)
        facts = processes.make_truth(survey.facts, *QUIET)
        with processes.start(int8, facts, *QUIET) as tried:
            chosen = tried.error
            saved = tried.save(folder / "int8.togi", 1.0)
        assert saved.calibration == hash_of(samples_of(samples)), "none are given, so it is calibrated on the samples"
        signature = survey.signature.within(saved.domains)
        proof = Trial(recipe=int8, outcome=Outcome.OK)
        about = {"subject": "models.py:model", "recipe": int8, "signature": signature, "facts": facts, "proof": proof}
        write_manifest(folder / "int8.togi", chain=saved.links, **about)  # type: ignore[arg-type]
        with processes.start_artifact(folder / "int8.togi", int8, facts, Limits(), check=Purpose.PROOF) as loaded:
            confirmed = loaded.error
        with processes.start(recipe(no_grad={}), facts, *QUIET) as reference:
            assert reference.error is not None
            assert reference.error.accuracy is None, "the original is right by definition"
    for error, confirmation in ((chosen, False), (confirmed, True)):
        assert error is not None
        assert error.accuracy is not None
        assert error.accuracy.confirmation is confirmation
        assert error.accuracy.data == validation.identity
        assert (error.accuracy.drop.seen, error.accuracy.drop.planned) == (320, 320)
        assert (
            accept(error, exact=False, judging=Judging(measure=AccuracyMeasure.AGREEMENT, max_drop=0.2))[0]
            is Outcome.OK
        )
        assert accept(error, exact=False, max_error=1e-6)[0] is Outcome.WRONG
    assert list((folder / "home" / "answers").iterdir()), "kept for the next study"


@pytest.mark.thorough
@pytest.mark.usefixtures("folder")
def test_validation_data_of_another_size_are_refused() -> None:
    with pool("models.py:larger") as processes, pytest.raises(TrialEnded, match="validation sample 81 is another call"):
        processes.make_truth(processes.survey(*QUIET)[0].facts, *QUIET)


@pytest.mark.thorough
@pytest.mark.usefixtures("folder")
def test_faithful_recipes_do_not_wait_for_data_that_the_original_answers_for_long() -> None:
    with pool("models.py:validation", "slow") as processes:
        answers = Path(processes.folder, "truth", "answers.safetensors")
        known = processes.make_truth(processes.survey(*QUIET)[0].facts, *QUIET, whole=False)
        with processes.start(recipe(no_grad={}), known, *QUIET) as faithful:
            assert faithful.error is not None
        assert not answers.exists()
        assert processes.rest_s > 5
        with processes.start(INT8, known, *QUIET) as approximate:
            assert approximate.error is not None
            assert approximate.error.accuracy is not None
        assert answers.exists()
        assert processes.rest_s == 0
        assert any("No calibration data" in note for note in Survey.read(processes.folder).facts.notes)


@pytest.mark.thorough
@pytest.mark.usefixtures("folder")
def test_what_a_metric_cannot_judge_is_told_when_a_recipe_needs_it() -> None:
    own = {"measure": AccuracyMeasure.OWN, "metric": "models.py:hits"}
    with pool("models.py:validation", "slow", **own) as processes:
        facts = processes.make_truth(processes.survey(*QUIET)[0].facts, *QUIET, whole=False)
        with processes.start(recipe(no_grad={}), facts, *QUIET):
            pass
        with pytest.raises(SubjectError, match="a sample at the end"):
            processes.start(INT8, facts, *QUIET)
    with pool("models.py:validation", "slow", **own) as processes, pytest.raises(SubjectError, match="at the end"):
        processes.make_truth(processes.survey(*QUIET)[0].facts, *QUIET)


@pytest.mark.thorough
@pytest.mark.usefixtures("folder")
def test_validation_data_that_are_timed_too_are_told() -> None:
    with pool("models.py:timed") as processes:
        survey, _ = processes.survey(*QUIET)
        facts = processes.make_truth(survey.facts, *QUIET)
    assert any("8 of the validation rows are also timed" in note for note in facts.notes)
    assert any("No calibration data" in note for note in facts.notes)


@pytest.mark.thorough
@pytest.mark.parametrize("given", ["models.py:loader", "folder"])
def test_calibration_data_are_those_that_are_named(folder: Path, given: str) -> None:
    """Batches of 32 with labels, and files of 8 rows, are the same batches of 8 as the sample has."""
    rows = torch.arange(64 * 16.0).reshape(64, 16)
    (folder / "folder").mkdir()
    for number, piece in enumerate(rows.split(8)):
        torch.save(piece.clone(), folder / "folder" / f"{number}.pt")
    subject = SubjectRef.here("locator", "models.py:model")
    with WorkerPool(subject, machine(), device="cpu", seed=0, calibration=given, calibrates=True) as processes:
        survey, _ = processes.survey(*QUIET)
        facts = processes.make_truth(survey.facts, *QUIET)
        with processes.start(STATIC, facts, *QUIET) as tried:
            saved = tried.save(folder / "int8.togi", 1.0)
    assert saved.calibration == hash_of(samples_of(list(rows.split(8))))
    assert not any("No calibration data" in note for note in facts.notes)


@pytest.mark.parametrize("given", ["models.py:nothing_of_the_kind", "no_folder"])
@pytest.mark.usefixtures("folder")
def test_calibration_data_that_are_not_there_are_refused_when_the_subject_is_loaded(given: str) -> None:
    subject = SubjectRef.here("locator", "models.py:model")
    pool = WorkerPool(subject, machine(), device="cpu", seed=0, calibration=given)
    with pytest.raises(TogiError, match=r"no 'nothing_of_the_kind'|is not a folder"), pool:
        pass


@pytest.mark.parametrize(("data", "said"), [("", "has none: give --data"), ("models.py:model", "Validation data are")])
@pytest.mark.usefixtures("folder")
def test_what_brings_no_validation_data_is_refused_when_it_is_loaded(data: str, said: str) -> None:
    with pytest.raises(SubjectError, match=said), pool(data):
        pass
