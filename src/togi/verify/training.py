"""The proof of a training step: does a candidate train as the original does, up to rounding?

It takes one step from a warm state. A candidate whose step is the original's to the bit is right. Any other runs on the
float64 twin as well, a copy of the step in float64: what is right agrees to ten digits there, and the mildest fault
lies six decades away. In float32, which has kernels that float64 does not use, a candidate must lie within the spread
of the original's own steps with parameters moved by 1 and 8 roundings. An activation that tips over makes a right
gradient differ by a thousand times the original's own error there, so that float32 alone cannot decide. The steps after
it are compared by what they moved: a recompilation or another size comes later.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from togi.core.quantities import first_line
from togi.core.records import ErrorReport, LeafError
from togi.decide.faithful import within
from togi.subject.inputs import Inputs
from togi.subject.micro_batches import accumulated_loss
from togi.subject.plain_tensors import plain
from togi.subject.training import LossFunction, Snapshot, TrainingStep
from togi.torch_internals.float32 import ieee_float32
from togi.verify.float64 import float64_by_default, nudge_parameters, widened, widened_inputs
from togi.verify.observed_step import COUNTED, Around, Keep, ObservedStep, kept_whole, observe_steps
from togi.verify.step_errors import Judged, SpreadInFloat32, errors_in_float32, problems_of, sizes_of
from togi.verify.uneven_rows import why_not_in_parts
from togi.verify.units import Unit

_NAMED = 5
_ROUNDING, _ROUNDING_IN_FLOAT32 = 1e-4, 1e-2
"""Differences between gradients of a batch and of its parts. Twice the weight of a row is not below a tenth of it."""
NUDGES = (1, 1, 8, 8)
"""Roundings by which parameters are moved in the runs that show the spread of float32."""
Build = Callable[[TrainingStep], TrainingStep]
"""What a technique makes of a step that is its own."""


@dataclass(frozen=True, kw_only=True)
class StepTruth:
    """What the original's step does from a warm state, and how far another may be from it (``make_step_truth``)."""

    step: TrainingStep
    """As it was given: every run begins with a copy of it."""
    start: Snapshot
    """The warm state."""
    samples: tuple[Inputs, ...]
    """That of the proven step, then those of the steps after it."""
    eager: ObservedStep
    exact: ObservedStep | None
    """In float64; None where it does not run so."""
    around_twin: Around
    units: dict[str, Unit]
    """In float32, by the name of a tensor."""
    units_with_tips: dict[str, Unit]
    """The same if an activation has tipped over."""
    exact_units: dict[str, Unit]
    """In float64."""
    sizes: dict[str, float]
    """Root mean square of all tensors of a tensor's kind."""
    ignored: frozenset[str] = frozenset()
    """What modules and the user's function keep that is another number in each run, such as a time."""
    fallback: str = ""
    """Why there is no float64."""
    complete: bool = True
    """Else it proves only what is equal to the bit, and ``complete_step_truth`` makes the rest."""
    repeats_to_the_bit: bool = True
    """Two runs of the original's step from one state are equal; else a candidate cannot be held to that either."""
    unrepeatable: str = ""
    """Why no other step can be compared with the original's, in a sentence."""
    notes: tuple[str, ...] = ()

    def save(self, file: Path) -> None:
        """Write all but the step. It is a pickle, for processes of the same study, in their private folder: it holds
        what a ``train_step`` keeps outside."""
        kept = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "step"}
        torch.save(kept, file)

    @classmethod
    def load(cls, file: Path, step: TrainingStep) -> StepTruth:
        """What ``save`` wrote, for the same step in another process. Its tensors stay in the file, mapped."""
        return cls(step=step, **torch.load(file, mmap=True, weights_only=False))

    def observe(self, build: Build) -> ObservedStep:
        """What a candidate does in float32. Raises whatever it raises."""
        with self.step.undisturbed(), ieee_float32():
            return self._observed(build(warm_copy(self.step, self.start, self.samples)))

    def observe_built(self, candidate: TrainingStep) -> ObservedStep:
        """The same of a candidate that was built from the warm state, and is in that state again afterwards: what was
        proven can be measured, without another copy."""
        with self.step.undisturbed(), ieee_float32():
            before = Snapshot.of(candidate)
            found = self._observed(candidate)
            before.restore(candidate)
            return found

    def _observed(self, candidate: TrainingStep) -> ObservedStep:
        return self._comparable(observe_steps(candidate, self.samples, self.step))

    def _comparable(self, found: ObservedStep) -> ObservedStep:
        """Without what never repeats, and without numbers that the original's modules leave as they are: one that a
        call only writes down, such as its batch size, is another one for a part of the batch."""
        written = {name for name in found.tensors if name.startswith(COUNTED) and name not in self.eager.tensors}
        return found.without(self.ignored | written)

    def observe_twin(self, build: Build, keep: Keep = kept_whole) -> ObservedStep:
        """What it does in float64. Raises whatever it raises."""
        with self.step.undisturbed(), self.step.surroundings.widened(), float64_by_default():
            twin = warm_twin(self.step, self.start, self.samples)
            return self._comparable(observe_steps(build(twin), twin.samples, self.step, self.around_twin, keep))


