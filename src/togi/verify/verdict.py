"""The verdict on one candidate: is it the original, up to rounding?

The candidate is called on every input, then on the first again, then on an input tensor whose values were replaced in
place. Each answer is compared with the truth in structure, form and numbers; earlier outputs are kept, uncloned, and
must still hold what they held when later calls have run.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from togi.core.callers import Callers
from togi.core.quantities import percent
from togi.core.records import Decisions, ErrorReport, LeafError
from togi.decide.faithful import MAX_UNITS, within
from togi.subject.inputs import Inputs
from togi.subject.plain_tensors import plain
from togi.subject.signature import Signature
from togi.verify.compare import continuous, identical
from togi.verify.decisions import both, decisions, values_of
from togi.verify.leaves import fresh, input_tensors, put_into
from togi.verify.metric import Metric, value_of
from togi.verify.observe import Named, Observation, observe, overlaps
from togi.verify.output_structure import comparable, form, not_compared
from togi.verify.truth import OriginalAnswer, Truth, TruthFacts
from togi.verify.units import leaf_error, worst

_CALLS_KEPT = 3
"""Outputs kept alive across calls: an engine with a ring of that many output buffers is found out."""
_CALLED_AT_ONCE_S = 0.3
_MOST_CALLED_AT_ONCE = 50
"""How often callers come at once: for so long, and not more often. Two short calls seldom meet."""
_BADLY_WRONG_UNITS = 1e3
"""From here an error asks for an explanation."""
_FEW_DECISIONS = 0.1
"""A smaller share of an output is decided otherwise where two values were as good as equal. More is a fault."""
_RERUN_SHARE = 0.1
"""An approximate candidate's runs may differ from each other by this share of its own error."""

Call = Callable[..., Any]


def verify(
    call: Call,
    truth: Truth,
    inputs: Sequence[Inputs],
    signature: Signature,
    *,
    seed: int,
    max_units: float = MAX_UNITS,
    exact: bool = False,
    known: Sequence[LeafError] = (),
    metric: Metric | None = None,
    callers: Callers | None = None,
) -> ErrorReport:
    """Compare ``call`` with ``truth`` on ``inputs``: the same list, and the same seed, that ``make_truth`` was given.

    A stateful original's candidate must not have been called before.

    Args:
        call: the candidate, called like the original.
        max_units: largest error of a faithful candidate, in units of plain eager's own.
        exact: no technique of its recipe is approximate. Where plain eager rounds factors to TensorFloat-32, so may it,
            in the outputs in which that shows.
        known: errors that it was seen to have before; twice as much is faithful, too.
        metric: the user's metric; computed from the candidate's outputs on the user's own samples.
        callers: who will call at once; each must be given what it is given alone.

    Returns:
        ``faithful``: within ``max_units``, and what ``exact`` and ``known`` allow, everywhere, and no problems. Not
        faithful, with no problems: approximate, by the error given; whether that is acceptable is the caller's to
        decide. Any problem: wrong, whatever the error. Where the original is not repeatable, that is a problem of every
        candidate, and nothing is compared.

    Raises:
        Whatever ``call`` raises.
    """
    if not truth.facts.repeatable:
        return _unrepeatable(truth)
    limits = _ErrorLimits(truth.facts, max_units, exact, known)
    return _VerdictSoFar(call, truth, truth.inputs(inputs), signature, seed, limits).report(metric, callers)


def wrong_at_once(
    call: Call,
    truth: Truth,
    inputs: Sequence[Inputs],
    signature: Signature,
    report: ErrorReport,
    *,
    seed: int,
    exact: bool = False,
    callers: Callers,
) -> tuple[str, ...]:
    """Find what is wrong where callers come at once with a candidate that is right for one, as ``report`` says. Each
    asks once, and more often where that takes but a moment. Returns nothing if the original itself depends on the order
    of calls. Raises whatever ``call`` raises."""
    if truth.facts.stateful or truth.facts.random or not truth.facts.repeatable:
        return ()
    limits = _ErrorLimits(truth.facts, exact=exact)
    verification = _VerdictSoFar(call, truth, truth.inputs(inputs), signature, seed, limits)
    verification.errors |= {leaf.name: leaf for leaf in report.leaves}
    verification._callers_agree(callers, at_first=callers.count)
    return tuple(verification.problems)


