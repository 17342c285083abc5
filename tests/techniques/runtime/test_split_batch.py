"""A batch is answered in pieces: what each piece is, who answers it, and that rows that depend on others are found."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from togi.core.errors import Refused
from togi.techniques import Applies, Refuses, conformance
from togi.techniques.runtime.split_batch import SplitBatch
from togi.verify.derived_inputs import variants
from togi.verify.reference import make_truth
from togi.verify.verdict import verify

SPLIT = SplitBatch()
AT_ONCE, IN_TURN = {"pieces": 2, "at_once": True}, {"pieces": 4, "at_once": False}


class Rows(nn.Module):
    """(n, 4), a bias for all rows -> two outputs of n rows; remembers how it was called."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.seen = []

    def forward(self, x, bias):
        self.seen.append((x.shape[0], threading.get_ident(), torch.get_num_threads()))
        return {"y": self.linear(x) + bias, "largest": x.argmax(-1)}


class Coupled(nn.Module):
    """Every row less the mean of all."""

    def forward(self, x):
        return x - x.mean(0)


def candidate(rows=8, *more):
    return conformance.candidate_of(Rows(), [{"x": torch.randn(n, 4), "bias": torch.randn(3)} for n in (rows, *more)])


def applied(start, options):
    return SPLIT.apply(SPLIT.configure(start, options), options)


def facts(*inputs, outputs=((8, 3),), **others):
    found = candidate().facts
    tensors = [found.inputs[0].model_copy(update={"shape": shape}) for shape in inputs]
    made = [found.outputs[0].model_copy(update={"shape": shape}) for shape in outputs]
    return found.model_copy(update={"inputs": tuple(tensors), "outputs": tuple(made), **others})


def test_conformance():
    conformance.check(SPLIT, [candidate, lambda: candidate(4, 6, 9)])


def test_pieces_one_after_the_other():
    start = candidate()
    call = applied(start, IN_TURN).runnable()
    before = threading.get_ident(), torch.get_num_threads()
    start.module.seen.clear()
    found = call(**start.samples[0].kwargs)
    assert start.module.seen == [(2, *before)] * 4
    assert found["y"].shape == (8, 3)


def test_pieces_at_once_are_answered_by_threads_with_their_share():
    start = candidate()
    machine = start.facts.machine.model_copy(update={"threads": 4})
    start = start.with_(facts=start.facts.model_copy(update={"machine": machine}))
    start.module.seen.clear()
    before = torch.get_num_threads()
    applied(start, AT_ONCE).runnable()(**start.samples[0].kwargs)
    assert [(rows, threads) for rows, _, threads in start.module.seen] == [(4, 2)] * 2
    assert threading.get_ident() not in {thread for _, thread, _ in start.module.seen}
    assert torch.get_num_threads() == before


def test_an_engine_is_built_for_a_piece_where_the_batch_has_one_size():
    told = SPLIT.configure(candidate(), AT_ONCE)
    assert {facts.name: facts.shape for facts in told.signature.inputs_facts} == {"x": (4, 4), "bias": (3,)}
    assert {facts.shape for facts in told.signature.outputs_facts} == {(4, 3), (4,)}
    assert told.samples[0].kwargs["x"].shape == (4, 4)
    assert told.calibration == ()
    assert told.at_once == 2
    with pytest.raises(ValueError, match="tuned and proven for"):
        told.runnable()(x=torch.randn(7, 4), bias=torch.randn(3))


@pytest.mark.parametrize(("rows", "pieces"), [(3, [3]), (4, [2, 2]), (7, [2, 2, 3]), (9, [2, 2, 2, 3]), (0, [0])])
def test_a_batch_of_any_size_is_cut_into_pieces_of_at_least_two_rows(rows, pieces):
    start = candidate(8, 6)
    call = applied(start, IN_TURN).runnable()
    start.module.seen.clear()
    given = {"x": torch.randn(rows, 4), "bias": torch.randn(3)}
    found = call(**given)
    assert [seen[0] for seen in start.module.seen] == pieces
    torch.testing.assert_close(found["y"], start.module.linear(given["x"]) + given["bias"])


def test_rows_that_depend_on_others_are_wrong():
    start = conformance.candidate_of(Coupled(), [torch.randn(8, 4)])
    inputs = variants(start.samples, start.signature, 0)
    with torch.no_grad():
        truth = make_truth(start.module, inputs, start.signature, seed=0, samples=1)
        report = verify(applied(start, IN_TURN).runnable(), truth, inputs, start.signature, seed=0)
    assert not report.faithful


@pytest.mark.parametrize(
    "wrong",
    [
        facts((8, 4), outputs=((8, 3), (1,))),
        facts((8, 4), outputs=((8, 3), ())),
        facts((1, 4), outputs=((1, 3),)),
        facts((4, 8)),
        facts((8, 4), outputs=()),
        facts((8, 4), program=True),
        facts((8, 4), random=True),
        facts((8, 4), buffers_change=True),
        facts((8, 4), callers=4),
    ],
)
def test_it_refuses_what_has_no_rows_or_whose_calls_are_not_one(wrong):
    assert isinstance(SPLIT.applies(wrong), Refuses)


def test_it_offers_what_divides_the_batch():
    known = facts((8, 4))
    assert isinstance(SPLIT.applies(known), Applies)
    wide = known.machine.model_copy(update={"threads": 6})
    assert SPLIT.options(known.model_copy(update={"machine": wide})) == [
        {"pieces": 4, "at_once": True},
        {"pieces": 2, "at_once": False},
        {"pieces": 4, "at_once": False},
    ]
    assert SPLIT.options(facts((3, 4), outputs=((3, 3),))) == [{"pieces": 3, "at_once": False}]


@pytest.mark.parametrize(
    "options", [{}, {"pieces": 1, "at_once": True}, {"pieces": True, "at_once": True}, {"pieces": 2}]
)
def test_options_that_are_none_are_refused(options):
    with pytest.raises(Refused, match="pieces"):
        SPLIT.configure(candidate(), options)


def test_a_batch_that_cannot_be_cut_evenly_is_refused():
    with pytest.raises(Refused, match="pieces of the same size"):
        SPLIT.configure(candidate(6), IN_TURN)


def test_a_call_that_fails_in_a_thread_fails():
    class Fails(nn.Module):
        def forward(self, x, bias):
            raise ValueError("no")

    call = applied(candidate().with_(module=Fails()), AT_ONCE).runnable()
    with pytest.raises(ValueError, match="no"):
        call(x=torch.randn(8, 4), bias=torch.randn(3))
