"""A tensor whose values are elsewhere until somebody looks at them.

Behind it: Tensor._make_wrapper_subclass, torch._C._disabled_torch_function_impl (torch 2.9 to 2.15; documented in
"Extending PyTorch"), torch._C._set_storage_data_ptr_access_error_msg. When they go: values must be copied out at once.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from togi.torch_internals.operators import is_composite, result_arguments, schema_of
from togi.torch_internals.tensors import storage_key, tree_leaves, tree_map_only

_NO_MEMORY = (
    "the values of this tensor are kept by an engine, and what asked for its memory went round every way in which they "
    "are handed out: give it .clone() of the tensor"
)


class DeferredPlace(Protocol):
    """The place of a deferred tensor's values."""

    @property
    def lock(self) -> threading.RLock:
        """Held by whoever changes what is there."""
        ...

    def fetch(self) -> Tensor:
        """Called with the lock held."""
        ...


class Deferred(Tensor):
    """A contiguous CPU tensor of known form. Whatever computes with it, copies it or reads its memory gets its values,
    which are fetched once, and plain tensors."""

    place: DeferredPlace | None
    """Where its values are; None once they may differ from what is there."""
    _fetched: Tensor | None
    _lock: threading.RLock

    @staticmethod
    def __new__(cls, sizes: tuple[int, ...], dtype: torch.dtype, place: DeferredPlace) -> Any:
        tensor = Tensor._make_wrapper_subclass(cls, sizes, dtype=dtype)
        # what reads memory without asking (C extensions, to_dlpack) would read at address 0
        torch._C._set_storage_data_ptr_access_error_msg(storage_key(Tensor.untyped_storage(tensor)), _NO_MEMORY)
        tensor.place, tensor._fetched, tensor._lock = place, None, place.lock
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        if func is torch.ops.aten.detach_.default:
            return args[0]
        if torch.Tag.inplace_view in func.tags or func is torch.ops.aten.resize_.default:
            raise _form_changed(func)
        names = result_arguments(func)
        if results := [leaf for name in names for leaf in tree_leaves(kwargs.get(name)) if isinstance(leaf, Deferred)]:
            return _written(func, args, kwargs, results)
        schema = schema_of(func)
        # under inference_mode composite operators come whole, and do not say that they return a view
        shared = schema.is_mutable or is_composite(func) or any(result.alias_info for result in schema.returns)
        plain = cls.plain if shared else cls.values
        args, kwargs = tree_map_only(Deferred, plain, (args, kwargs))
        return func(*args, **kwargs)

    def values(self) -> Tensor:
        """Its values, to be read and not to be kept."""
        with self._lock:
            if self._fetched is None:
                assert self.place is not None
                with torch.inference_mode(self.is_inference()):  # where it was made, not where it is first looked at
                    self._fetched = self.place.fetch()
            return self._fetched

    def plain(self) -> Tensor:
        """Its values for good: who has them may change them."""
        with self._lock:
            values = self.values()
            self.place = None
            return values

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, tensor: Tensor) -> None:
        mine, given = ((t.shape, t.stride(), t.dtype, t.device) for t in (self, tensor))
        if mine != given:
            raise _form_changed(".data = ...")
        with self._lock:
            self._fetched, self.place = tensor.detach(), None

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return repr(self.values())

    def __deepcopy__(self, memo: Any) -> Tensor:
        return copy.deepcopy(self.values(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.plain().__array__(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        return self.plain().__dlpack__(*args, **kwargs)

    def numpy(self, *, force: bool = False) -> Any:
        return self.plain().numpy(force=force)

    def tolist(self) -> Any:
        return self.values().tolist()

    def apply_(self, callable: Callable[[Any], Any]) -> Tensor:
        self.plain().apply_(callable)
        return self

    def data_ptr(self) -> int:
        return self.plain().data_ptr()

    def const_data_ptr(self) -> int:
        return self.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.plain().untyped_storage()


def _form_changed(what: object) -> RuntimeError:
    return RuntimeError(
        f"{what} changes the form of a tensor in place, which one that an engine keeps cannot have: .clone() it"
    )


def _written(func: Any, args: Any, kwargs: Any, results: Sequence[Deferred]) -> Any:
    """A call with ``out=``: an operator resizes what it is given there, so it is given copies.

    Raises RuntimeError where a result has another form; they keep their values.
    """
    copies = {id(result): result.values().clone() for result in results}
    args, kwargs = tree_map_only(
        Deferred, lambda leaf: copies[id(leaf)] if id(leaf) in copies else leaf.values(), (args, kwargs)
    )
    returned = func(*args, **kwargs)
    if any(copies[id(result)].shape != result.shape for result in results):
        raise _form_changed(f"out= of {func}")
    for result in results:
        result.plain().copy_(copies[id(result)])
    return returned
