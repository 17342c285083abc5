"""A batch is answered in pieces: what each piece is, who answers it, and that rows that depend on others are found."""

from __future__ import annotations

import re
import threading

import pytest
import torch
from torch import nn

from togi.core.errors import Refused
from togi.core.records import Choice, Outcome, Recipe, Stage
from togi.techniques import Applies, Refuses, conformance
from togi.techniques.build import StepFailed, build, classify
from togi.techniques.runtime.split_batch import SplitBatch

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


class Floored(nn.Module):
    """One row's floor depends on the loudest row of the batch (whisper's log-mel spectrogram)."""

    def forward(self, x):
        spectrum = x.exp().log10()
        return torch.maximum(spectrum, spectrum.max() - 4.0)


class Keeps(nn.Module):
    """Remembers its last result."""

    kept = None

    def forward(self, x):
        self.kept = x.exp()
        return self.kept * 2


def recipe_of(options):
    return Recipe(choices=(Choice(technique="split_batch", stage=Stage.RUNTIME, options=options),))


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


@pytest.mark.parametrize("rows", [(8,), (8, 6)])
@pytest.mark.parametrize("options", [AT_ONCE, IN_TURN])
def test_rows_that_depend_on_others_are_refused_with_the_line(rows, options):
    """Also where no sample shows it: here the loudest row sets a floor that none of them reaches."""
    for module, said in ((Coupled(), "x.mean(0)"), (Floored(), "spectrum.max()")):
        start = conformance.candidate_of(module, [torch.randn(n, 4) for n in rows])
        with pytest.raises(Refused, match=re.escape(said)):
            SPLIT.configure(start, options)


def test_a_module_that_keeps_what_it_is_given_is_left_as_it_was():
    module = Keeps()
    start = conformance.candidate_of(module, [torch.randn(8, 4)])
    SPLIT.configure(start, AT_ONCE)
    assert start.module.kept is None


def test_a_loaded_one_was_shown_when_it_was_built():
    start = candidate()
    loaded = start.with_(module=nn.Identity(), samples=())
    assert SPLIT.configure(loaded, AT_ONCE).at_once == 2


def test_a_refusal_is_the_techniques_own():
    with pytest.raises(StepFailed) as raised:
        build(recipe_of(AT_ONCE), conformance.candidate_of(Coupled(), [torch.randn(8, 4)]))
    assert classify(raised.value, "build").stage == "split_batch"
    assert classify(raised.value, "build").outcome is Outcome.REFUSED


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

    call = applied(candidate(), AT_ONCE).with_(module=Fails()).runnable()
    with pytest.raises(ValueError, match="no"):
        call(x=torch.randn(8, 4), bias=torch.randn(3))
