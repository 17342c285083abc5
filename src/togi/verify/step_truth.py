"""Makes the truth of a training step: warms the original up, and runs its step in float32 and in float64.

It costs, with n steps that are looked at after the proven one: ``WARM_STEPS`` steps or more, 1 + n in float32, and a
single one. So much proves what is equal to the bit. For all else four single ones come on top, and in float64 twice 1 +
n and a single one; a step in float64 takes about twice as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from togi.core.errors import SubjectError
from togi.core.quantities import first_line
from togi.core.user_code import user_place
from togi.subject.behaviour import seed_all
from togi.subject.inputs import Inputs
from togi.subject.plain_tensors import plain
from togi.subject.remembered import kept_with_graph, why_not_twice
from togi.subject.training import Snapshot, TrainingStep, check_surroundings
from togi.torch_internals.float32 import ieee_float32
from togi.torch_internals.modes import FunctionObserver
from togi.torch_internals.modules import uncompiled
from togi.torch_internals.tensors import tensors_of
from togi.verify.draws import NarrowDraws
from togi.verify.float64 import float64_arithmetic, float64_by_default, nudge_parameters
from togi.verify.observed_step import Around, Keep, ObservedStep, counting_steps, kept_whole, names_of, observe_steps
from togi.verify.reference import branches, may_branch
from togi.verify.step_errors import (
    Differing,
    Distances,
    SpreadInFloat32,
    apart_beyond_noise,
    form_of,
    sizes_of,
    units_in_float64,
)
from togi.verify.training import NUDGES, StepTruth, warm_copy, warm_twin
from togi.verify.units import Unit

WARM_STEPS = 3
"""Steps before the proven one. In a first step momenta are zero and no gradients are left over, so a state that is
reset, or gradients that are not dropped, would change nothing."""
MOST_WARM_STEPS = 35
"""Where the optimizer leaves steps out: a scaler does as long as its gradients overflow, and a loop that adds gradients
up over several batches does in between."""
LATER_STEPS = 1
"""Steps after it, in which what a candidate remembers shows, besides those on samples of other sizes."""
_MOST_SIZES = 4
_NAMED = 5


def make_step_truth(
    step: TrainingStep, *, seed: int, warm_steps: int = WARM_STEPS, later_steps: int = LATER_STEPS, whole: bool = True
) -> StepTruth:
    """Run the original's step until it is warm, then once observed, in float32 and in float64.

    ``step`` stays as it is, and so does what a ``train_step`` keeps outside of module and optimizer.

    Args:
        whole: else only what a candidate that is equal to the bit is proven by, a quarter of the work, where the
            original repeats itself to the bit (``StepTruth.complete`` says so).

    Raises:
        SubjectError: the step raises, trains nothing, changes the module's structure, runs compiled as a whole, or its
            loss is not finite.
    """
    if uncompiled(step.train_step) is not step.train_step:
        raise SubjectError(
            "train_step is what torch.compile returned, and gradients in the middle of it cannot be seen: give the "
            "function itself. What is compiled inside of it, such as the optimizer's step, stays so"
        )
    with step.undisturbed(), ieee_float32():
        return _TruthOfStep(step, seed, warm_steps, later_steps).truth(whole=whole)


def complete_step_truth(truth: StepTruth, *, seed: int) -> StepTruth:
    """With what was left out of it. ``seed``: the same again."""
    with truth.step.undisturbed(), ieee_float32():
        rest = _TruthOfStep(truth.step, seed, WARM_STEPS, LATER_STEPS, [*truth.notes])
        rest.start, rest.samples = truth.start, truth.samples
        return rest.completed(truth.eager, None, truth.ignored)


class _Narrowest(FunctionObserver):
    """Notes the largest rounding of what functions return."""

    epsilon = 0.0

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        result = function(*args, **kwargs)
        floats = [tensor.dtype for tensor in tensors_of(result) if tensor.is_floating_point()]
        self.epsilon = max([self.epsilon, *(torch.finfo(dtype).eps for dtype in floats)])
        return result


@dataclass
class _TruthOfStep:
    step: TrainingStep
    seed: int
    warm_steps: int
    later_steps: int
    notes: list[str] = field(default_factory=list)

    def truth(self, *, whole: bool) -> StepTruth:
        self.start, warm_optimizer_steps = self._warm_up()
        given, proven = self.step.samples, range(self.warm_steps, self.warm_steps + 1 + self.later_steps)
        following = [given[i % len(given)] for i in proven]
        self.samples = (*following, *(_of_other_sizes(given, following) if self.later_steps else ()))
        eager = self._run(self.samples)
        check_step(self.step, eager, self.warm_steps, warm_optimizer_steps)
        self.notes += remarks_on(self.step, eager)
        if eager.optimizer_steps and not warm_optimizer_steps:
            self.notes.append(
                f"The optimizer runs for the first time in the step that is proven ({self.warm_steps + 1}), so what a "
                "recipe does to a state that it has already was not compared."
            )
        ignored, again, unrepeatable = self._again(eager)
        eager = eager.without(ignored)
        if unrepeatable:
            return self._truth(eager, ignored=ignored, unrepeatable=unrepeatable)
        if not whole and again is None:
            return self._truth(eager, ignored=ignored, complete=False)
        return self.completed(eager, again, ignored)

    def completed(self, eager: ObservedStep, again: ObservedStep | None, ignored: frozenset[str]) -> StepTruth:
        """With the spread of float32 and with float64. ``again``: as ``_again`` returns it."""
        exact, around, fallback = self._float64(eager, ignored)
        spread = self._spread(eager, exact, again)
        if exact is not None and (doubt := self._branches(eager, exact, spread)):
            exact, fallback = None, doubt
            spread = self._spread(eager, exact, again)
        sizes = sizes_of(exact or eager)
        by_name, with_tips = spread.units(sizes)
        return self._truth(
            eager,
            exact=exact,
            around_twin=around,
            units=by_name,
            units_with_tips=with_tips,
            exact_units={} if exact is None else self._exact_units(exact, around, sizes),
            sizes=sizes,
            ignored=ignored,
            repeats_to_the_bit=again is None,
            fallback=fallback,
        )

    def _truth(self, eager: ObservedStep, **known: Any) -> StepTruth:
        unknown: dict[str, Any] = {
            "exact": None,
            "around_twin": nullcontext,
            "units": {},
            "units_with_tips": {},
            "exact_units": {},
            "sizes": {},
        }
        return StepTruth(
            step=self.step,
            start=self.start,
            samples=self.samples,
            eager=eager,
            notes=tuple(self.notes),
            **(unknown | known),
        )

    def _warm_up(self) -> tuple[Snapshot, int]:
        """The state after some steps, and how often the optimizer ran in them. Where it leaves steps out, they are as
        many as come before one in which it runs, not for the first time if that comes soon."""
        step = _copied(self.step)
        names = names_of(step)
        seed_all(self.seed)
        with counting_steps(step) as count:
            for number in range(self.warm_steps):
                self._warm(step, number)
            _check_structure(names ^ names_of(step))
            check_surroundings(self.step.train_step)  # what its first call made
            start, ran = Snapshot.of(step), count[0]
            if step.optimizer is None or (ran >= self.warm_steps and _has_finite_gradients(step)):
                return start, ran
            found = None
            for number in range(self.warm_steps, MOST_WARM_STEPS):
                before, ran_before = Snapshot.of(step), count[0]
                self._warm(step, number)
                if count[0] == ran_before or not _has_finite_gradients(step):
                    continue
                found = before, ran_before, number
                if ran_before:
                    break
            if found is None:
                return start, count[0]
            start, ran, self.warm_steps = found
            return start, ran

    def _warm(self, step: TrainingStep, number: int) -> None:
        with explained_step(step, number + 1):
            step.run(step.samples[number % len(step.samples)].clone())

    def _run(
        self, samples: Sequence[Inputs], roundings: int = 0, number: int = 0, keep: Keep = kept_whole
    ) -> ObservedStep:
        """The original's steps from the warm state, with parameters moved by some roundings."""
        step = warm_copy(self.step, self.start, samples)
        if roundings:
            nudge_parameters(step.original, self.seed + 1000 * (number + 1), roundings)
        with explained_step(step, self.warm_steps + 1):
            return observe_steps(step, samples, self.step, keep=keep)

    def _spread(self, eager: ObservedStep, exact: ObservedStep | None, again: ObservedStep | None) -> SpreadInFloat32:
        """The original's runs with parameters moved, and one as it is (``again``) where that differs. Where there is no
        float64, with the steps after the proven one, which are judged in float32 then."""
        spread = SpreadInFloat32(eager, exact or eager)
        if again is not None:
            repeated = spread.distances()
            for name, tensor in again.all().items():
                repeated.take(name, tensor)
            spread.add(repeated)
        samples = self.samples if exact is None else self.samples[:1]
        for number, roundings in enumerate(NUDGES):
            moved = spread.distances()
            self._run(samples, roundings, number, moved.take)
            spread.add(moved)
        return spread

    def _branches(self, eager: ObservedStep, exact: ObservedStep, spread: SpreadInFloat32) -> str:
        """Why float64 is another function: its loss is further from the original's than roundings explain, be they of
        the parameters or of a narrower type that the step computes in (autocast)."""
        loss, exact_loss = eager.tensors["loss"], exact.tensors["loss"]
        if not may_branch(loss, exact_loss) or not branches(loss, exact_loss, spread.losses):
            return ""
        if roundings := self._roundings_of_narrowest():
            moved = spread.distances()
            self._run(self.samples[:1], roundings, len(NUDGES), moved.take)
            if moved.loss is not None and not branches(loss, exact_loss, [moved.loss]):
                return ""
        return f"in float64 its loss is {float(exact_loss):.6g} instead of {float(loss):.6g}"

    def _roundings_of_narrowest(self) -> int:
        """One rounding of the narrowest type that the step computes in, in roundings of its parameters; 0 where it
        computes in theirs."""
        with _Narrowest() as seen:
            self._run(self.samples[:1])
        own = max(torch.finfo(p.dtype).eps for p in self.step.parameters.values() if p.is_floating_point())
        return round(seen.epsilon / own) if seen.epsilon > own else 0

    def _exact_units(self, exact: ObservedStep, around: Around, sizes: dict[str, float]) -> dict[str, Unit]:
        nudged = Distances(exact, exact)
        self._run_twin(self.samples, around, roundings=1, keep=nudged.take)
        return units_in_float64(exact, nudged, sizes)

    def _run_twin(
        self, samples: Sequence[Inputs], around: Around, roundings: int = 0, keep: Keep = kept_whole
    ) -> ObservedStep:
        with self.step.surroundings.widened():
            twin = warm_twin(self.step, self.start, samples)
            if roundings:
                nudge_parameters(twin.original, self.seed, roundings)
            return observe_steps(twin, twin.samples, self.step, around, keep)

    def _float64(self, eager: ObservedStep, ignored: frozenset[str]) -> tuple[ObservedStep | None, Around, str]:
        """The step in float64, what surrounds it, and why there is none.

        Casts to a narrower type are widened, and draws are those of float32. Where nothing changes without that, or it
        runs so alone, nothing stands between a candidate's kernels and its tensors.
        """
        exact, why = self._tried(self.samples, exact_arithmetic)
        around: Around = exact_arithmetic
        if exact is None:
            exact, _ = self._tried(self.samples, float64_by_default)
            around = float64_by_default
        else:
            seen = Differing(exact, form_of)
            bare, _ = self._tried(self.samples[:1], float64_by_default, seen.take)
            if bare is not None and not seen.names(bare) - ignored:
                around = float64_by_default
        if exact is None:
            return None, nullcontext, f"it does not run in float64 ({why})"
        if exact.all().keys() - ignored != eager.all().keys():
            return None, nullcontext, "in float64 it has other gradients or other state"
        return exact.without(ignored), around, ""

    def _tried(
        self, samples: Sequence[Inputs], around: Around, keep: Keep = kept_whole
    ) -> tuple[ObservedStep | None, str]:
        try:
            return self._run_twin(samples, around, keep=keep), ""
        except Exception as error:  # foreign code: a forward pass may insist on its own dtype
            return None, first_line(error)

    def _again(self, eager: ObservedStep) -> tuple[frozenset[str], ObservedStep | None, str]:
        """What is another number in each run, another run where it is not the same step to the bit, and why it is not
        the same step at all."""
        seen = Differing(eager, kept_whole)
        again = self._run(self.samples[:1], keep=seen.take)
        differing = seen.names(again)
        ignored = frozenset(name for name in differing if name.startswith("kept "))
        states = eager.generators.differ_from(again.generators)
        if not states and not differing - ignored:
            return ignored, None, ""
        again = again.without(ignored)
        apart = apart_beyond_noise(eager.without(ignored), again)
        if not states and apart is None:
            self.notes.append("The original's step is not repeatable to the bit, but within rounding.")
            return ignored, again, ""
        return ignored, again, _unrepeatable(*(apart or (states[0], math.inf)))