@dataclass(frozen=True, kw_only=True)
class _KeptAnswers:
    """One call's outputs, alive, and copies of what they held when the call returned."""

    answer: int
    outputs: Named
    values: list[Tensor]


class _ErrorLimits:
    """Largest errors of a faithful candidate, by output."""

    def __init__(
        self, facts: TruthFacts, max_units: float = MAX_UNITS, exact: bool = False, known: Sequence[LeafError] = ()
    ) -> None:
        self._by_name = {
            leaf.name: max(max_units, facts.limit_units(leaf, exact=exact))
            for answer in facts.answers
            for leaf in answer.leaves
        }
        for error in known:
            self._by_name[error.name] = max(self._by_name.get(error.name, max_units), 2 * error.units)

    def of(self, name: str) -> float:
        return self._by_name[name]


class _VerdictSoFar:
    def __init__(
        self, call: Call, truth: Truth, inputs: list[Inputs], signature: Signature, seed: int, limits: _ErrorLimits
    ) -> None:
        self.call, self.truth, self.signature, self.seed, self.limits = call, truth, signature, seed, limits
        self.unproven = truth.facts.unproven()
        self.unlike: set[str] = set()
        self.inputs = dict(zip(truth.kept, inputs, strict=True))
        self.problems: dict[str, None] = {}
        self.notes: dict[str, None] = {}
        self.errors: dict[str, LeafError] = {}
        self.kept: deque[_KeptAnswers] = deque(maxlen=_CALLS_KEPT)
        self.outputs: list[Any] = []
        self.decisions = Decisions(agree=0, total=0)
        self.other_sizes = self.other_decisions = False
        self.first: list[Tensor] = []

    def report(self, metric: Metric | None, callers: Callers | None) -> ErrorReport:
        facts = self.truth.facts
        metric = metric if facts.metric is not None and not facts.metric.problem else None
        for number, a in enumerate(facts.schedule):
            seen = self._observe(number, a)
            if number < facts.samples:
                self._decided(a, seen, number + 1)
                if metric is not None:
                    self.outputs.append(seen.output)
            if number == 0:
                self.first = self.kept[-1].values
        if not self.problems and not facts.stateful:
            self._rerun_agrees()
            self._values_replaced()
            if callers is not None:
                self._callers_agree(callers)
        units = max((e.units for e in self.errors.values()), default=0.0)
        missing = math.inf if self.problems and not self.errors else 0.0
        return ErrorReport(
            faithful=all(within(e.units, e.limit_units) for e in self.errors.values()) and not self.problems,
            units=max(units, missing),
            rmse=max((e.rmse for e in self.errors.values()), default=missing),
            max_abs=max((e.max_abs for e in self.errors.values()), default=missing),
            leaves=tuple(self.errors.values()),
            unproven=self._unproven(),
            problems=tuple(self.problems),
            notes=tuple(self.notes),
            **({} if metric is None or self.problems else self._metric_of(metric)),
            decisions=self.decisions if self.decisions.total else None,
            other_sizes=self.other_sizes,
            other_decisions=self.other_decisions,
        )

    def _unproven(self) -> str:
        shares = [(share, name) for name, share in self.unproven.items() if name in self.unlike]
        if not shares:
            return ""
        share, name = max(shares)
        return f"plain eager itself is off by {percent(share)} in {name}, so being as near as that shows nothing"

    def _metric_of(self, metric: Metric) -> dict[str, Any]:
        """What the metric says, by the fields of ``ErrorReport``."""
        facts, (value, problem) = self.truth.facts.metric, value_of(metric, self.outputs)
        assert facts is not None
        known: dict[str, Any] = {"metric": value, "metric_problem": problem, "metric_original": facts.value}
        return known if facts.better is None else {**known, "better": facts.better}

    def _observe(self, number: int, a: int) -> Observation:
        answer = self.truth.facts.answers[a]
        seen = self._asked(self.inputs[answer.input])
        problems, notes = form(seen, answer)
        self.problems |= dict.fromkeys(problems)
        self.notes |= dict.fromkeys([*notes, *not_compared(answer.structure)])
        self.other_sizes |= self._finds_another_number(seen, answer)
        self._earlier_outputs(seen)
        if comparable(seen, answer):
            wrong = self._numbers(a, [t for _, t in seen.leaves])
            if wrong and number:
                self._stale(a, seen)
        self.kept.append(_KeptAnswers(answer=a, outputs=seen.outputs, values=seen.copies()))
        return seen

    def _asked(self, inputs: Inputs, given: Inputs | None = None) -> Observation:
        varying = self.truth.facts.varying
        return observe(self.call, inputs, self.signature, seed=self.seed, given=given, varying=varying)

    def _finds_another_number(self, seen: Observation, answer: OriginalAnswer) -> bool:
        """Whether a size is another one though the inputs are as large as the first: an engine of fixed sizes would be
        right there, so values decide it."""
        expected, found = [leaf.shape for leaf in answer.leaves], [tuple(t.shape) for _, t in seen.leaves]
        if expected == found or list(map(len, expected)) != list(map(len, found)):
            return False
        return self._shapes(answer.input) == self._shapes(self.truth.facts.answers[0].input)

    def _decided(self, a: int, seen: Observation, sample: int) -> None:
        answer = self.truth.facts.answers[a]
        originals = {leaf.name: tensor for leaf, tensor in zip(answer.leaves, self.truth.eager[a], strict=True)}
        expected, found = values_of(answer.structure, originals), values_of(seen.structure, dict(seen.leaves))
        self.decisions = both(self.decisions, decisions(expected, found, sample))

    def _numbers(self, a: int, found: Sequence[Tensor]) -> bool:
        """Errors of one answer; True when any leaf is badly wrong."""
        wrong = False
        for i, leaf in enumerate(self.truth.facts.answers[a].leaves):
            error, misplaced = self._error(found[i], a, i)
            if misplaced:
                self.problems[f"{leaf.name} is not finite, or finite, where the original's is not so"] = None
            decides = not continuous(found[i]) and error.units > MAX_UNITS
            self.other_decisions |= decides and error.rmse < _FEW_DECISIONS
            wrong |= error.units > _BADLY_WRONG_UNITS
            error = error.model_copy(update={"limit_units": self.limits.of(leaf.name)})
            self.errors[leaf.name] = worst([self.errors.get(leaf.name, error), error])
            if leaf.name in self.unproven and not identical(plain(found[i]), self.truth.eager[a][i]):
                self.unlike.add(leaf.name)
        return wrong

    def _error(self, found: Tensor, a: int, i: int) -> tuple[LeafError, bool]:
        """The error of leaf ``i`` of answer ``a``: see ``leaf_error``."""
        leaf = self.truth.facts.answers[a].leaves[i]
        return leaf_error(leaf.name, found, self.truth.truth[a][i], self.truth.eager[a][i], leaf.unit, leaf.threshold)

    def _stale(self, a: int, seen: Observation) -> None:
        """A wrong answer that is the one of the call before, although the original's two answers differ."""
        facts, before = self.truth.facts, self.kept[-1].answer
        leaves = facts.answers[a].leaves
        if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in facts.answers[before].leaves]:
            return
        differ = any(
            self._error(self.truth.eager[before][i], a, i)[0].units > _BADLY_WRONG_UNITS for i in range(len(leaves))
        )
        if differ and all(identical(plain(t), p) for (_, t), p in zip(seen.leaves, self.kept[-1].values, strict=True)):
            self.problems["returns the result of the call before, whatever the input (stale)"] = None

    def _earlier_outputs(self, seen: Observation) -> None:
        allowed = set(self.truth.facts.shared_between_calls)
        for earlier in self.kept:
            for (name, tensor), value in zip(earlier.outputs, earlier.values, strict=False):
                if name not in allowed and not identical(plain(tensor), value):
                    self.problems[f"{name} is overwritten by a later call: outputs do not outlive the next call"] = None
            for one, other in overlaps(earlier.outputs, seen.outputs):
                if not (one in allowed and other in allowed):
                    self.problems[f"{one} of one call shares memory with {other} of a later call"] = None

    def _rerun_agrees(self) -> None:
        """The last call was the first again. A faithful one agrees within its limit, an approximate one nearly does."""
        answer = self.truth.facts.answers[0]
        for leaf, one, two in zip(answer.leaves, self.first, self.kept[-1].values, strict=True):
            error, misplaced = leaf_error(leaf.name, two, one, one, leaf.unit, leaf.threshold)
            allowed = max(self.limits.of(leaf.name), _RERUN_SHARE * self.errors[leaf.name].units)
            if misplaced or not within(error.units, allowed):
                self.problems[
                    f"a second run with the same input differs in {leaf.name} by {error.units:.3g} times "
                    "eager's own error"
                ] = None

    def _values_replaced(self) -> None:
        """Call with the same input tensors holding other values: results must not be cached by identity."""
        facts = self.truth.facts
        shapes = [self._shapes(answer.input) for answer in facts.answers]
        b = next((b for b in range(1, len(shapes)) if shapes[b] == shapes[0]), None)
        if b is None or any(answer.changed for answer in facts.answers):
            return
        reused = fresh(self.inputs[facts.answers[0].input])
        self._asked(self.inputs[facts.answers[0].input], reused)
        other = self.inputs[facts.answers[b].input]
        again = put_into(reused, other)
        if again is None:
            return
        seen = self._asked(other, again)
        when = "when an input's values are replaced in place"
        self._answered_again(b, seen, when, f"does not follow {when} (cached by identity)")

    def _callers_agree(self, callers: Callers, *, at_first: int | None = None) -> None:
        """All callers at once, with all inputs in turn: nobody is given what belongs to another. ``at_first``: so many
        requests, and all only where these took no longer than the whole may."""
        answers = self.truth.facts.answers
        requests = max(2 * callers.count, len(answers))
        when = f"when {callers.count} call at once"
        observations: dict[int, Observation] = {}

        def request(number: int) -> None:
            inputs = self.inputs[answers[number % len(answers)].input]
            observations[number] = self._asked(inputs)

        began = time.monotonic()
        for again in range(_MOST_CALLED_AT_ONCE):
            if again and (self.problems or time.monotonic() - began > _CALLED_AT_ONCE_S):
                return
            observations.clear()
            callers.answer(request, requests if again or at_first is None else at_first)
            for number, observation in observations.items():
                wrong = f"is another {when} (it cannot serve threads)"
                self._answered_again(number % len(answers), observation, when, wrong)

    def _answered_again(self, a: int, seen: Observation, when: str, wrong: str) -> None:
        """Answer ``a``, asked for in another way: it may err twice as much. ``wrong``: the problem to report beyond
        that."""
        answer = self.truth.facts.answers[a]
        if not comparable(seen, answer):
            self.problems[f"the output has another form {when}"] = None
            return
        for i, leaf in enumerate(answer.leaves):
            error, misplaced = self._error(seen.leaves[i][1], a, i)
            if misplaced or not within(error.units, max(self.limits.of(leaf.name), 2 * self.errors[leaf.name].units)):
                self.problems[f"{leaf.name} {wrong}"] = None

    def _shapes(self, index: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
        return [(tuple(t.shape), t.dtype) for _, t in input_tensors(self.inputs[index], self.signature)]


def _unrepeatable(truth: Truth) -> ErrorReport:
    return ErrorReport(
        faithful=False, units=math.inf, rmse=math.inf, max_abs=math.inf, problems=(truth.facts.unrepeatable,)
    )
