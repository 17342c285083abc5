"""Capturing keeps what the module computes and changes, and nothing of it reaches back into the module."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from togi.core.errors import Refused
from togi.graph.capture import GraphModule, capture, export, held_for
from togi.graph.recurrent import recurrent_layers
from togi.subject.program import ProgramModule
from togi.techniques import conformance
from togi.techniques.engine.programs.exported import load_module, store_module


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def captured(candidate):
    return candidate.with_(module=GraphModule(capture(candidate), candidate.signature))


@dataclass
class Answer:
    total: Tensor
    parts: list[Tensor]


class Structured(nn.Module):
    """Keyword arguments, several inputs of several dtypes, a dataclass of tensors out."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, ids, *, weights, scale=2.0):
        found = self.table(ids) * weights.unsqueeze(-1) * scale
        return Answer(found.sum(), [found, found.view(found.shape[0], -1)])


def test_calls_and_answers_keep_their_form():
    sample = {"ids": torch.randint(0, 10, (2, 3)), "weights": torch.rand(2, 3)}
    start = conformance.candidate_of(Structured(), [sample])
    wanted, got = start.module(**sample), captured(start).module(**sample)
    assert isinstance(got, Answer)
    for want, found in zip([wanted.total, *wanted.parts], [got.total, *got.parts], strict=True):
        torch.testing.assert_close(found, want)


