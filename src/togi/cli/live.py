"""The picture of a running study: what runs, what was learned, the best so far, time left."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from togi.cli.standing import Standing, ending
from togi.core.quantities import bounds, seconds, times
from togi.core.records import Outcome, Trial
from togi.render.terminal import STYLES, clean

MARKS = {Outcome.OK: "+", Outcome.REFUSED: "-", Outcome.MISSING: "?"}
SHOWN_RACERS = 4


def picture(subject: str, standing: Standing, width: int) -> RenderableType:
    """At most ``width`` columns and about a dozen lines, so that it fits a small terminal."""
    lines = Table.grid(padding=(0, 1))
    lines.add_column(style="dim", no_wrap=True, min_width=7)
    lines.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for label, text in _lines(standing):
        lines.add_row(label, text)
    bar = Table.grid()  # a progress bar ends no line of its own
    bar.add_row(ProgressBar(total=1.0, completed=_share(standing), width=min(width, 60)))
    return Group(_title(subject, standing), bar, lines)


def _title(subject: str, standing: Standing) -> Text:
    title = Text(f"togi  {clean(subject)}", style="bold", no_wrap=True, overflow="ellipsis")
    title.append(f"  {seconds(standing.elapsed_s)}", style="cyan")
    if standing.time_limit_s is not None:
        title.append(f" of {seconds(standing.time_limit_s)}", style="dim")
    if standing.left_s is not None:
        title.append(f", at most {seconds(standing.left_s)} left", style="dim")
    return title


def _lines(standing: Standing) -> Iterable[tuple[str, Text]]:
    yield "now", _now(standing)
    yield "best", _best(standing.best)
    yield "tried", _tried(standing)
    if standing.race is not None:
        for recipe, speedup in sorted(standing.race[1].items(), key=lambda item: -item[1].median)[:SHOWN_RACERS]:
            yield (
                "race",
                Text(f"{times(speedup.median):>7} {bounds(speedup):>12}  ").append(clean(recipe.label), "bold"),
            )
    for text in standing.learned:
        yield "learned", Text(clean(text))
    for trial in reversed(standing.recent):
        yield "", _recent(trial)


def _now(standing: Standing) -> Text:
    text = Text(clean(standing.recipe.label), style="bold") if standing.recipe else Text()
    return text.append(f"  {standing.phase} " if standing.recipe else f"{standing.phase} ", "cyan").append(
        seconds(standing.phase_s), "dim"
    )


def _best(best: Trial | None) -> Text:
    if best is None or best.timing is None:
        return Text("nothing measured yet", style="dim")
    speedup = best.timing.speedup_x
    return (
        Text(f"{times(speedup.median)} ", style="bold green")
        .append(f"{bounds(speedup)}  ", "dim")
        .append(clean(best.recipe.label))
    )


def _tried(standing: Standing) -> Text:
    text = Text(f"{standing.ended}")
    if standing.planned:
        text.append(f" of up to {standing.planned}", style="dim")
    for outcome, count in standing.outcomes.items():
        text.append(f"  {count} {outcome.value}", style=STYLES[outcome])
    return text


def _recent(trial: Trial) -> Text:
    mark = Text(f"{MARKS.get(trial.outcome, '!')} ", style=STYLES[trial.outcome])
    return mark.append(clean(trial.recipe.label)).append(f"  {clean(ending(trial))}", "dim")


def _share(standing: Standing) -> float:
    """How far along: by trials or by time, whichever is further."""
    by_trials = standing.ended / standing.planned if standing.planned else 0.0
    by_time = standing.elapsed_s / standing.time_limit_s if standing.time_limit_s else 0.0
    return min(1.0, max(by_trials, by_time))
