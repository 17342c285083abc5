"""Live subjects, which the user's own process pickled into a private file for its children."""

from __future__ import annotations

import contextlib
import copy
import sys
from pathlib import Path
from typing import Any

from torch import nn


def unpickled(path: Path) -> Any:
    """Unpickle it, as if constructed: unpickling runs no constructors, and some note things of their class."""
    import cloudpickle

    with path.open("rb") as file:
        subject = cloudpickle.load(file)
    if (
        isinstance(module := getattr(subject, "module", None), nn.Module)
        and "transformers.modeling_utils" in sys.modules
    ):
        _note_classes(module, sys.modules["transformers.modeling_utils"].PreTrainedModel)
    return subject


def _note_classes(module: nn.Module, base: type[nn.Module]) -> None:
    """In transformers 5, hidden states and attentions that are asked for are recorded only of classes whose constructor
    has run in this process; else they are missing from the output. ``base``: its class of models."""
    for part in module.modules():
        if isinstance(part, base):
            blank: Any = object.__new__(type(part))
            with contextlib.suppress(Exception):  # a class of the user's own may want more
                base.__init__(blank, copy.deepcopy(part.config))
