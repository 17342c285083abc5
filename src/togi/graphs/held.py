"""The weights that a captured function holds, which its graphs read at the addresses of the capture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from togi.torch_internals.autograd import version_of
from togi.torch_internals.layouts import NoStorage, storages_of
from togi.torch_internals.modules import own_buffers, own_modules, own_parameters


def weights_of(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The leaves that the gradients of ``results`` reach, without ``inputs``; in the order of a walk."""
    edges = (torch.autograd.graph.get_gradient_edge(tensor) for tensor in results if tensor.requires_grad)
    open_ = list(dict.fromkeys(edge.node for edge in edges))
    seen, leaves = set(open_), []
    while open_:
        node = open_.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None and all(leaf is not tensor for tensor in inputs):
            leaves.append(leaf)
        children = dict.fromkeys(child for child, _ in node.next_functions)  # ``w * w`` names its weight twice
        open_ += [child for child in children if child is not None and child not in seen]
        seen.update(open_)
    return leaves


class Held:
    """The parameters and buffers of modules by name, and the other weights that gradients reach."""

    def __init__(self, parts: Mapping[str, nn.Module], weights: Sequence[Tensor]) -> None:
        self._places: list[tuple[str, Mapping[Any, Any], Any]] = [
            (f"{path}.{name}".lstrip("."), owned, name)
            for path, part in parts.items()
            for owned in (own_parameters(part), own_buffers(part))
            for name in owned
        ]
        named = {id(tensor) for tensor in self._tensors()}
        self._places += [
            (f"a weight of {tuple(weight.shape)}", {0: weight}, 0) for weight in weights if id(weight) not in named
        ]
        self._children = [
            (f"{path}.{name}".lstrip("."), children, name)
            for path, part in parts.items()
            if (children := own_modules(part))
            for name in children
        ]
        self._addresses, self._modules = self._addresses_now(), self._modules_now()

    def moved(self) -> str:
        """The name of the first that is no longer where it was; empty where all are."""
        now, modules = self._addresses_now(), self._modules_now()
        if now == self._addresses and modules == self._modules:
            return ""
        places = [*self._places, *self._children]
        pairs = zip(places, [*self._addresses, *self._modules], [*now, *modules], strict=True)
        return next(label for (label, _, _), before, there in pairs if before != there)

    def versions(self) -> list[int]:
        """How often each was written in place."""
        return [version_of(tensor) for tensor in self._tensors() if not tensor.is_inference()]

    def trained(self) -> list[bool]:
        """Return for each of them whether it requires gradients."""
        return [tensor.requires_grad for tensor in self._tensors()]

    def _tensors(self) -> Iterator[Tensor]:
        return (tensor for _, owned, name in self._places if (tensor := owned.get(name)) is not None)

    def _addresses_now(self) -> list[Any]:
        return [_address(owned.get(name)) for _, owned, name in self._places]

    def _modules_now(self) -> list[int]:
        return [id(children.get(name)) for _, children, name in self._children]


def _address(tensor: Tensor | None) -> Any:
    """The place of its memory; of a tensor without memory of its own (a wrapper, a sparse one) those of its parts."""
    if tensor is None:
        return 0
    try:
        address = tensor.data_ptr()
    except RuntimeError:
        address = 0
    return address or _addresses_of_parts(tensor)


def _addresses_of_parts(tensor: Tensor) -> Any:
    try:
        return [storage.data_ptr() for storage in storages_of(tensor)]
    except (NoStorage, RuntimeError):  # torch does not show its memory
        return id(tensor)
