"""Graph breaks and recompilations, with their lines."""

from __future__ import annotations

import logging

import torch
from torch import nn

import togi
from tests.small_modules import Counts
from togi.lint.trace.check import trace_subject
from togi.lint.trace.compiled import compile_events


class Branches(nn.Module):
    def forward(self, x, factor=1):
        if x.sum() > 0:
            x = x + 1
        return x * factor


def lines(events, kind):
    return [(e.stack[0].code.strip(), e.why) for e in events if e.kind == kind]


def test_a_branch_on_values_breaks_the_graph_at_its_line():
    events, notes = compile_events(togi.Subject(Branches(), torch.ones(3)))
    assert lines(events, "graph-break") == [("if x.sum() > 0:", "the branch depends on values of a tensor")]
    assert not lines(events, "recompilation")
    assert notes == ()


def test_sizes_and_numbers_that_change_recompile():
    samples = [torch.ones(3), torch.ones(5), (torch.ones(5), 2)]
    events, _ = compile_events(togi.Subject(Branches(), samples))
    reasons = [why for _, why in lines(events, "recompilation")]
    assert any("size mismatch at index 0" in why for why in reasons)
    assert any("factor ==" in why for why in reasons)


def test_a_counter_recompiles_although_the_input_is_the_same():
    events, _ = compile_events(togi.Subject(Counts(in_buffer=False), torch.ones(3)))
    (event,) = events
    assert event.kind == "recompilation"
    assert "calls" in event.why


def test_what_compiles_whole_gives_nothing():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    assert compile_events(togi.Subject(module, torch.ones(2, 3))) == ((), ())


def test_a_failure_is_a_note_and_logging_is_as_before():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("not today")

    before = logging.root.manager.disable
    events, notes = compile_events(togi.Subject(Fails(), torch.ones(3)))
    assert "not today" in notes[0]
    assert logging.root.manager.disable == before
    assert all(event.kind in ("graph-break", "recompilation") for event in events)


def test_a_traced_step_keeps_the_factorys_sample_and_the_modes_of_its_parts():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trained, self.frozen = nn.Linear(3, 3), nn.BatchNorm1d(3).eval()

        def forward(self, x):
            return self.frozen(self.trained(x))

    def step(module, sample):
        sizes.append((type(sample), module.trained.training, module.frozen.training))
        return module(**sample).sum()

    sizes = []
    subject = togi.Subject(Net(), {"x": torch.ones(2, 3)}, step=step)
    for _, notes in (compile_events(subject), ((), trace_subject(subject).notes)):
        assert notes == ()
    assert set(sizes) == {(dict, True, False)}
