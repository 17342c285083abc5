"""The benchmark of precision: its table from rows, its data sets, and that it goes on where it stopped."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import precision, precision_peers, precision_subjects
from benchmarks.precision import NAMES, ROWS, Row, peers, table
from torch import nn

from tests.techniques.precision.precision_subjects import MACHINE
from togi.core.records import Facts
from togi.subject.inputs import samples_of
from togi.subject.validation import Validation, hashes_of
from togi.techniques import all_techniques
from togi.techniques.base import Refuses
from togi.techniques.conformance import candidate_of
from togi.techniques.engine.programs.openvino import core
from togi.techniques.engine.programs.openvino_conversion import convert

FACTS = Facts(machine=MACHINE, module_class="Net")


def row(**given: Any) -> Row:
    made = Row("digits", "accuracy", 0.02, measured="a machine")
    made.over_float32 = {"OpenVINO": (1.0, 1.0, 1.0), "ORT static": (2.9, 2.8, 3.0), "NNCF": (3.5, 3.4, 3.6)}
    made.over_float32["togi"] = (2.8, 2.7, 2.9)
    made.drop = {"ORT static": (0.0, 0.01, 297), "NNCF": (0.05, 0.08, 297), "togi": (0.0, 0.01, 297)}
    made.excluded = {"ORT dynamic": "no products"}
    made.busy, made.tune_s, made.recipe = 0.3, 200.0, "onnxruntime"
    return Row(**{**asdict(made), **given})


def test_the_best_is_the_fastest_within_the_budget() -> None:
    text = table([asdict(row())])
    assert "**2.90 x (0, 0.01)**" in text
    assert "| 3.50 x (0.05, 0.08) |" in text
    assert "| fails |" in text
    assert "| 0.97 |" in text, "togi over ONNX Runtime, since NNCF is beyond the budget"
    assert "togi: 2.80 x over float32 on 1 rows, 1 of them within" in text
    beyond = row(drop={"togi": (0.03, 0.05, 297)})
    assert "0 of them within" in table([asdict(beyond)])


def test_a_row_that_is_there_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.json"
    asked: list[str] = []

    def measured(name: str, *_: float) -> Row:
        asked.append(name)
        return row(row=name)

    monkeypatch.setattr(precision, "measured", measured)
    for arguments in (["digits"], ["digits", "minilm_rank"], ["digits", "--again"]):
        monkeypatch.setattr("sys.argv", ["precision", "--json", str(file), "--rows", *arguments])
        precision.main()
    assert asked == ["digits", "minilm_rank", "digits"]
    assert [each["row"] for each in json.loads(file.read_text(encoding="utf-8"))] == ["digits", "minilm_rank"]


def test_a_split_cuts_data_otherwise_and_leaves_what_is_trained_and_timed_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def labels(split: int) -> tuple[list[int], list[int], list[int]]:
        monkeypatch.setenv(precision.SPLIT, str(split))
        precision_subjects._digits.cache_clear()
        judged, held_out = precision_subjects.digits_validation(), precision_subjects.digits_held_out()
        trained = precision_subjects._digits()[1][: precision_subjects.TRAINED_ON]
        return trained.tolist(), list(judged.labels or ()), list(held_out.labels or ())

    whole, *others = (labels(split) for split in (0, 1, 2))
    precision_subjects._digits.cache_clear()
    for trained, judged, held_out in others:
        assert trained == whole[0]
        assert judged != whole[1]
        assert sorted(judged + held_out) == sorted(whole[1] + whole[2])
    assert others[0][2] != others[1][2]


def test_a_row_whose_data_are_not_cut_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["precision", "--splits", "2", "--rows", "digits", "minilm_rank"])
    with pytest.raises(SystemExit):
        precision.main()
    assert "would tune minilm_rank on the same data each time" in capsys.readouterr().err


def test_splits_are_counted_by_row() -> None:
    kept, lost = row(row="digits 1"), row(row="digits 2", drop={"togi": (0.03, 0.05, 297)})
    exact, failed = row(row="digits 3", drop={}), row(row="digits 4", drop={}, excluded={"togi": "cannot be loaded"})
    text = precision.table_of_splits([asdict(each) for each in (kept, lost, exact, failed)])
    assert "| digits: accuracy 0.02 | 4 | 2 | 2 | 0.03 |" in text


def test_each_row_names_a_model_with_its_data_and_each_peer_a_recipe() -> None:
    for wanted in ROWS.values():
        named = [wanted.model, wanted.set_of("validation"), wanted.set_of("held_out"), *filter(None, [wanted.metric])]
        for name in named:
            assert callable(getattr(precision_subjects, name)), name
        with precision_peers.installed():
            found = peers(wanted)
        assert tuple(found) == NAMES
        assert len({peer.id for peer in found.values()}) == len(found)
    assert precision.SPEECH == precision_subjects.SPEECH


def test_peers_are_techniques_of_the_race_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "before")
    kinds = precision_peers.KINDS
    with precision_peers.installed():
        known = all_techniques()
        assert all(kind.id in known for kind in kinds)
        assert all(isinstance(known[kind.id].applies(FACTS), Refuses) for kind in kinds), "no study tries them"
        assert os.environ["PYTHONPATH"].endswith("before")
    assert not any(kind.id in all_techniques() for kind in kinds)
    assert os.environ["PYTHONPATH"] == "before"


def test_a_row_without_its_packages_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(precision.SPEECH, raising=False)
    monkeypatch.setattr(precision, "measured", None)
    absent = replace(ROWS["crepe"], packages=("nowhere_to_be_found", precision.SPEECH))
    monkeypatch.setitem(precision.ROWS, "crepe", absent)
    (tmp_path / "rows.json").write_text(json.dumps([asdict(row())]), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["precision", "--json", str(tmp_path / "rows.json"), "--rows", "crepe"])
    precision.main()
    assert "crepe: skipped, nowhere_to_be_found, TOGI_BENCHMARK_SPEECH" in capsys.readouterr().out


class Fragile(nn.Module):
    """One of its layers has weights that leave nothing of the others in 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fragile, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 8)
        with torch.no_grad():
            self.fragile.weight[:, 0] = 40.0  # on what is always zero

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).relu() * (torch.arange(32) > 0)
        scores: torch.Tensor = self.last(self.fragile(hidden).relu())
        return scores


