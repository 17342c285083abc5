from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.render.made_up_study import made_up_study
from togi.core.records import Choice, ErrorReport, Interval, Outcome, Recipe, Stage, Timing, Trial
from togi.decide.budget import Budget
from togi.render.progress import (
    LiveProgress,
    PlainProgress,
    WatchedProgress,
    as_asked,
    picture,
    watch,
    where_someone_watches,
)
from togi.render.run_state import RunState
from togi.study.progress import Progress


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def drawn(state: RunState, width: int, encoding: str = "utf-8") -> str:
    """What a terminal without colours shows; fails where it cannot write a character."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, no_color=True)
    console.print(picture("a.py:f", state, console.options))
    file.seek(0)
    return file.read()


def measured(label: str, median: float, low: float) -> Trial:
    speedup_x = Interval(median=median, low=low, high=median * 1.1)
    choices = (Choice(stage=Stage.ENGINE, technique=label),)
    return Trial(
        recipe=Recipe(choices=choices),
        outcome=Outcome.OK,
        timing=Timing(latency_ms=speedup_x, speedup_x=speedup_x),
        error=ErrorReport(faithful=True, units=1.0, rmse=1e-7, max_abs=1e-7),
    )


def watched(clock: FakeClock, progress: WatchedProgress) -> None:
    """A study of eighteen trials of ten seconds each, stopped after ten of them."""
    study = made_up_study()
    progress.surveyed(study.facts, len(study.trials), 240.0)
    for number, trial in enumerate(study.trials[:10]):
        progress.trial_started(trial.recipe, number)
        progress.trial_phase(trial.recipe, "measure")
        clock.now_s += 10
        progress.trial_ended(trial)


def test_time_left_is_the_sooner_of_limit_and_forecast() -> None:
    clock = FakeClock()
    progress = WatchedProgress("a.py:f", clock)
    assert progress.state.left_s is None
    watched(clock, progress)
    assert progress.state.left_s == 80.0, "eight trials of ten seconds, sooner than the limit's 140 s"
    clock.now_s += 1000
    assert progress.state.left_s == 0.0


def test_the_best_so_far_is_what_could_be_chosen() -> None:
    clock = FakeClock()
    progress = WatchedProgress("a.py:f", clock)
    watched(clock, progress)
    assert progress.state.best is not None
    assert progress.state.best.trial == made_up_study().trials[5]
    assert progress.state.ended == 10
    approximate = made_up_study().trials[9]
    assert approximate.timing is not None
    fast = approximate.timing.speedup_x.model_copy(update={"median": 99.0, "high": 100.0})
    allowed = approximate.model_copy(update={"timing": approximate.timing.model_copy(update={"speedup_x": fast})})
    assert not progress.state.end(allowed.model_copy(update={"outcome": Outcome.WRONG}))
    assert allowed.footprint is not None
    progress.state.budget = Budget(max_memory_bytes=allowed.footprint.total_bytes - 1)
    assert not progress.state.end(allowed), "it does not fit"
    progress.state.budget = Budget(max_memory_bytes=allowed.footprint.total_bytes)
    assert progress.state.end(allowed), "within the error that the user allowed"


def test_the_display_shows_when_the_first_gain_and_the_best_came() -> None:
    """Plain eager leads at first and is no gain; nor is what only seems faster, or is slower than the best."""

    clock = FakeClock()
    console = Console(file=io.StringIO(), width=200)
    progress = PlainProgress("a.py:f", console, clock)
    shown: list[str] = []
    for after_s, trial in (
        (5.0, measured("no_grad", 1.0, 1.0)),
        (8.0, measured("unclear", 1.2, 0.9)),
        (12.0, measured("first", 2.4, 2.3)),
        (15.0, measured("slower", 1.5, 1.4)),
        (21.0, measured("best", 3.1, 3.0)),
    ):
        clock.now_s = 100.0 + after_s
        progress.trial_ended(trial)
        shown.append(gains_line(progress.state, 80))
    assert shown == [
        "",
        "",
        "gains   ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁█  best 2.40x after 12 s, the first",
        "gains   ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁███████  best 2.40x after 12 s, the first",
        "gains   ▁▁▁▁▁▁▁▁▁▁▁▆▆▆▆▆▆▆▆█  best 3.10x after 21 s, first gain 2.40x after 12 s",
    ]
    said = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert said[1:3] == [
        "[8.0 s] 2. unclear: 1.20x the speed (best so far)",
        "[12 s] 3. first: 2.40x the speed (the first gain)",
    ]


def gains_line(state: RunState, width: int, encoding: str = "utf-8") -> str:
    lines = drawn(state, width, encoding).splitlines()
    return next((line.rstrip() for line in lines if line.startswith("gains")), "")


def gained(clock: FakeClock) -> RunState:
    """1.10x after 10 s, 2x after 20 s, 3x after 30 s of 40 s."""
    state = RunState(clock)
    for number, speedup in enumerate((1.1, 2.0, 3.0)):
        clock.now_s += 10
        assert state.end(measured(f"engine_{number}", speedup, speedup))
    clock.now_s += 10
    return state


def test_the_curve_of_gains_fits_any_width() -> None:
    state = gained(FakeClock())
    assert gains_line(state, 200).startswith(
        "gains   ▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂▅▅▅▅▅▅▅▅█████████  best 3.00x after 30 s, first gain"
    )
    assert gains_line(state, 60) == "gains   ▁▂▂▅▅███  best 3.00x after 30 s, first gain 1.10x a…"
    for width in (20, 30, 45):
        assert max(map(len, drawn(state, width).splitlines())) <= width
        assert "▁▂▂▅▅███" in gains_line(state, width)


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "cp437"])
def test_terminals_of_other_encodings_are_sent_ascii_alone(encoding: str) -> None:
    state = gained(FakeClock())
    assert gains_line(state, 60, encoding) == "gains   .::++###  best 3.00x after 30 s, first gain 1.10x af"
    assert drawn(state, 30, encoding).isascii()


def test_the_curve_of_a_resumed_study_begins_where_the_earlier_run_was() -> None:
    clock = FakeClock()
    state = RunState(clock)
    state.resume([measured("known", 2.0, 1.9), measured("unclear", 2.5, 0.9)], Budget())
    assert gains_line(state, 60) == "", "nothing was gained in this run"
    clock.now_s += 30
    state.end(measured("new", 3.0, 2.9))
    clock.now_s += 10
    assert gains_line(state, 60) == "gains   ▅▅▅▅▅▅▅▅▅▅▅▅▅█████  best 3.00x after 30 s, the first"


def test_a_resumed_study_knows_the_best_of_before() -> None:
    console = Console(file=io.StringIO(), width=200)
    progress = PlainProgress("a.py:f", console, FakeClock())
    trials = made_up_study().trials
    best, slower = trials[5], trials[0]
    progress.resumed([slower, best], Budget())
    progress.trial_ended(slower)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"2 recipes known from an earlier run; the best of them: {best.recipe.label}" in said
    assert "best so far" not in said
    assert progress.state.ended == 1


def test_the_picture_shows_what_runs_what_leads_and_what_was_learned() -> None:
    clock = FakeClock()
    progress = WatchedProgress("a.py:f", clock)
    watched(clock, progress)
    study = made_up_study()
    progress.learned("openvino is the fastest engine here")
    progress.trial_started(study.trials[13].recipe, 11)
    progress.trial_phase(study.trials[13].recipe, "build")
    clock.now_s += 4
    shown = drawn(progress.state, 100)
    for needed in (
        "aot_inductor + no_grad",
        "build",
        "4.0 s",
        "3.12x",
        "10 of up to 18",
        "openvino is the fastest engine here",
    ):
        assert needed in shown
    assert "1:44 of 4:00" in shown


def test_the_picture_fits_a_small_terminal_in_every_state() -> None:
    clock = FakeClock()
    progress = WatchedProgress("a.py:f", clock)
    pictures = [drawn(progress.state, 60)]
    watched(clock, progress)
    timings = {t.recipe: t.timing.speedup_x for t in made_up_study().trials if t.timing}
    for number in range(3):
        progress.learned(f"lesson {number}: " + "long " * 40)
    progress.race_round(3, timings)
    pictures.append(drawn(progress.state, 60))
    for shown in pictures:
        assert max(len(line) for line in shown.splitlines()) <= 60
        assert len(shown.splitlines()) <= 20


def test_what_is_done_has_no_time_left() -> None:
    clock = FakeClock()
    progress = WatchedProgress("a.py:f", clock)
    watched(clock, progress)
    clock.now_s += 200
    assert "5:00 of 4:00, ending" in drawn(progress.state, 100)
    progress.finished(made_up_study())
    shown = drawn(progress.state, 100)
    assert shown.splitlines()[0].rstrip() == "togi  a.py:f  5:00"
    assert "now     done\n" in "\n".join(line.rstrip() for line in shown.splitlines()) + "\n"


def test_plain_lines_tell_every_trial_once() -> None:
    console = Console(file=io.StringIO(), width=80)
    clock = FakeClock()
    progress = PlainProgress("a.py:f", console, clock)
    study = made_up_study()
    progress.surveyed(study.facts, len(study.trials), None)
    for number, trial in enumerate(study.trials):
        progress.trial_started(trial.recipe, number)
        progress.trial_ended(trial)
    progress.message("strange \x1b[2J message")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == len(study.trials) + 2
    assert any("refused: it needs a CUDA device" in line for line in lines)
    assert "\x1b" not in lines[-1]


def test_live_on_a_terminal_and_plain_elsewhere() -> None:
    with watch("a.py:f", Console(file=io.StringIO(), width=80)) as progress:
        assert isinstance(progress, PlainProgress)
    terminal = Console(file=io.StringIO(), width=80, force_terminal=True, _environ={"TERM": "xterm"})
    with watch("a.py:f", terminal) as progress:
        assert isinstance(progress, LiveProgress)
        progress.message("the reference takes 41.8 ms")
        progress.trial_ended(made_up_study().trials[0])
        assert progress.state.outcomes[Outcome.OK] == 1
    assert "the reference takes 41.8 ms" in terminal.file.getvalue()  # type: ignore[attr-defined]


def test_a_log_is_not_drawn_in_where_colours_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CI hosts do: rich then takes any file for a terminal, and moves the cursor in it."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    with watch("a.py:f") as progress:
        progress.message("the reference takes 41.8 ms")
    assert "the reference takes 41.8 ms" in log.getvalue()
    assert "\x1b" not in log.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_library_shows_lines_in_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = io.StringIO()
    monkeypatch.setattr(sys, "stderr", silent)
    where_someone_watches("net").message("surveying net")
    assert silent.getvalue() == ""

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    where_someone_watches("net").message("surveying net")
    assert "surveying net" in terminal.getvalue()


def test_in_a_notebook_one_display_is_redrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []

    def display(bundle: dict[str, str], *, raw: bool, **_: bool) -> SimpleNamespace:
        assert raw
        shown.append(bundle)
        return SimpleNamespace(update=display)

    monkeypatch.setattr(sys, "stderr", cell := io.StringIO())
    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    progress = where_someone_watches("<b>net</b>")
    progress.message("surveying net")
    assert "surveying net" in shown[-1]["text/plain"]
    assert cell.getvalue() == "", "what stands there stays below the cell as an error"
    assert isinstance(progress, WatchedProgress)
    watched(FakeClock(), progress)
    assert "looking at the subject" in shown[0]["text/plain"]
    assert "10 of up to" in shown[-1]["text/plain"]
    assert "&lt;b&gt;net&lt;/b&gt;" in shown[-1]["text/html"]
    assert not any("\x1b" in text for bundle in shown for text in bundle.values())


def test_progress_is_switched_by_its_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    as_asked(False, "net").message("nobody hears it")
    assert terminal.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    as_asked(True, "net").message("written to a file")
    assert "written to a file" in file.getvalue()
    own = Progress()
    assert as_asked(own, "net") is own
