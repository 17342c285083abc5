"""How far one observed training step is from another, tensor by tensor, and how far it may be.

In float32 the unit is the original's own distance from its float64 twin, or the largest distance of its runs with
parameters moved by some roundings. In float64 it is a share of the tensor's size. A tensor that is zero in exact
arithmetic, such as the gradient of a bias before batch normalisation, holds roundings alone: it is measured by what one
rounding of the parameters does to it, and by the size of all tensors of its kind.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from togi.core.records import LeafError
from togi.decide.faithful import FLOOR_ROUNDINGS, MISMATCH_FLOOR, STEP_SPREAD, in_units, unit_in_float64, within
from togi.verify.compare import Difference, continuous, difference, identical
from togi.verify.observed_step import Keep, ObservedStep
from togi.verify.repeatability import noise_limit
from togi.verify.units import Unit, epsilon_of, share, units

_BLOCK = 1 << 17
"""Elements compared at a time: 1 MiB in float64, which stays in a cache."""
_SMALL = 1e-3
"""A tensor that is smaller than this share of its kind is compared with that: it may hold roundings alone."""
_FOLLOWS = ("update ", "state ")
"""Follow from gradients, and normalise what may be noise."""
_LATER = re.compile(r" (?:after|of step) ")
"""Stands in names before the number of a later step, or of all steps."""
_DISCRETE = Unit(rms=MISMATCH_FLOOR, peak=MISMATCH_FLOOR)


def form_of(_name: str, tensor: Tensor) -> Tensor:
    """Keeps dtype and shape alone (``observed_step.Keep``)."""
    return tensor.to("meta")


class Differing:
    """Which tensors of a run differ in a bit from another's, told as soon as each is there. Of those that do not, the
    run has the other's."""

    def __init__(self, other: ObservedStep, keep: Keep) -> None:
        """Of both the first step is compared. ``keep``: what is kept of a tensor that differs."""
        self._others, self._keep = other.tensors, keep
        self._found: set[str] = set()

    def take(self, name: str, tensor: Tensor) -> Tensor | None:
        """A tensor of the run (``observed_step.Keep``)."""
        known = self._others.get(name)
        if known is not None and identical(tensor, known):
            self._found.discard(name)  # of a sum of parts the last counts
            return known
        self._found.add(name)
        return self._keep(name, tensor)

    def names(self, run: ObservedStep) -> set[str]:
        """Once it has ended; with those that one of the two does not have."""
        return self._found | (run.tensors.keys() ^ self._others.keys())


class Distances:
    """How far each tensor of a run is from the truth, measured as soon as it is there: of the run nothing is kept."""

    def __init__(self, eager: ObservedStep, truth: ObservedStep) -> None:
        self._eagers, self._truths = eager.all(), truth.all()
        self.found: dict[str, Difference] = {}
        self.loss: Tensor | None = None

    def take(self, name: str, tensor: Tensor) -> None:
        """A tensor of the run (``observed_step.Keep``)."""
        if name == "loss":
            self.loss = tensor
        eager, truth = self._eagers.get(name), self._truths.get(name)
        if eager is not None and truth is not None and continuous(eager) and tensor.shape == eager.shape:
            self.found[name] = distance(tensor, truth, eager)


class SpreadInFloat32:
    """How far the original's own runs are from the truth: as it is, and with parameters moved by some roundings."""

    def __init__(self, eager: ObservedStep, truth: ObservedStep) -> None:
        """``truth``: in float64, else ``eager`` itself."""
        self._eager, self._truth = eager, truth
        self._eagers, self._truths = eager.all(), truth.all()
        self._times = 1.0 if truth is eager else STEP_SPREAD
        self._moved: dict[str, list[Difference]] = {name: [] for name in eager.tensors}
        self.losses: list[Tensor] = []
        """Of the runs that were added."""

    def distances(self) -> Distances:
        """For a run that is about to begin."""
        return Distances(self._eager, self._truth)

    def add(self, run: Distances) -> None:
        if run.loss is not None:
            self.losses.append(run.loss)
        for name, found in run.found.items():
            self._moved.setdefault(name, []).append(found)

    def units(self, sizes: Mapping[str, float]) -> tuple[dict[str, Unit], dict[str, Unit]]:
        """By name: the unit of each tensor, and its unit if an activation has tipped over, which then changes a
        gradient by as large a share as the most that any gradient changed by in these runs.

        What later steps did has a unit only where runs reached so far: roundings grow from step to step.
        """
        names = [name for name in self._moved if name in self._truths]
        own = {name: self._own(name) for name in names}
        by_name = {name: self._unit(name, own[name], sizes[name]) for name in names}
        first = [name for name in names if name.startswith("gradient ") and name in self._eager.tensors]
        tips = [_share(by_name[name], own[name], sizes[name]) for name in first]
        tipped = Unit(
            rms=max((tip.rms for tip in tips), default=0.0), peak=max((tip.peak for tip in tips), default=0.0)
        )
        with_tips = {
            name: _larger(unit, tipped, own[name]) if name.startswith(("gradient ", *_FOLLOWS)) else unit
            for name, unit in by_name.items()
        }
        return by_name, with_tips

    def _own(self, name: str) -> Difference | None:
        """The original's own error. None: it is discrete."""
        eager = self._eagers[name]
        return distance(eager, self._truths[name], eager) if continuous(eager) else None

    def _unit(self, name: str, own: Difference | None, size: float) -> Unit:
        if own is None:
            return _DISCRETE
        epsilon = epsilon_of(self._eagers[name])
        (unit,) = units([own], [self._moved[name]], epsilon)
        least = FLOOR_ROUNDINGS * epsilon * size
        return Unit(rms=self._times * max(unit.rms, least), peak=self._times * max(unit.peak, least))


