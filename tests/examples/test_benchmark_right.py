"""A slice of ``python -m benchmarks.right``: no artifact answers a call wrongly that it takes. A planted fault is found
and shrunk to a test."""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import right, right_shrink
from benchmarks.right_shrink import Fault, as_test, part, shrunk
from torch import Tensor

from togi.techniques.engine.programs.torchscript import TorchScriptProgram
from togi.techniques.engine.torchscript import TorchScript

SEEDS = {"u8": 5, "f32": 9, "i64": 10, "f64": 24, "masked": 31}
ONCE_WRONG = (100, 109, 166)
"""An exact quotient as an integer, a division of large integers, and one that roundings of the original decide."""
CALLS = 60


@pytest.mark.thorough(20)
@pytest.mark.parametrize("engine", ["openvino", "onnxruntime", "torchscript"])
def test_no_artifact_answers_wrongly_what_it_takes(engine: str) -> None:
    if engine != "torchscript":
        pytest.importorskip(engine)
    rows = [right.answers(seed, engine, CALLS) for seed in SEEDS.values()]
    assert [row["module"].partition(":")[0].partition("_")[0] for row in rows] == list(SEEDS)
    assert [row for row in rows if row["end"] == "wrong answers"] == []
    made = [row for row in rows if "taken" in row]
    assert len(made) >= 3, [row["end"] for row in rows]
    counts = collections.Counter({end: sum(row[end] for row in made) for end in ("taken", "refused", "illegal")})
    assert counts.total() == CALLS * len(made)
    assert counts["taken"] >= CALLS  # they were compared


@pytest.mark.thorough(20)
@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("seed", ONCE_WRONG)
def test_what_was_answered_wrongly_once_is_not(seed: int, engine: str) -> None:
    pytest.importorskip(engine)
    row = right.answers(seed, engine, 200)
    assert not row["end"].startswith("wrong"), row
    assert row["end"].split(":")[0] in ("right", "refused", "found wrong")


LARGE = 1e3


class Planted(TorchScriptProgram):
    """Right while it is proven, as it is live; loaded from its files it is wrong for large values."""

    def run(self, inputs: list[Tensor]) -> Any:
        answer = super().run(inputs)
        return [answer[0] + 1] if bool((inputs[0] > LARGE).any()) else answer


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    load = TorchScript.load

    def wrong(self: TorchScript, *arguments: Any) -> Planted:
        program = load(self, *arguments)
        return Planted(program.graph, program.signature, program.options)

    monkeypatch.setattr(TorchScript, "load", wrong)
    monkeypatch.setattr(right, "ASKED_S", 2.0)
    return monkeypatch


@pytest.mark.thorough(20)
def test_a_planted_fault_is_found_and_shrunk_to_a_test(planted: pytest.MonkeyPatch) -> None:
    planted.setattr(right_shrink, "LONGEST_S", 4.0)
    row = right.answers(SEEDS["f32"], "torchscript", CALLS)
    assert row["end"] == "wrong answers"
    assert 0 < row["wrong"] <= row["taken"]
    test: dict[str, Any] = {}
    exec(compile(row["test"], "test_found.py", "exec"), test)
    function = test[f"test_seed_{SEEDS['f32']}_in_torchscript"]
    with pytest.raises(AssertionError):
        function()
    planted.undo()
    function()


def test_what_is_shrunk_is_one_step_and_one_value() -> None:
    """As an engine that is wrong for large values would have it."""
    case = part(SEEDS["f32"])
    given = [torch.full_like(case.sample[0], 1e6).cumsum(-1)]
    fault = Fault(seed=SEEDS["f32"], engine="torchscript", given=given, exact=True)

    def engine_of(_: str, case: right.Drawn) -> Any:
        case.module(*case.sample)  # raises where the steps do not go together
        return lambda given, _: bool((given[0] > LARGE).any())

    small = shrunk(fault, engine_of)
    assert small.kept is not None
    assert len(small.kept) == 1
    assert int((small.given[0] != small.case.sample[0]).sum()) == 1
    assert f"part({small.seed}, first={small.first}, kept={small.kept})" in as_test(small)


def test_steps_in_front_are_left_out_where_the_call_goes_into_what_they_made() -> None:
    whole = part(SEEDS["i64"])
    shorter = part(SEEDS["i64"], first=1, kept=(1, 2))
    assert shorter.name == f"i64: {' '.join(whole.name.split()[2:4])}"
    with torch.no_grad():
        assert torch.equal(shorter.sample[0], whole.module.steps[0](whole.sample[0]))


@pytest.mark.parametrize(("end", "code"), [("right", 0), ("wrong answers", 1)])
def test_the_exit_code_says_whether_an_answer_is_wrong(
    end: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"seed": 3, "engine": "torchscript", "module": "f32: relu", "end": end, "bounds": [], "test": "# a test\n"}
    monkeypatch.setattr(right, "_in_processes", lambda *_: iter([row | {"taken": 10, "wrong": code}]))
    monkeypatch.setattr(sys, "argv", ["right", "--engines", "torchscript", "--tests", str(tmp_path)])
    assert right.main() == code
    assert (tmp_path / "test_seed_3_torchscript.py").exists() == bool(code)
    assert ("WRONG seed 3 (f32: relu) in torchscript" in capsys.readouterr().out) == bool(code)