def _unrepeatable(name: str, off: float) -> str:
    how = f" by {off:.1g} of its size" if math.isfinite(off) else ""
    return (
        f"two runs of the original's step from the same state differ in {name}{how}, so nothing can be proven equal to "
        "it. The step reads what cannot be put back (the clock, a file, an iterator, another thread, a large tensor "
        "that it keeps outside of the module: make that a buffer), or adds up in an order that changes: "
        "torch.use_deterministic_algorithms(True) names such operations"
    )


def _has_finite_gradients(step: TrainingStep) -> bool:
    """Of others a fused kernel makes no update, where a scaler tells it that they are infinite."""
    gradients = [plain(p.grad) for p in step.parameters.values() if p.grad is not None]
    return all(bool(gradient.isfinite().all()) for gradient in gradients)


def check_step(step: TrainingStep, eager: ObservedStep, warm_steps: int, warm_optimizer_steps: int) -> None:
    """Raises SubjectError for a step that trains nothing, or that has no finite loss."""
    _check_structure(eager.structure)
    loss = float(eager.tensors["loss"])
    if not math.isfinite(loss):
        raise SubjectError(
            f"the loss is {loss} after {warm_steps} steps, so neither it nor a gradient can be compared. Look for what "
            "is not finite (torch.autograd.set_detect_anomaly(True)), or train with a lower learning rate"
        )
    if not any(name.startswith("gradient ") for name in eager.tensors):
        raise SubjectError(
            "after the training step no parameter of the module has a gradient: does it call backward(), and does it "
            "use the module that it is given? togi trains a copy, so that a module from outside is another one"
        )
    if step.optimizer is not None and not warm_optimizer_steps + eager.optimizer_steps:
        raise SubjectError(
            f"the optimizer did not run in {MOST_WARM_STEPS} steps: does train_step call step() of the optimizer that "
            "it is given? A GradScaler leaves that out as long as gradients overflow: begin with a lower init_scale. "
            f"A loop that adds up the gradients of more than {MOST_WARM_STEPS} batches runs it later: let it add up "
            "fewer while it is tuned"
        )


