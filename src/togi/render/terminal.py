"""A study as text for a terminal: the result table, every other recipe with its reason, the verdict, what to do next.

Everything is returned as rich renderables, so that it is tested without a terminal; printing is left to the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from togi.core.quantities import bounds, plural, significant, size, times
from togi.core.records import Outcome, Study
from togi.render.next_steps import how_to_load, next_steps
from togi.render.rows import Row, counts, rows, warnings

WIDE = 110
"""From this width on the table has a column for everything; below, cells are stacked."""

STYLES = {
    Outcome.OK: "green",
    Outcome.REFUSED: "dim",
    Outcome.MISSING: "yellow",
    Outcome.FAILED: "red",
    Outcome.WRONG: "red",
    Outcome.TIMED_OUT: "yellow",
    Outcome.CRASHED: "red",
    Outcome.OUT_OF_MEMORY: "red",
    Outcome.UNSTABLE: "yellow",
}
VERDICT_STYLES = {
    "chosen": "bold green",
    "chosen (as it was)": "bold green",
    "faster": "green",
    "slower": "red",
    "reference": "cyan",
}


def study_text(study: Study, *, width: int, limit: int | None = None, artifact: str | None = None) -> RenderableType:
    """The whole result. ``limit``: at most so many measured recipes (the chosen one and the reference always stay)."""
    found = rows(study)
    ran = [row for row in found if row.trial.eligible]
    rest = [row for row in found if not row.trial.eligible]
    parts: list[RenderableType] = [_header(study, found), Text()]
    if ran:
        shown = _shown(ran, limit)
        parts.append(results(shown, wide=width >= WIDE))
        if len(shown) < len(ran):
            parts.append(Text(f"  and {plural(len(ran) - len(shown), 'slower recipe')}: togi report {study.id}", "dim"))
    if rest:
        parts += [Text(), Text("Not used, and why", style="bold"), not_used(rest)]
    parts += [Text(), _verdict(study)]
    parts += _section("What to know", _knowledge(study, ran))
    if study.best is not None and artifact is not None:
        parts += [
            Text(),
            Text("Load it", style="bold"),
            Padding(Text(how_to_load(artifact), style="cyan"), (0, 0, 0, 2)),
        ]
    parts += _section("Next", next_steps(study, artifact))
    return Group(*parts)


def results(shown: Sequence[Row], *, wide: bool) -> Table:
    """The measured recipes."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.padding = (0, 1, 0, 0)
    table.add_column("", no_wrap=True)
    table.add_column("recipe", ratio=1, overflow="fold", min_width=20)
    for heading in ("ms", "speed-up", "error*", "memory**"):
        table.add_column(heading, justify="right", no_wrap=True)
    if wide:
        table.add_column("verdict")
    for row in shown:
        table.add_row(*(_wide(row) if wide else _narrow(row)))
    table.caption = Text(
        "* in multiples of eager's own error: plain eager against float64 is 1   ** idle + peak of a call",
        style="dim",
    )
    table.caption_justify = "left"
    return table


def not_used(rest: Sequence[Row]) -> Table:
    """Everything that cannot be chosen: one line for each reason, with the recipes that share it."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column("outcome", no_wrap=True)
    table.add_column("recipe and reason", ratio=1, overflow="fold")
    for (outcome, reason, mend), labels in _grouped(rest).items():
        body = Text(clean(labels[0]))
        if len(labels) > 1:
            body.append(f"  and {len(labels) - 1} more", style="dim")
        body.append(f"\n{clean(reason)}", style="dim")
        if mend:
            body.append("\nmend: ", style="dim").append(clean(mend), style="cyan")
        table.add_row(Text(outcome.value, style=STYLES[outcome]), body)
    return table


def _grouped(rest: Iterable[Row]) -> dict[tuple[Outcome, str, str], list[str]]:
    groups: dict[tuple[Outcome, str, str], list[str]] = {}
    for row in rest:
        key = (row.trial.outcome, row.explanation, row.trial.mend)
        groups.setdefault(key, []).append(row.trial.recipe.label)
    return groups


def _shown(ran: Sequence[Row], limit: int | None) -> list[Row]:
    if limit is None or len(ran) <= limit:
        return list(ran)
    return [row for number, row in enumerate(ran) if number < limit or row.chosen or row.reference]


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
    timing, footprint, error = row.trial.timing, row.trial.footprint, row.trial.error
    assert timing is not None  # only measured recipes stand in this table
    return (
        _mark(row),
        _name(row),
        _stacked(significant(timing.latency_ms.median), bounds(timing.latency_ms), beside=True),
        _speedup(row, beside=True),
        Text(f"{significant(error.units, 2)} x" if error else "-", style="yellow" if row.approximate else ""),
        Text(f"{size(footprint.idle_bytes)} + {size(footprint.peak_bytes)}" if footprint else "-"),
        _verdict_cell(row),
    )


def _narrow(row: Row) -> tuple[Text, ...]:
    timing, footprint, error = row.trial.timing, row.trial.footprint, row.trial.error
    assert timing is not None
    memory = (size(footprint.idle_bytes), f"+ {size(footprint.peak_bytes)}") if footprint else ("-", "")
    return (
        _mark(row),
        _name(row).append("\n").append_text(_verdict_cell(row)),
        _stacked(significant(timing.latency_ms.median), bounds(timing.latency_ms)),
        _speedup(row),
        Text(f"{significant(error.units, 2)} x" if error else "-", style="yellow" if row.approximate else ""),
        _stacked(*memory),
    )


def _mark(row: Row) -> Text:
    return Text(">" if row.chosen else " ", style="bold green")


def _name(row: Row) -> Text:
    return Text(clean(row.trial.recipe.label), style="bold green" if row.chosen else "")


def _verdict_cell(row: Row) -> Text:
    style = VERDICT_STYLES.get(row.verdict, "yellow" if row.approximate else "dim")
    return Text(row.verdict, style=style)


def _speedup(row: Row, *, beside: bool = False) -> Text:
    found = row.speedup_x
    return _stacked(times(found.median), bounds(found), beside=beside) if found else Text("1")


def _stacked(first: str, second: str, *, beside: bool = False) -> Text:
    return Text(first).append(" " if beside else "\n").append(second, style="dim")


def _verdict(study: Study) -> Text:
    if study.best is None:
        return Text(clean(study.verdict) or "Nothing could be chosen.", style="bold yellow")
    text = Text("Chosen: ", style="bold").append(clean(study.best.label), style="bold green")
    return text.append(f"\n{clean(study.verdict)}") if study.verdict else text


def _knowledge(study: Study, ran: Sequence[Row]) -> Iterator[str]:
    yield from study.facts.notes
    yield from warnings(study)
    chosen = next((row for row in ran if row.chosen), None)
    yield from chosen.trial.notes if chosen else ()


def _section(title: str, sentences: Iterable[str]) -> list[RenderableType]:
    lines = Table.grid(padding=(0, 1))
    for sentence in sentences:
        lines.add_row("-", Text(clean(sentence), overflow="fold"))
    return [Text(), Text(title, style="bold"), lines] if lines.row_count else []


def clean(text: str) -> str:
    """Without control characters: a model's name must not be able to steer the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
