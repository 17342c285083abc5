"""A budget on the drop of a metric: what cannot be judged is told at once, and what is worse is never chosen."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import togi
from togi.core.errors import SubjectError, TogiError, UnknownNameError
from togi.core.records import Outcome, Trial
from togi.journal import Journal

pytestmark = pytest.mark.usefixtures("brief_studies")

LABELS = torch.arange(8).repeat(4)
FILE = """
import torch
import togi
from togi.journal import Journal

def model():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 8), torch.randn(4, 8)

def without_metric():
    return model()

def broken_metric():
    return togi.Subject(*model(), metric=lambda outputs: 1 / (len(outputs) - 1))

def data():
    return [torch.randn(4, 8) for _ in range(20)]

def raises(outputs):
    return outputs["scores"]
"""


class Outlier(nn.Module):
    """A classifier one of whose inputs is so large that 8 bits hold nothing of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(9, 8, bias=False)
        with torch.no_grad():
            self.linear.weight.copy_(torch.cat([torch.eye(8), torch.full((8, 1), 1e-3)], 1))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.linear(x)
        return scores


def samples() -> Tensor:
    return torch.cat([torch.eye(8)[LABELS], torch.full((len(LABELS), 1), 1e3)], 1)


def tuned(rows: Tensor, **given: Any) -> togi.StudyResult:
    """The classifier, in float32 and in 8 bits, which are always worse."""
    only = ["onnxruntime", "int8_onnxruntime"]
    return togi.tune(Outlier(), rows, only=only, effort="quick", time_limit_s=200, **given)


def lowered_trials(study: togi.StudyResult) -> list[Trial]:
    lowered = [trial for trial in study.record.trials if "int8_onnxruntime" in trial.recipe.techniques]
    assert lowered
    return lowered


def error_rate(outputs: list[Tensor]) -> float:
    return float((outputs[0].argmax(1) != LABELS).float().mean())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    (tmp_path / "models.py").write_text(FILE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("togi.study.run.run_study", loads)


@pytest.mark.usefixtures("nothing_is_loaded")
def test_a_drop_without_a_metric_is_refused_before_anything_is_loaded(folder: Path) -> None:
    torch.save({}, folder / "model.pt2")
    for subject, inputs in ((nn.Linear(8, 8), torch.ones(1, 8)), ("model.pt2", None)):
        with pytest.raises(SubjectError, match=r"--max-drop limits the drop of a metric, and .* has none"):
            togi.tune(subject, inputs, max_drop=0.01)
    with pytest.raises(SubjectError, match="has none"):
        togi.tune(togi.Subject(nn.Linear(8, 8), torch.ones(1, 8)), max_drop=0.01)


@pytest.mark.usefixtures("nothing_is_loaded")
def test_data_without_a_budget_and_a_budget_without_data_are_refused_before_anything_is_loaded() -> None:
    module, x = nn.Linear(8, 8), torch.ones(1, 8)
    data = togi.Validation([x, x + 1])
    for given in ({"data": data}, {"metric": "accuracy"}, {"data": "models.py:data"}):
        with pytest.raises(TogiError, match="judge nothing without a budget"):
            togi.tune(module, x, max_error=0.1, **given)  # type: ignore[arg-type]
    for given in ({"min_agreement": 0.99}, {"metric": "accuracy", "max_drop": 0.01}):
        with pytest.raises(SubjectError, match=r"Linear has none: give --data FILE:function"):
            togi.tune(module, x, **given)  # type: ignore[arg-type]


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize(
    ("budget", "given"),
    [
        ({"max_drop": 1}, "max_drop=1"),
        ({"max_drop": "500%", "metric": "accuracy"}, "max_drop=5"),
        ({"min_agreement": 0}, "min_agreement=0"),
    ],
)
def test_a_budget_that_everything_keeps_is_refused_before_anything_is_loaded(budget: Any, given: str) -> None:
    """Messages count points, and 1 is a hundred of them."""
    x = torch.ones(1, 8)
    with pytest.raises(TogiError, match=f"{given} lets every answer be lost.*one point is 1% or 0.01"):
        togi.tune(nn.Linear(8, 8), x, data=togi.Validation([x, x + 1]), **budget)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("without_metric", r"--max-drop limits the drop of a metric, and models\.py:without_metric has none"),
        (
            "broken_metric",
            r"nothing can be judged by the metric, which --max-drop limits: it raises .*ZeroDivisionError",
        ),
    ],
)
def test_a_metric_that_is_missing_or_broken_is_told_once_before_any_trial(factory: str, said: str) -> None:
    with pytest.raises(SubjectError, match=said):
        togi.tune(f"models.py:{factory}", max_drop=0.01, time_limit_s=200)


