"""One row per recipe, with what every report says of it: its verdict in a word, and why in a sentence.

The terminal, the JSON and the HTML report show these rows; what they look like is left to each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import assert_never

from togi.core.choices import Objective
from togi.core.quantities import bounds, milliseconds, plural, relative, significant, size, times
from togi.core.records import ErrorReport, Facts, Interval, Outcome, Recipe, Study, Timing, Trial
from togi.decide.budget import Budget
from togi.decide.choose import front, why_not
from togi.decide.faithful import is_tie, of_the_parts
from togi.decide.faster import BETWEEN_PROCESSES, Speed
from togi.render.part_rows import bounded_by

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class Row:
    """The last trial of one recipe, seen in its study."""

    trial: Trial
    earlier: tuple[Trial, ...] = ()
    """Trials of the same recipe before the last one, e.g. before the finalists' race."""
    chosen: bool = False
    reference: bool = False
    finalist: bool = False
    front: bool = False
    """No other eligible recipe is both faster and smaller, or, where calls were not raced, quicker in a call too."""

    @property
    def approximate(self) -> bool:
        return self.trial.error is not None and not self.trial.error.shown_right

    @property
    def speedup_x(self) -> Interval | None:
        """Over the reference; None for the reference itself (it is 1 by definition) and for what was not measured."""
        found = self.trial.measured
        return None if found is None or self.reference else found.speedup_x

    @property
    def eager_ms(self) -> float | None:
        """The reference's time in the rounds in which this recipe was measured: what its speed-up relates to."""
        return self.trial.timing.reference_ms if self.trial.timing else None

    @property
    def verdict(self) -> str:
        """A word or two: chosen, reference, faster, same speed, slower, cannot tell, not measured well
        enough, approximate, or the outcome."""
        if self.chosen and self.trial.outcome is Outcome.UNSTABLE:
            return "chosen (unstable)"  # for its memory, say: a noisy machine does not make it unusable
        if self.trial.outcome is not Outcome.OK or self.trial.timing is None:
            return self.trial.outcome.value if self.trial.outcome is not Outcome.OK else "not measured"
        if self.chosen:
            return "chosen (as it was)" if self.reference else "chosen"
        if self.reference:
            return "reference"
        return f"approximate, {speed(self.trial.timing)}" if self.approximate else speed(self.trial.timing)

    @property
    def explanation(self) -> str:
        """Why the row ends as it does, in a sentence; never empty."""
        if self.trial.reason:
            return self.trial.reason
        if self.trial.outcome is Outcome.OK:
            return "; ".join(part for part in (self._speed(), self._error()) if part) or "it ran"
        return f"{_meaning(self.trial.outcome)}{f' ({self.trial.stage})' if self.trial.stage else ''}"

    def _speed(self) -> str:
        if self.reference:
            return "every speed-up relates to it"
        speedup = self.speedup_x
        if speedup is None:
            return ""
        if not speedup.has_ends:
            return f"about {times(speedup.median)} the speed, from too few rounds to conclude anything"
        return f"{times(speedup.median)} the speed, {bounds(speedup)}"

    def _error(self) -> str:
        error = self.trial.error
        if error is None:
            return ""
        kind = "faithful" if error.shown_right else "approximate"
        return f"{kind}: {significant(error.units, 2)} x eager's own error, {relative(error.rmse)} relative"


def decisions(error: ErrorReport | None) -> str:
    """Compare the integers, booleans and texts in what it returns with the original's: how many agree, where the first
    differs, and whether that is a tie; empty where it returns none."""
    tally = error.decisions if error else None
    if error is None or tally is None:
        return ""
    sentence = f"decisions: {tally.agree:,} of {tally.total:,} agree with the original's"
    if tally.sample is None:
        return sentence
    at = tally.position[0] if len(tally.position) == 1 else list(tally.position)
    place = f"in sample {tally.sample}" + (f" at position {at}" if tally.position else "")
    where = f"{place} of {tally.output}" if tally.output != "output" else place
    of_parts = of_the_parts(error)
    kind = "a tie" if is_tie(error) else "a fault"
    return f"{sentence}; first difference {where}" + (f" ({kind}: {of_parts})" if of_parts else "")


def chosen_of(rows: Iterable[Row]) -> Row | None:
    return next((row for row in rows if row.chosen), None)