class Stateful(nn.Module):
    """A counter and an average, in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        self.calls += 1
        self.mean.mul_(0.5)[...] += 0.5 * x.mean(0)
        return self.linear(x - self.mean) * self.calls


def test_updated_buffers_go_on_being_updated_and_are_its_own():
    start = conformance.candidate_of(Stateful(), [torch.randn(3, 4)])
    original, result = copy.deepcopy(start.module), captured(start)
    with torch.no_grad():
        for _ in range(3):
            sample = torch.randn(3, 4)
            torch.testing.assert_close(result.module(sample), original(sample))
    assert start.module.calls.item() == 0.0
    assert not start.module.mean.any()


def test_an_update_that_export_would_lose_is_refused():
    class Assigns(Stateful):
        def forward(self, x):
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
            return x - self.mean

    start = conformance.candidate_of(nn.Sequential(Assigns()), [torch.randn(3, 4)])
    with pytest.raises(Refused, match=r"buffer 0\.mean, which the forward pass assigns"):
        capture(start)
    assert not start.module[0].mean.any()


def test_a_second_capture_does_not_export_again(monkeypatch):
    start = conformance.candidate_of(nn.Linear(4, 4), [torch.randn(3, 4)])
    first = captured(start)
    monkeypatch.setattr(torch.export, "export", None)
    second = capture(first)
    assert isinstance(second, fx.GraphModule)
    assert second is not first.module.graph


def test_editing_the_second_capture_leaves_the_first_alone():
    sample = torch.randn(3, 4)
    start = captured(conformance.candidate_of(Stateful(), [sample]))
    second = capture(start)
    second(sample)
    assert {tuple(b.tolist()) for b in start.module.buffers() if b.numel() == 1} == {(0.0,)}
    for node in list(second.graph.nodes):
        if str(node.target) == "aten.linear.default":
            node.replace_all_uses_with(node.args[0])
    second.recompile()
    torch.testing.assert_close(start.module(sample), Stateful.forward(copy.deepcopy(_original(start)), sample))


def _original(start):
    module = Stateful()
    tensors = dict(start.module.graph.named_parameters())
    module.linear.weight = next(p for p in tensors.values() if p.dim() == 2)
    module.linear.bias = next(p for p in tensors.values() if p.dim() == 1)
    return module


def test_parameters_share_memory_but_are_other_objects():
    start = conformance.candidate_of(nn.Linear(4, 4), [torch.randn(3, 4)])
    graph = capture(start)
    (weight,) = (p for p in graph.parameters() if p.dim() == 2)
    assert weight.data_ptr() == start.module.weight.data_ptr()
    assert weight is not start.module.weight
    assert not weight.requires_grad
    assert start.module.weight.requires_grad


def test_tied_weights_stay_one():
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    module[2].weight = module[0].weight
    graph = capture(conformance.candidate_of(module, [torch.randn(2, 4)]))
    assert len(list(graph.parameters())) == 1


def test_names_that_collide_when_flattened_are_kept_apart():
    class Colliding(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.ParameterDict({"b": torch.full((2,), 1.0)})
            self.a_b = nn.Parameter(torch.full((2,), 5.0))

        def forward(self, x):
            return x * self.a["b"] + self.a_b

    graph = capture(conformance.candidate_of(Colliding(), [torch.zeros(2)]))
    assert graph(torch.ones(2))[0].tolist() == [6.0, 6.0]


def test_modes_and_branches_inside_are_kept(monkeypatch):
    monkeypatch.setattr(conformance, "count_functions", lambda _: {})  # dispatch modes do not see through torch.cond

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad():
                y = self.linear(x)
            return torch.cond(y.sum() > 0, lambda t: t + 1, lambda t: t - 1, (y,))

    samples = [torch.randn(2, 4), torch.randn(2, 4) * -3]
    start = conformance.candidate_of(Branching(), samples)
    result = captured(start)
    for sample in samples:
        torch.testing.assert_close(result.module(sample), start.module(sample))


def test_dynamic_sizes_stay_dynamic_and_unproven_ones_are_not_guarded():
    module = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Flatten(2), nn.ReLU())
    start = conformance.candidate_of(module, [torch.randn(2, 3, 8), torch.randn(4, 3, 11)])
    other = torch.randn(7, 3, 30)
    torch.testing.assert_close(captured(start).module(other), start.module(other))


class Branches(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] > 10 else x


def test_it_says_for_which_sizes_it_holds():
    start = conformance.candidate_of(Branches(), [torch.randn(4), torch.randn(6)])
    signature = held_for(start, export(start))
    assert signature.conditions_in_words() == ["x.shape[0] <= 10"]
    assert not start.signature.conditions


def test_samples_on_both_sides_of_a_branch_are_refused():
    with pytest.raises(Refused, match=r"something else for sample 1 than for the largest, where x\.shape\[0\] > 10"):
        export(conformance.candidate_of(Branches(), [torch.randn(4), torch.randn(16)]))


def test_a_size_that_bounds_fix_is_a_number():
    class Window(nn.Module):
        def forward(self, x):
            if x.shape[0] > 10:
                return x
            return x + torch.arange(x.shape[0]) + max(x.shape[0] - 10, 0)

    start = conformance.candidate_of(Window(), [torch.randn(4), torch.randn(6)])
    program = export(start)
    assert "sym_max" not in str(program.graph)
    torch.testing.assert_close(program.module()(torch.ones(8)), (torch.ones(8) + torch.arange(8),))


class Counts(nn.Module):
    def forward(self, x):
        return x * len([v for v in x.tolist() if v > 0])


class Chooses(nn.Module):
    def forward(self, x):
        return x[x > 0] if x.sum() > 1e9 else x


class LeavesTorch(nn.Module):
    def forward(self, x):
        return torch.from_numpy(x.numpy() + 1)


class FixesItsSize(nn.Module):
    def forward(self, x):
        return sum(x[i] for i in range(x.shape[0]))


@pytest.mark.parametrize(
    ("module", "samples", "reason", "code"),
    [
        (Counts(), [torch.randn(4)], "depends on the values of a tensor", "return x * len([v for v"),
        (Chooses(), [torch.randn(4)], "depends on the values of a tensor", "return x[x > 0] if x.sum() > 1e9 else x"),
        (LeavesTorch(), [torch.randn(4)], "it leaves torch for NumPy", "return torch.from_numpy(x.numpy() + 1)"),
        (FixesItsSize(), [torch.randn(4), torch.randn(6)], "a size that differs between the samples", ""),
    ],
    ids=["counts", "chooses", "leaves torch", "fixes a size"],
)
def test_what_cannot_be_captured_is_refused_with_the_reason_and_the_line(module, samples, reason, code):
    with pytest.raises(Refused, match=r"torch\.export cannot capture it: ") as refused:
        export(conformance.candidate_of(module, samples))
    assert reason in str(refused.value)
    assert code in str(refused.value)
    assert not code or f"{Path(__file__).name}:" in str(refused.value)


@pytest.mark.filterwarnings("ignore")
def test_a_recurrent_module_is_captured_and_left_as_it_was():
    sample = torch.randn(2, 5, 8)
    start = conformance.candidate_of(nn.LSTM(8, 12, 2, batch_first=True), [sample])
    with torch.no_grad():
        wanted = start.module(sample)[0]
        torch.testing.assert_close(captured(start).module(sample)[0], wanted)
        assert torch.equal(start.module(sample)[0], wanted)


class Encodes(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, lambda *sizes: nn.RNN(*sizes, nonlinearity="relu")])
def test_a_recurrent_layer_is_one_operator_for_all_lengths_and_batches(kind):
    samples = [torch.randn(5, 2, 8), torch.randn(9, 3, 8)]
    start = conformance.candidate_of(Encodes(kind(8, 12)), samples)
    result = captured(start)
    operators = [str(node.target) for node in capture(start).graph.nodes]
    assert sum(name.startswith(("aten.lstm.input", "aten.gru.input", "aten.rnn_")) for name in operators) == 1
    for sample in (*samples, torch.randn(1, 1, 8), torch.randn(40, 2, 8)):
        torch.testing.assert_close(result.module(sample), start.module(sample))


def test_a_recurrent_layer_with_projections_keeps_its_length():
    layer = nn.LSTM(8, 12, proj_size=4)
    assert captured(conformance.candidate_of(Encodes(layer), [torch.randn(5, 2, 8)]))
    with pytest.raises(Refused, match="a size that differs between the samples is fixed"):
        export(conformance.candidate_of(Encodes(layer), [torch.randn(5, 2, 8), torch.randn(9, 2, 8)]))


class InABlock(nn.Module):
    """The body of an autocast block is captured as a graph of its own."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            y = self.layer(x.float())
        return y * 2


