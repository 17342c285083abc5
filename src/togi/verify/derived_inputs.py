"""The inputs that a candidate is verified on: the user's samples, and inputs derived from them.

Derived inputs differ in values (so that a result that was traced in, cached, or left over is found out) and in size
where a dimension is dynamic. They stay within what the samples show: floats within the observed range, integers and
bools only values that were observed, so that vocabulary and index limits hold. Constants and opaque arguments are
never touched. ``make_truth`` drops, with a note, those on which the original itself raises or stops being finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.verify.leaves import clone, copy_inputs, with_layout_of

_SAMPLES_VARIED = 3
"""Samples of which variants in value are derived: each costs a call of the original and of every candidate."""
_FACTOR_LARGER = 1.25
"""How far beyond the largest observed size a derived one goes."""

Change = Callable[[Tensor, torch.Generator], Tensor]


def variants(samples: Sequence[Inputs], signature: Signature, seed: int) -> list[Inputs]:
    """The samples themselves, in order, then what is derived from them. Deterministic for a seed.

    Derived: every element moved (of up to three samples), a softened and mirrored version of the first, and where a
    dimension is dynamic, sizes between, below and above the observed ones. Dimensions whose sizes are equal in every
    sample vary together, and so keep the relation (``input_ids`` and ``attention_mask``). Dtype, device, strides and
    ``requires_grad`` are kept; a tensor given twice stays one tensor given twice.
    """
    derived = [_changed(sample, _moved, seed + i) for i, sample in enumerate(samples[:_SAMPLES_VARIED])]
    derived.append(_changed(samples[0], _softened, seed))
    for sizes in other_sizes(samples, signature):
        derived.append(_resized(samples, signature, sizes, seed))
    return [*samples, *derived]


def _changed(sample: Inputs, change: Change, seed: int) -> Inputs:
    """Tensors of one shape are permuted alike: a padding mask still covers the padding."""

    def of(tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized or not tensor.numel():
            return clone(tensor)
        generator = torch.Generator().manual_seed(seed + 1)
        return with_layout_of(tensor, change(tensor.detach(), generator).to(tensor.dtype))

    return copy_inputs(sample, of)


def _moved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """All elements permuted. A tensor of one value only is scaled down a little where it is floating."""
    order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
    moved = _bytes_safe(tensor).reshape(-1)[order].reshape(tensor.shape)
    if tensor.is_floating_point() and bool((moved == moved.reshape(-1)[0]).all()):
        return moved * (0.5 + 0.5 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64)).to(
            tensor.device
        )
    return moved


def _softened(tensor: Tensor, _: torch.Generator) -> Tensor:
    """Mirrored in its last dimension; floats are also drawn halfway to their mean, so that they stay in range."""
    mirrored = _bytes_safe(tensor).flip(-1) if tensor.dim() else _bytes_safe(tensor)
    if not (tensor.is_floating_point() or tensor.is_complex()) or not bool(mirrored.isfinite().all()):
        return mirrored
    if mirrored.dim() == 0 or mirrored.numel() == 1:
        return mirrored * 0.75
    wide = mirrored.to(torch.complex128 if mirrored.is_complex() else torch.float64)
    return wide.mean() + (wide - wide.mean()) * 0.5


def _bytes_safe(tensor: Tensor) -> Tensor:
    """8-bit floats have few operations of their own; their values are exact in float32."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


Sizes = dict[tuple[int, ...], int]
"""Sizes of a dynamic dimension in each sample -> the new size."""


def other_sizes(samples: Sequence[Inputs], signature: Signature) -> list[Sizes]:
    """Sizes between the smallest and largest sample, below and above, for all dynamic dimensions at once."""
    if not signature.dynamic or any(leaf.kind == "opaque" for a in signature.arguments for leaf in a.leaves()):
        return []
    flat = [signature.flatten_inputs(s.args, s.kwargs) for s in samples]
    groups = {tuple(tensors[i].shape[dim] for tensors in flat) for i, dim in signature.dynamic_dims}
    totals = [sum(group[k] for group in groups) for k in range(len(samples))]
    low, high = totals.index(min(totals)), totals.index(max(totals))
    chosen = [
        {g: _between(g[low], g[high]) for g in groups},
        {g: _below(g[low], max(g)) for g in groups},
        {g: _above(max(g), min(g)) for g in groups},
    ]
    seen = [{g: g[k] for g in groups} for k in range(len(samples))]
    return [sizes for i, sizes in enumerate(chosen) if sizes not in seen and sizes not in chosen[:i]]


def _between(low: int, high: int) -> int:
    return (low + high) // 2


def _below(low: int, high: int) -> int:
    """Half the smallest, kept even where all are; never 1 unless 1 was observed (exporters treat 1 as its own case)."""
    half = low // 2
    for step in (32, 16, 8, 4, 2):
        if low % step == 0 and high % step == 0 and half >= step:
            return half // step * step
    return max(half, min(low, 2))


def _above(high: int, low: int) -> int:
    more = max(high + 1, int(high * _FACTOR_LARGER))
    for step in (32, 16, 8, 4, 2):
        if low % step == 0 and high % step == 0:
            return -(-more // step) * step
    return more


def _resized(samples: Sequence[Inputs], signature: Signature, sizes: Sizes, seed: int) -> Inputs:
    """The largest sample cut or repeated to the sizes, then moved."""
    flat = [signature.flatten_inputs(s.args, s.kwargs) for s in samples]
    source = max(flat, key=lambda tensors: sum(t.numel() for t in tensors))
    tensors = list(source)
    for i, dim in signature.dynamic_dims:
        size = sizes[tuple(one[i].shape[dim] for one in flat)]
        old = tensors[i].shape[dim]
        if old:
            index = (torch.arange(size) % old).to(tensors[i].device)
            tensors[i] = tensors[i].index_select(dim, index)
    laid_out = [with_layout_of(like, tensor) for like, tensor in zip(source, tensors, strict=True)]
    args, kwargs = signature.build_inputs(laid_out)
    return _changed(Inputs(args, kwargs), _mirrored, seed)


def _mirrored(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Floats are moved; integers and bools keep their order (positions, lengths and padding keep their meaning)."""
    return _moved(tensor, generator) if tensor.is_floating_point() else tensor
