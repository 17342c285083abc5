"""Studies as text for a terminal: tables, the verdict, what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from togi.core.printable import one_line
from togi.core.quantities import milliseconds, plural, significant, size, times
from togi.core.records import Outcome, Study
from togi.decide.faster import BETWEEN_PROCESSES
from togi.journal.store import StudyEntry
from togi.render.gains import gains, how_soon, pays_off
from togi.render.next_steps import how_to_load, next_steps
from togi.render.part_rows import PlaceRow, part_rows
from togi.render.rows import (
    Row,
    counts,
    decisions,
    left,
    looks_faster,
    rows,
    trade_offs,
    what_is_timed,
    what_to_know,
)
from togi.render.terminal import STYLES, VERDICT_STYLES, bullets, clean, cut, figure, listing, memory, stack, table

BEFORE_SUBJECT = 36
"""Columns of a study's id and time, in the list of studies."""
WIDE = 110
"""From this width on the table has a column for everything; below, cells are stacked."""


def study_text(study: Study, *, width: int, artifact: str | None = None) -> RenderableType:
    """The whole result: nothing is left out or cut."""
    found = rows(study)
    ran = [row for row in found if row.trial.eligible]
    rest = [row for row in found if not row.trial.eligible]
    load = (
        Padding(Text(how_to_load(artifact, study.best, own_loop=study.facts.own_loop), style="cyan"), (0, 0, 0, 2))
        if study.best and artifact
        else None
    )
    return stack(
        _header(study, found),
        results(ran, wide=width >= WIDE, notes=what_is_timed(study)) if ran else None,
        _titled("Parts of the program", parts(part_rows(study))),
        _titled("Not used, and why", not_used(rest) if rest else None),
        _verdict(study),
        _titled(
            "What to know",
            bullets(
                [
                    *trade_offs(study, found),
                    *looks_faster(study, found),
                    *what_to_know(study, found),
                    *left(study),
                    *filter(None, [how_soon(gains(study)), pays_off(study)]),
                ]
            ),
        ),
        _titled("Load it", load),
        _titled("Next", bullets(map(str, next_steps(study, artifact)))),
    )


def parts(places: Sequence[PlaceRow]) -> Table | None:
    """The tree of a program down to its parts: times of one run before and after, and what runs them."""
    if not places:
        return None
    grid = table("part", "before", "after", "runs on", left=("runs on",))
    for row in places:
        indent = "  " * row.depth
        name = Text(indent + clean(row.name)).append(f"\n{indent}{clean(row.what)}", style="dim")
        style = "green" if row.faster else "dim"
        grid.add_row(name, Text(row.before), Text(row.after), Text(clean(row.outcome), style=style))
    return grid


def contents_text(entries: Sequence[StudyEntry], width: int) -> RenderableType:
    """The studies of a journal: id, when, what, how many trials, and below as much of the verdict as a line holds.
    Those of parts of programs are counted."""
    if not entries:
        return Text("There are no studies yet: togi tune SUBJECT makes one.")
    grid, parts = listing(3), sum(entry.part for entry in entries)
    for entry in (entry for entry in entries if not entry.part):
        subject = Text(clean(entry.subject), style="bold").append(f"  {plural(entry.trials, 'trial')}", style="dim")
        if entry.verdict:
            subject.append(f"\n{cut(one_line(entry.verdict), width - BEFORE_SUBJECT)}", style="not bold")
        when = Text(entry.started[:16].replace("T", " "), style="dim")
        grid.add_row(Text(clean(entry.id), style="cyan"), when, subject)
    more = f"and {parts} more, of parts of programs: --json lists them"
    return stack(grid, Text(more, "dim") if parts else None)


def results(shown: Sequence[Row], *, wide: bool, notes: Sequence[str] = ()) -> Table:
    """The measured recipes. Every line's milliseconds and its speed-up come from the same rounds. ``notes``: what else
    to say below."""
    trains = any(row.trial.recipe.trains for row in shown)
    plain = "the training step as it is," if trains else "plain eager under no_grad"
    notes = [
        *notes,
        f"faster: the whole 95% interval of the speed-up lies above {times(BETWEEN_PROCESSES.band_x)} (beyond doubt)",
        f"eager: {plain} in the same rounds, in ms",
        "error: in multiples of eager's own, which is plain eager against float64",
        f"memory: idle + peak of a {'step' if trains else 'call'}",
    ]
    if wide:
        grid = table("recipe", "ms", "eager", "speed-up", "error", "memory", "verdict", left=("verdict",))
    else:
        grid = table("recipe", "ms", "speed-up", "error", "memory")
    for row in shown:
        grid.add_row(*(_wide(row) if wide else _narrow(row)))
    grid.caption = Text("\n".join(notes), style="dim")
    grid.caption_justify = "left"
    return grid


