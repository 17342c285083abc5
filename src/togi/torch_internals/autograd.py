"""Autograd's state: the node that runs, sequence numbers, tensor versions, saved-tensor hooks, function transforms.

Behind it: torch._C._autograd, torch._C's autograd queries, ``SavedTensor.unpack_hook``, ``Node._sequence_nr``,
``Node._raw_saved_NAME``, torch._C._functions.AccumulateGrad, ``Tensor._version``, torch._C's functorch queries,
torch.autograd.forward_ad._current_level, torch._C._DisableAutocast (torch 2.9 to 2.15). When they go:
``torch.autograd.graph`` has public nodes and hooks, and ``torch.autocast`` can be disabled by device; versions and
sequence numbers have no public form, and what relies on them must refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import _get_sequence_nr as next_sequence_number

from togi.torch_internals.tensors import FakeTensor

__all__ = [
    "SavedValueHooks",
    "below_autocast",
    "below_autograd",
    "current_node",
    "in_backward",
    "is_forward_mode",
    "is_transformed",
    "is_wrapped_by_transform",
    "leaves_of",
    "next_sequence_number",
    "nodes_below",
    "replace_saved",
    "saved_tensor_hooks_allowed",
    "sequence_number",
    "stands_for_another",
    "top_saved_tensor_hooks",
    "version_of",
    "without_saved_tensor_hooks",
]

version_of: Callable[[Tensor], int] = attrgetter("_version")
"""How often a tensor's memory was written in place (its version counter). RuntimeError for inference tensors."""


def current_node() -> Any | None:
    """The autograd node whose backward is running in this thread; None outside of a backward pass."""
    return torch._C._current_autograd_node()


def sequence_number(node: Any) -> int:
    """Tell when a node was made: it counts up with every forward operation that autograd records, per thread."""
    return int(node._sequence_nr())


def in_backward() -> bool:
    """Return whether the calling thread runs a backward pass."""
    return torch._C._current_graph_task_id() != -1


def nodes_below(root: Any) -> Iterator[Any]:
    """Every autograd node that is reached from ``root``, itself included."""
    seen, queue = {root}, [root]
    while queue:
        node = queue.pop()
        yield node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                queue.append(child)


def leaves_of(tensor: Tensor) -> list[Tensor]:
    """Every leaf to whose ``.grad`` ``tensor.backward()`` would add, each once."""
    if tensor.grad_fn is None:
        return [tensor] if tensor.requires_grad else []
    adds_to_leaf = torch._C._functions.AccumulateGrad
    return [node.variable for node in nodes_below(tensor.grad_fn) if isinstance(node, adds_to_leaf)]


def top_saved_tensor_hooks() -> tuple[Callable[[Any], Any], Callable[[Any], Any]] | None:
    """``(pack, unpack)`` of the innermost saved-tensor hooks; None where there are none."""
    hooks: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks


def saved_tensor_hooks_allowed() -> bool:
    """False inside of ``torch.autograd.graph.disable_saved_tensors_hooks``, where installing hooks raises."""
    return bool(torch._C._autograd._saved_tensors_hooks_is_enabled())  # type: ignore[attr-defined]


_VALUES_TELL_THEIR_HOOKS = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")


class SavedValueHooks:
    """Knows which saved values stand behind hooks: asking for such a value runs code, and may compute it anew.

    A saved value tells it itself since torch 2.10 or 2.11. Before, it follows from the hooks that stood while an
    operation ran: they are those of the nodes that autograd made for it. So each operation has to be announced here;
    nodes that were made before this object, or after the last operation, count as hooked. Hooks that someone registers
    on a single saved value (``_raw_saved_NAME.register_hooks``) are not seen there.
    """

    def __init__(self) -> None:
        self._first = self._next = next_sequence_number()
        self._hooked: set[int] = set()

    def operation_runs(self) -> None:
        """Called while an operation runs, below autograd."""
        if _VALUES_TELL_THEIR_HOOKS:
            return
        numbers, self._next = range(self._next, next_sequence_number()), max(self._next, next_sequence_number())
        if top_saved_tensor_hooks() is not None:
            self._hooked.update(numbers)

    def has(self, node: Any, raw: Any) -> bool:
        """Return whether ``raw``, one of the ``_raw_saved_NAME`` of ``node``, or one of its parts, stands behind
        hooks."""
        if _VALUES_TELL_THEIR_HOOKS:
            return any(part.unpack_hook is not None for part in (raw if isinstance(raw, tuple | list) else (raw,)))
        number = sequence_number(node)
        return not self._first <= number < self._next or number in self._hooked


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Inside, no saved-tensor hooks of the surroundings apply."""
    suspended = []
    while hooks := top_saved_tensor_hooks():
        suspended.append(hooks)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for hooks in reversed(suspended):
            torch._C._autograd._push_saved_tensors_default_hooks(*hooks)


def replace_saved(tensor: Tensor, name: str, value: Tensor) -> None:
    """Give the derivative of the operation that made ``tensor`` another value for what it saved under ``name``."""
    saved = getattr(tensor.grad_fn, f"_raw_saved_{name}")
    saved.register_hooks(lambda _: None, lambda _: value)


def below_autograd() -> AbstractContextManager[Any]:
    """Inside, operators run as they do below autograd: nothing is recorded, while the gradient mode stays as it is."""
    guard: AbstractContextManager[Any] = torch._C._AutoDispatchBelowAutograd()
    return guard


def below_autocast() -> AbstractContextManager[Any]:
    """Inside, operators compute in the dtypes that they are given, whatever autocast surrounds them."""
    guard: AbstractContextManager[Any] = torch._C._DisableAutocast()
    return guard


def is_transformed() -> bool:
    """Return whether ``torch.func.vmap``, ``grad``, ``jvp`` or the like is active."""
    return bool(torch._C._are_functorch_transforms_active())


def is_forward_mode() -> bool:
    """Return whether forward-mode differentiation (``torch.autograd.forward_ad.dual_level``) is active."""
    level: int = torch.autograd.forward_ad._current_level
    return level >= 0


def is_wrapped_by_transform(tensor: Tensor) -> bool:
    """Return whether a tensor is the wrapper that ``torch.func`` puts round the real one."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def stands_for_another(tensor: Tensor) -> bool:
    """Return whether it is a tracer's or a transform's tensor: the function has to see it itself, and nothing is
    computed."""
    return (
        isinstance(tensor, FakeTensor)
        or is_wrapped_by_transform(tensor)
        or tensor.device.type == "meta"
        or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    )