def _check_structure(changed: Collection[str]) -> None:
    """``changed``: names of parameters and buffers that came or went."""
    if changed:
        raise SubjectError(
            f"the training step changes the module's structure: {', '.join(sorted(changed)[:_NAMED])} came or went. A "
            "step that is repeated needs the same parameters and buffers each time: make them before the training"
        )


def remarks_on(step: TrainingStep, eager: ObservedStep) -> Iterator[str]:
    """What is unusual and does not stand in the way."""
    parameters = {name: p for name, p in step.parameters.items() if p.requires_grad}
    if without := [name for name in parameters if f"gradient {name}" not in eager.tensors]:
        yield f"{len(without)} of {len(parameters)} parameters get no gradient ({', '.join(without[:_NAMED])})."
    if step.optimizer is None:
        yield "There is no optimizer, so loss, gradients and buffers are compared."
        return
    trained = {id(parameter) for group in step.optimizer.param_groups for parameter in group["params"]}
    if left_out := [name for name, parameter in parameters.items() if id(parameter) not in trained]:
        yield f"{len(left_out)} parameters are in no group of the optimizer ({', '.join(left_out[:_NAMED])})."
    if eager.optimizer_steps != 1:
        yield f"The optimizer runs {eager.optimizer_steps} times in the step that is proven."


