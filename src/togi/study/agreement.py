"""``togi.compare``: whether two live objects compute the same, up to eager's own error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from togi.core.quantities import plural, relative, significant
from togi.core.records import ErrorReport, LeafError, Outcome
from togi.core.user_code import user_place
from togi.decide.faithful import MAX_UNITS, accept
from togi.study.comparison import Agreement
from togi.study.live import LiveObject, device_of, live_objects
from togi.subject.behaviour import kept_buffers, kept_generators, same, seed_all
from togi.subject.inputs import Inputs, samples_of
from togi.subject.nested import tensors_in
from togi.subject.signature import Signature
from togi.verify.derived_inputs import variants
from togi.verify.output_structure import NOT_COMPARED, incomparable
from togi.verify.reference import SUSPICIOUS_ROUNDINGS, make_truth
from togi.verify.truth import Truth
from togi.verify.verdict import verify
from togi.worker.survey import first_call


def compare_live(
    a: Any, b: Any, inputs: Any, *, max_error: float | None, derived: bool, seed: int, native: bool
) -> Agreement:
    """The arguments of ``togi.compare``, parsed.

    Raises:
        SubjectError: one of them cannot be called, the original does not run on the inputs, or these differ in form.
        ArtifactError: a folder cannot be loaded here.
    """
    original, other = live_objects([a, b], native=native)
    if original.artifact is not None and other.artifact is None:
        original, other = other, original  # what was made from the other has no float64 twin of its own
    samples = samples_of(inputs)
    with kept_generators(), torch.no_grad():
        known = _Known.of(original, samples, derived, seed)
        return _Asked(original, other, known, max_error, seed).agreement()


@dataclass(frozen=True, kw_only=True)
class _Known:
    """The original's answers, and what to ask the other."""

    samples: int
    inputs: Sequence[Inputs]
    """The samples, then what is derived from them."""
    signature: Signature
    truth: Truth
    buffers: Sequence[str]
    """Names of those that the calls change."""

    @classmethod
    def of(cls, original: LiveObject, samples: Sequence[Inputs], derived: bool, seed: int) -> _Known:
        asked = original.copy_for(samples)
        with kept_buffers(asked) as before:
            outputs = [first_call(asked, sample, number, seed) for number, sample in enumerate(samples, start=1)]
            buffers = before.changed()
        signature = Signature.of(asked, samples, outputs)
        inputs = variants(samples, signature, seed) if derived else list(samples)
        truth = make_truth(
            original.copy_for(samples),
            inputs,
            signature,
            seed=seed,
            device=device_of([original], samples),
            samples=len(samples),
            gradients=False,  # both are called without
        )
        return cls(samples=len(samples), inputs=inputs, signature=signature, truth=truth, buffers=buffers)


