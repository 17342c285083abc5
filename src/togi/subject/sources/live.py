"""Live subjects, which the user's own process pickled into a private file for its children."""

from __future__ import annotations

import contextlib
import copy
import sys
import types
from pathlib import Path
from typing import Any

from torch import nn


def unpickled(path: Path) -> Any:
    """Unpickle it, as if constructed: unpickling runs no constructors, and some note things of their class."""
    import cloudpickle

    with path.open("rb") as file:
        subject = cloudpickle.load(file)
    if isinstance(module := getattr(subject, "module", None), nn.Module):
        _name_classes_of_main(module)
        if "transformers.modeling_utils" in sys.modules:
            _note_classes(module, sys.modules["transformers.modeling_utils"].PreTrainedModel)
    return subject


def _name_classes_of_main(module: nn.Module) -> None:
    """Classes of the user's main module come by value. They are found by their names here too, since an artifact names
    the class of what it returns."""
    here = vars(sys.modules["__main__"])
    bases = {base for part in module.modules() for base in type(part).__mro__}
    for function in (vars(module).get("forward"), *(member for base in bases for member in vars(base).values())):
        if isinstance(function, types.FunctionType) and function.__module__ == "__main__":
            for name, value in function.__globals__.items():
                if isinstance(value, type) and (value.__module__, value.__qualname__) == ("__main__", name):
                    here.setdefault(name, value)


def _note_classes(module: nn.Module, base: type[nn.Module]) -> None:
    """In transformers 5, hidden states and attentions that are asked for are recorded only of classes whose constructor
    has run in this process; else they are missing from the output. ``base``: its class of models."""
    for part in module.modules():
        if isinstance(part, base):
            blank: Any = object.__new__(type(part))
            with contextlib.suppress(Exception):  # a class of the user's own may want more
                base.__init__(blank, copy.deepcopy(part.config))
