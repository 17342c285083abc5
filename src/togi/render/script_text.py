"""A run of a script (``togi run``) as text for a terminal: what took its time, and what tuning brought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from togi.core.printable import one_line
from togi.core.quantities import milliseconds, percent, plural, seconds
from togi.script.report import ModuleCalls, ScriptReport

if TYPE_CHECKING:
    from rich.console import RenderableType

    from togi.script.records import TunedModule

_SHOWN = 12


def report_text(report: ScriptReport) -> str:
    """The modules by the time that they take, and why some are not tuned. Lines without styles: to import what makes
    these takes a tenth of a second, which a short script is not to be slower by."""
    if not report.modules:
        return (
            f"{report.script} called no torch module in this process, so there is nothing to tune. Calls in other "
            "processes, and of functions that torch.compile made, are not seen."
        )
    inside_s = sum(calls.seconds for calls in report.modules)
    head = (
        f"{report.script} took {seconds(report.seconds)}, {seconds(inside_s)} of it in "
        f"{plural(len(report.modules), 'module')}:"
    )
    shown = report.modules[:_SHOWN]
    grid = _columns([("module", "share", "time", "calls", "a call", "called with"), *map(_cells, shown)])
    hidden = len(report.modules) - _SHOWN
    more = [f"{plural(hidden, 'module')} more took less"] if hidden > 0 else []
    why = [f"{calls.module} is left as it is: {calls.reason}" for calls in shown if calls.reason]
    listed = [f"- {one_line(sentence)}" for sentence in (*why, *more, *report.notes)]
    return "\n".join([head, "", *grid, *([""] if listed else []), *listed])


def _cells(calls: ModuleCalls) -> tuple[str, ...]:
    each_ms = 1e3 * calls.seconds / calls.calls
    figures = (percent(calls.share), seconds(calls.seconds), str(calls.calls), milliseconds(each_ms))
    return one_line(calls.module), *figures, one_line(calls.called_with)


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines with the figures below each other; the first and the last column are text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *figures, last in rows:
        aligned = (figure.rjust(width) for figure, width in zip(figures, widths[1:-1], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *aligned, last]).rstrip())
    return lines


def tuned_text(tuned: Sequence[TunedModule], folder: str | None, script: str) -> RenderableType:
    """What was chosen for each module, and how to use it. ``folder``: where it is; None if nothing was written."""
    from rich.text import Text

    from togi.render.terminal import clean, figure, stack, table

    grid = table("module", "speed-up of a call", "runs on", left=["runs on"])
    for one in tuned:
        faster = figure(one.speedup_x, "x", beside=True) if one.artifact and one.speedup_x else Text("1")
        as_it_is = f"the original{'' if one.decided else ', undecided'}: {clean(one.why_not)}"
        runs_on = clean(one.recipe) if one.artifact else as_it_is
        grid.add_row(Text(clean(one.identity.module)), faster, Text(runs_on, overflow="fold"))
    gained, undecided = any(one.artifact for one in tuned), not all(one.decided for one in tuned)
    if folder is None:
        after = "Nothing was decided, so nothing was written. The next 'togi run' goes on from here."
    elif not gained and undecided:
        after = "Nothing was faster yet, and not all was decided. The next 'togi run' goes on from here."
    elif not gained:
        after = "Nothing was faster, so the script stays as it is."
    else:
        after = f"Written to {folder}. From now on 'togi run {script}' uses it; 'python {script}' runs as ever."
        if undecided:
            after += f" 'togi run --again {script}' goes on with what is undecided."
    saved_s, loading_s = sum(one.saved_s for one in tuned), sum(one.loading_s or 0.0 for one in tuned)
    if gained and saved_s < loading_s:
        after += (
            f" A run as long as this one saves {seconds(saved_s)} in these modules and takes {seconds(loading_s)} to "
            "load their artifacts: it pays in longer runs."
        )
    return stack(grid if tuned else None, Text(clean(after)))
