"""Puts treatments on a live module: the ``forward`` of a treated part is replaced by an object that drops what it would
keep and computes it again in the backward pass.

Recomputation is torch's non-reentrant checkpoint with selective contexts. What it leaves to its user is done here:
buffers that a call changes are neither changed twice nor read too new, and inputs or parameters that were changed in
place meanwhile are an error and not a wrong gradient.

Source: torch.utils.checkpoint (checkpoint, create_selective_checkpoint_contexts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from togi.budget.fit.compressed import compressing
from togi.budget.fit.errors import FitError
from togi.budget.fit.plan import Action, Treatment
from togi.errors import nearest

_FORWARD = "forward"


def treat(module: nn.Module, treatments: Sequence[Treatment], *, keep_rng: bool = True) -> list[nn.Module]:
    """Treat the parts of ``module`` in place; the parts, each once. Raises FitError, and changes nothing then."""
    by_part: dict[nn.Module, list[Treatment]] = {}
    for treatment in treatments:
        by_part.setdefault(_part(module, treatment), []).append(treatment)
    for part, own in by_part.items():
        _check(part, own)
    for part, own in by_part.items():
        object.__setattr__(part, _FORWARD, TreatedForward(part, own, keep_rng=keep_rng))
    return list(by_part)


def untreat(parts: Iterable[nn.Module]) -> None:
    """Give each part its own ``forward`` back; parts that are not treated are left alone."""
    for part in parts:
        if isinstance(treated := vars(part).get(_FORWARD), TreatedForward):
            if treated.replaced is None:
                del part.__dict__[_FORWARD]
            else:
                part.__dict__[_FORWARD] = treated.replaced


def hooks_allowed() -> bool:
    """Whether no ``disable_saved_tensors_hooks`` is in force."""
    return bool(torch._C._autograd._saved_tensors_hooks_is_enabled())  # type: ignore[attr-defined]


def treatable(part: nn.Module) -> str:
    """Why its forward cannot be replaced; empty where it can."""
    if isinstance(part, torch.jit.ScriptModule):
        return "it is TorchScript, whose forward is not Python's"
    return ""


class TreatedForward:
    """Stands where a module's ``forward`` stood. Survives ``deepcopy`` and pickling: a copy serves the copy."""

    def __init__(self, module: nn.Module, treatments: Sequence[Treatment], *, keep_rng: bool = True) -> None:
        self.module = module
        self.treatments = tuple(treatments)
        self.keep_rng = keep_rng
        self.replaced = vars(module).get(_FORWARD)
        """An instance's own forward, which other libraries set too."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        if self.treatments[0].children is None:
            return self._treated(self.treatments[0], self._forward, args, kwargs)
        return self._segments(*args)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.replaced is not None:
            return self.replaced(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def _segments(self, value: Any) -> Any:
        """The forward of a Sequential, with its treated runs of children."""
        children, at = list(self.module.children()), 0
        for treatment in sorted(self.treatments, key=lambda one: one.children or (0, 0)):
            start, stop = treatment.children or (0, len(children))
            value = _chain(children[at:start])(value)
            value = self._treated(treatment, _chain(children[start:stop]), (value,), {})
            at = stop
        return _chain(children[at:])(value)

    def _treated(self, treatment: Treatment, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
        if not hooks_allowed():
            raise FitError(
                f"{treatment.label} runs inside torch.autograd.graph.disable_saved_tensors_hooks(), which forbids "
                "recomputation and compression. It saves no memory itself: take it away, or run without the plan."
            )
        if treatment.action is Action.COMPRESS:
            with compressing():
                return function(*args, **kwargs)
        return checkpoint(
            function,
            *args,
            use_reentrant=False,
            preserve_rng_state=self.keep_rng,
            context_fn=lambda: self._contexts(treatment, args, kwargs),
            **kwargs,
        )

    def _contexts(
        self, treatment: Treatment, args: Any, kwargs: Any
    ) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        caching: AbstractContextManager[Any] = nullcontext()
        cached: AbstractContextManager[Any] = nullcontext()
        if treatment.keeps:
            caching, cached = create_selective_checkpoint_contexts(_policy(treatment.keeps))  # type: ignore[no-untyped-call]
        guard = _Unchanged(treatment.label, args, kwargs, self.module)
        return caching, _Again(guard, _State(self.module, treatment.state), cached)


class _Again:
    """Round a recomputation. It may be entered more than once: ``retain_graph`` repeats the backward pass."""

    def __init__(self, guard: _Unchanged, state: _State, cached: AbstractContextManager[Any]) -> None:
        self._guard, self._state, self._cached = guard, state, cached
        self._stack = ExitStack()

    def __enter__(self) -> None:
        self._guard.check()
        self._stack.enter_context(self._state)
        self._stack.enter_context(self._cached)

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)


class _Unchanged:
    """Inputs and parameters have the values of the forward pass, by autograd's own version counters."""

    def __init__(self, label: str, args: Any, kwargs: Any, module: nn.Module) -> None:
        self._label = label
        inputs = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor)]
        named = [*((f"input {n}", tensor) for n, tensor in enumerate(inputs)), *module.named_parameters()]
        self._versions = [(name, tensor, tensor._version) for name, tensor in named if not tensor.is_inference()]

    def check(self) -> None:
        for name, tensor, version in self._versions:
            if tensor._version != version:
                raise FitError(
                    f"{self._label}: {name} was changed in place {tensor._version - version} times after the forward "
                    "pass read it, so computing it again would give other values and a wrong gradient. Make the "
                    "operation that writes into it out-of-place, or take this module out of the plan."
                )