@dataclass(frozen=True)
class _Asked:
    """The other, asked what the original was asked."""

    original: LiveObject
    other: LiveObject
    known: _Known
    max_error: float | None
    seed: int

    def agreement(self) -> Agreement:
        facts = self.known.truth.facts
        truth = self.known.truth.without(list(self._refused()))
        error = self._verified(truth)
        equal, said = self._judged(error)
        if not equal and self._equal_without_derived(truth):
            said = f"{said}. On the samples they are the same: it is on inputs derived from them (derived=False: none)"
        if not equal and not facts.random and self._draws():
            said = f"{said}. {self.other.name} draws random numbers: with another seed it answers otherwise"
        if equal and (own := self._inexact()):
            said = f"{said}. That shows little: {own}. If {self.other.name} is the original, give it first"
        if facts.fallback and facts.repeatable:
            said = f"{said}. Not float64 decides, but {self.original.name} as it is: {facts.fallback}"
        return Agreement(
            equal=equal,
            verdict=f"{said}.",
            units=error.units,
            limit_units=MAX_UNITS if (worst := _worst(error)) is None else worst.limit_units,
            worst=worst,
            error=error,
            precision=facts.precision,
            fallback=facts.fallback,
            samples=facts.samples,
            derived=len(truth.kept) - facts.samples,
            notes=(*self._notes(), *truth.notes, *error.notes),
        )

    @property
    def _exact(self) -> bool:
        return self.max_error is None

    def _verified(self, truth: Truth) -> ErrorReport:
        with kept_buffers(self.other.module) as before:
            try:
                error = verify(
                    self.other.call,
                    truth,
                    self.known.inputs,
                    self.known.signature,
                    seed=self.seed,
                    exact=self._exact,
                )
            except Exception as raised:  # foreign code: the other's
                problem = f"it raises where {self.original.name} answers: {user_place(raised)}"
                return ErrorReport(faithful=False, units=math.inf, rmse=math.inf, max_abs=math.inf, problems=(problem,))
            return self._with_buffers(error, before.changed())

    def _with_buffers(self, error: ErrorReport, changed: Sequence[str]) -> ErrorReport:
        """The report, with what is wrong where the other leaves its buffers as they are and the original does not."""
        if not self.known.buffers or changed:
            return error
        said = f"it changes no buffer, and {self.original.name} changes {', '.join(self.known.buffers[:3])}"
        if next(self.other.module.buffers(), None) is None:  # what a function changes elsewhere nobody sees
            return error.model_copy(update={"notes": (*error.notes, f"{self.other.name} has no buffers: {said}")})
        return error.model_copy(update={"faithful": False, "problems": (*error.problems, said)})

    def _refused(self) -> Iterator[int]:
        """Derived inputs for which an artifact was not proven, and which it refuses."""
        artifact = self.other.artifact
        if artifact is None:
            return
        for number in range(self.known.samples, len(self.known.inputs)):
            try:
                if artifact.signature.unmet(self.known.inputs[number]):
                    yield number
            except TypeError:  # calls of another form: it says so itself
                return

    def _judged(self, error: ErrorReport) -> tuple[bool, str]:
        """Whether they are the same, and a sentence without its full stop."""
        original, other = self.original.name, self.other.name
        if unknown := self._incomparable():
            return False, f"{other} cannot be compared with {original}: it returns {unknown}, which shows no values"
        outcome, how = accept(error, exact=self._exact, max_error=self.max_error)
        worst = _worst(error)
        if not self.known.truth.facts.repeatable:
            return False, f"{other} cannot be compared with {original}: {error.problems[0]}"
        if outcome is not Outcome.OK and error.faithful:
            return False, f"{other} cannot be compared with {original}: {error.unproven}"
        if outcome is not Outcome.OK:
            more = f" (and {plural(len(error.problems) - 1, 'more problem')})" if len(error.problems) > 1 else ""
            where = f" in {worst.name}" if worst is not None and not error.problems else ""
            return False, f"{other} differs from {original}{where}: {how}{more}"
        if how:
            return True, f"{other} is as close to {original} as was allowed: {how.removeprefix('approximate: ')}"
        if worst is None:
            rest = "all else that can be compared is" if _left_out(error) else "all else is"
            return True, f"{other} is the same as {original}: it returns no numbers, and {rest} equal"
        return True, (
            f"{other} is the same as {original}, up to rounding: the error of its worst output ({worst.name}) is "
            f"{significant(worst.units, 2)} x eager's own ({relative(worst.rmse)} relative; "
            f"{significant(worst.limit_units, 2)} x is the limit)"
        )

    def _incomparable(self) -> str:
        """What the original returns of which nobody can say whether two are equal."""
        return next(filter(None, (incomparable(answer.structure) for answer in self.known.truth.facts.answers)), "")

    def _inexact(self) -> str:
        """Say so where the original is far from its own float64, as what computes in 16 bits and answers in 32."""
        for answer in self.known.truth.facts.answers:
            for leaf in answer.leaves:
                dtype = getattr(torch, leaf.dtype)
                if dtype.is_floating_point and leaf.eager_rmse > SUSPICIOUS_ROUNDINGS * torch.finfo(dtype).eps:
                    return f"{self.original.name} itself is off by {relative(leaf.eager_rmse)} in {leaf.name}"
        return ""

    def _equal_without_derived(self, truth: Truth) -> bool:
        derived = range(self.known.samples, len(self.known.inputs))
        alone = truth.without(derived)
        return len(alone.kept) < len(truth.kept) and self._judged(self._verified(alone))[0]

    def _draws(self) -> bool:
        """Whether the other answers the first sample otherwise with another seed. An original that does so is noted."""
        answers = []
        for seed in (self.seed, self.seed, self.seed + 1):
            sample = self.known.inputs[0].clone()
            seed_all(seed)
            with kept_buffers(self.other.module):
                try:
                    output = self.other.call(*sample.args, **sample.kwargs)
                except Exception:  # foreign code: that it raises is the verdict
                    return False
            answers.append([tensor.detach().clone() for tensor in tensors_in(output)])
        once, again, otherwise = answers
        return same(once, again) and not same(once, otherwise)

    def _notes(self) -> Iterator[str]:
        facts = self.known.truth.facts
        changed = dict.fromkeys(name for answer in facts.answers for name in answer.changed)
        if changed:
            yield f"{self.original.name} changes {', '.join(changed)} in place: what it leaves there is compared, too"
        if facts.random:
            yield f"{self.original.name} draws random numbers: both were given the same seed"
        if facts.stateful:
            yield f"the answers of {self.original.name} depend on its earlier calls: both were called in the same order"


def _left_out(error: ErrorReport) -> bool:
    return any(note.endswith(NOT_COMPARED) for note in error.notes)


def _worst(error: ErrorReport) -> LeafError | None:
    return max(error.leaves, key=lambda leaf: leaf.units / leaf.limit_units, default=None)
