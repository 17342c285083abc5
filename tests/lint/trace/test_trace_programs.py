"""Every synchronisation of the programs is found at its line, and nothing else is taken for one, without a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.lint.trace.synchronization_programs import Program, programs
from togi.lint.trace.check import debug_mode_events, trace_subject
from togi.lint.trace.record import Trace
from togi.lint.trace.recorder import EventRecorder
from togi.lint.trace.watching import mark_subject, watching
from togi.subject.prepare import prepare

PROGRAMS = programs()
PLAIN = [p for p in PROGRAMS if p.path.stem != "training" and not p.names_cuda]


def by_name(program: Program) -> str:
    return program.name


def traced(program: Program) -> Trace:
    return trace_subject(program.subject())


def test_there_are_enough_of_both_sorts() -> None:
    waiting = [p for p in PROGRAMS if p.waits]
    assert len(PROGRAMS) >= 60
    assert "libraries" in {p.path.stem for p in PROGRAMS}
    assert len(PROGRAMS) - len(waiting) >= len(PROGRAMS) // 2


@pytest.mark.parametrize("program", PROGRAMS, ids=by_name)
def test_the_host_waits_at_the_marked_lines_and_nowhere_else(program: Program) -> None:
    trace = traced(program)
    assert trace.mode == "simulated", trace.notes
    assert program.lines_of(event for event in trace.events if event.waits) == program.waits
    reported = program.lines_of(event for event in trace.events if event.waits and event.seen_by_debug_mode)
    assert reported == program.waits - program.unseen


@pytest.mark.parametrize("program", PLAIN, ids=by_name)
def test_values_are_those_of_a_plain_run(program: Program) -> None:
    prepared = prepare(program.subject())
    (sample,) = prepared.samples
    torch.manual_seed(3)
    plain = prepared.module(*sample.clone().args)
    mark_subject(prepared.module, prepared.samples)
    with watching(EventRecorder(), simulated=True):
        torch.manual_seed(3)
        watched = prepared.module(*sample.args)
    assert_same(watched, plain)


def assert_same(left: object, right: object) -> None:
    if isinstance(left, torch.Tensor):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for left_item, right_item in zip(left, right, strict=True):
            assert_same(left_item, right_item)
    elif not isinstance(left, str):
        assert left == right


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: its debug mode confirms the marks")
@pytest.mark.parametrize("program", PROGRAMS, ids=by_name)
def test_the_debug_mode_of_pytorch_reports_the_same_lines(program: Program) -> None:
    subject = program.subject()
    prepared = prepare(subject, device="cuda")
    sample = prepared.samples[0]

    def run() -> None:
        if subject.step is not None:
            subject.step(prepared.module, sample.args[0])
        else:
            prepared.module(*sample.args, **sample.kwargs)

    run()
    with debug_mode_events() as events:
        run()
    assert program.lines_of(events) == program.waits - program.unseen