def test_a_peer_without_its_package_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(precision.PACKAGES, precision.AUTOTUNED, ("nowhere_to_be_found",))
    monkeypatch.setattr("sys.argv", ["precision", "--json", str(tmp_path / "rows.json"), "--rows"])
    (tmp_path / "rows.json").write_text(json.dumps([asdict(row())]), encoding="utf-8")
    precision.main()
    assert "INC autotune: skipped, nowhere_to_be_found is not here" in capsys.readouterr().out

    def start(_row: Row, _pool: Any, _facts: Any, name: str, _peer: Any) -> None:
        started.append(name)
        _row.excluded[name] = "not in a test"

    started: list[str] = []
    monkeypatch.setattr(precision, "start", start)
    with precision_peers.installed(), pytest.raises(StopIteration):  # nobody stands
        precision.race_all(row(), _NoPool(), None, 1.0)  # type: ignore[arg-type]
    assert started == [name for name in NAMES if name != precision.AUTOTUNED]


class _NoPool:
    """Of a subject about which nothing is known."""

    def survey(self, *_: Any) -> Any:
        return self, ""

    def make_truth(self, *_: Any) -> Facts:
        return FACTS

    facts = FACTS


@pytest.mark.thorough
def test_the_autotune_keeps_the_budget_and_is_called_as_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("neural_compressor")
    torch.manual_seed(0)
    samples = [{"x": torch.randn(1, 16)} for _ in range(60)]
    monkeypatch.setattr(precision_subjects, "made_validation", lambda: Validation(samples), raising=False)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"scores": self.net(x)}

    candidate = candidate_of(Net().eval(), samples[:20])
    module = precision_peers._autotuned(candidate, data="made_validation", measure="rms", metric="", max_drop=0.05)
    with torch.no_grad():
        errors = [float((module(**each)["scores"] - net(each["x"])).norm() / net(each["x"]).norm()) for each in samples]
    assert 0 < sum(errors) / len(errors) <= 0.05