@pytest.mark.thorough
def test_a_function_that_cannot_judge_the_data_ends_the_study_before_any_trial() -> None:
    with pytest.raises(SubjectError, match=r"it raises .*TypeError.*on the original's outputs for validation sample 1"):
        togi.tune("models.py:without_metric", data="models.py:data", metric="models.py:raises", max_drop=0.01)
    with pytest.raises(UnknownNameError, match="no 'other'"):
        togi.tune("models.py:without_metric", data="models.py:data", metric="models.py:other", max_drop=0.01)
    with pytest.raises(SubjectError, match="not a function"):
        togi.tune("models.py:without_metric", data="models.py:data", metric="models.py:torch", max_drop=0.01)


@pytest.mark.thorough
def test_labels_that_the_original_never_hits_end_the_study_before_any_trial() -> None:
    validation = togi.Validation([*samples().split(4)], [*((LABELS + 1) % 8).split(4)])
    with pytest.raises(TogiError, match="the original hits 0 of 32 labels"):
        tuned(samples()[:4], data=validation, metric="accuracy", max_drop=0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("upside_down", [False, True], ids=["as it is", "an error rate"])
def test_a_metric_of_outputs_and_labels_judges_on_the_data(upside_down: bool) -> None:
    """8 bits answer none of the rows, in whichever direction the metric goes."""

    def share(outputs: list[Tensor], labels: list[Tensor]) -> float:
        right = float((outputs[0].argmax(1) == labels[0]).float().mean())
        return 1 - right if upside_down else right

    torch.manual_seed(0)
    rows = samples()
    data = togi.Validation([rows + 0.01 * i for i in range(20)], labels=[LABELS] * 20)
    study = tuned(
        rows,
        data=data,
        metric=share,
        max_drop=0.3,
    )
    lowered = lowered_trials(study)
    for trial in lowered:
        assert trial.outcome is Outcome.WRONG
        assert "metric (from " in trial.reason
        assert trial.error is not None
        assert trial.error.accuracy is not None
        assert trial.error.accuracy.metric is not None
        assert trial.error.accuracy.drop.mean > 0.5


@pytest.mark.thorough
def test_a_broken_metric_that_limits_nothing_costs_nothing() -> None:
    study = togi.tune("models.py:broken_metric", only=["torchscript"], effort="quick", time_limit_s=200)
    assert study.record.best is not None
    assert any("The metric is not used: it raises" in note for note in study.record.facts.notes)


@pytest.mark.thorough
def test_a_recipe_that_is_always_wrong_is_not_within_the_drop_of_an_error_rate() -> None:
    """It was chosen at 7.4 x: "from 0 to 0.875, within the allowed drop of 0.005"."""
    torch.manual_seed(0)
    study = tuned(
        samples(),
        metric=error_rate,
        max_drop=0.005,
    )
    lowered = lowered_trials(study)
    assert {trial.outcome for trial in lowered} == {Outcome.WRONG}
    assert all("from 0 to 0.875, a rise above the allowed 0.005" in trial.reason for trial in lowered)
    assert study.record.best is not None
    assert "int8_onnxruntime" not in study.record.best.techniques


def test_a_recipe_that_disagrees_is_stopped_early_and_not_chosen() -> None:
    torch.manual_seed(0)
    rows = samples()
    data = [rows[i % len(rows)][None].repeat(32, 1) + 0.01 * i for i in range(40)]
    study = tuned(
        samples(),
        data=togi.Validation(data),
        min_agreement=0.98,
    )
    lowered = lowered_trials(study)
    for trial in lowered:
        assert trial.outcome is Outcome.WRONG
        assert "show a drop of at least" in trial.reason
        assert trial.error is not None
        assert trial.error.accuracy is not None
        assert trial.error.accuracy.drop.seen < trial.error.accuracy.drop.planned
    assert study.record.best is not None
    assert "int8_onnxruntime" not in study.record.best.techniques


@pytest.mark.thorough
def test_what_was_calibrated_on_other_data_is_tried_anew_and_nothing_else_is(folder: Path) -> None:
    """The name of the data is the same, and so is the study: the data themselves decide. Who reads it again sees those
    that decided last."""
    torch.manual_seed(0)
    rows = torch.randn(64, 9)
    journal = folder / "journal.db"
    for width in (0.01, 1.0, 1.0):
        subject = togi.Subject(Outlier(), samples(), calibration=[width * rows[:32], width * rows[32:]])
        only = ["onnxruntime", "int8_onnxruntime"]
        study = togi.tune(subject, only=only, effort="quick", time_limit_s=200, max_error=0.9, journal=journal)
        lowered_trials(study)
    with Journal.open(journal) as kept:
        assert len([entry for entry in kept.studies() if not entry.part]) == 1
        shown = kept.read()
    judged = [trial for trial in shown.trials if trial.judged]  # what is not, is tried again
    # a race or a proof records a trial once more, with the moment at which it ended
    tried = {(trial.recipe, trial.ended_s) for trial in judged if "onnxruntime" in trial.recipe.techniques}
    times_tried = Counter(recipe for recipe, _ in tried)
    assert {recipe for recipe in times_tried if "int8_onnxruntime" in recipe.techniques}
    assert set(times_tried.values()) == {1}
    assert shown.left_out == study.record.left_out > 0
    assert shown.calibration == study.record.calibration
