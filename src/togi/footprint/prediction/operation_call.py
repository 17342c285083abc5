"""One dispatched operation, with specifications in place of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from togi.torch_internals.modules import Where
from togi.torch_internals.tensors import tree_leaves, tree_map_only


class TensorSpec(NamedTuple):
    """A tensor's form, on which a kernel's need of memory depends."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Bytes of the storage that holds it; a view of more counts as itself."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


class OtherSpec(NamedTuple):
    """A tensor that size, strides and dtype do not describe: sparse, nested, a wrapper. No kernel is run on one."""

    kind: str
    shape: tuple[Any, ...]
    bytes: int


@dataclass(frozen=True, eq=False)
class OperationCall:
    """One dispatched operation."""

    number: int
    func: Any
    args: Any
    """Positional and keyword arguments, with ``TensorSpec`` or ``OtherSpec`` for tensors."""
    before_bytes: int
    """Alive when it began."""
    made_bytes: int
    where: Where
    grad_enabled: bool
    """Some kernels save what backward needs only then."""

    @property
    def key(self) -> str:
        return f"{self.func}{self.args}{self.grad_enabled}"

    @property
    def read_bytes(self) -> int:
        return sum(leaf.bytes for leaf in tree_leaves(self.args, is_leaf=is_spec) if is_spec(leaf))


def specs_of(values: Any) -> Any:
    """The same structure with a ``TensorSpec`` in place of every tensor, all of which are dense."""
    return tree_map_only(Tensor, spec_of, values)


def spec_of(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


def is_spec(value: Any) -> bool:
    """True if it is a leaf for ``tree_map``: a specification is one, and not a tuple."""
    return isinstance(value, TensorSpec | OtherSpec)
