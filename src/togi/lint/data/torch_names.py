"""The public names of PyTorch's modules and the methods of its tensors, as a table that is read without torch.

``torch_names.json`` is made from the installed torch::

    python -m togi.lint.data.torch_names > src/togi/lint/data/torch_names.json

The table says nothing about modules whose path has a part that starts with an underscore. Nor does it hold objects that
make up their attributes when asked (``torch.ops``, ``torch.classes``, modules with a ``__getattr__`` of their own), or
what could not be imported.
"""

from __future__ import annotations

import functools
import importlib
import json
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from types import ModuleType

_LAZY = {"torch": {"onnx", "has_mps", "has_cuda", "has_cudnn", "has_mkldnn", "set_vital"}}
"""What a module's own ``__getattr__`` gives, where that has been read."""
_OPAQUE = (
    "torch.ops",
    "torch.classes",
    "torch.ao.nn",
    "torch.ao.ns",
    "torch.testing",
    "torch.utils.benchmark.examples",
    "torch.fx.experimental.validator",
)


@dataclass(frozen=True)
class TorchNames:
    """Public names by module, of one version of torch."""

    version: str
    modules: Mapping[str, frozenset[str]]
    tensor_methods: frozenset[str]
    """Of ``torch.Tensor``, without the underscore of those that work in place."""


@functools.cache
def torch_names() -> TorchNames:
    """The table that ships with togi."""
    text = resources.files(__package__ or "").joinpath("torch_names.json").read_text(encoding="utf-8")
    table = json.loads(text)
    modules = {module: frozenset(names.split()) for module, names in table["modules"].items()}
    return TorchNames(table["version"], modules, frozenset(table["tensor_methods"].split()))


@functools.cache
def behind_installed() -> bool:
    """Whether the installed torch, which is not imported for this, is of a later minor version than the table.

    Then it may have names that the table lacks. Patch releases add none.
    """
    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return False
    return _minor(installed) > _minor(torch_names().version)


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def names_of_installed() -> TorchNames:
    """The same, asked of the installed torch: imports every public module of it (seconds)."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modules = dict(_walk("torch"))
    tensor = torch.Tensor
    methods = {name.rstrip("_") for name in dir(tensor) if name[0] != "_" and callable(getattr(tensor, name))}
    return TorchNames(torch.__version__.partition("+")[0], modules, frozenset(methods))


def _walk(name: str) -> Iterator[tuple[str, frozenset[str]]]:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a module of torch that needs a package or a platform that is not here
        print(f"left out {name}: {error}", file=sys.stderr)
        return
    below = [entry.name for entry in pkgutil.iter_modules(getattr(module, "__path__", [])) if entry.name[0] != "_"]
    made_up = "__getattr__" in vars(module) or "Config" in type(module).__name__
    if name in _LAZY or not made_up:
        yield name, frozenset(_public(module)) | set(below) | _LAZY.get(name, set())
    for child in below:
        if not f"{name}.{child}".startswith(_OPAQUE):
            yield from _walk(f"{name}.{child}")


def _public(module: ModuleType) -> Iterator[str]:
    """Attributes of a module; of ``torch.backends.cudnn`` and its like, also those of its class and inner module."""
    names = set(dir(module))
    if type(module) is not ModuleType:
        names |= set(dir(type(module))) | set(dir(getattr(module, "m", None)))
    return (name for name in names if not name.startswith("_") and name.isidentifier())


def _as_json(names: TorchNames) -> str:
    modules = {module: " ".join(sorted(public)) for module, public in sorted(names.modules.items())}
    methods = " ".join(sorted(names.tensor_methods))
    return json.dumps({"version": names.version, "tensor_methods": methods, "modules": modules}, indent=0)


if __name__ == "__main__":
    print(_as_json(names_of_installed()))
