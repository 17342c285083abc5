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
from benchmarks import rows, train, train_limits, train_models, train_proof

from togi.core.records import ErrorReport, Facts
from togi.measure import RaceResult
from togi.subject.inputs import Subject
from togi.subject.training import TrainingStep
from togi.techniques import all_techniques
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
    others = {train.LAYOUT, *train.ALLOWED, *train.other_subjects("unet")}
    assert list(train.ways_of("lstm", dense)) == [way for way in train.WAYS if way not in others]
    assert train.CHECKPOINTED not in train.other_subjects("lstm"), "it is one whole"
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


def test_what_bf16_gained_stands_apart() -> None:
    """Its rows are no exact recipe's, and are in no mean of those."""
    exact = row("lstm", train.OURS, 1.4)
    allowed = row("lstm", train.OURS_BF16, 1.9, proof="approximate: off by 12% at most", first_gain_s=3.0)
    table = train.table([exact, allowed])
    assert f"togi's step is 1.40 x as fast as {train.EAGER}" in table
    assert f"togi's step with bf16 allowed is 1.90 x as fast as {train.EAGER}" in table
    assert "First gain with bf16 allowed after 3 s" in table
    assert f"**{train.OURS_BF16}**" in table


def test_an_approximate_recipe_is_called_wrong_for_its_problems_alone() -> None:
    off = ErrorReport(faithful=False, units=1e4, rmse=0.123, max_abs=0.5)
    assert train._proof(off, exact=False) == "approximate: off by 12% at most"
    assert train._proof(off, exact=True).startswith("wrong: ")
    assert train._proof(off.model_copy(update={"problems": ("other names",)}), exact=False) == "wrong: other names"


def test_the_step_of_another_subject_is_proven_by_the_originals_truth(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Pool:
        def __init__(self, name: str) -> None:
            self.folder, self.ended = tmp_path / name, False
            self.folder.mkdir()

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None:
            self.ended = True

        def start(self, recipe: Any, *_: Any) -> Any:
            return recipe, (self.folder / train.TRUTH_FOLDER / "step.pt").read_text(encoding="utf-8")

        def start_unchecked(self, recipe: Any, _: Any) -> Any:
            return recipe, "nothing"

    original: Any = Pool("original")
    (original.folder / train.TRUTH_FOLDER).mkdir()
    (original.folder / train.TRUTH_FOLDER / "step.pt").write_text("the truth", encoding="utf-8")
    pools: list[Any] = []
    monkeypatch.setattr(train, "pool_of", lambda name: pools.append(Pool(name)) or pools[-1])
    nobody: Any = None
    raced = train.Raced(original, nobody, 1.0)
    plain = train.PLAIN_STEP_RECIPE
    assert raced.of_another("unet_checkpointed") == (plain, "the truth")
    assert raced.of_another("unet_max_autotune", checked=False) == (plain, "nothing")
    raced.stack.close()
    assert [pool.ended for pool in pools] == [True, True]


def test_every_exact_technique_of_steps_is_an_honest_way_of_the_proof() -> None:
    assert set(train_proof.TECHNIQUES) < set(train_proof.HONEST)
    elsewhere = {"fused", "channels_last", "channels_last_3d", "threads", "plain_step", "allocator"}
    only_memory = {"fused_loss", "returned_memory"}
    exact = {id for id, one in all_techniques().items() if one.trains and one.exact}
    assert exact - elsewhere - only_memory == set(train_proof.TECHNIQUES.values())


@pytest.mark.thorough
def test_the_proof_of_a_step_says_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(train_proof.MODELS, "stack", stack)
    ways = [train_proof.AS_IT_IS, "kept memory", "2 micro-batches", "bf16"]
    found = {row["way"]: row for row in train_proof.rows_of("stack", 0, ways)}
    assert [*found] == ways
    assert all(row["right"] for row in found.values())
    assert found[train_proof.AS_IT_IS]["proof_x"] > 0
    assert found["kept memory"]["proof_x"] is None
    assert found["kept memory"]["units"] == 0


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


def limited(way: str, ms: float | None, mib: float, **given: Any) -> train_limits.Row:
    ends = None if ms is None else (ms, ms - 1, ms + 1)
    return train_limits.Row("lstm", way, 1, ms=ms and ends, process_mib=mib, **(HERE | given))


def test_within_a_limit_the_fastest_by_hand_was_not_found_wrong() -> None:
    rows = [
        limited("above it", 10.0, 250.0, right=True),
        limited("wrong", 11.0, 150.0, right=False),
        limited("not timed", None, 150.0, right=True),
        limited("togi, 50 %", 12.0, 150.0, right=True, percent=50),
        limited("other random numbers", 13.0, 150.0),
        limited("slower", 14.0, 150.0, right=True),
    ]
    best = train_limits.best_by_hand(rows, 200.0)
    assert best is not None
    assert best.way == "other random numbers"
    assert train_limits.best_by_hand(rows, 100.0) is None


def test_a_limit_that_togi_missed_is_in_the_table() -> None:
    kept = limited("togi, 75 %", 10.0, 150.0, percent=75, best="by hand", over_best=(0.9, 0.8, 0.95))
    missed = limited("togi, 50 %", 10.0, 150.0, percent=50)
    models = [train_limits.Model("lstm", 1, {"75": 200.0, "50": 120.0}, [kept, missed], measured="here")]
    table = train_limits.table(json.loads(json.dumps([*map(asdict, models)])))
    first, second = (line.split(" | ") for line in table.splitlines()[2:4])
    assert (first[5], second[5]) == ("75 %", "75 %")
    assert "At 75 % togi is within the limit on 1 of 1 row; its step is 0.90 x as fast" in table
    assert "slower beyond doubt on 1." in table
    assert "At 50 % togi is within the limit on 0 of 1 row." in table


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            given = block(given).tanh()
        return given


def stack() -> Subject:
    torch.manual_seed(0)
    batch = (torch.randn(4, 4), torch.tensor([0, 1, 2, 3]))
    return Subject(Stack().train(), batch, step=train_models.class_loss, optimizer=train_models.adamw)


@pytest.mark.parametrize(
    "way", ["checkpointed", "in_2_parts", pytest.param("max_autotune", marks=pytest.mark.thorough)]
)
def test_other_ways_of_a_model_train_as_it_does(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(train_models, "stack", stack, raising=False)
    monkeypatch.setitem(train_models.BLOCKS, "stack", lambda module: module.blocks)
    steps = [TrainingStep.of(make()) for make in (stack, getattr(train_models, f"stack_{way}"))]
    for step in steps:
        step.run(step.samples[0])
    plain, other = (step.parameters for step in steps)
    assert plain.keys() == other.keys()
    for name in plain:
        torch.testing.assert_close(other[name].grad, plain[name].grad)


def test_another_way_of_an_unknown_model_has_no_factory() -> None:
    with pytest.raises(AttributeError, match="nothing_checkpointed"):
        train_models.__getattr__("nothing_checkpointed")
    assert set(train_models.BLOCKS) < set(train_limits.MODELS)
    assert all(callable(getattr(train_models, name)) for name in train_limits.MODELS)
