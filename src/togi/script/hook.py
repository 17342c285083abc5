"""The moment at which a script has imported torch.

It is imported by the script and not before it: torch reads environment variables then, which the script may set.
"""

from __future__ import annotations

import importlib.abc
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
    """Finds torch as the others do, and has its loader report the end. It stays until then: libraries look torch up,
    with ``importlib.util.find_spec``, long before they import it."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        spec = self._found_by_others(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_report(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            execute(module)
            self._imported()

        loader.exec_module = execute_and_report
        return spec

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """Those before this one were asked already."""
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :] if self in finders else finders:
            find = getattr(finder, "find_spec", None)  # importlib, too, passes over those without
            if find is not None and (spec := find(fullname, path, target)) is not None:
                return spec  # type: ignore[no-any-return]
        return None

    def _imported(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then()
