"""The answer of a fleet as text for a terminal: cost and latency by kind of machine, the front, the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from togi.core.quantities import bounds, plural, significant
from togi.fleet.answer import Fleet, KindAnswer
from togi.render.terminal import bullets, clean, figure, stack, table


def fleet_text(fleet: Fleet) -> RenderableType:
    grid = table(
        "machine", f"{fleet.currency} a million", "ms", f"{fleet.currency} an hour", "recipe", left=("recipe",)
    )
    for kind in sorted(fleet.kinds, key=_cost):
        grid.add_row(*_row(kind))
    grid.caption = Text(
        "a million: of calls, one after the other; intervals of 95 %\n* on the front: none is cheaper and as fast",
        style="dim",
    )
    grid.caption_justify = "left"
    return stack(grid, Text(clean(fleet.verdict), style="bold"), bullets(_about(fleet)))


def _cost(kind: KindAnswer) -> float:
    return kind.per_million.median if kind.per_million is not None else float("inf")


def _row(kind: KindAnswer) -> Iterator[Text]:
    name = Text(clean(kind.kind) + (" *" if kind.on_front else ""), style="green" if kind.on_front else "")
    if kind.cpu:
        measured_on = kind.gpu if kind.device == "cuda" and kind.gpu else kind.cpu
        name.append(f"\n{clean(measured_on)}, {plural(kind.threads, 'thread')}", style="dim")
    yield name
    yield figure(kind.per_million) if kind.per_million else Text()
    yield figure(kind.latency_ms) if kind.latency_ms else Text()
    yield Text(significant(kind.per_hour))
    yield Text(clean(kind.recipe)) if kind.state == "ok" else Text(kind.state, style="red")


def _about(fleet: Fleet) -> Iterator[str]:
    for step in fleet.steps:
        cost = step.per_second_saved
        yield f"{step.faster} instead of {step.cheaper}: " + (
            "the figures do not show which of the two is cheaper or faster"
            if cost is None
            else f"{significant(cost.median)} {fleet.currency} ({bounds(cost)}) for each second of latency saved"
        )
    for kind in fleet.kinds:
        if kind.state != "ok":
            yield f"{kind.kind}: {kind.state}: {kind.reason}"
        elif kind.folder:
            yield f"{kind.kind}: {kind.folder}"
