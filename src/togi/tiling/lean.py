"""``togi.lean``: run a function of tensors without its large intermediates, within a byte budget.

See the package's docstring for how, and ``docs/lean.md`` for what it can and cannot do.
"""

from __future__ import annotations

import functools
import threading
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch
from torch import Tensor, nn

from togi.core.proven import Proven
from togi.core.quantities import parse_size, size
from togi.tiling.capture import Captured, NotLean, capture
from togi.tiling.decompositions import decompositions
from togi.tiling.plan import LeanPlan, PlannedFunction
from togi.torch_internals.autograd import is_wrapped_by_transform
from togi.torch_internals.tensors import FakeTensor, tree_flatten, tree_unflatten

PROVEN = Proven(part="togi.lean", cpu="2026-11-21", cuda=None)


P = ParamSpec("P")
R = TypeVar("R")
_KINDS_KEPT = 32
"""Kinds of call (types, ranks, plain arguments) remembered; the one not used for longest is forgotten."""
_GRAPHS_PER_KIND = 8
"""Graphs for one kind of call, which differ in what the sizes decide inside the function."""


class LeanWarning(UserWarning):
    """A function runs as it is, although it was to be streamed, or is traced over and over."""


_DEFAULT_MEMORY = "64MiB"


@overload
def lean(function: Callable[P, R], *, memory: str | int = ..., compile: bool | None = None) -> LeanFunction[P, R]: ...
@overload
def lean(*, memory: str | int = ..., compile: bool | None = None) -> Callable[[Callable[P, R]], LeanFunction[P, R]]: ...
def lean(function: Any = None, *, memory: str | int = _DEFAULT_MEMORY, compile: bool | None = None) -> Any:
    """Run ``function`` without its large intermediates: ``@togi.lean(memory="64MiB")`` or ``togi.lean(f, memory=...)``.

    On the first call of a kind (types, ranks, plain arguments) the function is traced, a way to compute it tile by tile
    is derived and proven equal on a part of the problem, and the size of the tiles is measured. Later calls, of any
    size, use that. Gradients are computed tile by tile as well.

    Args:
        function: takes tensors anywhere in its arguments, returns tensors in any structure. Traced and called a few
            more times when it is first used, so it should have no side effects.
        memory: what a call may allocate at its highest, the result included: ``"64MiB"`` or bytes. In a backward
            pass: what is allocated beyond the gradients. Bare ``@togi.lean`` gives 64 MiB.
        compile: compile the work of a tile with torch.compile. True: on the first call. None: once its loop has run for
            as long as compiling takes, 2 to 3 seconds.

    Returns:
        A callable like ``function``. Where the function cannot be streamed it runs as it is, with one warning; its
        ``plan()`` says why.

    Raises:
        BudgetError: ``memory`` is no size; on a call, it is below the size of the result.
    """
    budget = parse_size(memory, "memory")
    if function is None:
        return functools.partial(LeanFunction, budget=budget, compiling=compile)
    return LeanFunction(function, budget=budget, compiling=compile)


