"""togi: make a PyTorch model faster, make it fit, and prove that it is still right.

The public names are loaded when they are first used, so that ``import togi`` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from togi.core.telemetry import switch_off

if TYPE_CHECKING:
    from types import ModuleType

    from togi import graphs, ops

    __version__: str
    from togi.api import bench, check, compare, fit, load, memory, optimize, precision, predict_memory, restore, tune
    from togi.artifact.training import TrainingRecipe
    from togi.core.errors import BudgetError, FitError, TogiError, UndecidedError
    from togi.footprint.fit.plan import Plan
    from togi.footprint.guard.hidden_hooks import HiddenHooksError, no_hidden_hooks
    from togi.footprint.guard.within import within
    from togi.subject.inputs import Inputs, Subject
    from togi.subject.validation import Validation
    from togi.tiling.lean import lean

switch_off()

_PUBLIC = {
    "BudgetError": "togi.core.errors",
    "FitError": "togi.core.errors",
    "HiddenHooksError": "togi.footprint.guard.hidden_hooks",
    "Inputs": "togi.subject.inputs",
    "Plan": "togi.footprint.fit.plan",
    "Subject": "togi.subject.inputs",
    "TogiError": "togi.core.errors",
    "TrainingRecipe": "togi.artifact.training",
    "UndecidedError": "togi.core.errors",
    "Validation": "togi.subject.validation",
    "bench": "togi.api",
    "check": "togi.api",
    "compare": "togi.api",
    "fit": "togi.api",
    "lean": "togi.tiling.lean",
    "load": "togi.api",
    "memory": "togi.api",
    "no_hidden_hooks": "togi.footprint.guard.hidden_hooks",
    "optimize": "togi.api",
    "precision": "togi.api",
    "predict_memory": "togi.api",
    "restore": "togi.api",
    "tune": "togi.api",
    "within": "togi.footprint.guard.within",
}

__all__ = [
    "BudgetError",
    "FitError",
    "HiddenHooksError",
    "Inputs",
    "Plan",
    "Subject",
    "TogiError",
    "TrainingRecipe",
    "UndecidedError",
    "Validation",
    "__version__",
    "bench",
    "check",
    "compare",
    "fit",
    "graphs",
    "lean",
    "load",
    "memory",
    "no_hidden_hooks",
    "ops",
    "optimize",
    "precision",
    "predict_memory",
    "restore",
    "tune",
    "within",
]

_SUBPACKAGES = ("graphs", "ops")
_TRAINERS = ("lightning", "transformers")
"""Callbacks for the trainers of these libraries. Not in ``__all__``: they need not be installed."""

_EXTENSION = ("load_ipython_extension", "unload_ipython_extension")
"""``%load_ext togi`` in IPython and notebooks."""


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return _module_of(name, f"togi.{name}")
    if name in _TRAINERS:
        return _module_of(name, f"togi.trainers.{name}")
    if name in _EXTENSION:
        return getattr(importlib.import_module("togi.cli.notebook"), name)
    if name == "__version__":
        from togi.core.version import version

        return version()
    if name not in _PUBLIC:
        raise AttributeError(f"module 'togi' has no attribute {name!r}")
    return getattr(_module_of(name, _PUBLIC[name]), name)


def _module_of(name: str, module: str) -> ModuleType:
    """Raises MissingTorchError where that is what the module of a public name lacks."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        from togi.core.needs_torch import need_torch

        need_torch(f"togi.{name}")
        raise


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
