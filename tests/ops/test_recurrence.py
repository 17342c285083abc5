"""The recurrence of a layer answers what torch's layer does: by the compiled kernel, with any number of threads, and
step by step in torch."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from togi.ops.kernels import recurrence as kernel
from togi.ops.kernels.library import KernelLibrary
from togi.ops.recurrence import recurrence

KINDS = tuple(kernel.GATES)
OPERATOR = torch.ops.togi.recurrence.default


def layer_of(kind, inputs, units, *, bidirectional=False, batch_first=False, bias=True):
    options = {"bidirectional": bidirectional, "batch_first": batch_first, "bias": bias}
    if kind.startswith("rnn"):
        return nn.RNN(inputs, units, nonlinearity=kind.removeprefix("rnn_"), **options)
    return (nn.LSTM if kind == "lstm" else nn.GRU)(inputs, units, **options)


def given_to(kind, layer, x, hidden, cell):
    """The operator's arguments for one layer of torch's."""
    ends = ["", "_reverse"][: 2 if layer.bidirectional else 1]
    weights = [[getattr(layer, f"weight_{of}_l0{end}").detach() for end in ends] for of in ("ih", "hh")]
    bias = torch.zeros(len(ends), kernel.GATES[kind] + 1, layer.hidden_size)
    for direction, end in enumerate(ends if layer.bias else ()):
        of_inputs, of_state = (
            getattr(layer, f"bias_{of}_l0{end}").detach().reshape(kernel.GATES[kind], -1) for of in ("ih", "hh")
        )
        bias[direction, :-1] = of_inputs + of_state
        if kind == "gru":
            bias[direction, 2:] = torch.stack([of_inputs[2], of_state[2]])
    packed = [kernel.pack(kind, each) for each in weights]
    return x, hidden, cell, *packed, bias, kind, layer.batch_first


def case(kind, *, units=20, steps=7, batch=2, bidirectional=False, batch_first=False, bias=True, scale=1.0, seed=0):
    torch.manual_seed(seed)
    layer = layer_of(kind, 5, units, bidirectional=bidirectional, batch_first=batch_first, bias=bias)
    directions = 2 if bidirectional else 1
    x = torch.randn(batch, steps, 5) if batch_first else torch.randn(steps, batch, 5)
    hidden, cell = torch.randn(2, directions, batch, units)
    return layer, x * scale, hidden, cell if kind == "lstm" else None


def by_torch(layer, x, hidden, cell):
    outputs, last = layer(x, hidden if cell is None else (hidden, cell))
    return (outputs, *last) if isinstance(last, tuple) else (outputs, last)


@torch.no_grad()
def check(kind, made):
    layer, x, hidden, cell = made
    found = recurrence(*given_to(kind, layer, x, hidden, cell))
    double = copy.deepcopy(layer).double()
    truth = by_torch(double, x.double(), hidden.double(), None if cell is None else cell.double())
    for right, output in zip(truth, found, strict=False):
        torch.testing.assert_close(output, right.float(), rtol=2e-5, atol=2e-6, equal_nan=True)
    return found


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    units=st.integers(1, 70),
    steps=st.integers(1, 12),
    batch=st.integers(0, 11),
    bidirectional=st.booleans(),
    batch_first=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_answers_what_the_layer_does(kind, **sizes):
    check(kind, case(kind, **sizes))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch", "bidirectional"), [(1, False), (1, True), (5, False), (9, True)])
def test_every_number_of_threads_gives_the_same_bits(kind, batch, bidirectional):
    made = case(kind, units=200, steps=30, batch=batch, bidirectional=bidirectional)
    before, answers = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            answers.append(check(kind, made))
    finally:
        torch.set_num_threads(before)
    for answer in answers[1:]:
        assert all(torch.equal(one, other) for one, other in zip(answer, answers[0], strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_compiler_torch_answers_and_says_why(kind, monkeypatch, tmp_path):
    made = case(kind, bidirectional=True, batch_first=True)
    compiled = check(kind, made)
    monkeypatch.setenv("CXX", f"/nowhere/{kind}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernel, "RECURRENCE", KernelLibrary(kernel.RECURRENCE.source))
    with pytest.warns(RuntimeWarning, match="no C\\+\\+ compiler found.*right and slow"):
        torch.testing.assert_close(check(kind, made), compiled)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [1e4, -1e4, 30.0, 1e-30, float("inf"), float("nan")])
def test_extreme_inputs_give_what_they_give_in_torch(kind, value):
    layer, x, hidden, cell = case(kind, steps=4, batch=3)
    x[1, 1, 2] = value
    with torch.no_grad():
        found = recurrence(*given_to(kind, layer, x, hidden, cell))
        wanted = by_torch(layer, x, hidden, cell)
    for one, other in zip(found, wanted, strict=False):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("kind", ["rnn_relu", "gru"])
def test_an_infinite_state_does_not_reach_units_that_are_not_there(kind):
    layer, x, hidden, cell = case(kind, units=3, batch=1)
    for weight in layer.parameters():
        weight.data.abs_()
    hidden[0, 0, 1] = float("inf")
    with torch.no_grad():
        found, wanted = recurrence(*given_to(kind, layer, x, hidden, cell)), by_torch(layer, x, hidden, cell)
    torch.testing.assert_close(found[0], wanted[0], equal_nan=True)


def test_inputs_may_be_strided_and_states_too():
    x, hidden, cell, *rest = given_to("lstm", *case("lstm", batch_first=True))
    wide = torch.cat([x, x], -1)[..., : x.shape[-1]]
    spread = x.unsqueeze(-1).expand(*x.shape, 2).contiguous()[..., 0]
    states = hidden.transpose(0, 1).contiguous().transpose(0, 1), cell.expand(1, *cell.shape[1:])
    wanted = recurrence(x, hidden, cell, *rest)
    for form in (wide, spread):
        assert all(torch.equal(a, b) for a, b in zip(recurrence(form, *states, *rest), wanted, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("units", "inputs"), [(21, 21), (16, 3), (1, 40)])
def test_weights_come_back_as_they_were_packed(kind, units, inputs):
    weights = list(torch.randn(2, kernel.GATES[kind] * units, inputs))
    packed = kernel.pack(kind, weights)
    assert packed.shape == kernel.packed_shape(kind, 2, units, inputs)
    assert packed.is_contiguous()
    assert all(torch.equal(a, b) for a, b in zip(kernel.unpack(packed, units, inputs), weights, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("batch", [1, 5])
def test_steps_beyond_what_is_kept_at_once(kind, batch):
    """Products of the inputs are kept for a million numbers a thread. Threads that share a sequence have blocks of
    units in different numbers (19 of them here), and so much else to keep."""
    before, made = torch.get_num_threads(), case(kind, units=300, steps=900, batch=batch)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            check(kind, made)
    finally:
        torch.set_num_threads(before)


def changed(position, value):
    arguments = list(given_to("lstm", *case("lstm")))
    arguments[position] = value(arguments[position]) if callable(value) else value
    return arguments


@pytest.mark.parametrize(
    ("position", "value", "told"),
    [
        (0, lambda t: t[..., :-1], "input_weights"),
        (0, lambda t: t[:, :1], "inputs"),
        (0, lambda t: t[0], "three dimensions"),
        (0, lambda t: t[..., :0], "of no layer"),
        (0, lambda t: t.double(), "float32"),
        (1, lambda t: t[:, :, :-1], "cell"),
        (1, lambda t: t[0], "three dimensions"),
        (1, lambda t: t.repeat(3, 1, 1), "of no layer"),
        (1, lambda t: t[:, :, :0], "of no layer"),
        (2, None, "cell"),
        (2, lambda t: t[:, :1], "cell"),
        (3, lambda t: t[:, :1], "input_weights"),
        (4, lambda t: t[:, :1], "state_weights"),
        (4, lambda t: t.half(), "float32"),
        (5, lambda t: t[:, 1:], "bias"),
        (6, "gru", "cell"),
        (6, "cnn", "the kind 'cnn' is unknown"),
        (7, True, "inputs"),
    ],
)
def test_what_does_not_fit_together_is_refused(position, value, told):
    with pytest.raises(ValueError, match=told):
        recurrence(*changed(position, value))


@pytest.mark.parametrize("position", range(6))
def test_it_has_no_gradient_and_says_so(position):
    given = list(given_to("lstm", *case("lstm")))
    given[position] = given[position].requires_grad_()
    with pytest.raises(RuntimeError, match="has no gradient"):
        OPERATOR(*given)
    with torch.no_grad():
        assert not OPERATOR(*given)[0].requires_grad