def what_to_know(study: Study, rows: Sequence[Row]) -> tuple[str, ...]:
    """What the subject, the measurements and the chosen recipe's trial say of themselves, in sentences."""
    chosen = chosen_of(rows)
    of_chosen = (*chosen.trial.notes, decisions(chosen.trial.error)) if chosen else ()
    of_study = (*study.facts.notes, *_phases(study.facts), *_on_other_data(study), *warnings(study))
    return (*of_study, *filter(None, (bounded_by(study), *of_chosen)))


def _on_other_data(study: Study) -> Iterator[str]:
    if study.left_out:
        yield (
            f"{plural(study.left_out, 'trial')} of recipes that were calibrated on other data than those that decided "
            "last are left out: the same command with those data shows them."
        )


def _phases(facts: Facts) -> Iterator[str]:
    """How long each phase of a training step takes before anything is changed."""
    whole_ms = sum(facts.phases_ms.values())
    if whole_ms > 0:
        shares = [f"{phase} {ms / whole_ms:.0%}" for phase, ms in facts.phases_ms.items()]
        yield f"A pass of the step as it is takes about {milliseconds(whole_ms)}: {', '.join(shares)}."


def left(study: Study) -> tuple[str, ...]:
    """The techniques that were in no trial though they could have been, with the reason, in sentences."""
    names: dict[str, list[str]] = {}
    for untried in study.untried:
        names.setdefault(untried.reason, []).append(untried.technique)
    return tuple(f"Not tried: {', '.join(ids)}: {reason}." for reason, ids in names.items())


def looks_faster(study: Study, found: Sequence[Row]) -> tuple[str, ...]:
    """Why recipes with a higher speed-up than the chosen one were not chosen, in sentences."""
    chosen = chosen_of(found)
    measured = None if chosen is None else chosen.trial.measured
    if chosen is None or measured is None:
        return ()
    best = 1.0 if chosen.reference else measured.speedup_x.median
    reasons: dict[str, list[str]] = {}
    for row in found:
        speedup = row.speedup_x
        if row.trial.eligible and not row.chosen and speedup is not None and speedup.median > best:
            reason = why_not(row.trial, chosen.trial, Budget.of(study.settings), trials=study.trials)
            named = f"{row.trial.recipe.label} ({times(speedup.median)}, {bounds(speedup)})"
            if reason:
                reasons.setdefault(reason, []).append(named)
    return tuple(f"Not chosen though it looks faster: {', '.join(names)}: {why}." for why, names in reasons.items())


def speed(timing: Timing) -> str:
    """The verdict that the interval of the speed-up allows."""
    verdict = BETWEEN_PROCESSES.speed(timing.speedup_x)
    if verdict is Speed.UNCLEAR and not timing.speedup_x.has_ends:
        return "not measured well enough"
    return verdict.value


def objective_of(study: Study) -> Objective:
    return Objective.of(study.settings.get("objective", Objective.LATENCY))


def what_is_timed(study: Study) -> tuple[str, ...]:
    """What the milliseconds of another objective than latency are, and those of a call next to them, and the
    millijoules of a GPU that tells them, in a line each."""
    tells_energy = any(trial.timing is not None and trial.timing.energy_mj is not None for trial in study.trials)
    energy = ("mJ: what the whole GPU takes for a call, its idle power included, while one recipe runs alone",)
    return (*_what_is_timed(study), *(energy if tells_energy else ()))


def _what_is_timed(study: Study) -> tuple[str, ...]:
    """What the milliseconds of another objective than latency are, and those of a call next to them."""
    match objective_of(study):
        case Objective.LATENCY:
            return ()
        case Objective.END_TO_END:
            return ("ms: a call with its inputs and results in host memory: with the copies to the device and back",)
        case Objective.THROUGHPUT:
            return (
                f"ms: from one answer to the next, with {study.facts.callers} callers at once (1 ms is 1,000 requests "
                "per second)",
                "call: what 95 of 100 calls take at most, next to the other callers",
            )
        case Objective.FIRST_CALL:
            return (
                "ms: from loading the files to the first answer, in a fresh process",
                "call: one after the other, once it is warm",
            )


