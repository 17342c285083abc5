"""A recurrent layer becomes one operator and answers as before; what is none of these is left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from togi.core.errors import Refused
from togi.subject.inputs import Inputs
from togi.techniques import all_techniques, conformance
from togi.techniques.base import Applies, Refuses
from togi.techniques.engine.programs.exported import load_module, store_module
from togi.techniques.registry import compatible
from togi.techniques.rewrite.persistent_rnn import PersistentRnn

PERSISTENT = PersistentRnn()
pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned during export")


class Layer(nn.Module):
    """All that a layer answers, as a flat tuple; with ``states`` its first states are inputs."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, states=None):
        outputs, last = self.layer(x, states)
        return (outputs, *last) if isinstance(last, tuple) else (outputs, last)


def persistent(module, *samples):
    original = conformance.candidate_of(module.eval(), list(samples))
    return original, PERSISTENT.apply(original, {})


LAYERS = {
    "lstm": lambda: nn.LSTM(8, 20),
    "gru": lambda: nn.GRU(8, 20),
    "tanh": lambda: nn.RNN(8, 20),
    "relu": lambda: nn.RNN(8, 20, nonlinearity="relu"),
    "lstm of three layers, both directions": lambda: nn.LSTM(
        8, 20, 3, bidirectional=True, batch_first=True, dropout=0.5
    ),
    "gru of two layers, both directions, without a bias": lambda: nn.GRU(8, 20, 2, bidirectional=True, bias=False),
}


@pytest.mark.parametrize("case", LAYERS)
def test_each_layer_is_one_operator(case, calls, error_units):
    layer = LAYERS[case]()
    original, result = persistent(Layer(layer), torch.randn(6, 3, 8))
    found = calls(result)
    assert found.count("togi") == layer.num_layers
    assert not {"lstm", "gru", "rnn_tanh", "rnn_relu"} & set(found)
    error_units(original, result, [torch.randn(6, 3, 8)])


def test_length_and_batch_may_vary(error_units):
    samples = [torch.randn(2, 5, 8), torch.randn(3, 9, 8)]
    original, result = persistent(Layer(nn.GRU(8, 12, batch_first=True)), *samples)
    error_units(original, result, [*samples, torch.randn(1, 1, 8), torch.randn(7, 30, 8)])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_first_states_may_be_given(kind):
    module, states = Layer(kind(8, 12, 2)), torch.randn(2, 2, 3, 12)
    given = tuple(states) if kind is nn.LSTM else states[0]
    sample = Inputs(args=(torch.randn(5, 3, 8), given))
    original, result = persistent(module, sample)
    with torch.no_grad():
        torch.testing.assert_close(result.module(*sample.args), original.module(*sample.args))


def test_a_layer_that_is_used_twice_keeps_its_weights_once(calls, error_units):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(8, 8)

        def forward(self, x):
            return self.layer(self.layer(x)[0])[0]

    sample = torch.randn(4, 2, 8)
    original, result = persistent(Twice(), sample)
    assert calls(result).count("togi") == 2
    assert len([weight for weight in result.module.parameters() if weight.dim() == 5]) == 2
    error_units(original, result, [sample])


def test_it_runs_under_torch_compile():
    sample = torch.randn(4, 2, 8)
    _, result = persistent(Layer(nn.LSTM(8, 12)), sample)
    with torch.no_grad():
        wanted = result.module(sample)
        compiled = torch.compile(result.module, backend="aot_eager", fullgraph=True)
        assert all(torch.equal(one, other) for one, other in zip(compiled(sample), wanted, strict=True))
    torch._dynamo.reset()


def test_it_can_be_stored_and_loaded(tmp_path):
    sample = torch.randn(4, 2, 8)
    _, result = persistent(Layer(nn.LSTM(8, 12, bidirectional=True)), sample)
    store_module(result, tmp_path, {})
    with torch.no_grad():
        found = load_module(tmp_path)(sample)
        assert all(torch.equal(one, other) for one, other in zip(found, result.module(sample), strict=True))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(8, 12)

    def forward(self, x):
        weights = [weight * x.mean() for weight in self.layer.parameters()]
        return torch.gru(x, x.new_zeros(1, 2, 12), weights, True, 1, 0.0, False, False, False)[0]


class Computed(nn.Module):
    """Weights of one size, made by the same operators."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.GRU(8, 8), nn.GRU(8, 8)])

    def forward(self, x):
        for layer in self.layers:
            weights = [2 * weight for weight in layer.parameters()]
            x = torch.gru(x, x.new_zeros(1, 2, 8), weights, True, 1, 0.0, False, False, False)[0]
        return x


def test_layers_with_computed_weights_keep_their_own(calls, error_units):
    sample = torch.randn(4, 2, 8)
    original, result = persistent(Computed(), sample)
    assert calls(result).count("togi") == 2
    error_units(original, result, [sample])


LEFT_ALONE = {
    "projections": (lambda: Layer(nn.LSTM(8, 12, proj_size=4)), torch.randn(4, 2, 8)),
    "float64": (lambda: Layer(nn.LSTM(8, 12).double()), torch.randn(4, 2, 8, dtype=torch.float64)),
    "weights are computed": (Scaled, torch.randn(4, 2, 8)),
    "no layer": (lambda: nn.Linear(8, 8), torch.randn(4, 8)),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_it_is_left_alone_where(case):
    make, sample = LEFT_ALONE[case]
    with pytest.raises(Refused, match="no recurrent layer of the graph"):
        persistent(make(), sample)


def test_it_conforms():
    conformance.check(
        PERSISTENT, [lambda: conformance.candidate_of(Layer(nn.LSTM(8, 12)).eval(), [torch.randn(4, 2, 8)])]
    )


def test_it_stands_next_to_torchs_own_engines_alone():
    known = all_techniques()
    beside = {id for id, each in known.items() if each.stage == "engine" and compatible([PERSISTENT, each])}
    assert {"eager", "torch_compile"} <= beside
    assert not {"onnxruntime", "openvino", "ncnn", "aot_inductor", "torchscript"} & beside
    assert not compatible([PERSISTENT, known["bf16"]])


def test_without_a_recurrent_layer_or_a_compiler_it_is_refused_without_capture():
    facts = conformance.candidate_of(Layer(nn.GRU(8, 12)), [torch.randn(4, 2, 8)]).facts
    with_compiler = facts.model_copy(update={"machine": facts.machine.model_copy(update={"compiler": "g++"})})
    assert PERSISTENT.applies(with_compiler) == Applies()
    without = facts.model_copy(update={"machine": facts.machine.model_copy(update={"compiler": None})})
    assert "no C++ compiler" in PERSISTENT.applies(without).reason
    other = conformance.candidate_of(nn.Linear(8, 8), [torch.randn(4, 8)]).facts
    assert isinstance(PERSISTENT.applies(other), Refuses)
    assert isinstance(PERSISTENT.applies(with_compiler.model_copy(update={"device": "cuda"})), Refuses)
