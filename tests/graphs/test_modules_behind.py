"""However a captured function comes by its modules, their modes and weights are those of the capture, or it runs in
eager."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.graphs import CapturedFunction, GraphError, Pool, Recorder, capture
from togi.graphs.gradient import same_weights
from togi.graphs.held import Held
from togi.graphs.proof import in_float64
from togi.torch_internals.behind import modules_behind, parts_behind
from togi.torch_internals.modes import no_torch_function, wrapper_subclass

WIDTH = 4


class Encodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)

    def encode(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1

    @torch.no_grad()
    def decorated(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Pipeline:
    """No module, and has some."""

    def __init__(self, model: nn.Module) -> None:
        self.models = [model]

    def __call__(self, x: Tensor) -> Tensor:
        return self.models[0](x)

    def run(self, x: Tensor) -> Tensor:
        return self(x)


def run(model: nn.Module, x: Tensor) -> Tensor:
    return model(x)


def wrapped(model: nn.Module) -> Callable[[Tensor], Tensor]:
    @functools.wraps(model.forward)
    def call(*args: Tensor) -> Tensor:
        return model(*args)

    return call


GLOBAL = Encodes()


def through_a_global(x: Tensor) -> Tensor:
    return GLOBAL(x)


class Wrapper(Tensor):
    """Has no memory of its own, as the weights of torchao and DTensor."""

    __torch_function__ = no_torch_function
    inner: Tensor

    def __new__(cls, inner: Tensor) -> Any:
        made = wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> Any:
        return Wrapper(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def opaque(values: Tensor) -> Tensor:
    return values.to_mkldnn()


@pytest.mark.parametrize("form", [Wrapper, Tensor.to_sparse, opaque, torch.clone])
def test_a_weight_of_any_form_is_seen_to_move(form: Callable[[Tensor], Tensor]) -> None:
    module, values = nn.Module(), torch.ones(3, 3)
    module.register_buffer("table", form(values))
    held = Held({"": module}, [other := form(values)])
    assert held.moved() == ""
    before = module.table
    module.table = form(values.clone())
    assert held.moved() == "table"
    module.table = before
    assert held.moved() == ""
    assert other is not before


FORMS: dict[str, Callable[[Encodes], Callable[..., Any]]] = {
    "module": lambda model: model,
    "method": lambda model: model.encode,
    "decorated method": lambda model: model.decorated,
    "forward": lambda model: model.forward,
    "partial of a function": lambda model: functools.partial(run, model),
    "partial of a method": lambda model: functools.partial(model.encode),
    "closure": lambda model: lambda x: model(x),
    "list in a closure": lambda model: (lambda models: lambda x: models[0](x))([model]),
    "closure in a closure": lambda model: (lambda call: lambda x: call(x) * 2)(lambda x: model(x)),
    "wrapper": wrapped,
    "compiled method": lambda model: torch.compile(model.encode, backend="eager"),
    "compiled module": lambda model: torch.compile(model, backend="eager"),
    "object": Pipeline,
    "method of an object": lambda model: Pipeline(model).run,
    "captured function": lambda model: made(model),
}


def tokens(n: int) -> Tensor:
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(n))


def made(fn: Callable[..., Any], **options: Any) -> CapturedFunction:
    pool = Pool("1MiB", Recorder(graph_bytes=10_000))
    return capture(fn, [tokens(3), tokens(5)], sizes={3: 1, 5: 2, 8: 1}, memory=pool, **options)


def other_weight(model: Encodes) -> None:
    model.inner[0].weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))


def other_part(model: Encodes) -> None:
    model.inner[0] = nn.Linear(WIDTH, WIDTH)


CHANGES: dict[str, Callable[[Encodes], Any]] = {
    "mode": lambda model: model.train(),
    "mode of a part": lambda model: model.inner[1].train(),
    "weight": other_weight,
    "part": other_part,
    "all parts": lambda model: setattr(model, "inner", nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("form", FORMS)
def test_a_call_after_a_change_is_not_replayed(form: str, change: str) -> None:
    model = Encodes().eval()
    fn = FORMS[form](model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast = made(fn)
        fast(tokens(4))
        assert fast.calls == {"replayed": 1}
        CHANGES[change](model)
        found = fast(tokens(4))
        torch.testing.assert_close(found, fn(tokens(4)))
    assert fast.calls["replayed"] == 1


def in_a_lambda(x: Tensor) -> Tensor:
    return (lambda given: GLOBAL(given))(x)


def in_a_generator(x: Tensor) -> Tensor:
    return sum(GLOBAL(given) for given in (x, x))


def in_a_function(x: Tensor) -> Tensor:
    def call() -> Tensor:
        return next(GLOBAL(given) for given in (x,))

    return call()


@pytest.mark.parametrize("function", [through_a_global, in_a_lambda, in_a_generator, in_a_function])
def test_a_global_that_a_function_inside_names_is_seen(function: Callable[[Tensor], Tensor]) -> None:
    assert modules_behind(function) == [GLOBAL]


def test_a_module_that_stands_in_a_global_is_seen() -> None:
    GLOBAL.eval()
    fast = made(through_a_global)
    GLOBAL.train()
    with torch.no_grad(), pytest.warns(UserWarning, match="training mode"):
        fast(tokens(4))
    assert fast.calls["replayed"] == 0


@pytest.mark.parametrize("form", ["method", "partial of a function", "partial of a method"])
def test_what_is_not_a_module_is_proven_in_float64_too(form: str) -> None:
    model = Encodes().eval()
    fn = FORMS[form](model)
    wide = in_float64(fn, "cpu")
    assert wide(tokens(4).double()).dtype == torch.float64
    weights = [model.inner[0].bias, model.inner[0].weight]
    copies = same_weights(fn, weights, wide)
    assert [tensor.dtype for tensor in copies] == [torch.float64] * 2
    for copied, weight in zip(copies, weights, strict=True):
        assert torch.equal(copied.float(), weight)
    assert model.inner[0].weight.dtype == torch.float32
    fast = made(fn, gradients=True)
    fast(tokens(4)).sum().backward()
    assert fast.calls == {"replayed": 1}
    assert model.inner[0].weight.grad is not None


@pytest.mark.parametrize("form", ["method", "closure", "partial of a function", "object"])
def test_what_has_cuda_graphs_of_its_own_is_found_behind_a_function(form: str) -> None:
    model = Encodes()
    model.inner[1].compile(mode="reduce-overhead")
    with pytest.raises(GraphError, match="reduce-overhead"):
        made(FORMS[form](model))


def test_the_parts_of_several_modules_have_names_apart() -> None:
    one, other = Encodes(), nn.Linear(WIDTH, WIDTH)

    def both(x: Tensor) -> Tensor:
        return other(one(x))

    paths = {part: path for path, part in parts_behind(both).items()}
    assert set(paths) == {*one.modules(), other}
    assert len(set(paths.values())) == len(paths)
    assert parts_behind(torch.relu) == parts_behind(SimpleNamespace().__init__) == {}
