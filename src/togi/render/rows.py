"""One row per recipe, with what every report says of it: its verdict in a word, why in a sentence, and what to do next.

The terminal, the JSON and the HTML report show these rows; what they look like is left to each of them.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never, final

from togi.core.choices import Objective
from togi.core.quantities import bounds, milliseconds, plural, relative, seconds, significant, size, times
from togi.core.records import (
    ErrorReport,
    Interval,
    Obstacle,
    Outcome,
    PartResult,
    ProgramTree,
    Recipe,
    Study,
    Timing,
    Trial,
)
from togi.decide.choose import Budget, acceptable, front, set_aside, why_not
from togi.decide.faithful import is_tie, of_the_parts
from togi.decide.faster import BETWEEN_PROCESSES

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
        return self.trial.error is not None and not self.trial.error.faithful

    @property
    def speedup_x(self) -> Interval | None:
        """Over the reference; None for the reference itself (it is 1 by definition) and for what was not measured."""
        return self.trial.timing.speedup_x if self.trial.timing and not self.reference else None

    @property
    def eager_ms(self) -> float | None:
        """The reference's time in the rounds in which this recipe was measured: what its speed-up relates to."""
        rounds = self.trial.timing.rounds_ms if self.trial.timing else ()
        return statistics.median(reference for reference, _ in rounds) if rounds else None

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
        found = self.speedup_x
        if found is None or well_measured(found):
            return f"{times(found.median)} the speed, {bounds(found)}" if found else ""
        return f"about {times(found.median)} the speed, from too few rounds to conclude anything"

    def _error(self) -> str:
        error = self.trial.error
        if error is None:
            return ""
        kind = "faithful" if error.faithful else "approximate"
        return f"{kind}: {significant(error.units, 2)} x eager's own error, {relative(error.rmse)} relative"


def decisions(error: ErrorReport | None) -> str:
    """How many of the integers, booleans and texts in what it returns are the original's, where the first differs, and
    whether that is a tie; empty where it returns none."""
    found = error.decisions if error else None
    if error is None or found is None:
        return ""
    said = f"decisions: {found.agree:,} of {found.total:,} agree with the original's"
    if found.sample is None:
        return said
    at = found.position[0] if len(found.position) == 1 else list(found.position)
    place = f"in sample {found.sample}" + (f" at position {at}" if found.position else "")
    where = f"{place} of {found.output}" if found.output != "output" else place
    told = of_the_parts(error)
    kind = "a tie" if is_tie(error) else "a fault"
    return f"{said}; first difference {where}" + (f" ({kind}: {told})" if told else "")


def well_measured(found: Interval) -> bool:
    """Whether there were enough rounds for the interval to have ends at all."""
    return math.isfinite(found.high)


def looks_faster(study: Study, found: Sequence[Row]) -> tuple[str, ...]:
    """Why recipes with a higher speed-up than the chosen one were not chosen, in sentences."""
    chosen = next((row for row in found if row.chosen), None)
    if chosen is None or chosen.trial.timing is None:
        return ()
    best = 1.0 if chosen.reference else chosen.trial.timing.speedup_x.median
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
    """What the interval of the speed-up allows to say."""
    if not well_measured(timing.speedup_x):
        return "not measured well enough"
    return BETWEEN_PROCESSES.speed(timing.speedup_x).value


def objective_of(study: Study) -> Objective:
    return Objective.of(study.settings.get("objective", Objective.LATENCY))


def what_is_timed(study: Study) -> tuple[str, ...]:
    """What the milliseconds of another objective than latency are, and those of a call beside them, in a line each."""
    match objective_of(study):
        case Objective.LATENCY:
            return ()
        case Objective.END_TO_END:
            return ("ms: a call with its inputs and results in host memory: with the copies to the device and back",)
        case Objective.THROUGHPUT:
            return (
                f"ms: from one answer to the next, with {study.facts.callers} callers at once (1 ms is 1,000 requests "
                "per second)",
                "call: what 95 of 100 calls take at most, beside the other callers",
            )
        case Objective.FIRST_CALL:
            return (
                "ms: from loading the files to the first answer, in a fresh process",
                "call: one after the other, once it is warm",
            )


