"""The outermost calls of modules, wherever they are made, and the moment at which a script has imported torch.

Torch is imported by the script and not before it: it reads environment variables then, which the script may set.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

OutermostCall = Callable[["nn.Module", tuple[Any, ...], dict[str, Any], Callable[..., Any]], Any]
"""``(module, args, kwargs, run)``: instead of a call that no other module makes; ``run(module, ...)`` makes it."""


def when_torch_is_imported(then: Callable[[], None]) -> None:
    """Call ``then`` once ``import torch`` is done; at once if that is the case already."""
    if "torch" in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _TorchFinder(then))


class _TorchFinder(importlib.abc.MetaPathFinder):
    """Finds torch as the others do, and has its loader report the end."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_report(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self._then()

        loader.exec_module = execute_and_report
        return spec


class _InModule(threading.local):
    """Whether this thread is in the call of a module."""

    now = False


def watch_outermost_calls(instead: OutermostCall) -> Callable[[], None]:
    """Replace the call of ``nn.Module``; returns what undoes it.

    The call is replaced and no global hook is registered: with one, torch takes a slower path in every module, and
    ``torch.compile`` warns. Here an inner call costs one more Python function.
    """
    import torch
    from torch import nn

    original: Any = nn.Module.__call__
    compiling, inside = torch.compiler.is_dynamo_compiling, _InModule()

    def _wrapped_call_impl(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if compiling() or inside.now:  # Dynamo knows the first, and so does not read the second
            return original(self, *args, **kwargs)
        inside.now = True
        try:
            return instead(self, args, kwargs, original)
        finally:
            inside.now = False

    # Dynamo tells by its file what a function is: this one is to be what it stands for, which is not compiled alone
    code = original.__code__
    _wrapped_call_impl.__code__ = _wrapped_call_impl.__code__.replace(
        co_filename=code.co_filename, co_firstlineno=code.co_firstlineno
    )
    _wrapped_call_impl.__module__, _wrapped_call_impl.__qualname__ = original.__module__, original.__qualname__
    nn.Module.__call__ = _wrapped_call_impl  # type: ignore[method-assign]

    def undo() -> None:
        if nn.Module.__call__ is _wrapped_call_impl:  # else somebody replaced it in turn, and calls this one
            nn.Module.__call__ = original  # type: ignore[method-assign]

    return undo
