"""Progress of a study: a live display on a terminal's standard error and below a notebook's cell, else plain lines."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, Group, OverflowMethod, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from togi.core.quantities import bounds, plural, seconds, times
from togi.core.records import Facts, Interval, MeasuredTrial, Outcome, Recipe, Study, Trial
from togi.decide.budget import Budget
from togi.decide.choose import latest
from togi.render.run_state import RunState
from togi.render.sparkline import sparkline
from togi.render.terminal import STYLES, SafeConsole, clean
from togi.study.progress import Progress, ending

SHOWN_RACERS = 4
LABEL = 7
"""Columns of what stands in front of each line, and one more between them."""
NARROWEST_CURVE, WIDEST_CURVE = 8, 32
MARKS = {Outcome.OK: "+", Outcome.REFUSED: "-", Outcome.MISSING: "?"}
REFRESH_PER_SECOND = 2
"""Slow on purpose: drawing takes time from the core that a trial may be measured on."""


class WatchedProgress(Progress):
    """Keeps a ``RunState`` up to date; displays override ``changed`` and what they want to say more of."""

    def __init__(self, subject: str, clock: Callable[[], float]) -> None:
        self.subject = subject
        self.state = RunState(clock)

    def changed(self, line: str) -> None:
        """Something happened; ``line`` says it in plain text."""

    def message(self, text: str) -> None:
        self.changed(text)

    def surveyed(self, facts: Facts, planned: int, time_limit_s: float | None) -> None:
        self.state.planned, self.state.time_limit_s = planned, time_limit_s
        self.state.enter("planning")
        self.changed(f"{facts.module_class} on {facts.device}: up to {plural(planned, 'recipe')} to try")

    def resumed(self, trials: Sequence[Trial], budget: Budget) -> None:
        self.state.resume(trials, budget)
        if trials:
            best = self.state.best
            so_far = f"; the best of them: {best.recipe.label}, {ending(best.trial)}" if best is not None else ""
            self.changed(f"{plural(len(latest(trials)), 'recipe')} known from an earlier run{so_far}")

    def trial_started(self, recipe: Recipe, number: int) -> None:
        self.state.recipe = recipe
        self.state.enter("start")
        self.changed("")

    def trial_phase(self, recipe: Recipe, phase: str) -> None:
        self.state.recipe = recipe
        self.state.enter(phase)
        self.changed("")

    def trial_ended(self, trial: Trial) -> None:
        gained = len(self.state.gains)
        leads = self.state.end(trial)
        self.state.recipe = None
        self.state.enter("choosing the next")
        is_first = gained == 0 and len(self.state.gains) == 1
        mark = " (the first gain)" if is_first else " (best so far)" if leads else ""
        self.changed(f"{self.state.ended}. {trial.recipe.label}: {ending(trial)}{mark}")

    def learned(self, text: str) -> None:
        self.state.learned.append(text)
        self.changed(f"learned: {text}")

    def race_round(self, number: int, speedups_x: dict[Recipe, Interval]) -> None:
        if self.state.race is None:
            self.changed(f"race of {len(speedups_x)} finalists")
        self.state.race = (number, speedups_x)
        self.state.recipe = None
        self.state.phase = f"racing, round {number}"

    def saving(self, recipe: Recipe) -> None:
        self.state.recipe = recipe
        self.state.enter("saving")
        self.changed(f"saving {recipe.label}")

    def finished(self, study: Study) -> None:
        self.state.enter("done")
        self.state.done = True


class PlainProgress(WatchedProgress):
    """One line for each event: ``[0:42] 7. channels_last + no_grad: 1.35x the speed``."""

    def __init__(self, subject: str, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(subject, clock)
        self._console = console

    def changed(self, line: str) -> None:
        if line:
            text = f"[{seconds(self.state.elapsed_s)}] {clean(line)}"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveProgress(WatchedProgress):
    """Redraws the state in place; messages scroll by above it."""

    def __init__(self, subject: str, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(subject, clock)
        self.live = Live(
            get_renderable=lambda: picture(self.subject, self.state, console.options),
            console=console,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )

    def message(self, text: str) -> None:
        self.live.console.print(clean(text), markup=False, highlight=False)


class NotebookProgress(WatchedProgress):
    """Redraws the state below a notebook's cell whenever something happens, with the last messages in it."""

    WIDTH = 100

    def __init__(self, subject: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(subject, clock)
        from IPython.display import display

        self._shown = display(self._drawn(), raw=True, display_id=True)  # type: ignore[no-untyped-call]

    def message(self, text: str) -> None:
        self.state.messages.append(text)
        self.changed(text)

    def changed(self, line: str) -> None:
        self._shown.update(self._drawn(), raw=True)

    def finished(self, study: Study) -> None:
        super().finished(study)
        self.changed("")

    def _drawn(self) -> dict[str, str]:
        """The state by MIME type; rich escapes what it writes as HTML."""
        console = Console(file=io.StringIO(), record=True, width=self.WIDTH, force_jupyter=False, highlight=False)
        console.print(picture(self.subject, self.state, console.options))
        page = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>", clear=False)
        return {"text/html": page, "text/plain": console.export_text()}


@contextmanager
def watch(subject: str, console: Console | None = None) -> Iterator[WatchedProgress]:
    """The progress object for a command, shown while the block runs."""
    watched = console is not None or sys.stderr.isatty()  # rich takes a log for a terminal where FORCE_COLOR is set
    console = console or SafeConsole(stderr=True)
    if not watched or not console.is_terminal or console.is_dumb_terminal:
        yield PlainProgress(subject, console)
        return
    progress = LiveProgress(subject, console)
    with progress.live:
        yield progress


def picture(subject: str, state: RunState, options: ConsoleOptions) -> RenderableType:
    """Draw the state, about a dozen lines and at most as wide as the console, so that it fits a small terminal."""
    overflow: OverflowMethod = "crop" if _plain(options) else "ellipsis"
    lines = Table.grid(padding=(0, 1), expand=True)  # or a line that is too long would be cut off without a mark
    lines.add_column(style="dim", no_wrap=True, min_width=LABEL)
    lines.add_column(no_wrap=True, overflow=overflow, ratio=1)
    for label, text in _lines(state, options):
        lines.add_row(label, text)
    bar = Table.grid()  # a progress bar ends no line of its own
    bar.add_row(ProgressBar(total=1.0, completed=_share(state), width=min(options.max_width, 60)))
    title = _title(subject, state)
    title.overflow = overflow
    return Group(title, bar, lines)


def _plain(options: ConsoleOptions) -> bool:
    """Whether rich, too, draws with ASCII: nobody knows what else can be shown."""
    return options.ascii_only or options.legacy_windows


def _title(subject: str, state: RunState) -> Text:
    title = Text(f"togi  {clean(subject)}", style="bold", no_wrap=True)
    title.append(f"  {seconds(state.elapsed_s)}", style="cyan")
    if state.done:
        return title
    if state.time_limit_s is not None:
        title.append(f" of {seconds(state.time_limit_s)}", style="dim")
    if state.left_s is not None:
        title.append(f", at most {seconds(state.left_s)} left" if state.left_s else ", ending", style="dim")
    return title


def _lines(state: RunState, options: ConsoleOptions) -> Iterable[tuple[str, Text]]:
    yield "now", _now(state)
    yield "best", _best(state.best)
    if state.gains:
        yield "gains", _gains(state, options)
    yield "tried", _tried(state)
    if state.race is not None:
        for recipe, speedup in sorted(state.race[1].items(), key=lambda item: -item[1].median)[:SHOWN_RACERS]:
            yield (
                "race",
                Text(f"{times(speedup.median):>7} {bounds(speedup):>12}  ").append(clean(recipe.label), "bold"),
            )
    for text in state.learned:
        yield "learned", Text(clean(text))
    for text in state.messages:
        yield "", Text(clean(text))
    for trial in reversed(state.recent):
        yield "", _recent(trial)


def _now(state: RunState) -> Text:
    if state.done:
        return Text("done", style="cyan")
    text = Text(clean(state.recipe.label), style="bold") if state.recipe else Text()
    return text.append(f"  {state.phase} " if state.recipe else f"{state.phase} ", "cyan").append(
        seconds(state.phase_s), "dim"
    )


def _best(best: MeasuredTrial | None) -> Text:
    if best is None:
        return Text("nothing measured yet", style="dim")
    speedup = best.speedup_x
    return (
        Text(f"{times(speedup.median)} ", style="bold green")
        .append(f"{bounds(speedup)}  ", "dim")
        .append(clean(best.recipe.label))
    )


def _gains(state: RunState, options: ConsoleOptions) -> Text:
    """Their curve so far, and when they came: ``best 3.10x after 21 s, first gain 2.40x after 12 s``"""
    (first_s, first_x), (best_s, best_x) = state.gains[0], state.gains[-1]
    text = f"  best {times(best_x)} after {seconds(best_s)}"
    text += f", first gain {times(first_x)} after {seconds(first_s)}" if len(state.gains) > 1 else ", the first"
    width = min(WIDEST_CURVE, max(NARROWEST_CURVE, options.max_width - LABEL - 1 - len(text)))
    gains = [(0.0, state.before_x)] * (state.before_x > 1.0) + state.gains
    curve = sparkline(gains, state.elapsed_s, width, ascii_only=_plain(options))
    return Text().append(curve, "green").append(text)


def _tried(state: RunState) -> Text:
    text = Text(f"{state.ended}")
    if state.planned:
        text.append(f" of up to {state.planned}", style="dim")
    for outcome, count in state.outcomes.items():
        text.append(f"  {count} {outcome.value}", style=STYLES[outcome])
    return text


def _recent(trial: Trial) -> Text:
    mark = Text(f"{MARKS.get(trial.outcome, '!')} ", style=STYLES[trial.outcome])
    return mark.append(clean(trial.recipe.label)).append(f"  {clean(ending(trial))}", "dim")


def _share(state: RunState) -> float:
    """The share that is done: by trials or by time, whichever is further."""
    by_trials = state.ended / state.planned if state.planned else 0.0
    by_time = state.elapsed_s / state.time_limit_s if state.time_limit_s else 0.0
    return min(1.0, max(by_trials, by_time))


def as_asked(given: Progress | bool | None, subject: str) -> Progress:
    """Show progress as the user asked: None where someone watches, True as lines on standard error, False nowhere."""
    if isinstance(given, Progress):
        return given
    if given is None:
        return where_someone_watches(subject)
    return PlainProgress(subject, SafeConsole(stderr=True)) if given else Progress()


def as_lines(given: Progress | bool | None, subject: str) -> Progress:
    """As ``as_asked``, of what tries no recipes: there is nothing to draw, so each event is a line."""
    if isinstance(given, Progress):
        return given
    shown = _in_notebook() or sys.stderr.isatty() if given is None else given
    return PlainProgress(subject, SafeConsole(stderr=True)) if shown else Progress()


def where_someone_watches(subject: str) -> Progress:
    """A display below a notebook's cell, plain lines on a terminal's standard error; else nothing."""
    if _in_notebook():
        return NotebookProgress(subject)
    if sys.stderr.isatty():
        return PlainProgress(subject, SafeConsole(stderr=True))
    return Progress()


def _in_notebook() -> bool:
    """IPython's kernel is what shows things below a cell; without IPython imported, nobody runs one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