def test_a_step_goes_on_from_the_cache_as_the_whole_text_does() -> None:
    torch.manual_seed(0)
    sizes = {"hidden": 16, "heads": 4, "cached_heads": 2, "inner": 32, "epsilon": 1e-5}
    step = precision_subjects.Step(50, 2, 10_000.0, **sizes).eval()
    for weight in step.parameters():
        nn.init.normal_(weight, std=0.3)
    ids = torch.randint(0, 50, (3, 9))
    whole = step.remember(ids)
    assert whole.shape == (2, 2, 3, 2, 9, 4)
    for place in (1, 5, 8):
        with torch.no_grad():
            scores, new = step(ids[:, [place]], torch.tensor([place]), whole[..., :place, :])
        assert scores.shape == (3, 50)
        torch.testing.assert_close(new, whole[..., place : place + 1, :])
    changed = ids.clone()
    changed[:, 0] += 1
    other = step.remember(changed % 50)
    assert not torch.allclose(other[1, ..., 5, :], whole[1, ..., 5, :]), "the second layer saw the first token"


@pytest.mark.thorough
def test_smollm_reads_english(monkeypatch: pytest.MonkeyPatch) -> None:
    """A swapped half of the rotations, or another numbering of tokens, is far above this."""
    if ROWS["smollm"].missing:
        pytest.skip(f"{ROWS['smollm'].missing} is not installed")
    monkeypatch.setattr(precision_subjects, "STEPS", {"validation": 4, "calibration": 2})
    validation = precision_subjects.smollm_validation()
    assert validation.labels is not None
    subject = precision_subjects.smollm()
    with torch.no_grad():
        answers = [subject.module(**sample)[0] for sample in validation.samples]
    given = zip(answers, validation.labels, strict=True)
    losses = [float(nn.functional.cross_entropy(scores, following)) for scores, following in given]
    assert sum(losses) / len(losses) < 5.0


@pytest.mark.thorough
def test_accuracy_control_gives_back_what_breaks_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nncf")
    torch.manual_seed(0)
    samples = [torch.randn(1, 16) for _ in range(60)]
    monkeypatch.setattr(precision_subjects, "made_validation", lambda: Validation(samples), raising=False)
    candidate = candidate_of(Fragile().eval(), samples[:20])
    asked = {"data": "made_validation", "measure": "rms", "metric": ""}
    plain, _, _ = convert(candidate)
    errors = {}
    for max_drop in (0.9, 0.02):
        model = precision_peers._controlled(plain.clone(), candidate, **asked, max_drop=max_drop)
        compiled = core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        with torch.no_grad():
            pairs = [(torch.from_numpy(compiled([x.numpy()])[0].copy()), candidate.module(x)) for x in samples]
        errors[max_drop] = sum(float((found - right).norm() / right.norm()) for found, right in pairs) / len(pairs)
    assert errors[0.02] <= 0.02 < errors[0.9]


def test_the_sets_of_the_digits_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(precision_subjects, "_trained", precision_subjects._cnn)  # no set depends on its weights
    subject = precision_subjects.digits()
    judged, held_out = precision_subjects.digits_validation(), precision_subjects.digits_held_out()
    sets = [hashes_of(samples_of(subject.calibration)), hashes_of(judged.inputs), hashes_of(held_out.inputs)]
    assert [len(each) for each in sets] == [200, 600, 297]
    assert not set(sets[0]) & set(sets[1])
    assert not set(sets[1]) & set(sets[2])
