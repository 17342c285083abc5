"""The inputs that a candidate is verified on: the user's samples, and inputs derived from them.

Derived inputs differ in values (so that a result that was traced in, cached, or left over is found out) and in size
where a dimension is dynamic. They stay within what the samples show: floats within the observed range, integers and
bools only values that were observed, so that vocabulary and index limits hold. Constants and opaque arguments are
never touched. ``make_truth`` drops, with a note, those on which the original itself raises or stops being finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.verify.leaves import clone, copy_inputs, has_opaque, with_layout_of
from togi.verify.probes import UNORDERED, Change

_SAMPLES_VARIED = 3
"""Samples of which variants in value are derived: each costs a call of the original and of every candidate."""
_FACTOR_LARGER = 1.25
"""How far beyond the largest observed size a derived one goes."""


def variants(samples: Sequence[Inputs], signature: Signature, seed: int) -> list[Inputs]:
    """The samples themselves, in order, then what is derived from them. Deterministic for a seed.

    Derived: every element moved (of up to three samples), a softened and mirrored version of the first, and where a
    dimension is dynamic, sizes between, below and above the observed ones. Dimensions whose sizes are equal, or as far
    apart, in every sample vary together, and so keep the relation (``input_ids`` and ``attention_mask``; a cache, and
    a mask that covers it and the next token). Dtype, device, strides and ``requires_grad`` are kept; a tensor given
    twice stays one tensor given twice.
    """
    derived = [_changed(sample, _moved, seed + i) for i, sample in enumerate(samples[:_SAMPLES_VARIED])]
    derived.append(_changed(samples[0], _softened, seed))
    for sizes in other_sizes(samples, signature):
        derived.append(resized(samples, signature, sizes, seed))
    return [*samples, *derived]


def _changed(sample: Inputs, change: Change, seed: int) -> Inputs:
    """Tensors of one shape are permuted alike: a padding mask still covers the padding."""
    masks = {tuple(mask.shape): mask for mask in sample.tensors() if change is not _mirrored and _is_mask(mask)}

    def of(tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_quantized or not tensor.numel():
            return clone(tensor)
        generator = torch.Generator().manual_seed(seed + 1)
        mask = masks.get(tuple(tensor.shape))
        if mask is not None and (_is_mask(tensor) or not tensor.is_floating_point()):
            changed = _under_mask(tensor.detach(), mask, generator)
        else:
            changed = change(tensor.detach(), generator)
        return with_layout_of(tensor, changed.to(tensor.dtype))

    return copy_inputs(sample, of)


def _is_mask(tensor: Tensor) -> bool:
    """Rows that say what counts: bools, zeros and ones, or zeros and what a softmax makes zero."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dim() < 2 or tensor.dtype in UNORDERED:
        return False
    if tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() == 1):
        return False
    if not tensor.numel():
        return False
    low, high = tensor.min(), tensor.max()
    of_a_softmax = bool(high == 0) and bool(low <= _MASKED)
    if not (of_a_softmax if tensor.is_floating_point() else (int(low), int(high)) == (0, 1)):
        return False
    return bool(((tensor == low) | (tensor == high)).all())


_MASKED = -1e4


