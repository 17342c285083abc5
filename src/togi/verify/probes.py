"""Probes: values of an input that no sample shows, and that a later call may hold.

Each kind of input has ladders, whose rungs reach further and further from the samples: larger integers, negative ones,
floats a thousand times larger, NaN. A rung says what is proven once a program has answered it as the original does.
``beyond`` climbs them; whether values are legal at all, the original says.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from togi.subject.domain import Domain, Number

Change = Callable[[Tensor, torch.Generator], Tensor]
"""Makes other values of a tensor: contiguous, of the same shape and dtype."""

_FACTORS = (1.25, 4.0, 1e3, 1e9)
"""How many times larger floats become. The first that is asked is a thousand: less only where that is wrong. A state
that is handed on from call to call is never quite what the original's would be, so a little more is asked at last."""
_INTEGERS = (1 << 15, 1 << 24, (1 << 31) - 1, 1 << 34)
"""Where other numbers of bits end: 16 bits, float32's integers, 32 bits, and well beyond."""
_LATTICE = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.5)
"""Few values: equal ones side by side, and halves, which are rounded either way."""
_FAR = 1e3
"""Large next to what models are usually given."""


UNORDERED = (torch.uint16, torch.uint32, torch.uint64)
"""Integers of which torch finds no smallest and largest."""


@dataclass(frozen=True)
class Rung:
    """Values to ask for, and what is proven of the input where all of them were answered rightly."""

    name: str
    changes: tuple[Change, ...]
    domain: Domain
    in_part: tuple[Change, ...] = ()
    """Asked instead where the original raises on all of ``changes``: fewer elements are such values."""
    strict: bool = False
    """An answer that is further from plain eager's than roundings explain is wrong, without a look at float64: little
    is lost where such values are refused."""
    reach: tuple[Number, Number] | None = None
    """The smallest and largest of the values that are asked, where there are such."""
    exact: bool = False
    """What of the inputs' own roundings would explain is wrong as well: the values are meant as they are."""
    alike: bool = False
    """Roundings of the inputs that part equal values explain nothing: these are meant to be equal."""


@dataclass(frozen=True)
class Ladder:
    """Rungs from near to far. ``first`` is asked first: nearer ones where it is wrong, farther ones where not."""

    rungs: tuple[Rung, ...]
    first: int = 0


@dataclass(frozen=True)
class Shown:
    """The values that the samples hold of one input."""

    low: Number
    high: Number
    mask: bool
    """Zeros and ones, or truth values."""
    finite: bool

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Shown | None:
        """Read them off. None: of such tensors no others are made (all empty, sparse, quantized, complex, 8-bit
        floats, ``UNORDERED``, NaN in a sample)."""
        tensors = [tensor for tensor in tensors if tensor.numel()]
        if not tensors or not all(map(_can_be_probed, tensors)):
            return None
        lows, highs = zip(
            *((low.item(), high.item()) for low, high in (t.detach().aminmax() for t in tensors)), strict=True
        )
        if any(low != low for low in lows):
            return None
        low, high = min(lows), max(highs)
        floating = tensors[0].is_floating_point()
        boolean = tensors[0].dtype is torch.bool
        mask = boolean or (not floating and tensors[0].dim() > 1 and low in (0, 1) and high in (0, 1))
        finite = not floating or all(bool(t.isfinite().all()) for t in tensors)
        return cls(int(low) if not floating else low, int(high) if not floating else high, mask, finite)

    @classmethod
    def of_all(cls, shown: Sequence[Shown]) -> Shown:
        """Of several inputs that are varied together."""
        low, high = min(each.low for each in shown), max(each.high for each in shown)
        return cls(low, high, all(each.mask for each in shown), all(each.finite for each in shown))

    @property
    def between(self) -> Rung:
        """Values between those shown: any program takes them, so nothing keeps them out."""
        reach = (self.low, self.high) if self.finite and not self.mask else None
        return Rung("values at which the original jumps", (), Domain(), reach=reach)

    @property
    def domain(self) -> Domain:
        return Domain(low=self.low, high=self.high)


def _can_be_probed(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.dtype not in UNORDERED
        and not (tensor.is_quantized or tensor.is_complex())
        and not (tensor.is_floating_point() and tensor.element_size() == 1)
    )


def signs(shown: Shown) -> Rung:
    """Floats that were never negative, with signs."""
    return Rung("negative values", (_signed,), Domain(low=-shown.high, high=shown.high))


