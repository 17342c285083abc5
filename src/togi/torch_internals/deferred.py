"""A tensor whose values are elsewhere until somebody looks at them.

Behind it: Tensor._make_wrapper_subclass, torch._C._disabled_torch_function_impl (torch 2.9 to 2.15; documented in
"Extending PyTorch"). When they go: values must be copied out at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from togi.torch_internals.operators import schema_of
from togi.torch_internals.tensors import tree_map_only


@final
class Deferred(Tensor):
    """A contiguous CPU tensor of known form. Whatever computes with it, copies it or reads its memory gets its values,
    which are fetched once, and plain tensors."""

    source: object
    """Where its values are; None once they may differ from what is there."""
    _fetch: Callable[[], Tensor]
    _fetched: Tensor | None

    @staticmethod
    def __new__(cls, sizes: tuple[int, ...], dtype: torch.dtype, fetch: Callable[[], Tensor], source: object) -> Any:
        made = Tensor._make_wrapper_subclass(cls, sizes, dtype=dtype)
        made.source, made._fetch, made._fetched = source, fetch, None
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        schema = schema_of(func)
        shared = schema.is_mutable or any(result.alias_info is not None for result in schema.returns)
        plain = cls.plain if shared else cls.values
        args, kwargs = tree_map_only(Deferred, plain, (args, kwargs or {}))
        return func(*args, **kwargs)

    def values(self) -> Tensor:
        """To be read, and not to be kept."""
        if self._fetched is None:
            self._fetched = self._fetch()
        return self._fetched

    def plain(self) -> Tensor:
        """Its values for good: who has them may change them."""
        self.source = None
        return self.values()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return repr(self.values())

    def __deepcopy__(self, memo: Any) -> Tensor:
        return copy.deepcopy(self.values(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.values().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.plain().__array__(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        return self.plain().__dlpack__(*args, **kwargs)

    def numpy(self, *, force: bool = False) -> Any:
        return self.plain().numpy(force=force)

    def tolist(self) -> Any:
        return self.values().tolist()

    def data_ptr(self) -> int:
        return self.plain().data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.plain().untyped_storage()
