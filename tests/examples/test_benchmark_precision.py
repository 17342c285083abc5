"""The benchmark of precision: its table from rows, its data sets, and that it goes on where it stopped."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from benchmarks import precision, precision_subjects
from benchmarks.precision import ROWS, Row, peers, table

from togi.subject.inputs import samples_of
from togi.subject.validation import hashes_of


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


def test_each_row_names_a_model_with_its_data_and_each_peer_a_recipe() -> None:
    for wanted in ROWS.values():
        for suffix in ("", "_validation", "_held_out"):
            assert callable(getattr(precision_subjects, f"{wanted.model}{suffix}"))
    assert len({peer.id for peer in peers().values()}) == len(peers())


def test_the_sets_of_the_digits_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(precision_subjects, "_trained", precision_subjects._cnn)  # no set depends on its weights
    subject = precision_subjects.digits()
    judged, held_out = precision_subjects.digits_validation(), precision_subjects.digits_held_out()
    sets = [hashes_of(samples_of(subject.calibration)), hashes_of(judged.inputs), hashes_of(held_out.inputs)]
    assert [len(each) for each in sets] == [200, 600, 297]
    assert not set(sets[0]) & set(sets[1])
    assert not set(sets[1]) & set(sets[2])