def magnitudes(dtype: torch.dtype, shown: Shown, *, signed: bool, exact: bool) -> Ladder:
    """Floats larger and smaller than any shown, then as large as there are.

    Not ``exact``: the nearest are the sample itself, a little larger. A recipe that was rounded for such samples errs
    more on random values of any size. Asked for these, it would take nothing beyond the samples.
    """
    most = torch.finfo(dtype).max
    size = max(abs(shown.low), abs(shown.high)) or 1.0
    low = None if signed else shown.low
    bounds = [bound for factor in _FACTORS if (bound := size * factor) < most]

    def rung(name: str, bound: float, domain: Domain) -> Rung:
        beyond = _between(size, bound, signed=signed)
        return Rung(name, (_larger(bound, signed=signed),), domain, in_part=_in_part(beyond))

    finite = [
        replace(
            rung(f"values up to {bound:.3g}", bound, Domain(low=-bound if signed else low, high=bound)),
            reach=(-bound if signed else shown.low, bound),
        )
        for bound in bounds
    ]
    if finite and not exact:
        finite[0] = replace(finite[0], changes=(lambda tensor, _: _FACTORS[0] * tensor,))
    largest = replace(
        rung("the largest numbers", most, Domain(low=low)), strict=True, reach=finite[-1].reach if finite else None
    )
    return Ladder((*finite, largest), first=min(_FACTORS.index(1e3), len(finite)))


def not_finite() -> list[Rung]:
    """NaN and infinity in few elements, each asked for itself: the original may take one and not the other."""
    nan = (_with(1, torch.nan), _with(0.1, torch.nan))
    infinite = (_with(0.01, torch.inf), _with(0.01, -torch.inf))  # one of them may be refused already
    return [
        Rung("NaN", nan, Domain(), in_part=nan[:1], strict=True),
        Rung("infinity", infinite, Domain(), in_part=(_with(1, torch.inf), _with(1, -torch.inf)), strict=True),
    ]


def larger_integers(dtype: torch.dtype, shown: Shown) -> Ladder:
    most = torch.iinfo(dtype).max
    steps = sorted({2 * max(shown.high, 1), *_INTEGERS})
    bounds = [*(int(bound) for bound in steps if shown.high < bound < most), *([most] if shown.high < most else [])]
    return Ladder(
        tuple(
            _integers(bound, None if bound == most else Domain(high=bound), (int(shown.low), bound), shown.high + 1)
            for bound in bounds
        )
    )


def smaller_integers(dtype: torch.dtype, shown: Shown) -> Ladder:
    least = torch.iinfo(dtype).min
    steps = sorted({0, -1, -max(int(shown.high), 1), *(-bound - 1 for bound in _INTEGERS)}, reverse=True)
    bounds = [*(bound for bound in steps if shown.low > bound > least), *([least] if shown.low > least else [])]
    return Ladder(
        tuple(
            _integers(bound, None if bound == least else Domain(low=bound), (bound, int(shown.high)), shown.low - 1)
            for bound in bounds
        )
    )


def _integers(bound: int, domain: Domain | None, reach: tuple[int, int], nearest: Number) -> Rung:
    """``nearest``: to those shown, of the values that are not."""
    in_part = _in_part(_between(nearest, bound, signed=False))
    return Rung(f"{bound:,}", (_integers_to(bound),), domain or Domain(), in_part=in_part, reach=reach)


def masks(shown: Shown) -> list[tuple[Rung, Domain]]:
    """List what is asked of a mask, and what it may not be where that is wrong."""
    same = Domain(low=shown.low, high=shown.high)
    return [
        (
            Rung("masks that hide some", (_padded("end"), _padded("front"), _padded("either"), _scattered), Domain()),
            same,
        ),
        (Rung("masks with rows of zeros", (_rows(0), _filled(0)), Domain()), Domain(empty_rows=False)),
        (Rung("masks with rows of ones", (_rows(1), _filled(1)), Domain()), Domain(full_rows=False)),
    ]


def one_value(shown: Shown, within: Domain) -> Rung:
    """Floats that are all the same: zero, as large as those shown, and larger."""
    values = (0.0, shown.high, 1e3 * shown.high)
    return Rung("tensors of one value", tuple(_in(within, _filled(v)) for v in values), Domain(), exact=True)


