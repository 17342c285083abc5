"""The rule ``duplicate-parameters``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

from togi.core.quantities import percent, plural, size
from togi.lint.finding import Cost, Finding
from togi.lint.module.context import ModuleContext, layers
from togi.lint.rule import ModuleRule

if TYPE_CHECKING:
    from torch import Tensor, nn

LEAST_BYTES = 64 * 2**10
LEAST_SHARE = 0.01
ENOUGH_BYTES = 16 * 2**20
"""Reported whatever share it is."""
LEAST_TENSOR_BYTES = 512


class DuplicateParameters(ModuleRule):
    """Parameters or buffers hold the same bytes in memory of their own.

    What it reports: tensors of a module that are equal to the bit and not shared, where the copies hold at least 64 KiB
    and 1 % of the module's bytes (or 16 MiB). Examples are weights that should be tied and are not, and masks and
    tables of which every layer keeps its own.

    Why it costs: memory, files and, in every pass, bytes from memory that the cache would have had.

    When it stays silent: tensors that are shared already (each counts once), tensors with one value everywhere (fresh
    biases and norms differ after training), and small copies.

    Example: ``self.register_buffer("mask", torch.ones(2048, 2048).tril())`` in each of 24 blocks

    Use instead: make it once and hand the same tensor to every layer; tie weights after loading
    (``self.head.weight = self.embed.weight``). Layers that are copies because of ``copy.deepcopy``
    (``nn.TransformerEncoder``) and were never trained need an initialisation of their own each.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoder.html, the warning on identical
    initial weights; O. Press, L. Wolf, https://arxiv.org/abs/1608.05859 (tied embeddings).
    """

    id = "duplicate-parameters"

    def check(self, context: ModuleContext) -> Iterable[Finding]:
        own = _own_tensors(context.given)
        total = sum(tensor.nbytes for tensor in own.values())
        groups = list(_equal(own))
        wasted_by = {names[0]: (len(names) - 1) * own[names[0]].nbytes for names in groups}
        wasted = sum(wasted_by.values())
        if not groups or wasted < max(LEAST_BYTES, min(LEAST_SHARE * total, ENOUGH_BYTES)):
            return
        largest = max(groups, key=lambda names: wasted_by[names[0]])
        copies, example = sum(len(names) - 1 for names in groups), own[largest[0]]
        yield Finding(
            rule=self.id,
            layer=largest[0].rpartition(".")[0],
            count=copies,
            message=f"{plural(copies, 'tensor')} of the module with the bytes of another one.",
            evidence=f"{layers(largest)} are equal, {tuple(example.shape)}, {size(example.nbytes)} each"
            + (f"; {len(groups) - 1} more such groups." if len(groups) > 1 else "."),
            remedy="Hand one tensor to all of them. If they are copies because layers were deep-copied and not trained "
            "yet, give each layer an initialisation of its own instead.",
            cost=Cost(text=f"{size(wasted)}, {percent(wasted / total)} of the module", measured=False, bytes=wasted),
        )


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """By name, memory that several share once."""
    import torch

    own: dict[str, Tensor] = {}
    places: set[tuple[object, ...]] = set()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.layout is not torch.strided or tensor.is_quantized or not tensor.numel():
            continue
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if place not in places:
            places.add(place)
            own[name] = tensor.detach()
    return own


def _equal(tensors: dict[str, Tensor]) -> Iterable[list[str]]:
    """Names of tensors that are equal to the bit, the first of each group in the module's order."""
    for names in _grouped(tensors, lambda name: (tuple(tensors[name].shape), tensors[name].dtype)):
        if tensors[names[0]].nbytes >= LEAST_TENSOR_BYTES:
            for alike in _grouped(names, lambda name: _sample(tensors[name])):
                yield from _classes(tensors, alike)


def _grouped(names: Iterable[str], key: Callable[[str], Hashable]) -> list[list[str]]:
    """Names with the same key, where there are several, in the order given."""
    groups: defaultdict[Hashable, list[str]] = defaultdict(list)
    for name in names:
        groups[key(name)].append(name)
    return [group for group in groups.values() if len(group) > 1]


def _sample(tensor: Tensor) -> bytes:
    """Some of its bytes, which distinguish most tensors without reading all of them."""
    import torch

    step = max(1, tensor.shape[0] // 8)
    few = tensor[::step] if tensor.dim() else tensor
    while few.dim() > 1:
        few = few[..., :: max(1, few.shape[-1] // 8)].flatten(-2)
    return few.contiguous().view(-1)[:4096].cpu().contiguous().view(torch.uint8).numpy().tobytes()


def _classes(tensors: dict[str, Tensor], names: list[str]) -> Iterable[list[str]]:
    """Those of ``names`` whose tensors are equal, and not one value everywhere."""
    import torch

    waiting = list(names)
    while len(waiting) > 1:
        first, *candidates = waiting
        same = [name for name in candidates if torch.equal(tensors[first], tensors[name])]
        waiting = [name for name in candidates if name not in same]
        if same and bool((tensors[first] != tensors[first].flatten()[0]).any()):
            yield [first, *same]
