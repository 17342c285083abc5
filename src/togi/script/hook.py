"""The moment at which a script has imported torch.

It is imported by the script and not before it: torch reads environment variables then, which the script may set.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


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