class Flattens(nn.Module):
    def forward(self, x):
        return x.contiguous().view(x.shape[0], -1)  # of contiguous samples, the first is not captured


def test_other_strides_are_taken_inside_of_an_autocast_block_too(tmp_path):
    start = conformance.candidate_of(InABlock(Flattens()), [torch.randn(2, 3, 4)])
    strided = torch.randn(2, 4, 3).transpose(1, 2)
    expected = start.module(strided)
    store_module(start, tmp_path, {})
    for found in (export(start).module(), capture(start), load_module(tmp_path)):
        assert torch.equal(found(strided)[0], expected)


class Last(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0][:, -1]


def test_a_recurrent_layer_in_an_autocast_block_is_torchs_for_all_lengths():
    x = [torch.randn(2, length, 4) for length in (5, 9)]
    start = conformance.candidate_of(InABlock(Last(4, 8, batch_first=True)), x)
    once = captured(start)
    assert recurrent_layers(once.module.graph) == {"lstm"}
    again = export(once)
    assert recurrent_layers(again.graph_module) == {"lstm"}
    assert recurrent_layers(once.module.graph) == {"lstm"}, "exporting it changed it"
    for given in (*x, torch.randn(2, 7, 4)):
        torch.testing.assert_close(again.module()(given)[0], start.module(given))


@pytest.mark.filterwarnings("ignore")
def test_the_result_can_be_copied_traced_exported_and_compiled():
    sample = torch.randn(2, 3, 8)
    start = conformance.candidate_of(nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ReLU()), [sample])
    result = captured(start)
    wanted = start.module(sample)
    torch.testing.assert_close(copy.deepcopy(result.module)(sample), wanted)
    torch.testing.assert_close(torch.jit.trace(result.module, (sample,))(sample), wanted)
    torch.testing.assert_close(export(result).module()(sample)[0], wanted)
    torch.testing.assert_close(torch.compile(result.module, backend="aot_eager", fullgraph=True)(sample), wanted)
    torch._dynamo.reset()
    assert not any(part.training for part in result.module.modules())


def test_only_a_program_without_loops_is_captured_whole():
    tower, head = nn.Sequential(nn.Linear(4, 4), nn.GELU()), nn.Linear(4, 2)

    def compare(x: Tensor, y: Tensor) -> Tensor:
        return head((tower(x) - tower(y)).abs()).topk(1, dim=1).values

    def repeat(x: Tensor, y: Tensor) -> Tensor:
        for _ in range(5):
            x = tower(x)
        return head(x + y)

    samples = [(torch.randn(rows, 4), torch.randn(rows, 4)) for rows in (3, 5)]
    candidate = conformance.candidate_of(ProgramModule(compare), samples)
    captured = GraphModule(capture(candidate), candidate.signature)
    given = (torch.randn(7, 4), torch.randn(7, 4))
    torch.testing.assert_close(captured(*given), compare(*given))
    with pytest.raises(Refused, match="repeat calls tower 5 times"):
        capture(conformance.candidate_of(ProgramModule(repeat), samples))