def equal_values(within: Domain, *, exact: bool) -> Rung:
    """Floats of few values, and rows that are equal. Not ``exact``: the few values are as large as those shown. What
    was rounded for these leaves more of larger ones, and that they are equal has no part in it."""
    changes = (_in(within, _of_lattice if exact else _rounded), _in(within, _equal_rows(0.0)))
    return Rung("equal values", changes, Domain(), exact=True)


def equal_rows(shown: Shown, within: Domain) -> Ladder:
    """Rows that are equal far from zero, where squares are large next to differences."""
    size = max(abs(shown.low), abs(shown.high)) or 1.0
    rungs = [
        Rung(
            f"equal rows near {offset:.3g}",
            (_in(within, _equal_rows(offset)),),
            Domain(low=-offset - size, high=offset + size),
            alike=True,
        )
        for offset in sorted({10 * size, _FAR})
    ]
    rungs[-1] = replace(rungs[-1], domain=Domain())
    return Ladder(tuple(rungs), first=len(rungs) - 1)


def one_sign(within: Domain) -> Rung:
    """Floats that are all on one side of any threshold: nothing is found, or everything."""
    changes: tuple[Change, ...] = (lambda t, _: -t.abs(), lambda t, _: t.abs())
    return Rung("values of one sign", tuple(_in(within, change) for change in changes), Domain())


def _in_part(change: Change) -> tuple[Change, ...]:
    """The same for one column, where there are several, and for one element."""

    def of_column(tensor: Tensor, generator: torch.Generator) -> Tensor:
        width = tensor.shape[-1] if tensor.dim() > 1 else tensor.numel()
        column = int(torch.randint(width, (), generator=generator))
        place = (torch.arange(width) == column).to(tensor.device)
        return torch.where(place, change(tensor, generator), tensor)

    def of_element(tensor: Tensor, generator: torch.Generator) -> Tensor:
        element = int(torch.randint(tensor.numel(), (), generator=generator))
        place = (torch.arange(tensor.numel()) == element).reshape(tensor.shape).to(tensor.device)
        return torch.where(place, change(tensor, generator), tensor)

    return of_column, of_element


def _between(near: Number, far: Number, *, signed: bool) -> Change:
    """Values that no sample shows alone: the original may take those shown, and raise on all others."""

    def change(tensor: Tensor, generator: torch.Generator) -> Tensor:
        drawn = torch.empty(tensor.shape, dtype=torch.float64).uniform_(0.0, 1.0, generator=generator)
        if not tensor.is_floating_point():
            furthest = max(-(1 << 62), min(int(far), 1 << 62))  # beyond it a float is no integer of 64 bits
            return ((furthest - near) * drawn).to(torch.int64).add(int(near)).to(tensor.dtype).to(tensor.device)
        sizes = near + (far - near) * drawn * drawn  # more of them near than far
        signs_of = torch.where(chosen(drawn, 0.5, generator), -1.0, 1.0) if signed else 1.0
        return (sizes * signs_of).to(tensor.dtype).to(tensor.device)

    return change


def _in(within: Domain, change: Change) -> Change:
    if not within.bounded:
        return change
    return lambda tensor, generator: change(tensor, generator).clamp(within.low, within.high)


def _equal_rows(beyond: float) -> Change:
    def change(tensor: Tensor, _: torch.Generator) -> Tensor:
        row = tensor[:1] if tensor.dim() else tensor
        return (row + beyond).expand(tensor.shape).contiguous()

    return change


