"""Comparisons and verifications as text for a terminal: the table, the verdict, what to know."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from togi.core.quantities import plural, relative, significant
from togi.core.records import ErrorReport, Interval, Outcome
from togi.decide.faithful import MAX_UNITS, is_tie
from togi.decide.gate import Answer
from togi.render.rows import decisions
from togi.render.terminal import STYLES, VERDICT_STYLES, bullets, clean, figure, memory, stack, table
from togi.study.comparison import Comparison, Verification
from togi.study.contestants import Contestant

ANSWER_STYLES = {
    Answer.PASSED: "bold green",
    Answer.FAILED: "bold red",
    Answer.ERROR: "bold red",
    Answer.UNDECIDED: "bold yellow",
}


def comparison_text(comparison: Comparison) -> RenderableType:
    """The result of ``togi bench``: the table, the verdict, what to know."""
    grid = _by_size(comparison) if comparison.batch_sizes else table("", "ms", "speed-up", "difference", "memory")
    for number, contestant in enumerate(() if comparison.batch_sizes else comparison.contestants):
        grid.add_row(*_contestant(contestant, first=number == 0, train=comparison.train))
    verdict = Text(clean(comparison.verdict), style="bold")
    return stack(grid, _by_phase(comparison), verdict, bullets(_about(comparison)))


def verification_text(verification: Verification) -> RenderableType:
    """The result of ``togi verify``: the comparison, and whether the artifact is proven."""
    verdict = Text(clean(verification.verdict), style=ANSWER_STYLES[verification.answer])
    takes = clean(f"It takes calls where {' and '.join(verification.takes)}.")
    return stack(
        comparison_text(verification.comparison), verdict, Text(takes, style="dim") if verification.takes else None
    )


def _contestant(contestant: Contestant, *, first: bool, train: bool) -> tuple[Text, ...]:
    name = Text(clean(contestant.name), style="cyan" if first else "")
    if contestant.outcome is not Outcome.OK or contestant.latency_ms is None:
        reason = f"\n{contestant.outcome.value}: {contestant.reason}"
        return (name.append(clean(reason), style=STYLES[contestant.outcome]), *([Text("-")] * 4))
    speedup, error = contestant.speedup_x, contestant.error
    return (
        name,
        figure(contestant.latency_ms),
        Text("1") if first or speedup is None else _compared(contestant, speedup),
        Text(_difference(error, train=train)),
        memory(contestant.footprint),
    )


def _difference(error: ErrorReport | None, *, train: bool) -> str:
    """Of a training step that is right, in units: what is zero in exact arithmetic differs by its own size."""
    if error is None:
        return "-"
    return f"{significant(error.units, 2)} units" if train and error.faithful else relative(error.rmse)


def _compared(contestant: Contestant, speedup: Interval) -> Text:
    said = contestant.speed or ""
    return figure(speedup, "x").append(f"\n{said}", style=VERDICT_STYLES.get(said, "dim"))


def _by_phase(comparison: Comparison) -> Table | None:
    """Where the time of training steps goes. None: it is of calls."""
    if not comparison.phases:
        return None
    grid = table("ms of a step", *comparison.phases)
    for contestant in comparison.contestants:
        times = [contestant.phases_ms.get(phase) for phase in comparison.phases]
        grid.add_row(Text(clean(contestant.name)), *(Text("-" if ms is None else significant(ms)) for ms in times))
    return grid


def _by_size(comparison: Comparison) -> Table:
    """The sizes of each contestant below its name."""
    grid = table("", "ms", "samples/s", "speed-up", "memory")
    best = {(winner.name, winner.batch) for winner in comparison.best}
    name = ""
    for contestant in comparison.contestants:
        if contestant.name != name:
            name = contestant.name
            grid.add_row(Text(clean(name), style="bold"))
        grid.add_row(*_at_size(contestant, best=(contestant.name, contestant.batch) in best))
    return grid


def _at_size(contestant: Contestant, *, best: bool) -> tuple[Text, ...]:
    name = Text(f"{'> ' if best else '  '}batch {contestant.batch}", style="bold green" if best else "")
    if contestant.outcome is not Outcome.OK:
        name.append(clean(f"\n{contestant.outcome.value}: {contestant.reason}"), style=STYLES[contestant.outcome])
    elif contestant.reason:
        name.append(clean(f"\n{contestant.reason}"), style="dim")
    if contestant.latency_ms is None or contestant.samples_per_s is None:
        return (name, *([Text("-")] * 4))
    latency = figure(contestant.latency_ms)
    if contestant.call_ms is not None:
        latency.append(f"\ncall {significant(contestant.call_ms)}", style="dim")
    speedup = _compared(contestant, contestant.speedup_x) if contestant.speedup_x else Text("-")
    return (name, latency, figure(contestant.samples_per_s), speedup, memory(contestant.footprint))


def _wrong(error: ErrorReport | None) -> str:
    """What is wrong beyond numbers, of which a difference of none says nothing."""
    if error is None or not error.problems or is_tie(error):
        return ""
    return f"it does not answer as the original does: {error.problems[0]}"


def _about(comparison: Comparison) -> Iterator[str]:
    if comparison.train:
        yield (
            "ms: of a training step; difference: the largest of its loss, gradients, updates and state, in units of "
            f"rounding, of which {MAX_UNITS:g} are right"
        )
    if comparison.phases:
        yield "the phases are medians of a few steps after the race; what is compiled together is timed together"
    if comparison.callers > 1:
        yield f"ms: from one answer to the next, with {comparison.callers} callers at once"
        if comparison.batch_sizes:
            yield "call: what 95 of 100 calls take at most, in ms, next to the others"
        for contestant in () if comparison.batch_sizes else comparison.contestants:
            if contestant.call_ms is not None:
                most = f"{significant(contestant.call_ms)} ms at most"
                yield f"{contestant.name}: 95 of 100 calls take {most}, next to the others"
    if comparison.rounds:
        sizes = " at the same batch size" if comparison.batch_sizes else ""
        yield f"{plural(comparison.rounds, 'round')} in turns; every speed-up relates to the first{sizes}"
    yield from comparison.noise.warnings
    yield from comparison.notes
    if comparison.batch_sizes:
        errors = {c.name: c.error for c in comparison.contestants if c.error}
        yield from (f"{name}: difference {relative(error.rmse)}, on its own samples" for name, error in errors.items())
    else:
        yield from (f"{c.name}: {c.reason}" for c in comparison.contestants if c.reason and c.outcome is Outcome.OK)
    yield from dict.fromkeys(f"{c.name}: {said}" for c in comparison.contestants if (said := _wrong(c.error)))
    yield from dict.fromkeys(f"{c.name}: {said}" for c in comparison.contestants if (said := decisions(c.error)))