class Pads(nn.Module):
    """Pads as audio codecs do: by numbers that it keeps in buffers."""

    def __init__(self, stride=2, *, as_buffers=True):
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 5, stride)
        for name, value in (("stride", stride), ("kernel", 5), ("total", 5 - stride)):
            if as_buffers:
                self.register_buffer(name, torch.tensor(value), persistent=False)
            else:
                setattr(self, name, torch.tensor(value))

    def forward(self, x):
        length = x.shape[-1]
        frames = torch.ceil((length - self.kernel + self.total) / self.stride + 1).to(torch.int64) - 1
        extra = frames * self.stride + self.kernel - self.total - length
        right = self.total // 2
        left, right = self.total - right, right + extra
        most, cut = max(left, right), 0
        if length <= most:
            cut = most - length + 1
            x = nn.functional.pad(x, (0, cut))
        x = nn.functional.pad(x, (left, right), "reflect")
        return self.conv(x[..., : x.shape[-1] - cut]) * self.stride


@pytest.mark.parametrize("as_buffers", [True, False])
@pytest.mark.parametrize("length", [2, 17, 64])
def test_numbers_kept_in_tensors_decide_as_they_always_do(length, as_buffers):
    """The shortest input takes the other side of the branch."""
    codec = nn.Sequential(Pads(as_buffers=as_buffers), nn.Tanh() if length == 2 else Pads(3))
    start = conformance.candidate_of(codec, [torch.randn(1, 1, length)])
    before = dict(start.module.named_buffers())
    result, other = captured(start), torch.randn(1, 1, length)
    torch.testing.assert_close(result.module(other), start.module(other))
    after = dict(start.module.named_buffers())
    assert list(after) == list(before)
    assert all(buffer is before[name] for name, buffer in after.items())
    assert ("stride" in vars(start.module[0])) is not as_buffers


class Tabled(nn.Module):
    """Reads a table, draws, and adds a number to its input."""

    def __init__(self, read):
        super().__init__()
        self.register_buffer("table", torch.tensor([3, 1, 2]))
        self.read = read

    def forward(self, x):
        return x * self.read(self, x)


@pytest.mark.parametrize(
    "read",
    [
        lambda m, _: sum(m.table.tolist()),
        lambda m, _: int(m.table.detach().cpu().numpy().max()),
        lambda m, _: float(np.asarray(m.table).mean()),
        lambda m, x: (torch.tensor(x.shape)[m.table[1:2]] + 1).tolist()[0],
        lambda m, x: x[tuple(slice(start, None) for start in (m.table[:2] - 1).numpy())].sum(),
        lambda m, _: 2 if m.table.max() > 2 and m.table[0] == 3 else 5,
        lambda m, x: x[: int(m.table[1])].sum(),
        lambda m, _: torch.zeros(m.table[0].item()).sum() + 1,
        lambda m, x: [x, x + 1, x + 2][m.table.argmin()],
        lambda m, x: 2 if bool((m.table * 2).sort().values.diff().ge(1).all()) else x,
    ],
)
def test_what_follows_from_constants_alone_may_be_read(read):
    start = conformance.candidate_of(Tabled(read), [torch.randn(4, 4)])
    result, other = captured(start), torch.randn(4, 4)
    torch.testing.assert_close(result.module(other), start.module(other))


def test_numpy_may_not_read_what_depends_on_the_input():
    start = conformance.candidate_of(Tabled(lambda m, x: float((x[0, :3] * m.table).numpy()[0])), [torch.randn(4, 4)])
    with pytest.raises(Refused, match="leaves torch for NumPy"):
        capture(start)


def _written(module, _):
    module.table += 1
    return int(module.table[0])


@pytest.mark.parametrize(
    "read",
    [
        lambda m, x: 2 if (x.sum() * m.table[0]) > 0 else 3,
        lambda m, _: 2 if torch.bernoulli(m.table / 4).sum() > 1 else 3,
        lambda m, x: int(m.table.clone().copy_(x[0, :3].long())[0]),
        _written,
    ],
)
def test_what_follows_from_more_than_constants_may_not_be_read(read):
    start = conformance.candidate_of(Tabled(read), [torch.randn(4, 4)])
    before = start.module.table.clone()
    with pytest.raises(Refused, match="depends on the values"):
        capture(start)
    assert torch.equal(start.module.table, before)


def test_without_constants_it_is_not_tried_twice(monkeypatch):
    asked = []
    export_once = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *a, **k: asked.append(1) or export_once(*a, **k))
    with pytest.raises(Refused):
        capture(conformance.candidate_of(OfValues(), [torch.randn(4, 4)]))
    assert len(asked) == 1


class OfValues(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x - 1
