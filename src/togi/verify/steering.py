"""Steers probes to the jumps of a model: searches values of an input that lead exactly there.

Candidates are tried on the original, in its own precision and in float64, while every operator is watched. What lands
on a step in both is a value for which the answer is beyond doubt, however few there are: an engine that misses the step
is wrong, and roundings do not excuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from togi.subject.domain import Number
from togi.subject.inputs import Inputs
from togi.verify.jumps import Jump, JumpObserver
from togi.verify.probes import Change, chosen, drawn_from

_POOL = 4096
"""Candidates for one question: all integers of a range that holds no more."""
_MOST_CHUNKS = 64
_NICE = 8
"""Floats are asked at multiples of one eighth: exact in float32, and so is much that is computed of them."""
_EACH = 256
"""Values kept for one operator, and calls kept whole: where what is done to one element is not known."""
_WHOLE_CALLS = 2

Run = Callable[[Inputs], None]


@dataclass
class Steering:
    """``run`` calls the original, ``in_float64`` the original in float64, which may raise where it has no such form.
    ``check`` raises where a call must not be run, and is not watched."""

    run: Run
    in_float64: Run
    may_go_on: Callable[[], bool]
    check: Run = lambda _: None
    cut_short: bool = False
    """It had to stop for lack of time."""
    _sample: Sequence[Jump] = ()
    _constants: Sequence[Number] = ()

    def look(self, sample: Inputs) -> None:
        """Watch one call of the original: where it jumps, and by which numbers it computes."""
        watch = _watched(self.run, sample)
        if watch is not None and watch.jumps:
            self._sample, self._constants = watch.jumps, sorted(watch.constants, key=abs)

    @property
    def jumps(self) -> bool:
        return bool(self._sample)

    def pool(self, tensor: Tensor, low: Number, high: Number) -> Tensor:
        drawn = torch.Generator().manual_seed(0)
        return candidates(tensor.dtype, low, high, self._constants, drawn).to(tensor.device)

    def changes(self, tensor: Tensor, low: Number, high: Number, given: Callable[[Tensor], Inputs]) -> list[Change]:
        """Ways to fill ``tensor`` with values from ``low`` to ``high`` that lead to jumps.

        ``given`` makes a call with other values of it.
        """
        if not self.jumps:
            return []
        drawn = torch.Generator().manual_seed(0)
        pool = self.pool(tensor, low, high)
        elements: dict[int, list[Tensor]] = {}
        calls: dict[int, list[Tensor]] = {}
        for values in _chunks(pool, tensor, drawn):
            if not self.may_go_on():
                self.cut_short = True
                break
            jumps = self._jumps(given(values))
            if jumps == {}:
                break
            for number, jump in (jumps or {}).items():
                _keep(jump, values, elements.setdefault(number, []), calls.setdefault(number, []))
        whole = {id(values): values for of_jump in calls.values() for values in of_jump}
        return [
            *(_mostly(torch.unique(torch.cat(of_jump))) for of_jump in elements.values() if of_jump),
            *(_exactly(values) for values in whole.values()),
        ]

    def _jumps(self, given: Inputs) -> dict[int, Jump] | None:
        """The jumps of one call by their number, if they depend on what differs from the sample; as far as float64
        lands on the same steps. None where the original, or float64, does not do with it what it did with the
        sample."""
        try:
            with torch.no_grad():
                self.check(given)
        except Exception:  # foreign code: the values are illegal
            return None
        watch = _watched(self.run, given)
        if watch is None or not _alike(watch.jumps, self._sample):
            return None
        pairs = enumerate(zip(watch.jumps, self._sample, strict=True))
        moved = {i for i, (jump, before) in pairs if jump.given != before.given}
        exact = _watched(self.in_float64, given) if moved else None
        if moved and (exact is None or not _alike(watch.jumps, exact.jumps)):
            return None
        return {i: Jump(watch.jumps[i].operator, watch.jumps[i].at & exact.jumps[i].at) for i in moved if exact}


def _alike(some: Sequence[Jump], others: Sequence[Jump]) -> bool:
    return [(one.operator, one.at.shape) for one in some] == [(other.operator, other.at.shape) for other in others]


def _watched(run: Run, given: Inputs) -> JumpObserver | None:
    watch = JumpObserver()
    try:
        with torch.no_grad(), watch:
            run(given)
    except Exception:  # foreign code: the values may be illegal, or not all operators can be watched
        return None
    return watch


def _keep(jump: Jump, values: Tensor, elements: list[Tensor], calls: list[Tensor]) -> None:
    if not bool(jump.at.any()):
        return
    if jump.at.numel() == values.numel() and sum(map(len, elements)) < _EACH:
        elements.append(values.flatten()[jump.at.flatten()][:_EACH])
    if len(calls) < _WHOLE_CALLS:
        calls.append(values)


def _chunks(pool: Tensor, tensor: Tensor, drawn: torch.Generator) -> Iterator[Tensor]:
    """The pool in tensors of the input's form; what is left over is filled up with drawn ones."""
    size = tensor.numel()
    pool = pool[torch.randperm(len(pool), generator=drawn).to(pool.device)]
    for begin in range(0, min(len(pool), size * _MOST_CHUNKS), size):
        part = pool[begin : begin + size]
        filling = drawn_from(pool, pool.new_empty(size - len(part)), drawn)
        yield torch.cat([part, filling]).reshape(tensor.shape)