def warm_copy(step: TrainingStep, start: Snapshot, samples: Sequence[Inputs]) -> TrainingStep:
    """A step of its own in the state ``start``. Raises whatever copying raises."""
    copied = dataclasses.replace(step.copy(), samples=tuple(samples))
    start.restore(copied)
    return copied


def warm_twin(step: TrainingStep, start: Snapshot, samples: Sequence[Inputs]) -> TrainingStep:
    """The same in float64, with samples in float64. Raises MemoryError where it does not fit."""
    device = str(next(step.original.parameters()).device)
    twin = step.copy(lambda module: widened(module, device))
    start.restore(twin)
    return dataclasses.replace(twin, samples=tuple(widened_inputs(sample, device) for sample in samples))


def verify_step(
    build: Build, truth: StepTruth, *, to_the_bit: bool = False, found: ObservedStep | None = None
) -> ErrorReport:
    """Compare the step that ``build`` makes with the original's, from the same warm state.

    Args:
        found: what a step that ``build`` made did in float32 (``StepTruth.observe_built``). None: one is made for this.
        to_the_bit: the candidate claims to be equal to the bit, so that any difference is a problem where the
            original's own runs are equal.

    Returns:
        As ``togi.verify.verdict.verify`` does. Its leaves are ``loss``, ``gradient NAME``, ``update NAME``,
        ``buffer NAME``, ``state NAME.KEY``, ``setting NAME`` and ``kept NAME``, each with the larger of its errors in
        float32 and in float64.

    Raises:
        Whatever the candidate raises in float32. If it does not run in float64, that is a note.
    """
    if truth.unrepeatable:
        return _report({}, [truth.unrepeatable], truth.notes)
    found = truth.observe(build) if found is None else found
    problems, differing = problems_of(found, truth.eager), found.differing(truth.eager)
    if found.parts > 1 and (reason := _why_not_in_parts(truth, found.parts)):
        return _report({}, [f"the loss is {reason}"], truth.notes)
    if not problems and not differing:
        return _report(_no_errors(truth), [], [*truth.notes, "Equal to the original's step to the bit."])
    if to_the_bit and differing and truth.repeats_to_the_bit:
        problems.append(f"it claims to be equal to the bit, and {', '.join(differing[:_NAMED])} differ")
    if not truth.complete:
        return _report({}, problems or ["it is not equal to the bit, and nothing else was made to prove it by"], [])
    errors = errors_in_float32(
        found, truth.eager, truth.exact or truth.eager, truth.units, truth.units_with_tips, truth.sizes
    )
    notes = list(truth.notes)
    if truth.exact is None:
        notes.append(f"It was compared with the original in float32 alone: {truth.fallback}.")
    else:
        exact_errors, more_problems, note = _in_float64(build, truth, truth.exact, found)
        problems += more_problems
        notes.append(note)
        errors = {name: _larger(errors.get(name), exact_errors.get(name)) for name in errors | exact_errors}
    return _report(errors, problems, notes)


