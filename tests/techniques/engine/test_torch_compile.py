"""A trial of torch.compile with CUDA graphs says which there are not, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_subjects import made

from togi.core.errors import Refused
from togi.core.records import Facts
from togi.techniques.engine.programs.compiled import graph_notes
from togi.techniques.registry import technique
from togi.torch_internals.cuda_graphs import GraphReport, NotRecorded


def test_without_a_device_the_note_says_that_nothing_is_recorded() -> None:
    candidate = made("strided_input")
    program = technique("torch_compile").apply(candidate, {"mode": "reduce-overhead", "freezing": False}).program
    assert program is not None
    with torch.no_grad():
        program(*candidate.samples[0].args)
    (note,) = program.notes()
    assert note.startswith("CUDA graphs: 0 parts of the compiled code to be recorded; skipped or cut: ")
    assert "torch gives no reason" in note or "non gpu ops, " in note, "torch 2.9 gives a reason, later ones none"


def test_modes_without_cuda_graphs_have_no_note() -> None:
    candidate = made("strided_input")
    program = technique("torch_compile").apply(candidate, {"mode": "default", "freezing": False}).program
    assert program is not None
    assert program.notes() == ()


def test_reasons_are_counted_and_have_the_users_line() -> None:
    torch_line = f'File "{Path(torch.__file__).parent}/nn/modules/module.py", line 9, in _call_impl\n    x\n'
    stack = f'File "/home/a/model.py", line 12, in forward\n    cache.add_(1)\n{torch_line}'
    mutated = NotRecorded("mutated inputs (1 instances)", stack)
    report = GraphReport(parts=3, skips=2, reasons=[mutated, NotRecorded("cpu ops"), mutated])
    assert graph_notes(report) == [
        "CUDA graphs: 3 parts of the compiled code to be recorded; skipped or cut: mutated inputs (1 instances), "
        "/home/a/model.py:12 (`cache.add_(1)`) (2 times); cpu ops."
    ]


@pytest.mark.parametrize("parts", [1, 3])
def test_where_all_is_recorded_there_is_no_note(parts: int) -> None:
    assert graph_notes(GraphReport(parts=parts)) == []


def on_cuda(callers: int, version: str) -> Facts:
    facts = made("strided_input").facts
    machine = facts.machine.model_copy(update={"versions": {"torch": version}})
    return facts.model_copy(update={"device": "cuda", "callers": callers, "machine": machine})


@pytest.mark.parametrize(
    ("callers", "version", "graphs"),
    [
        (1, "2.11.0+cu130", True),
        (4, "2.11.0+cu130", False),
        (4, "2.14.1", False),
        (4, "2.15.0+cu132", True),
        (4, "2.15.0a0+git1", True),
    ],
)
def test_graphs_that_fail_in_other_threads_are_not_offered_to_several_callers(
    callers: int, version: str, graphs: bool
) -> None:
    facts = on_cuda(callers, version)
    modes = {options["mode"] for options in technique("torch_compile").options(facts)}
    assert modes == (
        {"reduce-overhead", "max-autotune", "default"} if graphs else {"max-autotune-no-cudagraphs", "default"}
    )
    if not graphs:
        with pytest.raises(Refused, match="several callers"):
            technique("torch_compile").apply(
                made("strided_input").with_(facts=facts), {"mode": "max-autotune", "freezing": False}
            )


@pytest.mark.parametrize("descent", [True, False])
def test_coordinate_descent_is_one_more_setting_of_reduce_overhead(
    monkeypatch: pytest.MonkeyPatch, descent: bool
) -> None:
    offered = technique("torch_compile").options(on_cuda(1, "2.15.0"))
    assert {options["mode"] for options in offered if options.get("coordinate_descent")} == {"reduce-overhead"}
    given: list[dict[str, object]] = []
    monkeypatch.setattr(torch, "compile", lambda function, **settings: given.append(settings["options"]) or function)
    options = {"mode": "reduce-overhead", "freezing": False, **({"coordinate_descent": True} if descent else {})}
    technique("torch_compile").apply(made("strided_input"), options)
    assert given[0].get("coordinate_descent_tuning", False) is descent
    assert given[0]["triton.cudagraphs"]
    assert ("coordinate_descent" in str(technique("torch_compile").repro(options, None))) is descent