def _under_mask(tensor: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
    """A mask, or integers of its shape: rows change places, integers also within what counts of their row.

    Elements of a mask do not: they could mask all that a position may see, where a softmax divides by zero and every
    engine answers as it likes, which no sample shows. A mask of one row gets one element more of padding.
    """
    width = mask.shape[-1]
    counts = (mask == mask.max()).reshape(-1, width).cpu()
    rows = tensor.reshape(-1, width).cpu()
    order = torch.randperm(len(rows), generator=generator)
    found, kept = rows[order].clone(), counts[order]
    for row, counting in zip(found, kept, strict=True):
        edge = _edge(counting) if len(rows) == 1 else None
        if edge is not None:
            row[edge] = row[~counting][0]
            counting[edge] = False
        if not _is_mask(tensor):
            row[counting] = row[counting][torch.randperm(int(counting.sum()), generator=generator)]
    return found.reshape(tensor.shape).to(tensor.device)


def _edge(counting: Tensor) -> int | None:
    """The element next to the padding; None where what counts is one element, or not in one piece with an end."""
    changes = (counting[1:] != counting[:-1]).nonzero().flatten().tolist()
    if len(changes) != 1 or int(counting.sum()) < 2:
        return None
    return int(changes[0]) + (0 if bool(counting[0]) else 1)


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


Place = tuple[int, int]
"""Of a dynamic size: the flat input and its dimension."""
Sizes = dict[Place, int]


def other_sizes(samples: Sequence[Inputs], signature: Signature) -> list[Sizes]:
    """Sizes between the smallest and largest sample, below and above, for all dynamic dimensions at once."""
    leads = sizes_that_lead(samples, signature)
    if not leads:
        return []
    sizes_of_samples = sizes_seen(samples, signature)
    totals = [sum({lead: sample[lead] for lead, _ in leads.values()}.values()) for sample in sizes_of_samples]
    low, high = sizes_of_samples[totals.index(min(totals))], sizes_of_samples[totals.index(max(totals))]

    def sizes_by(size: Callable[[Place], int]) -> Sizes:
        return {place: size(lead) + more for place, (lead, more) in leads.items()}

    def smallest(place: Place) -> int:
        return min(sample[place] for sample in sizes_of_samples)

    def largest(place: Place) -> int:
        return max(sample[place] for sample in sizes_of_samples)

    chosen = [
        sizes_by(lambda lead: (low[lead] + high[lead]) // 2),
        sizes_by(lambda lead: _below(low[lead], largest(lead))),
        sizes_by(lambda lead: _above(largest(lead), smallest(lead))),
    ]
    return [sizes for i, sizes in enumerate(chosen) if sizes not in sizes_of_samples and sizes not in chosen[:i]]


def sizes_seen(samples: Sequence[Inputs], signature: Signature) -> list[Sizes]:
    """The dynamic sizes of each sample."""
    flat = [signature.flatten_inputs(s.args, s.kwargs) for s in samples]
    return [{(i, dim): tensors[i].shape[dim] for i, dim in signature.dynamic_dims} for tensors in flat]


def sizes_that_lead(samples: Sequence[Inputs], signature: Signature) -> dict[Place, tuple[Place, int]]:
    """Map each dynamic size to the one that it is a constant apart from in all samples (the first of the smallest), and
    by how much. One that was not seen to vary follows those that are as large. Empty where an argument is opaque."""
    if has_opaque(signature):
        return {}
    sizes_of_samples = sizes_seen(samples, signature)
    groups = {place: tuple(sample[place] for sample in sizes_of_samples) for place in signature.dynamic_dims}
    first = {group: place for place, group in reversed(groups.items())}
    leads = {group: _lead(group, groups.values()) for group in groups.values()}
    return {place: (first[leads[group]], group[0] - leads[group][0]) for place, group in groups.items()}


def _lead(group: tuple[int, ...], groups: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The smallest of those that vary as this one does, a constant apart; itself where no sizes were seen to vary."""
    alike = [other for other in groups if len({a - b for a, b in zip(group, other, strict=True)}) == 1]
    return min(alike) if len(set(group)) > 1 else group


def _below(low: int, high: int) -> int:
    """Half the smallest, kept even where all are; never 1 unless 1 was observed (exporters treat 1 as its own case)."""
    half = low // 2
    step = _step(low, high, most=half)
    return half // step * step if step > 1 else max(half, min(low, 2))


def _above(high: int, low: int) -> int:
    more, step = max(high + 1, int(high * _FACTOR_LARGER)), _step(low, high)
    return -(-more // step) * step


def _step(low: int, high: int, most: int = 32) -> int:
    """The largest power of two that sizes are multiples of, up to 32; 1 where they are of none."""
    return next((step for step in (32, 16, 8, 4, 2) if step <= most and low % step == high % step == 0), 1)


def resized(samples: Sequence[Inputs], signature: Signature, sizes: Sizes, seed: int) -> Inputs:
    """The largest sample cut or repeated to the sizes, then moved."""
    flat = [signature.flatten_inputs(s.args, s.kwargs) for s in samples]
    largest = max(range(len(flat)), key=lambda k: sum(t.numel() for t in flat[k]))
    source, sizes_of_samples = flat[largest], sizes_seen(samples, signature)
    groups = {place: tuple(sample[place] for sample in sizes_of_samples) for place in sizes}
    from_the_end = {groups[i, dim] for i, dim in sizes if _padded_in_front(source[i], dim)}
    tensors = list(source)
    for (i, dim), size in sizes.items():
        old = tensors[i].shape[dim]
        if old:
            first = old - size if groups[i, dim] in from_the_end else 0
            index = ((torch.arange(size) + first) % old).to(tensors[i].device)
            tensors[i] = tensors[i].index_select(dim, index)
    laid_out = [with_layout_of(like, tensor) for like, tensor in zip(source, tensors, strict=True)]
    args, kwargs = signature.build_inputs(laid_out)
    return _changed(Inputs(args, kwargs), _mirrored, seed)


def _padded_in_front(tensor: Tensor, dim: int) -> bool:
    """A mask whose padding comes first: what is cut off is padding too, else nothing of a row might count."""
    return dim == tensor.dim() - 1 and _is_mask(tensor) and bool((tensor[..., 0] != tensor.max()).any())


def _mirrored(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Floats are moved; integers and bools keep their order (positions, lengths and padding keep their meaning)."""
    return _moved(tensor, generator) if tensor.is_floating_point() else tensor