def not_used(rest: Sequence[Row]) -> Table:
    """Everything that cannot be chosen: one line for each reason, with the recipes that share it."""
    grid = listing()
    for (outcome, reason, fix, decided), labels in _grouped(rest).items():
        body = Text(clean(", ".join(labels)))
        body.append(f"\n{clean(reason)}", style="dim")
        if decided:
            body.append(f"\n{clean(decided)}", style="dim")
        if fix:
            body.append("\nfix: ", style="dim").append(clean(fix), style="cyan")
        grid.add_row(Text(outcome.value, style=STYLES[outcome]), body)
    return grid


def _grouped(rest: Iterable[Row]) -> dict[tuple[Outcome, str, str, str], list[str]]:
    groups: dict[tuple[Outcome, str, str, str], list[str]] = {}
    for row in rest:
        key = (row.trial.outcome, row.explanation, row.trial.fix, decisions(row.trial.error))
        groups.setdefault(key, []).append(row.trial.recipe.label)
    return groups


def _header(study: Study, found: Sequence[Row]) -> Text:
    facts = study.facts
    tally = ", ".join(f"{count} {outcome.value}" for outcome, count in counts(found).items())
    text = Text(clean(study.subject), style="bold")
    text.append(f"\n{clean(facts.module_class)}, {size(facts.parameter_bytes)} of parameters", style="dim")
    text.append(
        f", {plural(facts.samples, 'sample')}, on {clean(facts.device)}: {clean(_processor(study))}", style="dim"
    )
    return text.append(f"\n{plural(len(found), 'recipe')}: {tally}" if found else "\nno recipe was tried", style="dim")


def _processor(study: Study) -> str:
    machine = study.facts.machine
    gpu = machine.gpu if study.facts.device == "cuda" else None
    return gpu or f"{machine.cpu_model}, {machine.threads} threads"


def _wide(row: Row) -> tuple[Text, ...]:
    footprint = row.trial.footprint
    memory = Text(f"{size(footprint.idle_bytes)} + {size(footprint.peak_bytes)}" if footprint else "-")
    latency, speedup = _figures(row, beside=True)
    eager = Text(significant(row.eager_ms) if row.eager_ms else "-")
    return (_name(row), latency, eager, speedup, _error(row), memory, _verdict_cell(row))


def _narrow(row: Row) -> tuple[Text, ...]:
    name = _name(row).append("\n").append_text(_verdict_cell(row))
    if row.eager_ms and not row.reference:
        name.append(f", eager {milliseconds(row.eager_ms)}", style="dim")
    return (name, *_figures(row), _error(row), memory(row.trial.footprint))


def _name(row: Row) -> Text:
    return Text(f"{'> ' if row.chosen else ''}{clean(row.trial.recipe.label)}", "bold green" if row.chosen else "")


def _figures(row: Row, *, beside: bool = False) -> tuple[Text, Text]:
    """Its time, and the ratio of eager's time to it."""
    timing = row.trial.timing
    if timing is None:
        return Text("-"), Text("-")
    speedup = figure(row.speedup_x, "x", beside=beside) if row.speedup_x else Text("1")
    latency = figure(timing.latency_ms, beside=beside)
    if timing.call_ms is not None:
        latency.append(f"\ncall {significant(timing.call_ms)}", style="dim")
    if timing.energy_mj is not None:
        latency.append(f"\n{significant(timing.energy_mj)} mJ", style="dim")
    return latency, speedup


def _error(row: Row) -> Text:
    error = row.trial.error
    return Text(f"{significant(error.units, 2)} x" if error else "-", style="yellow" if row.approximate else "")


def _verdict_cell(row: Row) -> Text:
    style = VERDICT_STYLES.get(row.verdict, "yellow" if row.approximate else "dim")
    return Text(row.verdict, style=style)


def _verdict(study: Study) -> Text:
    if study.best is None or (study.best.is_reference and study.verdict):
        return Text(clean(study.verdict) or "Nothing could be chosen.", style="bold yellow")
    text = Text("Chosen: ", style="bold").append(clean(study.best.label), style="bold green")
    return text.append(f"\n{clean(study.verdict)}") if study.verdict else text


def _titled(title: str, body: RenderableType | None) -> RenderableType | None:
    return Group(Text(title, style="bold"), body) if body is not None else None
