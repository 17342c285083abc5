"""Tensors and other leaves of nested values, fake tensors (shapes, dtypes and strides without values), storages.

Nested values are tuples, lists, dicts, dataclasses and classes registered with torch.

Behind it: torch.utils._pytree (torch 2.9 to 2.15). When it goes: torch.utils.pytree where torch has it, or optree,
which has the same functions.

Behind it: torch._subclasses.fake_tensor (torch 2.9 to 2.15; its name is private though documented in torch.fx,
"Fake tensor"). When it goes: the "meta" device computes shapes, but loses the device and the aliasing of results.

Behind it: ``UntypedStorage._cdata`` (torch 2.9 to 2.15). When it goes: ``data_ptr`` names memory that exists (not fake
and not empty storages).

Behind it: ``Tensor._is_view`` (torch 2.9 to 2.15). When it goes: ``_base`` is None for what is not a view.

Behind it: torch._C._construct_storage_from_data_pointer, torch._C._set_storage_data_ptr_access_error_msg (torch 2.9 to
2.15; torch.compile's CUDA graphs end the life of their outputs with them). When they go: memory cannot be lent, and
``togi.graphs`` must copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._pytree import (
    SERIALIZED_TYPE_TO_PYTHON_TYPE,
    SUPPORTED_NODES,
    SUPPORTED_SERIALIZED_TYPES,
    TreeSpec,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_structure,
    tree_unflatten,
    treespec_dumps,
    treespec_loads,
)

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TreeSpec",
    "UnsupportedOperatorException",
    "borrowed",
    "from_one_level",
    "keystr",
    "one_level",
    "operands",
    "registered_plainly",
    "storage_key",
    "take_back",
    "tensors_of",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_structure",
    "tree_unflatten",
]


def tensors_of(values: Any) -> list[Tensor]:
    """Every tensor in a nested value, in order; one that occurs twice is listed twice."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def operands(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among the arguments or results of an operator: in sequences and dicts only, which is all that the
    dispatcher passes. Use it where every operator is watched: ``tree_leaves`` makes a run of small ones 5 to 10 %
    slower."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from operands(value)
        elif isinstance(value, dict):
            yield from operands(value.values())


def one_level(value: Any) -> tuple[list[Any], str] | None:
    """The children of a value whose class is registered, and what rebuilds it from them as JSON; None where the class
    is not registered or cannot be written down as JSON alone (it was registered without a name, or reads its context by
    a function of its own)."""
    if type(value) not in SUPPORTED_NODES:
        return None
    try:
        children, spec = tree_flatten(value, is_leaf=lambda node: node is not value)
        plain = SUPPORTED_SERIALIZED_TYPES[type(value)].from_dumpable_context is None
        return (children, treespec_dumps(spec)) if plain else None
    except Exception:  # foreign code: what a library registered, and what torch says of it
        return None


def registered_plainly(name: str) -> bool:
    """Return whether a class is registered here under this name, and its context is read as JSON alone."""
    cls = SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
    return cls is not None and SUPPORTED_SERIALIZED_TYPES[cls].from_dumpable_context is None


def from_one_level(children: Iterable[Any], spec: str) -> Any:
    """Put together what ``one_level`` took apart."""
    return tree_unflatten(children, treespec_loads(spec))


storage_key: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")
"""Identity of a storage while it lives, also of fake and empty ones: equal for tensors that share memory."""


def is_view(tensor: Tensor) -> bool:
    """Whether autograd takes it for a view of another tensor."""
    return tensor._is_view()


def borrowed(tensor: Tensor) -> Tensor:
    """Put the same memory into a storage of its own, which does not keep it alive. ``take_back`` ends it."""
    own = tensor.untyped_storage()
    storage = torch._C._construct_storage_from_data_pointer(own.data_ptr(), tensor.device, own.nbytes())
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def take_back(tensor: Tensor, message: str) -> None:
    """Whatever touches the memory of a ``borrowed`` tensor from now on, or that of a view of it, gets
    ``RuntimeError(message)``."""
    torch._C._set_storage_data_ptr_access_error_msg(storage_key(tensor.untyped_storage()), message)
