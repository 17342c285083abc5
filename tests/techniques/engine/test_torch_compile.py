"""A trial of torch.compile with CUDA graphs says which there are not, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_subjects import made

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