class LeanFunction(Generic[P, R]):
    """A function that keeps to a byte budget. May be called from several threads."""

    def __init__(self, function: Callable[P, R], budget: int, compiling: bool | None) -> None:
        if not callable(function):
            raise TypeError(f"togi.lean wants a function of tensors, not {type(function).__name__}")
        functools.update_wrapper(self, function)
        self._function, self._budget, self._compiling = function, budget, compiling
        self._kinds: OrderedDict[Any, list[PlannedFunction | str]] = OrderedDict()
        self._lock = threading.RLock()
        self._latest: Callable[[], LeanPlan] | None = None
        self._warned: set[str] = set()
        self._forgotten = 0

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return functools.partial(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return _outside_compilation(self._call, args, kwargs)  # type: ignore[no-any-return]
        return self._call(args, kwargs)

    def plan(self) -> LeanPlan:
        """What the latest call did; ``print`` it. Before any call there is nothing to say."""
        if self._latest is None:
            return LeanPlan(strategy="as it is", reason="it has not been called yet", budget_bytes=self._budget)
        return self._latest()

    def _call(self, args: Any, kwargs: Any) -> R:
        leaves, form = tree_flatten((args, kwargs))
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors: list[Tensor] = [leaves[i] for i in at]
        if not tensors or any(_unusual(tensor) for tensor in tensors):
            return self._function(*args, **kwargs)
        key = self._key(form, leaves)

        others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

        def plain(*given: Tensor) -> Any:
            filled = list(others)
            for i, tensor in zip(at, given, strict=True):
                filled[i] = tensor
            again, named = tree_unflatten(filled, form)
            return self._function(*again, **named)

        try:
            planned = self._planned(key, plain, tensors)
            gradient = _wants_gradient(planned, tensors)
            result: R
            fitted = planned.fit(tensors, gradient)
            latest = functools.partial(planned.described, tuple(tuple(t.shape) for t in tensors), fitted)
            if fitted.program is None:
                self._latest = latest
                return self._function(*args, **kwargs)
            with self._lock if not planned.ready(fitted) else nullcontext():
                if id(fitted.program) not in planned.proofs:
                    result = planned.decide(tensors, fitted)
                    if not gradient:
                        self._latest = latest
                        return result
                elif planned.due(fitted):
                    planned.compile_what_pays(tensors, fitted)
            result = planned.run(tensors, fitted)
            self._latest = latest
            return result
        except NotLean as reason:
            self._remember_refusal(key, str(reason))
            return self._as_it_is(str(reason), args, kwargs)

    def _key(self, form: Any, leaves: Sequence[Any]) -> Any:
        """What a plan depends on besides sizes."""
        given = [
            (t.dtype, t.device, tuple(s if s < 2 else -1 for s in t.shape), t.requires_grad)
            if isinstance(t, Tensor)
            else fingerprint(t)
            for t in leaves
        ]
        modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype())
        casts = tuple(torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda"))
        return (form, tuple(given), modes, casts, fingerprint(self._function))

    def _planned(self, key: Any, plain: Callable[..., Any], tensors: Sequence[Tensor]) -> PlannedFunction:
        with self._lock:
            graphs = self._kinds.setdefault(key, [])
            self._kinds.move_to_end(key)
            if len(self._kinds) > _KINDS_KEPT:
                self._kinds.popitem(last=False)
                self._forget()
            for known in graphs:
                if isinstance(known, str):
                    raise NotLean(known)
                if known.captured.admits(tensors):
                    return known
            if len(graphs) >= _GRAPHS_PER_KIND:
                raise NotLean(f"what it does depends on its sizes in more than {_GRAPHS_PER_KIND} ways")
            planned = self._traced(plain, tensors)
            graphs.append(planned)
            return planned

    def _traced(self, plain: Callable[..., Any], tensors: Sequence[Tensor]) -> PlannedFunction:
        """Traced as it is; with multi-pass operations in parts where only that can be streamed."""
        reason = None
        for multi_pass in (False, True):
            try:
                planned = PlannedFunction(
                    captured(plain, tensors, multi_pass=multi_pass), plain, self._budget, self._compiling
                )
                planned.fit(tensors, _wants_gradient(planned, tensors))
                return planned
            except NotLean as refused:
                reason = reason or refused
        assert reason is not None
        raise reason

    def _remember_refusal(self, key: Any, reason: str) -> None:
        with self._lock:
            self._kinds[key] = [reason]

    def _as_it_is(self, reason: str, args: Any, kwargs: Any) -> R:
        self._latest = functools.partial(LeanPlan, strategy="as it is", reason=reason, budget_bytes=self._budget)
        name = getattr(self._function, "__name__", type(self._function).__name__)
        self._warn(
            f"togi.lean runs {name} as it is, without keeping to {size(self._budget)}: {reason}. "
            f"{name}.plan() says this again; remove togi.lean, or change what it names"
        )
        return self._function(*args, **kwargs)

    def _forget(self) -> None:
        self._forgotten += 1
        if self._forgotten == _KINDS_KEPT:
            self._warn(
                f"togi.lean has traced {getattr(self._function, '__name__', 'a function')} for more than "
                f"{2 * _KINDS_KEPT} combinations of plain arguments, which costs more than it saves: pass numbers that "
                "change from call to call as tensors"
            )

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, LeanWarning, stacklevel=4)


def captured(plain: Callable[..., Any], tensors: Sequence[Tensor], *, multi_pass: bool) -> Captured:
    """The graph of ``plain``; traced again where only a tensor that it holds wants gradients."""
    gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    found = capture(plain, tensors, decompositions(multi_pass=multi_pass, gradient=gradient))
    if not gradient and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in found.constants):
        return capture(plain, tensors, decompositions(multi_pass=multi_pass, gradient=True))
    return found


def _wants_gradient(planned: PlannedFunction, tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in (*tensors, *planned.captured.constants))


def _unusual(tensor: Tensor) -> bool:
    """Tensors that stand for others (a tracer's, a transform's) or are not dense: the function sees them itself."""
    return (
        type(tensor) not in (Tensor, nn.Parameter, nn.Buffer)
        or isinstance(tensor, FakeTensor)
        or is_wrapped_by_transform(tensor)
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.device.type == "meta"
        or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    )


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _outside_compilation(call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
    """Called from a compiled function: a graph break, since one compiled graph would keep to no budget."""
    return call(args, kwargs)


_DEPTH = 3
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(value: Any) -> tuple[Any, ...]:
    """Of a function, or of an argument that is no tensor. Hashable; equal while nothing followed has changed."""
    return tuple(_of(value, _DEPTH, set()))


def _of(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    if isinstance(value, _PLAIN):
        yield (type(value), value)
        return
    yield (type(value), getattr(value, "__code__", None) or id(value))
    if isinstance(value, Tensor):
        yield (
            value.dtype,
            value.shape,
            value.requires_grad,
            value.data_ptr() if str(value.layout) == "torch.strided" else 0,
        )
        return
    if id(value) in seen or depth == 0 or isinstance(value, types.ModuleType | type):
        return
    seen.add(id(value))
    for inner in _inside(value):
        yield from _of(inner, depth - 1, seen)


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, types.FunctionType):
        yield from _variables(value)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, nn.Module):
        yield from (module.training for module in value.modules())
        yield from value.parameters()
        yield from value.buffers()
        yield from _plain_attributes(value)
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
        yield from (value.func, list(value.args), value.keywords)
    else:
        yield from _plain_attributes(value)


def _plain_attributes(value: Any) -> Iterator[Any]:
    for attribute in getattr(value, "__dict__", {}).values():
        if isinstance(attribute, (*_PLAIN, Tensor)):
            yield attribute


def _variables(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            yield None
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]
