"""``togi.lean``: run a function of tensors without its large intermediates, within a byte budget.

See the package's docstring for how, and ``docs/lean.md`` for what it can and cannot do.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Generic, ParamSpec, TypeVar, overload

import torch
from torch import Tensor, nn

from togi.core.errors import TogiError
from togi.core.quantities import parse_size, size
from togi.tiling.capture import NotLean, Refuted, in_one_line
from togi.tiling.fingerprint import fingerprint
from togi.tiling.kind import TypedCalls, wants_gradient
from togi.tiling.lean_plan import LeanPlan
from togi.tiling.plan import Fitted, PlannedFunction
from togi.torch_internals.autograd import stands_for_another
from togi.torch_internals.tensors import tree_flatten, tree_unflatten

P = ParamSpec("P")
R = TypeVar("R")
_KINDS_KEPT = 32
"""Kinds of call (types, ranks, plain arguments) remembered; the one not used for longest is forgotten."""


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
        BudgetError: ``memory`` is not a size; on a call, it is below the size of the result.
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
        self._kinds: OrderedDict[Any, TypedCalls] = OrderedDict()
        self._lock = threading.RLock()
        self._latest: Callable[[], LeanPlan] | None = None
        self._warned: set[Any] = set()
        self._forgotten = 0

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return functools.partial(self, instance)

    def __reduce__(self) -> Any:
        """As a function: by its name where it stands under that, as a decorated one does. Else a copy is made, which
        plans anew. (In ``__main__`` names are not those of another process.)"""
        module, name = getattr(self, "__module__", ""), getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(module) if module != "__main__" else None
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (LeanFunction, (self._function, self._budget, self._compiling))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return _outside_compilation(self._call, args, kwargs)  # type: ignore[no-any-return]
        return self._call(args, kwargs)

    def plan(self) -> LeanPlan:
        """The plan of the latest call; ``print`` it. Before any call there is nothing to say."""
        if self._latest is None:
            return LeanPlan(strategy="as it is", reason="it has not been called yet", budget_bytes=self._budget)
        return self._latest()

    def _call(self, args: Any, kwargs: Any) -> R:
        leaves, form = tree_flatten((args, kwargs))
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors: list[Tensor] = [leaves[i] for i in at]
        if not tensors or any(map(stands_for_another, tensors)):
            return self._function(*args, **kwargs)
        key = self._key(form, leaves)

        others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

        def plain(*given: Tensor) -> Any:
            filled = list(others)
            for i, tensor in zip(at, given, strict=True):
                filled[i] = tensor
            again, named = tree_unflatten(filled, form)
            return self._function(*again, **named)

        def as_it_is() -> R:
            return self._function(*args, **kwargs)

        try:
            if reason := next(filter(None, map(_not_dense, tensors)), ""):
                raise NotLean(reason)
            return self._streamed(key, plain, tensors, as_it_is)
        except NotLean as refusal:
            return self._refused(key, refusal, as_it_is)

    def _streamed(self, key: Any, plain: Callable[..., Any], tensors: Sequence[Tensor], as_it_is: Callable[[], R]) -> R:
        """
        Raises:
            NotLean: it cannot be streamed for these tensors.
        """
        while True:
            planned = self._planned(key, plain, tensors)
            gradient = wants_gradient(planned, tensors)
            fitted = planned.fit(tensors, gradient)
            latest = functools.partial(planned.described, tuple(tuple(t.shape) for t in tensors), fitted)
            if fitted.program is None:
                self._latest = latest
                return as_it_is()
            try:
                result: R = self._run(planned, fitted, tensors, gradient)
            except Refuted as reason:
                planned.refute(fitted.program, str(reason))
                continue
            except NotLean as refusal:
                refusal.remember = refusal.remember or functools.partial(planned.refuse, tensors, str(refusal))
                raise
            self._latest = latest
            return result

    def _run(self, planned: PlannedFunction, fitted: Fitted, tensors: Sequence[Tensor], gradient: bool) -> Any:
        try:
            with self._lock if not planned.ready(fitted) else nullcontext():
                if fitted.program not in planned.proofs:
                    result = planned.decide(tensors, fitted)
                    if not gradient:
                        return result
                elif planned.due(fitted):
                    planned.compile_what_pays(tensors, fitted)
            return planned.run(tensors, fitted)
        except (NotLean, TogiError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # the user's function raises on these values, or an operation refuses a slice
            raise NotLean(f"it fails in tiles ({in_one_line(error)})") from error

    def _key(self, form: Any, leaves: Sequence[Any]) -> Any:
        """The key of a plan: all that it depends on besides sizes."""
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
            kind = self._kinds.setdefault(key, TypedCalls(self._budget, self._compiling))
            self._kinds.move_to_end(key)
            if len(self._kinds) > _KINDS_KEPT:
                self._kinds.popitem(last=False)
                self._forget()
            return kind.planned(plain, tensors)

    def _refused(self, key: Any, refusal: NotLean, as_it_is: Callable[[], R]) -> R:
        """Run the function as it is. Only then is the refusal remembered: what the function raises is not a refusal."""
        reason = str(refusal)
        self._latest = functools.partial(LeanPlan, strategy="as it is", reason=reason, budget_bytes=self._budget)
        result = as_it_is()
        with self._lock:
            if refusal.remember is not None:
                refusal.remember()
        name = getattr(self._function, "__name__", type(self._function).__name__)
        self._warn(
            f"togi.lean runs {name} as it is, without keeping to {size(self._budget)}: {reason}. "
            f"{name}.plan() says this again; remove togi.lean, or change what it names",
            (key, reason),
        )
        return result

    def _forget(self) -> None:
        self._forgotten += 1
        if self._forgotten == _KINDS_KEPT:
            self._warn(
                f"togi.lean has traced {getattr(self._function, '__name__', 'a function')} for more than "
                f"{2 * _KINDS_KEPT} combinations of plain arguments, which costs more than it saves: pass numbers that "
                "change from call to call as tensors",
                "traced over and over",
            )

    def _warn(self, message: str, once: Any) -> None:
        """Once for each ``once``: a kind of call and a reason."""
        if once not in self._warned:
            self._warned.add(once)
            warnings.warn(message, LeanWarning, stacklevel=5)


def _not_dense(tensor: Tensor) -> str:
    """The reason why a tensor cannot be cut into slices; empty where it can."""
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
        return f"it is given a {type(tensor).__name__}, a tensor of a class of its own"
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else "nested" if tensor.is_nested else str(tensor.layout)
        return f"it is given a tensor that is not dense ({kind})"
    return ""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _outside_compilation(call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
    """Called from a compiled function: a graph break, since one compiled graph would keep to no budget."""
    return call(args, kwargs)
