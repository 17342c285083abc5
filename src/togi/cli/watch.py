"""Progress on standard error: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from togi.cli.live import picture
from togi.cli.output import stderr
from togi.cli.standing import WatchedProgress
from togi.core.quantities import seconds
from togi.render.terminal import clean

REFRESH_PER_SECOND = 2
"""Slow on purpose: drawing takes time from the core that a trial may be measured on."""


class PlainProgress(WatchedProgress):
    """One line for each event: ``[0:42] 7. channels_last + no_grad: 1.35x the speed``."""

    def __init__(self, subject: str, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(subject, clock)
        self._console = console

    def changed(self, line: str) -> None:
        if line:
            text = f"[{seconds(self.standing.elapsed_s)}] {clean(line)}"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveProgress(WatchedProgress):
    """Redraws the standing in place; messages scroll by above it."""

    def __init__(self, subject: str, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(subject, clock)
        self.live = Live(
            get_renderable=lambda: picture(self.subject, self.standing, console.width),
            console=console,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )

    def message(self, text: str) -> None:
        self.live.console.print(clean(text), markup=False, highlight=False)


@contextmanager
def watch(subject: str, console: Console | None = None) -> Iterator[WatchedProgress]:
    """The progress object for a command, shown while the block runs."""
    console = console or stderr()
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainProgress(subject, console)
        return
    progress = LiveProgress(subject, console)
    with progress.live:
        yield progress