def _of_other_sizes(samples: Sequence[Inputs], chosen: Sequence[Inputs]) -> list[Inputs]:
    """One sample of each size that is not among those that were chosen."""
    by_shapes = {tuple(tensor.shape for tensor in sample.tensors()): sample for sample in reversed(samples)}
    for sample in chosen:
        by_shapes.pop(tuple(tensor.shape for tensor in sample.tensors()), None)
    return list(by_shapes.values())[-_MOST_SIZES:]


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Float64 throughout, with the random numbers that float32 draws."""
    with float64_arithmetic(), NarrowDraws():
        yield


def _copied(step: TrainingStep) -> TrainingStep:
    try:
        return step.copy()
    except SubjectError:
        raise
    except Exception as error:  # foreign code: modules define how they are copied
        raise SubjectError(
            f"the module cannot be copied ({first_line(error)}), and every run of its training step begins with a "
            "copy. Detach what it keeps between calls, and make what cannot be copied (a file, a lock) outside of it"
        ) from error


@contextmanager
def explained_step(step: TrainingStep, number: int) -> Iterator[None]:
    """What the user's step raises, with its place."""
    try:
        yield
    except SubjectError:
        raise
    except Exception as error:  # foreign code: the user's step
        if isinstance(error, RuntimeError) and kept_with_graph(step.module):
            raise SubjectError(why_not_twice(error, step.module)) from error
        raise SubjectError(
            f"the training step raises in run {number}: {user_place(error)}. togi repeats the step on its samples, so "
            "it must run as often as it is called"
        ) from error
