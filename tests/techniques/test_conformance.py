"""The suite accepts every built-in technique's declaration, and notices each kind of breach."""

# ruff: noqa: ARG001, ARG005 - a breach has a technique's signature and ignores most of it
from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.small_modules import Counts
from togi.core.errors import Refused
from togi.core.records import Stage
from togi.subject.inputs import Inputs
from togi.techniques import Applies, Refuses, Technique, all_remedies, all_techniques, conformance


@pytest.mark.parametrize("technique", all_techniques().values(), ids=lambda t: t.id)
def test_every_technique_is_declared_documented_and_decides(technique):
    conformance.check_declaration(technique)
    conformance.check_documentation(technique)
    conformance.check_decisions(technique, conformance.odd_facts())


def test_the_page_of_the_parts_of_a_program_has_every_section():
    conformance.check_documentation(all_remedies()["parts"])


def linear():
    return conformance.candidate_of(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), [torch.randn(2, 4)])


class CopiesIntoItsOwn(nn.Module):
    """What it was called with stands in memory that it keeps; the breach copies more than values there."""

    def __init__(self, *, detaches: bool) -> None:
        super().__init__()
        self.detaches, self.kept = detaches, [torch.zeros(2, 4)]

    def forward(self, x):
        self.kept[0].copy_(x.detach() if self.detaches else x)
        return self.kept[0] * 2


def test_a_program_that_keeps_its_callers_graph_is_noticed():
    sample = Inputs((torch.ones(2, 4),))
    conformance.check_no_graph_kept("it", CopiesIntoItsOwn(detaches=True), sample)
    with pytest.raises(AssertionError, match="keeps the autograd graph of its caller"):
        conformance.check_no_graph_kept("it", CopiesIntoItsOwn(detaches=False), sample)


PAGE = """Do nothing.

What it does: nothing.

When it applies: always.

When it refuses: never.

Claim: none.

Source: none.

Cost and risk: none.
"""


class Base(Technique):
    __doc__ = PAGE
    id = "test_conformance"
    stage = Stage.REWRITE

    def applies(self, facts):
        return Applies()

    def apply(self, candidate, options):
        return candidate.with_(module=candidate.copy())


def breach(**members):
    return type("Breach", (Base,), {"__doc__": PAGE, "__module__": __name__, **members})()


def test_a_technique_without_fault_passes():
    conformance.check(Base(), [linear])


def in_place(edit):
    def apply(self, candidate, options):
        with torch.no_grad():
            edit(candidate.module)
        return candidate

    return apply


def other(change):
    class Other(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args):
            return change(self.module(*args))

    return lambda self, candidate, options: candidate.with_(module=Other(candidate.copy()))


def refuse(self, candidate, options):
    raise Refused("no")


def spoil_input(self, candidate, options):
    for sample in candidate.samples:
        sample.args[0].zero_()
    return candidate.with_(module=candidate.copy())


BREACHES = {
    "not the name of its file": {"id": "other"},
    "is not a stage": {"stage": "somewhere"},
    "expected a frozenset": {"needs": {"engine"}},
    "unknown devices": {"devices": frozenset({"tpu"})},
    "lacks Claim": {"__doc__": PAGE.replace("Claim", "Promise")},
    "nothing stands under 'Source'": {"__doc__": PAGE.replace("Source: none.", "Source:")},
    "not in the order": {"__doc__": PAGE.replace("Claim", "X").replace("Source", "Claim").replace("X", "Source")},
    r"applies\(\) returned a bool": {"applies": lambda self, facts: True},
    "needs a reason": {"applies": lambda self, facts: Refuses("no")},
    "a refusal needs a reason": {"apply": refuse},
    "is empty": {"options": lambda self, facts: ()},
    "not plain JSON": {"options": lambda self, facts: ({"size": (1, 2)},)},
    "positive number": {"expected_speedup": lambda self, facts, options: 0.0},
    "negative": {"cost_s": lambda self, facts, options: -1.0},
    "changed the values of 0.weight": {"apply": in_place(lambda module: module[0].weight.add_(1.0))},
    "changed the training flags": {"apply": in_place(lambda module: module[1].train())},
    "changed the structure": {"apply": in_place(lambda module: module.append(nn.Identity()))},
    "changed the hooks": {"apply": in_place(lambda module: module.register_forward_hook(lambda *_: None))},
    "changed the layout": {"apply": in_place(lambda module: module.requires_grad_(False))},
    "changed the samples": {"apply": spoil_input},
    "times as far from the truth": {"apply": other(lambda y: y * 1.001)},
    "other NaN": {"apply": other(lambda y: y / 0)},
    "changed an output's form": {"apply": other(lambda y: y.double())},
    "memory layout": {"apply": other(lambda y: y.t().contiguous().t())},
}


@pytest.mark.parametrize("message", BREACHES)
def test_each_breach_is_noticed(message):
    with pytest.raises(AssertionError, match=message):
        conformance.check(breach(**BREACHES[message]), [linear])


def test_an_approximate_technique_may_be_off():
    conformance.check(breach(exact=False, apply=other(lambda y: y * 1.001)), [linear])


def test_a_stateful_module_is_judged_on_equal_states():
    conformance.check(Base(), [lambda: conformance.candidate_of(Counts(), [torch.randn(3)])])