def _share(unit: Unit, own: Difference | None, size: float) -> Unit:
    """A unit relative to the size of its tensor."""
    if own is None:
        return Unit(rms=0.0, peak=0.0)
    return Unit(
        rms=in_units(unit.rms, max(own.scale, _SMALL * size)), peak=in_units(unit.peak, max(own.largest, _SMALL * size))
    )


def _larger(unit: Unit, share_of_size: Unit, own: Difference | None) -> Unit:
    if own is None:
        return unit
    return Unit(rms=max(unit.rms, share_of_size.rms * own.scale), peak=max(unit.peak, share_of_size.peak * own.largest))


def distance(found: Tensor, truth: Tensor, eager: Tensor) -> Difference:
    """``difference`` in a small part of the time, where all is finite: a step has many large tensors."""
    flat, flat_truth = found.reshape(-1), truth.reshape(-1)
    off = torch.empty(min(_BLOCK, flat.numel()), dtype=torch.float64)
    squares = peak = truth_squares = largest = 0.0
    for start in range(0, flat.numel(), _BLOCK):
        exact = flat_truth[start : start + _BLOCK].double()
        one = torch.sub(flat[start : start + _BLOCK], exact, out=off[: exact.numel()])
        squares, peak = squares + _square(one), max(peak, _largest(one))
        truth_squares, largest = truth_squares + _square(exact), max(largest, _largest(exact))
    if not math.isfinite(squares + truth_squares):
        return difference(found, truth, eager)
    count = max(found.numel(), 1)
    return Difference(
        rms=math.sqrt(squares / count),
        peak=peak,
        scale=math.sqrt(truth_squares / count),
        largest=largest,
        count=found.numel(),
    )


def _square(flat: Tensor) -> float:
    return float(torch.dot(flat, flat))


def _largest(flat: Tensor) -> float:
    """The largest magnitude. ``norm(inf)`` takes twelve times as long."""
    low, high = torch.aminmax(flat)
    return max(-float(low), float(high))


def units_in_float64(exact: ObservedStep, nudged: Distances, sizes: Mapping[str, float]) -> dict[str, Unit]:
    """By name. ``nudged``: how far the twin with all parameters moved by one rounding is from the twin."""
    return {name: _unit_in_float64(tensor, nudged.found.get(name), sizes[name]) for name, tensor in exact.all().items()}


def _unit_in_float64(exact: Tensor, nudged: Difference | None, size: float) -> Unit:
    if not continuous(exact):
        return _DISCRETE
    noise = distance(exact, exact, exact) if nudged is None else nudged
    return Unit(
        rms=unit_in_float64(noise.scale, noise.rms, size), peak=unit_in_float64(noise.largest, noise.peak, size)
    )


