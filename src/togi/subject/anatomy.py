"""What a module is made of: layers by class, parameters, what is shared. Looks, does not run."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from torch import nn

_LAYERS = ("torch.nn.modules.", "torch.ao.nn.", "torch.nn.quant")


def class_name(module: nn.Module) -> str:
    """The class as its author wrote it: TorchScript modules remember it."""
    return str(getattr(module, "original_name", "") or type(module).__name__)


def count_modules(module: nn.Module) -> dict[str, int]:
    """Modules by class, most frequent first. A subclass of a torch.nn layer counts as that layer too."""
    counts: Counter[str] = Counter()
    for part in module.modules():
        name = class_name(part)
        counts[name] += 1
        layer = _layer(type(part))
        if layer is not None and layer != name:
            counts[layer] += 1
    return dict(counts.most_common())


def _layer(cls: type) -> str | None:
    """The nearest public torch.nn class among the class and its ancestors; Module itself says nothing."""
    for base in cls.__mro__:
        if base.__module__.startswith(_LAYERS) and not base.__name__.startswith("_") and base is not nn.Module:
            return base.__name__
    return None


def parameter_facts(module: nn.Module) -> dict[str, Any]:
    """``parameters``, ``parameter_bytes``, ``parameter_dtypes`` of Facts. Each once, however many layers share it."""
    parameters = list(module.parameters())
    return {
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "parameter_dtypes": tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
    }


def shared_parameters(module: nn.Module) -> list[str]:
    """``"encoder.weight = decoder.weight"`` for every parameter that stands in several places."""
    places: defaultdict[int, list[str]] = defaultdict(list)
    for owner_name, owner in module.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            places[id(parameter)].append(f"{owner_name}.{name}".removeprefix("."))
    return [" = ".join(names) for names in places.values() if len(names) > 1]