def _mostly(values: Tensor) -> Change:
    """Two thirds of the elements are such values."""

    def change(tensor: Tensor, generator: torch.Generator) -> Tensor:
        drawn = drawn_from(values, tensor, generator)
        return drawn if tensor.numel() == 1 else torch.where(chosen(tensor, 0.66, generator), drawn, tensor)

    return change


def _exactly(values: Tensor) -> Change:
    return lambda *_: values.clone()


def candidates(
    dtype: torch.dtype, low: Number, high: Number, constants: Sequence[Number], drawn: torch.Generator
) -> Tensor:
    """Different values of a dtype from ``low`` to ``high`` that may lead to a jump: simple ones, multiples of the
    model's numbers and their neighbours, and drawn ones of all magnitudes."""
    if not dtype.is_floating_point and high - low < _POOL:
        return torch.arange(int(low), int(high) + 1, dtype=torch.int64).to(dtype)
    spread = _spread(float(low), float(high), drawn)
    steps = [1.0] if not dtype.is_floating_point else [1.0, 1 / _NICE]
    sizes = sorted({abs(float(c)) for c in constants if 0 < abs(float(c)) <= max(abs(low), abs(high))})[:_NICE]
    near = torch.arange(-_POOL // 16, _POOL // 16, dtype=torch.float64)
    values = torch.cat(
        [
            *(near * step for step in steps),
            *((spread / size).round() * size for size in (*steps, *sizes)),
            *(sign * 2.0 ** torch.arange(-8, 63, dtype=torch.float64) for sign in (1, -1)),
            torch.tensor([float(c) for c in constants], dtype=torch.float64),
        ]
    )
    if not dtype.is_floating_point:
        most = float(min(max(abs(low), abs(high)), 1 << 62))
        whole = values.clamp(-most, most).round().long()
        values = torch.cat([whole, whole + 1, whole - 1])
    inside: Tensor = torch.unique(values[(values >= low) & (values <= high)].to(dtype))
    if dtype.is_floating_point:  # a rounding may lead out
        inside = inside[(inside.double() >= low) & (inside.double() <= high)]
    return inside[torch.randperm(len(inside), generator=drawn)[:_POOL]]


def _spread(low: float, high: float, drawn: torch.Generator) -> Tensor:
    """Half evenly from ``low`` to ``high``, half in all magnitudes of either sign."""
    even = low + (high - low) * torch.rand(_POOL // 16, generator=drawn, dtype=torch.float64)
    share = torch.rand(_POOL // 16, generator=drawn, dtype=torch.float64)
    sides = [sign * torch.pow(abs(end) + 1.0, share) for sign, end in ((1, high), (-1, low)) if sign * end > 0]
    return torch.cat([even, *sides])
