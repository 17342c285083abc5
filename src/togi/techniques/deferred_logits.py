"""Logits over many classes that are not made where all that is asked of them is their cross-entropy.

A linear layer with many outputs returns ``Logits``, which know what they would be made of. Rows of them can be taken
and reshaped. Their cross-entropy is ``togi.ops.linear_cross_entropy``; whatever else is asked for makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from togi.ops.linear_cross_entropy import linear_cross_entropy
from togi.torch_internals.modes import FunctionObserver, without_torch_function
from togi.torch_internals.tensors import tree_map_only

LEAST_CLASSES = 4096
"""Fewer take little memory next to what they are made of."""
_ALL = slice(None)
_OPERATORS = "add radd sub rsub mul rmul truediv rtruediv pow neg abs matmul rmatmul eq ne lt le gt ge iter".split()


class DeferredLogits(FunctionObserver):
    """Enter it round a loss: linear layers with many outputs make no logits in it before they have to."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = 0
        """How many cross-entropies were computed without them."""

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if function is functional.linear:
            hidden, weight, bias = _linear(*args, **kwargs)
            if len(weight) >= LEAST_CLASSES and type(hidden) is Tensor:
                return Logits(hidden, weight, bias, self)
        return function(*args, **kwargs)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias


class Logits:
    """What a linear layer returns: ``linear(hidden, weight, bias)``, made when it is needed."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, observer: DeferredLogits, *, wide: bool = False
    ) -> None:
        """``wide``: in float32, whatever autocast multiplies in."""
        self._hidden, self._weight, self._bias, self._observer, self._wide = hidden, weight, bias, observer, wide
        device = hidden.device.type
        made_in = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        self.dtype = torch.float32 if wide else made_in

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self._hidden.shape[:-1], len(self._weight)))

    @property
    def ndim(self) -> int:
        return self._hidden.dim()

    @property
    def device(self) -> torch.device:
        return self._hidden.device

    @property
    def requires_grad(self) -> bool:
        given = (self._hidden, self._weight, self._bias)
        return torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in given)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def contiguous(self) -> Logits:
        """Itself: nobody sees how they would lie in memory."""
        return self

    def float(self) -> Any:
        """Their cross-entropy is computed in float32 anyway. That of float64 is not, where this narrows it at all."""
        if self.dtype is torch.float64:
            return self if torch.zeros((), dtype=self.dtype).float().dtype is self.dtype else self.tensor.float()
        return self._of(self._hidden, wide=True)

    def view(self, *shape: Any) -> Any:
        """Rows in another shape; of any other that of the tensor."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        if not sizes or not all(isinstance(size, int) for size in sizes) or sizes[-1] != len(self._weight):
            return self.tensor.view(*shape)
        return self._of(self._hidden.reshape(*sizes[:-1], self._hidden.shape[-1]))

    reshape = view

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        if end_dim % self.ndim == self.ndim - 1:
            return self.tensor.flatten(start_dim, end_dim)
        return self._of(self._hidden.flatten(start_dim, end_dim))

    def __getitem__(self, index: Any) -> Any:
        return self._of(self._hidden[index]) if _leaves_the_last(index, self.ndim) else self.tensor[index]

    @cached_property
    def tensor(self) -> Tensor:
        """The logits themselves."""
        with without_torch_function():  # or this would be deferred, too
            made = functional.linear(self._hidden, self._weight, self._bias)
        return made.float() if self._wide else made

    def _of(self, hidden: Tensor, *, wide: bool = False) -> Logits:
        return Logits(hidden, self._weight, self._bias, self._observer, wide=wide or self._wide)

    def __getattr__(self, name: str) -> Any:
        """Asked for what is not here: a method of tensors, such as ``argmax``. No protocol of Python's."""
        if name.startswith("__"):
            raise AttributeError(f"logits that are not made yet have no {name!r}")
        return getattr(self.tensor, name)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is functional.cross_entropy:
            return _cross_entropy(*args, **(kwargs or {}))
        args, kwargs = tree_map_only(cls, lambda logits: logits.tensor, (tuple(args), dict(kwargs or {})))
        return function(*args, **kwargs)


def _leaves_the_last(index: Any, ndim: int) -> bool:
    """Slices and numbers for other dimensions than the last, which is taken whole."""
    taken = index if isinstance(index, tuple) else (index,)
    if not all(each is Ellipsis or isinstance(each, slice | int) for each in taken):
        return False
    if all(each is not Ellipsis for each in taken) and len(taken) < ndim:
        return True
    return taken[-1] == _ALL and (len(taken) == ndim or any(each is Ellipsis for each in taken))


def _cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """torch's, without logits where classes are numbers and none weighs more than others."""
    options: dict[str, Any] = {
        "ignore_index": ignore_index,
        "reduction": reduction,
        "label_smoothing": label_smoothing,
    }
    plain = weight is None and size_average is None and reduce is None
    of_rows = type(target) is Tensor and target.dtype is torch.int64 and target.dim() == 1
    if type(input) is Logits and plain and of_rows and input.ndim == 2 and len(input) == len(target):
        input._observer.fused += 1
        return linear_cross_entropy(input._hidden, input._weight, target, bias=input._bias, **options)
    input, target, weight = tree_map_only(Logits, lambda logits: logits.tensor, (input, target, weight))
    return functional.cross_entropy(input, target, weight, size_average=size_average, reduce=reduce, **options)


def _operator(name: str) -> Callable[..., Any]:
    def operate(logits: Logits, *others: Any) -> Any:
        return getattr(logits.tensor, name)(*others)

    return operate


for _name in _OPERATORS:
    setattr(Logits, f"__{_name}__", _operator(f"__{_name}__"))
