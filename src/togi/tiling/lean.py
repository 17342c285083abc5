"""``togi.lean``: run a function of tensors without its large intermediates, within a byte budget.

See the package's docstring for how, and ``docs/lean.md`` for what it can and cannot do.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch
from torch import Tensor, nn

from togi.core.proven import Proven
from togi.core.quantities import parse_size, size
from togi.tiling.capture import NotLean, capture
from togi.tiling.plan import LeanPlan
from togi.tiling.planned import Planned
from togi.tiling.surroundings import fingerprint
from togi.torch_internals.autograd import is_wrapped_by_transform
from togi.torch_internals.fake import FakeTensor
from togi.torch_internals.pytree import tree_flatten, tree_unflatten

PROVEN = Proven(part="togi.lean", cpu="2026-11-21", cuda=None)


P = ParamSpec("P")
R = TypeVar("R")
_KINDS_KEPT = 32
"""Kinds of call (types, ranks, plain arguments) remembered; the one not used for longest is forgotten."""
_GRAPHS_PER_KIND = 8
"""Graphs for one kind of call, which differ in what the sizes decide inside the function."""


class LeanWarning(UserWarning):
    """A function runs as it is, although it was to be streamed, or is traced over and over."""


@overload
def lean(function: Callable[P, R], *, memory: str | int, compile: bool | None = None) -> LeanFunction[P, R]: ...
@overload
def lean(*, memory: str | int, compile: bool | None = None) -> Callable[[Callable[P, R]], LeanFunction[P, R]]: ...
def lean(function: Any = None, *, memory: str | int, compile: bool | None = None) -> Any:
    """Run ``function`` without its large intermediates: ``@togi.lean(memory="64MiB")`` or ``togi.lean(f, memory=...)``.

    On the first call of a kind (types, ranks, plain arguments) the function is traced, a way to compute it tile by tile
    is derived and proven equal on a part of the problem, and the size of the tiles is measured. Later calls, of any
    size, use that. Gradients are computed tile by tile as well.

    Args:
        function: takes tensors anywhere in its arguments, returns tensors in any structure. Traced and called a few
            more times when it is first used, so it should have no side effects.
        memory: what a call may allocate at its highest, the result included: ``"64MiB"`` or bytes. In a backward
            pass: what is allocated beyond the gradients.
        compile: compile the work of a tile with torch.compile. None: where a call takes long enough to be worth it.

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
        self._kinds: OrderedDict[Any, list[Planned | str]] = OrderedDict()
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
            fitted = planned.fit(tensors, _wants_gradient(planned, tensors))
            if fitted.program is not None and id(fitted.program) not in planned.proofs:
                with self._lock:
                    planned.decide(tensors, fitted)
        except NotLean as reason:
            self._remember_refusal(key, str(reason))
            return self._as_it_is(str(reason), args, kwargs)
        self._latest = functools.partial(planned.described, tuple(tuple(t.shape) for t in tensors), fitted)
        if fitted.program is None:
            return self._function(*args, **kwargs)
        return planned.run(tensors, fitted)  # type: ignore[no-any-return]

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

    def _planned(self, key: Any, plain: Callable[..., Any], tensors: Sequence[Tensor]) -> Planned:
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

    def _traced(self, plain: Callable[..., Any], tensors: Sequence[Tensor]) -> Planned:
        """Traced as it is; with multi-pass operations in parts where only that can be streamed."""
        reason = None
        for decompose in (False, True):
            try:
                planned = Planned(capture(plain, tensors, decompose=decompose), plain, self._budget, self._compiling)
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


def _wants_gradient(planned: Planned, tensors: Sequence[Tensor]) -> bool:
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
