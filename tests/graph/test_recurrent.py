"""Recurrent layers as operators of togi's: what they answer is laid out as they say without values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.library import opcheck

from togi.graph.candidate import Candidate
from togi.graph.capture import export
from togi.graph.recurrent import SEALED
from togi.subject.inputs import Subject
from togi.techniques.build import first_candidate
from togi.techniques.engine.programs.exported import load_module, store_module
from togi.worker.survey import survey

LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN}


def of(layer: nn.Module) -> Candidate:
    subject = Subject(layer.eval(), [(torch.randn(2, 5, 8),)])
    found = survey(subject)
    return first_candidate(subject, found.facts, found.signature)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", LAYERS)
def test_sealed_layers_are_laid_out_as_they_say(kind: str, batch_first: bool) -> None:
    layer = LAYERS[kind](8, 16, batch_first=batch_first).requires_grad_(False)
    x, state = torch.randn(2, 5, 8), torch.zeros(1, 2 if batch_first else 5, 16)
    given = [state, state.clone()] if kind == "lstm" else state
    opcheck(SEALED[kind], (x, given, layer._flat_weights, True, 1, 0.0, False, False, batch_first))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_stored_layer_can_be_loaded_whole(kind: str, tmp_path: Path) -> None:
    candidate = of(LAYERS[kind](8, 16, batch_first=True))
    store_module(candidate, tmp_path, {})
    x = torch.randn(2, 5, 8)
    whole, plain = load_module(tmp_path, whole_layers=True), load_module(tmp_path)
    targets = [node.target for node in whole.graph.nodes]  # type: ignore[attr-defined]
    assert SEALED[kind] in targets
    for found, expected in zip(whole(x), plain(x), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", LAYERS)
def test_capture_leaves_the_list_of_weights_alone(kind: str) -> None:
    """torch 2.9 leaves fake tensors in it, which have no values."""
    layer = LAYERS[kind](8, 16, batch_first=True)
    candidate = of(layer)
    export(candidate)
    assert all(listed is own for listed, own in zip(layer._flat_weights, layer.parameters(), strict=True))