def trade_offs(study: Study, found: Sequence[Row]) -> tuple[str, ...]:
    """Where a call takes another time than what was raced: the recipes of the front, with what speaks for each."""
    front = [row for row in found if row.front and row.trial.timing is not None]
    if objective_of(study) in (Objective.LATENCY, Objective.END_TO_END) or len(front) < 2:
        return ()
    return (f"Nothing beats these in speed, time of a call and memory at once: {'; '.join(map(_trade_off, front))}.",)


def _trade_off(row: Row) -> str:
    timing, footprint = row.trial.timing, row.trial.footprint
    assert timing is not None
    assert footprint is not None  # or it would not be on the front
    return (
        f"{row.trial.recipe.label} ({significant(timing.latency_ms.median)} ms, call {milliseconds(timing.waited_ms)}, "
        f"{size(footprint.total_bytes)})"
    )


def rows(study: Study) -> tuple[Row, ...]:
    """Eligible recipes by speed-up, the fastest first, then the others by outcome in the order of ``Outcome``."""
    by_recipe: dict[Recipe, list[Trial]] = {}
    for trial in study.trials:
        by_recipe.setdefault(trial.recipe, []).append(trial)
    front = pareto_front([trials[-1] for trials in by_recipe.values()])
    reference = study.reference.recipe if study.reference else None
    found = [
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
    return tuple(sorted(found, key=_order))


def pareto_front(trials: Iterable[Trial]) -> frozenset[Recipe]:
    """Recipes of faithful, measured trials that no other such trial beats in speed-up and in memory.

    Milliseconds of different moments are not compared: a machine drifts by more than recipes differ by.
    """
    faithful = [_as_reference(trial) for trial in trials if trial.error is None or trial.error.faithful]
    return frozenset(trial.recipe for trial in front(faithful) if trial.footprint is not None)


def _as_reference(trial: Trial) -> Trial:
    """The reference's speed-up is 1 by definition, whatever its saved form took beside it; others stay as they are."""
    if not trial.recipe.is_reference or trial.timing is None:
        return trial
    timing = trial.timing.model_copy(update={"speedup_x": Interval(median=1.0, low=1.0, high=1.0)})
    return trial.model_copy(update={"timing": timing})


def counts(found: Sequence[Row]) -> dict[Outcome, int]:
    """How many recipes ended with each outcome, without the outcomes that did not occur."""
    all_counts = {outcome: sum(row.trial.outcome is outcome for row in found) for outcome in Outcome}
    return {outcome: count for outcome, count in all_counts.items() if count}


def warnings(study: Study) -> tuple[str, ...]:
    """What the measurements said of their own noise: of sentences that differ in numbers only, the worst one."""
    said: dict[str, list[str]] = {}
    for trial in study.trials:
        for warning in trial.timing.noise.warnings if trial.timing else ():
            said.setdefault(_NUMBER.sub("#", warning), []).append(warning)
    return tuple(
        f"{max(texts, key=_first_number)}{f' (the worst of {len(texts)} trials)' if len(texts) > 1 else ''}"
        for texts in said.values()
    )


def _first_number(text: str) -> float:
    found = _NUMBER.search(text)
    return float(found[0]) if found else 0.0


def fixes(study: Study) -> dict[str, tuple[str, ...]]:
    """Commands that would make more recipes possible -> the reasons why those were missing."""
    found: dict[str, dict[str, None]] = {}
    for trial in study.trials:
        if trial.fix:
            found.setdefault(trial.fix, {})[trial.reason or trial.recipe.label] = None
    return {fix: tuple(reasons) for fix, reasons in found.items()}


@final
@dataclass(frozen=True)
class Gain:
    """A trial after which the best so far was faster."""

    trial: Trial
    ended_s: float
    speedup_x: float
    """As it was measured then."""


def gains(study: Study) -> tuple[Gain, ...]:
    """How the best so far grew with time. None where several commands made the study: each had a clock of its own."""
    found: list[Gain] = []
    first: dict[Recipe, Trial] = {}  # race and proof come later
    for trial in study.trials:
        if trial.timing is not None:
            first.setdefault(trial.recipe, trial)
    timed = [(trial.ended_s, trial) for trial in first.values() if trial.ended_s is not None]
    clock = [ended_s for ended_s, _ in timed]
    if len(timed) < len(first) or clock != sorted(clock):
        return ()
    for ended_s, trial in timed:
        fits = acceptable(trial, Budget.of(study.settings))
        best = found[-1].speedup_x if found else 1.0
        if (
            fits
            and trial.recipe.choices
            and trial.timing is not None
            and BETWEEN_PROCESSES.faster(trial.timing.speedup_x)
        ):
            speedup = trial.timing.speedup_x.median
            found += [Gain(trial, ended_s, speedup)] if speedup > best else []
    return tuple(found)


def nearly_all(found: Sequence[Gain]) -> Gain:
    """The first of the gains that has 90 % of what the last one gained."""
    return next(gain for gain in found if gain.speedup_x >= 1 + 0.9 * (found[-1].speedup_x - 1))


def how_soon(found: Sequence[Gain]) -> str:
    """When the first gain was there, and 90 % of the last; empty where there was none."""
    if not found:
        return ""
    label = found[0].trial.recipe.label
    return (
        f"the first gain was measured {seconds(found[0].ended_s)} after the start ({label}, "
        f"{times(found[0].speedup_x)}), 90 % of the last after {seconds(nearly_all(found).ended_s)}"
    )


def _order(row: Row) -> tuple[int, float, str]:
    timing = row.trial.timing
    if row.trial.eligible and timing is not None:
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


@final
@dataclass(frozen=True)
class PartRow:
    """A place in a program's tree of calls, as people read it: the program, a part of it, an obstacle, what leads to
    them, or the Python between them."""

    name: str
    """Below its caller's."""
    what: str
    """Its class and its calls."""
    depth: int
    before: str
    """Time of one run, and its share."""
    after: str
    """Of the program as it was raced; of all else with what its parts showed alone."""
    outcome: str
    """What runs it and how much faster, or why nothing does."""
    faster: bool = False


def part_rows(study: Study) -> list[PartRow]:
    """The tree of a program down to its parts and what cannot be captured, and the time outside of all modules."""
    tree = study.program
    if tree is None:
        return []
    places = {call.path: index for index, call in reversed(list(enumerate(tree.calls)))}
    parts, obstacles = defaultdict[int, list[PartResult]](list), defaultdict[int, list[Obstacle]](list)
    for part in tree.parts:
        parts[places.get(part.path, 0)].append(part)
    for obstacle in tree.obstacles:
        obstacles[places.get(obstacle.path, 0)].append(obstacle)

    def below(index: int, caller: str, depth: int) -> tuple[list[PartRow], float]:
        """The rows of a place, and the ms that are saved there."""
        call, rows, saved_ms = tree.calls[index], list[PartRow](), 0.0
        prefix = f"{call.path}." * bool(call.path)
        for child in tree.children(index):
            found, saved = below(child, prefix, depth + 1)
            rows, saved_ms = rows + found, saved_ms + saved
        name = call.path.removeprefix(caller) or "(the program)"
        own = [_part_row(part, name, depth, tree.total_ms) for part in parts[index]]
        saved_ms += sum(_saved(part) * tree.total_ms for part in parts[index])
        reason = "; ".join(f"not captured whole: {obstacle.reason}" for obstacle in obstacles[index])
        if reason or (rows and not own) or index == 0:
            after_ms = call.ms - saved_ms if index else _raced_ms(study, tree)
            what = f"{call.module}, {plural(call.calls, 'call')}"
            before, after = _time(call.ms, tree.total_ms), milliseconds(after_ms)
            own.insert(0, PartRow(name, what, depth, before, after, reason, after_ms < call.ms and index == 0))
        return own + rows, saved_ms

    outside_ms = max(0.0, tree.total_ms - sum(tree.calls[index].ms for index in tree.children(0)))
    outside = PartRow(
        "(outside of modules)", "Python", 1, _time(outside_ms, tree.total_ms), milliseconds(outside_ms), "as it is"
    )
    return [*below(0, "", 0)[0], outside]


def _part_row(part: PartResult, name: str, depth: int, total_ms: float) -> PartRow:
    if part.form:
        name = f"{name}#{part.form}"
    if len(part.copies) > 1:
        name = f"{name} and {len(part.copies) - 1} alike"
    outcome = part.reason
    if part.recipe is not None and part.speedup_x is not None:
        alone = f"{part.recipe.label}: {times(part.speedup_x.median)} alone"
        outcome = f"{alone}; {part.reason}" if part.reason else alone
    before_ms = part.share * total_ms
    after = milliseconds(before_ms - _saved(part) * total_ms)
    what = f"{part.module}, {plural(part.calls, 'call')}"
    return PartRow(name, what, depth, _time(before_ms, total_ms), after, outcome, part.recipe is not None)


def _saved(part: PartResult) -> float:
    """The share of the program's time that it saves, going by its trial alone."""
    if part.recipe is None or part.speedup_x is None:
        return 0.0
    return part.share * (1.0 - 1.0 / part.speedup_x.median)


def _raced_ms(study: Study, tree: ProgramTree) -> float:
    """A run with the parts in place: as long as one before, less what the race showed."""
    found = [trial.timing for trial in study.trials if trial.recipe == study.best and trial.timing is not None]
    return tree.total_ms / found[-1].speedup_x.median if found else tree.total_ms


def _time(ms: float, total_ms: float) -> str:
    return f"{milliseconds(ms)}, {ms / total_ms:.0%}" if total_ms else milliseconds(ms)


def how_to_load(artifact: str, *, program: bool = False) -> str:
    """Three lines of Python. ``program``: the artifact holds parts of one."""
    if program:
        return (
            f"import togi\nparts = togi.load({artifact!r}).into(program)  # the program that was tuned\n"
            "parts.remove()  # as it was"
        )
    return f"import togi\nfast = togi.load({artifact!r})\noutput = fast(...)  # called like the original"


def has_files(study: Study) -> bool:
    """Whether what was chosen could be saved."""
    chosen = None if study.best is None else study.trial(study.best)
    return chosen is not None and not set_aside(chosen)


def next_steps(study: Study, artifact: str | None = None) -> Iterator[str]:
    """Commands with what each would bring, the most useful first."""
    if has_files(study) and artifact is None and study.command:
        yield f"keep it: {study.command} --out NAME.togi  (resumes: nothing is tried twice)"
    yield from _missing(study)
    yield from _approximate(study)
    if any(row.trial.outcome is Outcome.UNSTABLE for row in rows(study)):
        yield "some recipes could not be judged on this busy machine: run the same command again when it is quiet"
    crashed = next((row for row in rows(study) if row.trial.traceback), None)
    if crashed is not None:
        yield f"tracebacks and the children's output: togi report {study.id} --html report.html"
    elif study.trials:
        yield f"every trial with its details: togi report {study.id} --html report.html"


def _missing(study: Study) -> Iterator[str]:
    for fix, reasons in fixes(study).items():
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        yield f"{fix}  makes possible what was missing: {reasons[0]}{more}"


_LARGEST_APPROXIMATION = 0.1
"""Relative error from which nobody would call a result approximate: it is wrong."""


def _approximate(study: Study) -> Iterator[str]:
    """Recipes that were only held back because their error was not allowed."""
    if study.settings.get("allow"):
        return
    found = rows(study)
    wrong = [row for row in found if row.trial.outcome is Outcome.WRONG and row.trial.error]
    errors = [row.trial.error.rmse for row in wrong if row.trial.error and not row.trial.error.problems]
    least = min(errors, default=math.inf)
    if least <= _LARGEST_APPROXIMATION:
        yield f"if a relative error of {least:.0e} is acceptable: --allow approximate --max-error {least * 2:.0e}"
    elif any("--allow" in row.trial.reason for row in found):
        yield "approximate techniques were left out: --allow approximate --max-error 1e-2 tries them within that error"
