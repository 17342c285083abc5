"""A comparison (``togi bench``) as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from togi.core.quantities import bounds, plural, relative, significant, size, times
from togi.core.records import Outcome
from togi.render.terminal import STYLES, clean
from togi.study.comparison import Comparison, Contestant


def comparison_text(comparison: Comparison) -> RenderableType:
    """The table, the verdict, what to know."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("", ratio=1, overflow="fold", min_width=16)
    for heading in ("ms", "speed-up", "difference", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    for number, contestant in enumerate(comparison.contestants):
        table.add_row(*_cells(contestant, first=number == 0))
    parts: list[RenderableType] = [table, Text(), Text(clean(comparison.verdict), style="bold")]
    lines = [f"- {clean(sentence)}" for sentence in _knowledge(comparison)]
    return Group(*parts, *((Text(), *map(Text, lines)) if lines else ()))


def _cells(contestant: Contestant, *, first: bool) -> tuple[Text, ...]:
    name = Text(clean(contestant.name), style="cyan" if first else "")
    if contestant.outcome is not Outcome.OK or contestant.latency_ms is None:
        reason = f"\n{contestant.outcome.value}: {contestant.reason}"
        return (name.append(clean(reason), style=STYLES[contestant.outcome]), *([Text("-")] * 4))
    latency, speedup, footprint = contestant.latency_ms, contestant.speedup_x, contestant.footprint
    return (
        name,
        Text(significant(latency.median)).append(f"\n{bounds(latency)}", style="dim"),
        Text("1" if first or speedup is None else times(speedup.median)).append(
            "" if first or speedup is None else f"\n{bounds(speedup)}", style="dim"
        ),
        Text(relative(contestant.error.rmse) if contestant.error else "-"),
        Text(size(footprint.idle_bytes)).append(f"\n+ {size(footprint.peak_bytes)}", "dim") if footprint else Text("-"),
    )


def _knowledge(comparison: Comparison) -> Iterator[str]:
    if comparison.rounds:
        yield f"{plural(comparison.rounds, 'round')} in turns; every speed-up relates to the first"
    yield from comparison.noise.warnings
    yield from comparison.notes
    yield from (f"{c.name}: {c.reason}" for c in comparison.contestants if c.reason and c.outcome is Outcome.OK)