def _in_float64(
    build: Build, truth: StepTruth, exact: ObservedStep, in_float32: ObservedStep
) -> tuple[dict[str, LeafError], list[str], str]:
    """The errors and problems on the float64 twin, with a note on them."""
    judged = Judged(exact, exact, truth.exact_units, truth.sizes)
    try:
        found = truth.observe_twin(build, judged.take)
    except Exception as error:  # foreign code: kernels that a candidate brings along
        note = f"It does not run in float64 ({first_line(error)}): it was compared in float32 alone."
        return _of_later_steps(truth, in_float32), [], note
    errors = judged.errors
    worst = max((error.rmse for error in errors.values()), default=0.0)
    note = f"In float64 {len(errors)} tensors of the step agree with the original's to {worst:.1g} of their size."
    return errors, problems_of(found, exact, of_twins=True), note


def _of_later_steps(truth: StepTruth, found: ObservedStep) -> dict[str, LeafError]:
    """The errors of the steps after the first, in float32 and within the spread of the original's own. Of a candidate
    that runs in float64 they are judged there."""
    spread = SpreadInFloat32(truth.eager, truth.eager)
    with truth.step.undisturbed(), ieee_float32():
        for number, roundings in enumerate(NUDGES):
            moved = spread.distances()
            step = warm_copy(truth.step, truth.start, truth.samples)
            nudge_parameters(step.original, number, roundings)
            observe_steps(step, truth.samples, truth.step, keep=moved.take)
            spread.add(moved)
    sizes = sizes_of(truth.eager)
    errors = errors_in_float32(found, truth.eager, truth.eager, *spread.units(sizes), sizes)
    return {name: error for name, error in errors.items() if name in truth.eager.later}


def _why_not_in_parts(truth: StepTruth, parts: int) -> str:
    """Of the original's loss, whatever the candidate computes it with: what is compiled would compile for each size."""
    wide = truth.exact is not None
    with truth.step.undisturbed(), ExitStack() as stack:
        if wide:
            for around in (truth.step.surroundings.widened, float64_by_default, truth.around_twin):
                stack.enter_context(around())
        else:
            stack.enter_context(ieee_float32())
        copied = (warm_twin if wide else warm_copy)(truth.step, truth.start, truth.samples[:1])
        loss_in_parts = accumulated_loss(copied.loss, parts)
        return why_not_in_parts(
            copied.samples[0],
            functools.partial(_gradients, copied, copied.loss),
            functools.partial(_gradients, copied, loss_in_parts),
            limit=_ROUNDING if wide else _ROUNDING_IN_FLOAT32,
            remedy="Batches with padding would train otherwise. Take the mean of each row, then that of the rows; or, "
            "if nothing is ever ignored, make the labels in the step from its inputs",
        )


def _gradients(step: TrainingStep, loss: LossFunction, sample: Inputs) -> dict[str, Tensor]:
    names, parameters = zip(*((name, p) for name, p in step.parameters.items() if p.requires_grad), strict=True)
    found = torch.autograd.grad(loss(step.module, sample), parameters, allow_unused=True)
    return {name: plain(gradient) for name, gradient in zip(names, found, strict=True) if gradient is not None}


def _no_errors(truth: StepTruth) -> dict[str, LeafError]:
    return {name: LeafError(name=name, rmse=0.0, max_abs=0.0, units=0.0) for name in truth.eager.tensors}


def _larger(one: LeafError | None, other: LeafError | None) -> LeafError:
    return max((error for error in (one, other) if error is not None), key=lambda error: error.units)


def _report(errors: Mapping[str, LeafError], problems: Sequence[str], notes: Sequence[str]) -> ErrorReport:
    missing = math.inf if problems and not errors else 0.0
    units = max((error.units for error in errors.values()), default=missing)
    # what holds roundings alone differs by its own size, and says nothing of a step that is approximate
    wrong = [error for error in errors.values() if not within(error.units)] or list(errors.values())
    return ErrorReport(
        faithful=within(units) and not problems,
        units=units,
        rmse=max((error.rmse for error in wrong), default=missing),
        max_abs=max((error.max_abs for error in wrong), default=missing),
        leaves=tuple(errors.values()),
        problems=tuple(dict.fromkeys(problems)),
        notes=tuple(notes),
    )