class Judged:
    """The errors of a run, each measured as soon as its tensor is there: of the run only its form is kept."""

    def __init__(
        self, eager: ObservedStep, truth: ObservedStep, units_by_name: Mapping[str, Unit], sizes: Mapping[str, float]
    ) -> None:
        self._eagers, self._truths, self._units, self._sizes = eager.all(), truth.all(), units_by_name, sizes
        self.errors: dict[str, LeafError] = {}
        """By name, of every tensor that has a unit, and the shape of the original's."""

    def take(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of the run (``observed_step.Keep``)."""
        unit, eager = self._units.get(name), self._eagers.get(name)
        if unit is not None and eager is not None and tensor.shape == eager.shape:
            self.errors[name] = _error(name, tensor, self._truths[name], eager, unit, self._sizes[name])
        return form_of(name, tensor)


def _errors_of(found: ObservedStep, judged: Judged) -> dict[str, LeafError]:
    for name, tensor in found.all().items():
        judged.take(name, tensor)
    return judged.errors


def errors_in_float32(
    found: ObservedStep,
    eager: ObservedStep,
    truth: ObservedStep,
    by_name: Mapping[str, Unit],
    with_tips: Mapping[str, Unit],
    sizes: Mapping[str, float],
) -> dict[str, LeafError]:
    """As ``Judged.errors``. An activation that tips over changes some gradients by much, lower precision changes most:
    if half of them are within their units, all are judged as if one had tipped."""
    errors = _errors_of(found, Judged(eager, truth, by_name, sizes))
    gradients = [error for name, error in errors.items() if name.startswith("gradient ")]
    if 2 * sum(within(error.units) for error in gradients) < len(gradients):
        return errors
    return _errors_of(found, Judged(eager, truth, with_tips, sizes))


def _error(name: str, found: Tensor, truth: Tensor, eager: Tensor, unit: Unit, size: float) -> LeafError:
    if not continuous(found):
        wrong = share(int((found != eager).sum()), found)
        return LeafError(name=name, rmse=wrong, max_abs=wrong, units=in_units(wrong, unit.rms))
    error = distance(found, truth, eager)
    scale = max(error.scale, _SMALL * size)
    return LeafError(
        name=name,
        rmse=in_units(error.rms, scale),
        max_abs=in_units(error.peak, scale),
        units=max(in_units(error.rms, unit.rms), in_units(error.peak, unit.peak)),
    )


def problems_of(found: ObservedStep, original: ObservedStep, *, of_twins: bool = False) -> list[str]:
    """What is wrong beyond numbers: names, shapes, dtypes, and the random state. ``of_twins``: both ran in float64,
    where the precision of what a step makes anew says nothing (a count of steps is float32 for a fused optimizer, and
    else what new tensors are by default), and neither does the random state."""
    own, others = found.all(), original.all()
    problems = [f"{name} is missing" for name in others if name not in own]
    problems += [f"{name} is there, which the original's step does not have" for name in own if name not in others]
    for name in own.keys() & others.keys():
        form, other = (_form(step[name], of_twins) for step in (own, others))
        if form != other:
            problems.append(f"{name} is {form}, the original's is {other}")
    if not of_twins and (states := found.generators.differ_from(original.generators)):
        problems.append(
            f"{' and '.join(states)} is left in another state: the step draws other random numbers, and so does every "
            "step after it"
        )
    return problems


def _form(tensor: Tensor, any_precision: bool) -> str:
    dtype = "floating-point" if any_precision and continuous(tensor) else str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} of shape {tuple(tensor.shape)}"


def apart_beyond_noise(eager: ObservedStep, again: ObservedStep) -> tuple[str, float] | None:
    """The first tensor in which two runs of the original differ by more than the order of sums, and by how much."""
    sizes = sizes_of(eager)
    for name in eager.tensors | again.tensors:
        if name not in eager.tensors or name not in again.tensors:
            return name, math.inf
        if not name.startswith(_FOLLOWS):
            off = _apart(eager.tensors[name], again.tensors[name], sizes[name])
            if off > noise_limit(eager.tensors[name]):
                return name, off
    return None


def _apart(one: Tensor, two: Tensor, size: float) -> float:
    if one.shape != two.shape:
        return math.inf
    if not continuous(one):
        return share(int((one != two).sum()), one)
    off = distance(two, one, one)
    return in_units(off.rms, max(off.scale, _SMALL * size))


def sizes_of(step: ObservedStep) -> dict[str, float]:
    """Root mean square of all tensors of the same kind, by the name of each."""
    squares: dict[str, float] = {}
    counts: dict[str, int] = {}
    tensors = step.all()
    for name, tensor in tensors.items():
        if continuous(tensor):
            squares[_kind(name)] = squares.get(_kind(name), 0.0) + _squares(tensor)
            counts[_kind(name)] = counts.get(_kind(name), 0) + tensor.numel()
    return {name: math.sqrt(squares.get(_kind(name), 0.0) / max(counts.get(_kind(name), 0), 1)) for name in tensors}


def _squares(tensor: Tensor) -> float:
    """The sum of the squares, of what is finite."""
    flat = tensor.reshape(-1)
    found = sum((_square(flat[i : i + _BLOCK].double()) for i in range(0, flat.numel(), _BLOCK)), 0.0)
    return found if math.isfinite(found) else difference(tensor, tensor, tensor).scale ** 2 * tensor.numel()


def _kind(name: str) -> str:
    """``gradient``, ``update``; of state and buffers also the last part of the name (``state exp_avg``). What is of a
    later step is of another kind."""
    kind, _, rest = name.partition(" ")
    rest, *later = _LATER.split(rest, maxsplit=1)
    if kind in ("gradient", "update"):
        return " ".join((kind, *later))
    return " ".join((kind, rest.rpartition(".")[2], *later)) if kind in ("state", "buffer") else name