def trade_offs(study: Study, found: Sequence[Row]) -> tuple[str, ...]:
    """Where a call takes another time than what was raced: the recipes of the front, with what speaks for each."""
    front = [sentence for row in found if row.front and (sentence := _trade_off(row.trial))]
    if objective_of(study) in (Objective.LATENCY, Objective.END_TO_END) or len(front) < 2:
        return ()
    return (f"Nothing beats these in speed, time of a call and memory at once: {'; '.join(front)}.",)


def _trade_off(trial: Trial) -> str:
    timing, footprint = trial.timing, trial.footprint
    if timing is None or footprint is None:
        return ""
    return (
        f"{trial.recipe.label} ({significant(timing.latency_ms.median)} ms, call {milliseconds(timing.waited_ms)}, "
        f"{size(footprint.total_bytes)})"
    )


def rows(study: Study) -> tuple[Row, ...]:
    """Eligible recipes by speed-up, the fastest first, then the others by outcome in the order of ``Outcome``."""
    by_recipe: dict[Recipe, list[Trial]] = {}
    for trial in study.trials:
        by_recipe.setdefault(trial.recipe, []).append(trial)
    front = pareto_front([trials[-1] for trials in by_recipe.values()])
    reference = study.reference.recipe if study.reference else None
    unsorted = [
        Row(
            trial=trials[-1],
            earlier=tuple(trials[:-1]),
            chosen=recipe == study.best,
            reference=recipe == reference,
            finalist=recipe in study.finalists,
            front=recipe in front,
        )
        for recipe, trials in by_recipe.items()
    ]
    return tuple(sorted(unsorted, key=_order))


def pareto_front(trials: Iterable[Trial]) -> frozenset[Recipe]:
    """Recipes of faithful, measured trials that no other such trial beats in speed-up and in memory.

    Milliseconds of different moments are not compared: a machine drifts by more than recipes differ by.
    """
    faithful = [_as_reference(trial) for trial in trials if trial.error is None or trial.error.faithful]
    return frozenset(trial.recipe for trial in front(faithful) if trial.footprint is not None)


def _as_reference(trial: Trial) -> Trial:
    """The reference's speed-up is 1 by definition, whatever its saved form took next to it; others stay as they are."""
    if not trial.recipe.is_reference or trial.timing is None:
        return trial
    timing = trial.timing.model_copy(update={"speedup_x": Interval(median=1.0, low=1.0, high=1.0)})
    return trial.model_copy(update={"timing": timing})


def counts(found: Sequence[Row]) -> dict[Outcome, int]:
    """Count the recipes by outcome, without the outcomes that did not occur."""
    all_counts = {outcome: sum(row.trial.outcome is outcome for row in found) for outcome in Outcome}
    return {outcome: count for outcome, count in all_counts.items() if count}


def warnings(study: Study) -> tuple[str, ...]:
    """What the measurements said of their own noise: of sentences that differ in numbers only, the worst one."""
    by_form: dict[str, list[str]] = {}
    for trial in study.trials:
        for warning in trial.timing.noise.warnings if trial.timing else ():
            by_form.setdefault(_NUMBER.sub("#", warning), []).append(warning)
    return tuple(
        f"{max(texts, key=_first_number)}{f' (the worst of {len(texts)} trials)' if len(texts) > 1 else ''}"
        for texts in by_form.values()
    )


def _first_number(text: str) -> float:
    number = _NUMBER.search(text)
    return float(number[0]) if number else 0.0


def _order(row: Row) -> tuple[int, float, str]:
    if row.trial.eligible:
        return 0, -(row.speedup_x.median if row.speedup_x else 1.0), row.trial.recipe.label
    return 1 + list(Outcome).index(row.trial.outcome), 0.0, row.trial.recipe.label


def _meaning(outcome: Outcome) -> str:
    match outcome:
        case Outcome.OK:
            return "it ran"
        case Outcome.REFUSED:
            return "it does not apply to this subject"
        case Outcome.MISSING:
            return "a package or tool it needs is missing"
        case Outcome.FAILED:
            return "it raised an error"
        case Outcome.WRONG:
            return "its output differs from the original's"
        case Outcome.TIMED_OUT:
            return "it did not end in time"
        case Outcome.CRASHED:
            return "its process died"
        case Outcome.OUT_OF_MEMORY:
            return "it needed more memory than there is"
        case Outcome.UNSTABLE:
            return "the machine was too noisy to judge it"
        case _:
            assert_never(outcome)
