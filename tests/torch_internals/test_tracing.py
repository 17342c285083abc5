"""What Python reads of values while a trace is recorded is found, wherever it is read; nothing else is."""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torchvision.ops import nms

from togi.torch_internals.tracing import TraceReads

ROWS = torch.tensor([[1.0, -2.0, 0.5, 3.0], [-1.0, 4.0, 2.0, 0.1], [2.0, 0.3, -0.7, 1.0]])


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(2, 4), requires_grad=False)

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(self, *tensors)


def reads(module: nn.Module, *inputs: Tensor, **options: Any) -> list[str]:
    """What a trace of it would hold."""
    watch = TraceReads(module, **options)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught, watch:
        warnings.simplefilter("always")
        torch.jit.trace(module, inputs or (ROWS.clone(),), check_trace=False)
    return [str(read) for read in (*watch.found, *watch.unseen(caught))]


def mask(x: Tensor) -> Tensor:
    return x[:, 0] > 0


def found(x: Tensor) -> Tensor:
    return x[mask(x)]


def twice_if(condition: Any, x: Tensor) -> Tensor:
    return x * 2 if condition else x


class Decides(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return twice_if(x.sum() > 0, x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


def goes_on(x: Tensor) -> Tensor:
    try:
        assert x.sum() > 100
    except AssertionError:
        return x * 2
    return x


def kept_boxes(x: Tensor) -> Tensor:
    kept = nms(x.abs().cumsum(1), x[:, 0], 0.5)
    return twice_if(kept.numel() > 2, x)


VALUES: dict[str, Callable[[Any, Tensor], Any]] = {
    "item": lambda _, x: x * x.sum().item(),
    "item of a captured graph": lambda _, x: x * torch.ops.aten.item(x.sum()),
    "bool": lambda _, x: twice_if(x.sum() > 0, x),
    "int": lambda _, x: x * int(x.argmax()),
    "float": lambda _, x: x * math.sqrt(x.abs().sum()),
    "index": lambda _, x: x * [1, 2, 3][x[0, :2].argmax()],
    "tolist": lambda _, x: x * x.tolist()[0][0],
    "numpy": lambda _, x: x * float(x.numpy()[0, 0]),
    "asarray": lambda _, x: x * float(np.asarray(x)[0, 0]),
    "dlpack": lambda _, x: x + torch.from_dlpack(x),
    "contains": lambda _, x: twice_if(1.0 in x, x),
    "in a list": lambda _, x: twice_if(x[0, 0] in [x[1, 0]], x),
    "format": lambda _, x: x * len(f"{x.sum():.2f}"),
    "repr": lambda _, x: x * len(repr(x)),
    "equal": lambda _, x: twice_if(torch.equal(x, x.flip(0)), x),
    "allclose": lambda _, x: twice_if(torch.allclose(x, x.flip(0)), x),
    "is_nonzero": lambda _, x: x * torch.is_nonzero(x.sum()),
    "key": lambda _, x: {True: x, False: x * 2}[bool(x.sum() > 0)],
    "min": lambda _, x: x * min(x[0, 0], x[1, 0]),
    "sizes of a split": lambda _, x: x.split([*x.gt(9).sum().view(1).tolist(), 3])[1],
    "random": lambda _, x: twice_if(torch.rand(()) > 0.5, x),
    "a check that is caught": lambda _, x: goes_on(x),
    "autograd": lambda _, x: Decides.apply(x),
    "last": lambda _, x: (x * 2, x.sum().item())[0],
}
SIZES: dict[str, Callable[[Any, Tensor], Any]] = {
    "numel": lambda _, x: x * 2 if torch.nonzero(mask(x)).numel() == 0 else x,
    "shape": lambda _, x: twice_if(found(x).shape[0] < 400, x),
    "shape as a whole": lambda _, x: twice_if(found(x).shape == x.shape, x),
    "size": lambda _, x: twice_if(torch.masked_select(x, x > 0).size(0) < 400, x),
    "len": lambda _, x: twice_if(len(found(x)) < 400, x),
    "range": lambda _, x: x * sum(range(found(x).shape[0])),
    "range beside a size": lambda _, x: torch.zeros(len(x[:, 0])) * 0 + sum(range(found(x).shape[0])),
    "min of sizes": lambda _, x: x * min(found(x).shape[0], 5),
    "a number that the tracer drops": lambda _, x: x.roll(found(x).shape[0], 0),
    "where": lambda _, x: twice_if(torch.where(mask(x))[0].shape[0] > 1, x),
    "unique": lambda _, x: twice_if(torch.unique(x.round()).size(0) > 2, x),
    "repeat_interleave": lambda _, x: twice_if(x.repeat_interleave(mask(x).long(), 0).size(0) > 2, x),
    "nms": lambda _, x: kept_boxes(x),
    "zeros": lambda _, x: twice_if(torch.zeros(mask(x).sum()).shape[0] > 2, x),
    "new_zeros": lambda _, x: twice_if(x.new_zeros(found(x).shape[0], 2).shape[0] > 2, x),
    "top-k": lambda _, x: twice_if(x[:, 1].topk(mask(x).sum()).values.shape[0] > 2, x),
    "detached": lambda _, x: twice_if(found(x).detach().shape[0] > 2, x),
    "through a layer": lambda self, x: twice_if(nn.functional.linear(found(x), self.weight).relu().shape[0] > 1, x),
    "iteration": lambda _, x: sum(torch.unique(x.round())) * x,
    "unbind": lambda _, x: sum(found(x).unbind(0)),
    "split": lambda _, x: torch.cat(found(x).split(1000)),
    "chunk": lambda _, x: torch.cat(found(x).chunk(2)),
    "squeeze": lambda _, x: x * torch.nonzero(mask(x)).squeeze().dim(),
}


@pytest.mark.parametrize("function", [*VALUES.values(), *SIZES.values()], ids=[*VALUES, *SIZES])
def test_a_read_is_found_with_its_line(function: Callable[..., Any]) -> None:
    found = reads(Calls(function))
    assert found
    assert any("test_tracing.py:" in read for read in found)


def test_a_read_says_which_operator_decides() -> None:
    (read,) = reads(Calls(SIZES["numel"]))
    assert read.startswith("a size that nonzero.default decides, at ")
    assert "torch.nonzero(mask(x)).numel() == 0" in read
    (read,) = reads(Calls(VALUES["int"]))
    assert read.startswith("a value that argmax decides, at ")


FREE: dict[str, Callable[[Any, Tensor], Any]] = {
    "a weight": lambda self, x: x * self.weight[0, 0].item(),
    "a weight as a list": lambda self, x: x * self.weight.tolist()[0][0],
    "a size of the input": lambda _, x: x * sum(range(x.shape[0])),
    "a constant": lambda _, x: x * torch.tensor(x.shape).tolist()[0],
    "ones": lambda _, x: twice_if(torch.ones_like(x).all(), x),
    "a fixed size of what is found": lambda _, x: found(x).sum(0) / math.sqrt(found(x).size(-1)),
    "a fixed size, compared": lambda _, x: twice_if(found(x).shape[-1] == 4, x),
    "columns": lambda _, x: sum(found(x).unbind(-1)),
    "found among what was found": lambda _, x: found(found(x)).unbind(-1)[0],
    "a named dimension": lambda _, x: x[torch.nonzero(mask(x)).squeeze(1)].sum(0),
    "a size that goes on": lambda _, x: torch.zeros(found(x).shape[0], 3),
    "bounds that go on": lambda _, x: x.flatten()[1 : found(x).shape[0]],
    "a range that goes on": lambda _, x: torch.arange(found(x).shape[0]),
    "a value that goes on": lambda _, x: torch.full((3,), x.sum()),
    "an index that goes on": lambda _, x: x[x[:, 0].argmax()],
    "masked writing": lambda _, x: x.clone().masked_scatter(x > 0, x * 2),
    "an assignment by mask": lambda _, x: (y := x.clone()).__setitem__(mask(x), found(x) * 2) or y,
    "one-hot": lambda _, x: nn.functional.one_hot(mask(x).long()),
}


@pytest.mark.parametrize("function", FREE.values(), ids=FREE)
def test_what_values_do_not_decide_is_not_a_read(function: Callable[..., Any]) -> None:
    assert reads(Calls(function)) == []


def checks(x: Tensor) -> Tensor:
    assert x.abs().sum() > 0, "nothing"
    assert torch.isfinite(x).all()
    if x.shape[0] > 99 or x.min() < -1e3:
        raise ValueError("out of range")
    return x * 2


def test_a_check_that_only_raises_is_not_a_read() -> None:
    assert reads(Calls(lambda _, x: checks(x))) == []


def test_layers_that_ask_for_sizes_are_free() -> None:
    packed = nn.LSTM(4, 3, batch_first=True)

    def packs(_: Any, x: Tensor, lengths: Tensor) -> Tensor:
        given = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(packed(given)[0], batch_first=True, total_length=x.shape[1])[0]

    packed.requires_grad_(False)
    assert reads(Calls(packs), torch.randn(3, 5, 4), torch.tensor([3, 5, 1])) == []
    attention = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1).eval()
    assert reads(attention.requires_grad_(False), torch.randn(2, 3, 8)) == []
    assert reads(Calls(lambda _, x: packed(found(x)[None])[0])) == []


class Doubles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class AsProperty(nn.Module):
    last: Tensor

    @property
    def factor(self) -> int:
        return 2 if self.last.sum() > 0 else 3

    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        return x * self.factor


class ByWeight(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2 if weight.sum() > 0 else weight


class ByInput(nn.Module):
    def __init__(self, seen: list[Tensor]) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2 if self.seen and self.seen[-1].sum() > 0 else weight


def test_reads_in_hooks_and_properties_are_found() -> None:
    inner = Doubles()
    outer = nn.Sequential(inner)
    hook = inner.register_forward_hook(lambda _, given, result: result if given[0].sum() > 0 else -result)
    assert len(reads(outer)) == 1
    hook.remove()
    hook = inner.register_forward_pre_hook(lambda _, given: given if given[0].sum() > 0 else (-given[0],))
    assert len(reads(outer)) == 1
    hook.remove()
    assert reads(outer) == []
    assert len(reads(nn.Sequential(AsProperty()))) == 1


def test_a_parametrization_reads_weights_freely_and_inputs_not() -> None:
    layer = nn.Linear(4, 4).requires_grad_(False)
    parametrize.register_parametrization(layer, "weight", ByWeight())
    assert reads(nn.Sequential(layer)) == []
    seen: list[Tensor] = []
    layer = nn.Linear(4, 4).requires_grad_(False)
    parametrize.register_parametrization(layer, "weight", ByInput(seen))
    layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    assert reads(nn.Sequential(layer))


def test_an_operator_of_python_reads_freely_and_decides_again_in_each_call() -> None:
    @torch.library.custom_op("togi_tests::signed", mutates_args=())
    def signed(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x * 3

    signed.register_fake(torch.empty_like)
    module = Calls(lambda _, x: signed(x))
    assert reads(module) == []
    traced = torch.jit.trace(module, (ROWS,), check_trace=False)
    assert torch.equal(traced(-ROWS), ROWS * -3)


def test_a_buffer_that_calls_change_is_a_value() -> None:
    module = Calls(lambda self, x: x * self.weight[0, 0].item())
    assert reads(module, buffers_change=False) == []
    assert reads(module, buffers_change=True)


LAYERS = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2))
IDIOMS: dict[str, Callable[[Any, Tensor], Any]] = {
    "layers": lambda self, x: self.layers(x.expand(1, 3, 3, 4).repeat(1, 1, 2, 2)),
    "a literal": lambda _, x: (
        x.clamp(max=torch.log(torch.tensor(1.0 / 0.01)).item()) + torch.tensor([1.0, 2.0, 3.0, 4.0])
    ),
    "a literal of this tensor's kind": lambda _, x: x + x.new_tensor([1.0]) + torch.as_tensor([2.0]),
    "a literal on another device": lambda _, x: x + torch.tensor([1.0], device="cpu", dtype=torch.float64).to(x),
    "an assignment": lambda _, x: (y := x.clone()).__setitem__((slice(None), [0, 2]), 1.5) or y,
    "an index of a list": lambda _, x: x[[0, 2]][:, [True, False, True, True]],
    "attention": lambda _, x: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
    "a recurrent layer": lambda self, x: self.recurrent(x[None])[0],
    "a sum of products": lambda _, x: torch.einsum("ij,kj->ik", x, x),
    "resizing": lambda _, x: nn.functional.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"),
    "writing": lambda _, x: x.clone().relu_().mul_(2).detach(),
    "drawing": lambda _, x: nn.functional.dropout(x, 0.5, training=False) + torch.zeros(4).normal_().mul(0),
    "a function of its own": lambda _, x: Decides.apply(x),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", [*IDIOMS.values(), *FREE.values()], ids=[*IDIOMS, *FREE])
def test_the_trace_is_what_it_is_without_the_watch(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    module = Calls(function).eval()
    module.layers, module.recurrent = copy.deepcopy(nn.Sequential(*LAYERS)).eval(), nn.LSTM(4, 4, batch_first=True)
    module.requires_grad_(False)
    with torch.no_grad():
        plain = torch.jit.trace(module, ROWS.clone(), check_trace=False)
        with TraceReads(module):
            watched = torch.jit.trace(module, ROWS.clone(), check_trace=False)
    assert lines(plain) == lines(watched)


def lines(traced: Any) -> list[str]:
    """Of the graph, without the places in the code that they were made of, and with numbers for names."""
    numbers: dict[str, str] = {}
    nodes = (
        re.sub(r"\.___torch_mangle_\d+", "", str(node).partition(" # ")[0].strip())
        for node in traced.inlined_graph.nodes()
    )
    return [re.sub(r"%[\w.]+", lambda name: numbers.setdefault(name[0], f"%{len(numbers)}"), node) for node in nodes]


def test_nothing_is_left_of_a_watch() -> None:
    module = nn.Sequential(nn.Linear(4, 2))
    with TraceReads(module) as watch:
        torch.jit.trace(module, ROWS.clone(), check_trace=False)
    assert watch.found == []
    assert not module._forward_pre_hooks
    assert torch.Tensor.tolist is torch._C.TensorBase.tolist


def test_a_module_is_as_it_was_when_its_trace_fails() -> None:
    module = Calls(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        reads(module)
    assert not module._forward_pre_hooks
    assert copy.deepcopy(module).function is module.function
