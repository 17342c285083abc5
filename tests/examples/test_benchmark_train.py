"""The benchmark of training steps: its models train, what was not measured has no figure, and a run that was ended
goes on where it was."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import rows, train, train_models

from togi.core.records import Facts
from togi.measure import RaceResult
from togi.subject.training import TrainingStep
from togi.worker.locate import locate

FILE = Path(train_models.__file__)
SOON = ("lstm",)
HERE = {"measured": "here"}


def test_every_model_has_a_factory_and_a_best_way() -> None:
    factories = {factory.__name__ for factory in train_models.ALL}
    assert factories == set(train.MODELS) == set(train.BEST)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in SOON else pytest.mark.thorough) for n in train.MODELS]
)
def test_a_model_trains(name: str) -> None:
    step = TrainingStep.of(locate(f"{FILE}:{name}"))
    before = {key: parameter.detach().clone() for key, parameter in step.parameters.items()}
    losses: list[float] = []
    for sample in step.samples:
        step.run(sample, lambda loss: losses.append(float(loss.detach())))
    assert len(losses) == train_models.SAMPLES
    assert all(torch.tensor(losses).isfinite())
    assert any(not torch.equal(before[key], parameter) for key, parameter in step.parameters.items())


def test_channels_last_is_a_way_of_convolutions_alone() -> None:
    machine = train.machine()
    convolutional = Facts(machine=machine, module_class="Net", functions={"conv2d": 3})
    dense = Facts(machine=machine, module_class="Net", functions={"linear": 3})
    assert train.LAYOUT in train.ways_of("unet", convolutional)
    assert list(train.ways_of("lstm", dense)) == [way for way in train.WAYS if way not in (train.LAYOUT, train.OURS)]
    assert all(recipe.trains for recipe in train.ways_of("unet", convolutional).values())


def row(model: str, way: str, x: float | None, **given: Any) -> dict[str, Any]:
    over_eager = None if x is None else (x, x - 0.1, x + 0.1)
    known = {"ms": None if x is None else (10.0, 9.0, 11.0), "over_eager": over_eager}
    return asdict(train.Row(model, way, 2, **(known | HERE | given)))


def test_what_was_not_measured_has_no_figure() -> None:
    """Neither in its own row nor in the means."""
    measured = row("lstm", train.OURS, 1.4, over={train.COMPILED: (1.2, 1.1, 1.3)}, first_gain_s=20.0)
    failed = row("unet", train.OURS, None, failed="it ran out of memory")
    table = train.table([measured, failed, row("unet", train.COMPILED, None, failed="no compiler")])
    cells = next(line for line in table.splitlines() if "ran out of memory" in line).split(" | ")
    assert cells[3:6] == ["-", "-", "- (-)"]
    assert f"1.40 x as fast as {train.EAGER} (geometric mean of 1 model," in table
    assert f"1.20 x as fast as {train.COMPILED} (geometric mean of 1 model," in table
    assert train.BY_HAND not in table.split("\n\n")[1]
    assert "on 1 of 1." in table


def test_a_step_that_stays_as_it_is_counts_next_to_every_other_way() -> None:
    """Else a mean would be of those models alone on which something was found."""
    raced = RaceResult.model_validate(
        {
            "reference": train.EAGER,
            "winner": train.EAGER,
            "verdict": "cannot_tell",
            "order": "",
            "sentence": "",
            "entries": [
                {"name": train.EAGER, "rounds_ms": [10.0] * 12, "noise": {}},
                {"name": train.COMPILED, "rounds_ms": [8.0] * 12, "noise": {}},
            ],
            "rounds": 12,
            "wall_s": 1.0,
            "criterion": {},
        }
    )
    standing: Any = {train.EAGER: None, train.COMPILED: None}
    nobody: Any = None
    over = train.Raced(nobody, nobody, 1.0, standing).over(train.EAGER, raced)
    assert over == {train.COMPILED: (0.8, 0.8, 0.8)}
    ours = row("lstm", train.OURS, 1.1, over=over)
    assert f"0.80 x as fast as {train.COMPILED}" in train.table([ours])


def test_a_run_that_was_ended_keeps_what_was_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done: list[str] = []

    def rows_of(model: str, _options: argparse.Namespace, threads: int) -> list[train.Row]:
        if model == "unet" and "unet" not in done:
            done.append(model)
            raise KeyboardInterrupt
        done.append(model)
        return [train.Row(model, way, threads, measured="here") for way in train.WAYS]

    monkeypatch.setattr(train, "rows_of", rows_of)
    file = tmp_path / "train.json"
    monkeypatch.setattr("sys.argv", ["train", "--models", "lstm", "unet", "--json", str(file)])
    with pytest.raises(KeyboardInterrupt):
        train.main()
    assert {each["model"] for each in json.loads(file.read_text(encoding="utf-8"))} == {"lstm"}
    train.main()
    assert done == ["lstm", "unet", "unet"]
    assert len(rows.read_rows(file)) == 2 * len(train.WAYS)


def test_a_write_that_is_ended_leaves_the_rows_of_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    rows.put_rows(file, [{"id": "a", "x": 1}], by="id")
    with pytest.raises(TypeError):
        rows.put_rows(file, [{"id": "b", "x": object()}], by="id")

    def end(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", end)
    with pytest.raises(KeyboardInterrupt):
        rows.put_rows(file, [{"id": "b"}], by="id")
    monkeypatch.undo()
    assert rows.read_rows(file) == [{"id": "a", "x": 1}]
