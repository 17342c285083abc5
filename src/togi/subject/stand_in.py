"""An object that stands for a function and looks like it.

Libraries ask ``module.forward`` for more than an answer. The transformers ``Trainer`` drops the columns of a dataset
that its signature does not name, and hands over another loss where it takes any keyword; ``torch.jit.script`` and
debuggers read its source; Lightning compares its code. All of them must find what the function itself would show.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

_OF_EVERY_FUNCTION = frozenset(
    name
    for name, value in vars(types.FunctionType).items()
    if isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType)
)
"""``__code__``, ``__defaults__`` and the like: what Python gives each function, and no protocol of objects."""
_WRAPPED, _SIGNATURE = "__wrapped__", "__signature__"
_COPIED = frozenset((*functools.WRAPPER_ASSIGNMENTS, _WRAPPED, _SIGNATURE))


class FunctionStandIn:
    """Base of what stands for a function: signature, name, documentation, module, source and marks are its own."""

    def look_like(self, function: Callable[..., Any]) -> None:
        """Attributes that the object has itself come first: those of ``function`` never replace one."""
        wrapper: Any = self
        functools.update_wrapper(wrapper, function, updated=())
        with suppress(TypeError, ValueError):  # written in C, and says nothing of it
            vars(self)[_SIGNATURE] = inspect.signature(function)  # ``getfullargspec`` follows no ``__wrapped__``

    if not TYPE_CHECKING:  # or a misspelt attribute would pass the type checker

        def __getattr__(self, name: str) -> Any:
            """Asked for what the object lacks. ``__func__`` is not given: who calls it would go past the stand-in."""
            function = vars(self).get(_WRAPPED)
            if function is None or (name.startswith("__") and name not in _OF_EVERY_FUNCTION):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(function, name)

    def own_state(self) -> dict[str, Any]:
        """What a copy or a pickle holds: a bound method is pickled by its name alone, which a copy would not find."""
        return {name: value for name, value in vars(self).items() if name not in _COPIED}