class _State:
    """Buffers that the call changes: while it is repeated they hold what they held before the first time."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        self._places = [_place(module, name) for name in names]
        self._before = [owner._buffers[name] for owner, name in self._places]
        self._before = [None if value is None else value.detach().clone() for value in self._before]
        self._now: list[Tensor | None] = []

    def __enter__(self) -> None:
        self._now = [owner._buffers[name] for owner, name in self._places]
        for (owner, name), before in zip(self._places, self._before, strict=True):
            owner._buffers[name] = None if before is None else before.clone()

    def __exit__(self, *error: Any) -> None:
        for (owner, name), now in zip(self._places, self._now, strict=True):
            owner._buffers[name] = now


def _policy(keeps: Sequence[str]) -> Callable[..., CheckpointPolicy]:
    """Counts the calls of each operation, in the forward pass and in its repetition alike."""
    kept = frozenset(keeps)
    seen: dict[tuple[bool, str], int] = {}

    def policy(context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        name = str(operation)
        number = seen.get((context.is_recompute, name), 0)
        seen[context.is_recompute, name] = number + 1
        save = f"{name}#{number}" in kept
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def _chain(parts: Sequence[nn.Module]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        for part in parts:
            value = part(value)
        return value

    return run


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    owner, _, buffer = name.rpartition(".")
    return module.get_submodule(owner), buffer


def _part(module: nn.Module, treatment: Treatment) -> nn.Module:
    names: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
    if treatment.module not in names:
        raise FitError(
            f"the plan treats '{treatment.module}', which {type(module).__name__} does not have"
            f"{nearest(treatment.module, names)}. A plan belongs to the architecture that it was made for: run "
            "'togi fit' on this one."
        )
    return names[treatment.module]


def _check(part: nn.Module, treatments: Sequence[Treatment]) -> None:
    label = treatments[0].label
    if reason := treatable(part):
        raise FitError(f"{label} cannot be treated: {reason}")
    if isinstance(vars(part).get(_FORWARD), TreatedForward):
        raise FitError(f"{label} is treated by a plan already: call its remove() first")
    if any(one.children for one in treatments) and not (
        all(one.children for one in treatments) and _is_chain(part, treatments)
    ):
        raise FitError(
            f"{label}: its children cannot be treated in runs, because it is no plain Sequential of that size"
        )
    if len(treatments) > 1 and treatments[0].children is None:
        raise FitError(f"{label} is treated twice in one plan: keep one of the two entries")
    for one in treatments:
        for name in one.state:
            owner, buffer = _place(part, name)
            if buffer not in owner._buffers:
                raise FitError(f"{label}: the plan names the buffer '{name}', which is not there")


def _is_chain(part: nn.Module, treatments: Sequence[Treatment]) -> bool:
    spans: Iterator[tuple[int, int]] = iter(sorted(one.children for one in treatments if one.children))
    at, size = 0, len(list(part.children()))
    for start, stop in spans:
        if not at <= start < stop <= size:
            return False
        at = stop
    return is_plain_sequential(part)


def is_plain_sequential(part: nn.Module) -> bool:
    """Its forward calls its children one after the other, and nothing else."""
    return (
        isinstance(part, nn.Sequential) and type(part).forward is nn.Sequential.forward and _FORWARD not in vars(part)
    )