def _signed(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return torch.where(chosen(tensor, 0.5, generator), -tensor, tensor)


def _larger(bound: float, *, signed: bool) -> Change:
    def change(tensor: Tensor, generator: torch.Generator) -> Tensor:
        """A third as shown, a third up to the bound, a third in all magnitudes below it; zeros and subnormal numbers
        among them."""
        info = torch.finfo(tensor.dtype)
        drawn = torch.empty(tensor.shape, dtype=torch.float64).uniform_(0.0, 1.0, generator=generator)
        magnitude = torch.pow(10.0, -drawn * max(1.0, math.log10(bound) + 3.0))
        sizes = bound * torch.where(chosen(drawn, 0.5, generator), drawn, magnitude)
        sizes = sizes.clamp(max=bound).to(tensor.dtype).to(tensor.device)
        sizes[chosen(tensor, 0.02, generator)] = bound
        sizes[chosen(tensor, 0.02, generator)] = 0.0
        sizes[chosen(tensor, 0.02, generator)] = info.tiny / 4
        signs_of = torch.where(chosen(tensor, 0.5, generator), -1.0, 1.0).to(tensor.dtype)
        return torch.where(chosen(tensor, 0.66, generator), sizes * signs_of if signed else sizes, tensor)

    return change


def _with(share: float, *values: float) -> Change:
    """Few elements are such values: a share of all, or so many."""

    def change(tensor: Tensor, generator: torch.Generator) -> Tensor:
        changed = tensor.flatten().clone()
        count = int(share) if share >= 1 else max(1, int(share * changed.numel()))
        places = torch.randperm(changed.numel(), generator=generator)[:count].to(tensor.device)
        cycle = itertools.islice(itertools.cycle(values), len(places))
        changed[places] = torch.tensor(list(cycle), dtype=tensor.dtype, device=tensor.device)
        return changed.reshape(tensor.shape)

    return change


def _integers_to(bound: int) -> Change:
    def change(tensor: Tensor, generator: torch.Generator) -> Tensor:
        """A third as shown, a third up to the bound, a third in all magnitudes below it, some of them the bound."""
        drawn = torch.empty(tensor.shape, dtype=torch.float64).uniform_(0.0, 1.0, generator=generator)
        reach = float(min(max(abs(bound), 1), 1 << 62))  # beyond it a float is no integer of 64 bits
        sizes = torch.where(chosen(drawn, 0.5, generator), drawn * reach, torch.pow(reach, drawn) - 1).to(torch.int64)
        values = (sizes if bound >= 0 else -sizes).clamp(min(bound, 0), max(bound, 0)).to(tensor.device)
        values[chosen(tensor, 0.2, generator)] = bound
        values = values.to(tensor.dtype)
        if tensor.numel() == 1:
            return torch.full_like(tensor, bound)
        return torch.where(chosen(tensor, 0.66, generator), values, tensor)

    return change


def _padded(where: str) -> Change:
    """Ones with zeros, or zeros with ones, at the end, the front or either of each row: as padding is."""

    def change(tensor: Tensor, generator: torch.Generator) -> Tensor:
        width = tensor.shape[-1] if tensor.dim() else 1
        rows = tensor.numel() // width
        lengths = torch.randint(1, max(2, width), (rows, 1), generator=generator)
        mirrored = (torch.rand(rows, 1, generator=generator) < 0.5) if where == "either" else where == "front"
        return ((torch.arange(width) < lengths) ^ mirrored).reshape(tensor.shape).to(tensor.dtype).to(tensor.device)

    return change


def _scattered(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return chosen(tensor, 0.5, generator).to(tensor.dtype)


def _rows(value: int) -> Change:
    def change(tensor: Tensor, generator: torch.Generator) -> Tensor:
        """Every other row is of one value."""
        changed = _padded("either")(tensor, generator)
        flat = changed.reshape(-1, tensor.shape[-1] if tensor.dim() else 1)
        flat[::2] = value
        return flat.reshape(tensor.shape)

    return change


def _filled(value: float) -> Change:
    def change(tensor: Tensor, _: torch.Generator) -> Tensor:
        """As far as the type goes: torch raises where a number is beyond it."""
        if tensor.is_floating_point() and math.isfinite(value):
            most = torch.finfo(tensor.dtype).max
            return torch.full_like(tensor, max(-most, min(value, most)))
        return torch.full_like(tensor, value)

    return change


def _of_lattice(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return drawn_from(torch.tensor(_LATTICE, dtype=tensor.dtype, device=tensor.device), tensor, generator)


def _rounded(tensor: Tensor, _: torch.Generator) -> Tensor:
    """To halves of its root mean square."""
    numbers = tensor.double()
    step = numbers.square().mean().sqrt() / 2
    found = (numbers / step).round() * step
    return torch.where(found.isfinite(), found, numbers).to(tensor.dtype)  # zeros alone have no step


def drawn_from(values: Tensor, like: Tensor, generator: torch.Generator) -> Tensor:
    """A tensor of the form of ``like`` that holds such values alone."""
    return values[torch.randint(0, len(values), like.shape, generator=generator).to(values.device)]


def chosen(tensor: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Choose this share of the elements."""
    return (torch.rand(tensor.shape, generator=generator) < share).to(tensor.device)
