"""The choice rests on a proof: what was saved is measured again, and another is chosen where that does not bear it out.

Processes are stood in for by a table of what each recipe measures once it is loaded from its files."""

from __future__ import annotations

import functools
import math
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from togi.artifact.manifest import PARTS, Link, Saved
from togi.core.errors import SubjectError
from togi.core.records import (
    REFERENCE_RECIPE,
    Choice,
    Ending,
    ErrorReport,
    Facts,
    Footprint,
    Interval,
    Outcome,
    Recipe,
    Stage,
    Timing,
    Trial,
)
from togi.core.settings import Settings
from togi.decide.faster import BETWEEN_PROCESSES
from togi.journal import Journal
from togi.machine.describe import machine
from togi.study.finals import Decision, Finals
from togi.study.progress import Progress
from togi.study.runner import PROOF_BUDGET_S, StudyRunner
from togi.techniques import recipe
from togi.worker.protocol import AskedAtOnce
from togi.worker.supervise import AT_ONCE, Limits, TrialEnded


def engine(name: str) -> Recipe:
    return Recipe(choices=(Choice(stage=Stage.ENGINE, technique=name), *REFERENCE_RECIPE.choices))


FAST, NEXT, SLOW = engine("fast"), engine("next"), engine("slow")


def trial(recipe: Recipe, speedup: float, mib: int = 10) -> Trial:
    return Trial(
        recipe=recipe,
        outcome=Outcome.OK,
        error=ErrorReport(faithful=True, units=1.0, rmse=1e-7, max_abs=1e-7),
        timing=Timing(
            latency_ms=Interval(median=10 / speedup, low=9 / speedup, high=11 / speedup),
            speedup_x=Interval(median=speedup, low=speedup * 0.99, high=speedup * 1.01),
            rounds_ms=tuple((10.0, 10 / (speedup * scatter)) for scatter in (0.99, 1.0, 1.01) for _ in range(4)),
        ),
        footprint=Footprint(idle_bytes=mib << 20, peak_bytes=0),
    )


class Log:
    id = "0123456789abcdef"

    def __init__(self, trials: list[Trial]) -> None:
        self._trials = trials

    def trials(self) -> list[Trial]:
        return list(self._trials)

    def append(self, trial: Trial) -> None:
        self._trials.append(trial)

    def last(self, recipe: Recipe) -> Trial | None:
        return next((t for t in reversed(self._trials) if t.recipe == recipe), None)


class Processes:
    """Stands for a study runner; ``loaded`` says how each recipe's files measure, or why they do not."""

    limits = StudyRunner.limits
    trials = StudyRunner.trials

    def __init__(self, trials: list[Trial], loaded: dict[Recipe, Trial | str], settings: Settings) -> None:
        self.log, self.loaded, self.settings = Log(trials), loaded, settings
        self.progress, self.notes, self.started = Progress(), list[str](), 0.0
        self.proven: list[Recipe] = []
        self.composed: dict[Recipe, Path] = {}
        self.time_left_s = math.inf
        fastest_first = sorted(trials, key=lambda trial: -trial.timing.speedup_x.median if trial.timing else 0.0)
        self.pool: Any = None
        self.signature = SimpleNamespace(within=lambda _: SimpleNamespace(domains_in_words=list))
        self.facts: Any = SimpleNamespace(callers=1)
        self.accepted: Any = None
        self.doubt: Any = lambda _timing: ""
        self.time: Any = None
        self.slowest_ms, self.paused = math.inf, 0
        self.search = SimpleNamespace(finalists=lambda count: [trial.recipe for trial in fastest_first][:count])

    def warm(self, recipe: Recipe) -> Any:
        saved = Saved(unsaveable="it runs the live module" if self.loaded.get(recipe) == "no file form" else "")
        return SimpleNamespace(recipe=recipe, name=recipe.label, turn_s=0.5, save=lambda _folder, _ask_s: saved)

    def reference(self) -> Any:
        return self.warm(REFERENCE_RECIPE)

    def write_manifest(self, *_: object) -> None:
        pass

    def make_ready(self, running: Any, _folder: Path) -> None:
        running.warm()

    def left_s(self) -> float:
        return self.time_left_s

    def pause(self) -> None:
        self.paused += 1

    def proof_s(self) -> float:
        return 10.0

    def ask_s(self) -> float:
        return 2.0


def decided(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    trials: list[Trial],
    loaded: dict[Recipe, Trial | str],
    start_artifact: Any = None,
    left_s: float = math.inf,
    **settings: Any,
) -> tuple[Decision, Processes]:
    runner = Processes([trial(REFERENCE_RECIPE, 1.0), *trials], loaded, Settings(effort="thorough", **settings))
    runner.time_left_s = left_s
    runner.pool = SimpleNamespace(start_artifact=start_artifact)

    def prove(_finals: Finals, _folder: Path, candidate: Recipe, before: Trial) -> Trial:
        runner.proven.append(candidate)
        found = runner.loaded.get(candidate, before)
        if isinstance(found, str):
            ending = Ending(outcome=Outcome.FAILED, reason=found, stage="proof")
            raise TrialEnded(ending, runner.warm(candidate))
        return found

    monkeypatch.setattr(Finals, "_race", lambda _finals: ())
    monkeypatch.setattr(Finals, "_prove", prove)
    return Finals(runner, tmp_path).decide(), runner  # type: ignore[arg-type]


def test_the_fastest_is_saved_and_its_proof_is_its_last_trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    proof = trial(FAST, 2.9)
    decision, runner = decided(monkeypatch, tmp_path, [trial(FAST, 3.0), trial(NEXT, 2.0)], {FAST: proof})
    assert decision.chosen.trial == runner.log.last(FAST) == proof
    assert decision.folder is not None
    assert decision.folder.is_dir()
    assert runner.proven == [FAST]


def test_what_is_not_faster_from_its_files_gives_way_to_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    decision, runner = decided(
        monkeypatch, tmp_path, [trial(FAST, 3.0), trial(NEXT, 2.0)], {FAST: trial(FAST, 1.02), NEXT: trial(NEXT, 1.9)}
    )
    assert decision.chosen.trial is not None
    assert decision.chosen.trial.recipe == NEXT
    assert any("loaded from its files it is not faster beyond doubt" in note for note in runner.notes)
    assert decision.folder is not None
    assert list(tmp_path.iterdir()) == [decision.folder]
    assert decision.folder.name.startswith(f"0123456789ab-{NEXT.id}")


def test_a_proof_that_the_machine_disturbed_leaves_the_time_as_it_was(tmp_path: Path) -> None:
    before, disturbed = trial(FAST, 3.0), trial(FAST, 0.9).timing
    runner = Processes([before], {}, Settings())
    doubt = {id(disturbed): "a neighbour came", id(before.timing): ""}
    proof = MagicMock(error=before.error, start_ms=500.0)
    proof.asked_at_once.return_value = AskedAtOnce()
    proof.__enter__.return_value = proof
    proof.footprint.return_value = before.footprint
    runner.pool = SimpleNamespace(start_artifact=lambda *_arguments, **_options: proof)
    runner.accepted = lambda _running: (Outcome.OK, "")
    runner.doubt = lambda timing: doubt[id(timing)]
    assert before.timing is not None
    as_it_was = before.timing.model_copy(update={"start_ms": 500.0})
    for measured in (disturbed, before.timing):
        runner.time = lambda *_arguments, found=measured: found
        assert Finals(runner, tmp_path)._prove(tmp_path, FAST, before).timing == as_it_was  # type: ignore[arg-type]
    assert len(runner.notes) == 1
    assert "(a neighbour came), so its time before that counts" in runner.notes[0]


WRONG_AT_ONCE = AskedAtOnce(problems=("output is another when 2 call at once (it cannot serve threads)",))
FAILS_AT_ONCE = AskedAtOnce(note="it fails when 2 call at once: one call at a time")


@pytest.mark.parametrize(
    ("asked", "callers", "wrong"), [(WRONG_AT_ONCE, 1, True), (FAILS_AT_ONCE, 1, False), (WRONG_AT_ONCE, 4, False)]
)
def test_what_is_wrong_only_where_several_call_is_not_proven(
    tmp_path: Path, asked: AskedAtOnce, callers: int, wrong: bool
) -> None:
    """Where it was raced for several callers, verification asked them all. What fails at once gives no wrong answer."""
    before = trial(FAST, 3.0)
    runner = Processes([before], {}, Settings())
    runner.facts = SimpleNamespace(callers=callers)
    loaded = MagicMock(error=before.error, start_ms=None)
    loaded.asked_at_once.return_value = asked
    loaded.end = lambda outcome, reason, stage: TrialEnded(
        Ending(outcome=outcome, reason=reason, stage=stage), runner.warm(FAST)
    )
    loaded.__enter__.return_value = loaded
    loaded.footprint.return_value = before.footprint
    runner.pool = SimpleNamespace(start_artifact=lambda *_arguments, **_options: loaded)
    runner.accepted = lambda _running: (Outcome.OK, "")
    runner.time = lambda *_arguments: before.timing
    prove = functools.partial(Finals(runner, tmp_path)._prove, tmp_path, FAST, before)  # type: ignore[arg-type]
    if not wrong:
        assert prove().notes == (("it fails when 2 call at once: one call at a time",) if callers == 1 else ())
        return
    with pytest.raises(TrialEnded, match="loaded from its files, output is another when 2 call at once") as ended:
        prove()
    assert ended.value.ending.outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("outcome", "stage", "cut_off", "again"),
    [
        (Outcome.TIMED_OUT, AT_ONCE, False, True),
        (Outcome.CRASHED, AT_ONCE, False, True),
        (Outcome.TIMED_OUT, AT_ONCE, True, False),
        (Outcome.TIMED_OUT, "verify", False, False),
        (Outcome.WRONG, AT_ONCE, False, False),
    ],
)
def test_what_hangs_where_two_call_is_proven_anew_with_callers_that_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: Outcome, stage: str, cut_off: bool, again: bool
) -> None:
    """And not what hangs elsewhere, or what the time limit cut off."""
    before = trial(FAST, 3.0)
    runner = Processes([before], {}, Settings())
    ended = TrialEnded(Ending(outcome=outcome, reason="it hangs", stage=stage), runner.warm(FAST), cut_off=cut_off)
    started: list[MagicMock] = []
    written: list[tuple[Link, ...]] = []

    def start(*_arguments: Any, **options: Any) -> MagicMock:
        assert options["check"]
        loaded = MagicMock(error=before.error, start_ms=None)
        loaded.asked_at_once.side_effect = [AskedAtOnce() if started else ended]
        loaded.__enter__.return_value = loaded
        loaded.__exit__.return_value = None
        loaded.footprint.return_value = before.footprint
        started.append(loaded)
        return loaded

    chain = (Link(engine="fast", folder="fast", meta={}),)
    written_before = SimpleNamespace(chain=chain, signature=SimpleNamespace(domains=()))
    monkeypatch.setattr("togi.study.finals.read_manifest", lambda _folder: written_before)
    runner.pool = SimpleNamespace(start_artifact=start)
    runner.accepted = lambda _running: (Outcome.OK, "")
    runner.time = lambda *_arguments: before.timing
    runner.write_manifest = lambda _folder, _proof, saved: written.append(saved.links)  # type: ignore[method-assign]
    finals = Finals(runner, tmp_path)  # type: ignore[arg-type]
    if not again:
        with pytest.raises(TrialEnded):
            finals._prove(tmp_path, FAST, before)
        assert not written
        return
    what = "hangs" if outcome is Outcome.TIMED_OUT else "ends its process"
    assert finals._prove(tmp_path, FAST, before).notes == (
        f"it {what} where 2 call at once, so callers wait for each other",
    )
    assert len(started) == 2
    assert [link.one_at_a_time for links in written for link in links] == [True]
    runner.warm = lambda _recipe: SimpleNamespace(  # type: ignore[method-assign]
        recipe=FAST, save=lambda _folder, _ask_s: Saved(links=chain)
    )
    started.clear()
    finals._save_and_prove(FAST)
    assert written[-1][0].one_at_a_time, "the manifest of the proof says so too"


def test_what_hung_while_it_was_saved_is_no_choice_without_files_either(tmp_path: Path) -> None:
    """Not even where the time is over and the original is not saved."""
    original = trial(REFERENCE_RECIPE, 1.0)
    runner = Processes([original, trial(FAST, 3.0)], {}, Settings())
    finals = Finals(runner, tmp_path)  # type: ignore[arg-type]
    ending = Ending(outcome=Outcome.TIMED_OUT, reason="it was still in save", stage="save")
    ended = TrialEnded(ending, MagicMock(), cut_off=True)
    runner.warm = lambda _recipe: MagicMock(save=MagicMock(side_effect=ended))  # type: ignore[method-assign]
    decision = finals.decide()
    assert decision.chosen.trial is not None
    assert decision.chosen.trial.recipe == REFERENCE_RECIPE
    assert decision.folder is None


def test_what_hangs_is_timed_out_from_then_on_and_what_was_cut_off_is_not(tmp_path: Path) -> None:
    runner = Processes([trial(FAST, 3.0), trial(NEXT, 2.0)], {}, Settings())
    finals = Finals(runner, tmp_path)  # type: ignore[arg-type]
    for recipe_, cut_off in ((FAST, False), (NEXT, True)):
        ending = Ending(outcome=Outcome.TIMED_OUT, reason="it was still in save after 15 s", stage="save")
        ended = TrialEnded(ending, MagicMock(), cut_off=cut_off)
        runner.warm = lambda _recipe, ended=ended: MagicMock(save=MagicMock(side_effect=ended))  # type: ignore[method-assign]
        finals._save_and_prove(recipe_)
    last = {recipe_: runner.log.last(recipe_) for recipe_ in (FAST, NEXT)}
    assert [each and each.outcome for each in last.values()] == [Outcome.TIMED_OUT, Outcome.OK]
    assert set(finals.unusable) == {FAST, NEXT}
    assert all("it was still in save after 15 s" in note for note in runner.notes)


def test_what_cannot_serve_threads_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    why = f"loaded from its files, {WRONG_AT_ONCE.problems[0]}"
    decision, runner = decided(monkeypatch, tmp_path, [trial(FAST, 3.0), trial(NEXT, 2.0)], {FAST: why})
    assert decision.chosen.trial is not None
    assert decision.chosen.trial.recipe == NEXT
    assert any("it cannot serve threads" in note for note in runner.notes)


@pytest.mark.parametrize(
    ("measured", "from_files", "rounds", "sure"),
    [((1.11, 1.4, 1.74), False, 15, True), ((0.7, 0.9, 1.5), False, 3, False), ((0.7, 0.9, 1.5), True, 15, False)],
)
def test_a_proof_that_points_to_it_without_being_sure_counts_together_with_the_trial(
    tmp_path: Path, measured: tuple[float, float, float], from_files: bool, rounds: int, sure: bool
) -> None:
    """And always where the trial ran from the same files, as that of a program's parts does."""
    low, median, high = measured
    before = trial(FAST, 1.4)
    proof_timing = before.timing.model_copy(  # type: ignore[union-attr]
        update={
            "speedup_x": Interval(low=low, median=median, high=high),
            "rounds_ms": tuple((10.0, 10.0 / x) for x in (low, median, high)),
        }
    )
    runner = Processes([before], {}, Settings())
    loaded = MagicMock(error=before.error, start_ms=None)
    loaded.asked_at_once.return_value = AskedAtOnce()
    loaded.__enter__.return_value = loaded
    loaded.footprint.return_value = before.footprint
    runner.pool = SimpleNamespace(start_artifact=lambda *_arguments, **_options: loaded)
    runner.accepted = lambda _running: (Outcome.OK, "")
    runner.time = lambda *_arguments: proof_timing
    if from_files:
        runner.composed[FAST] = tmp_path
    found = Finals(runner, tmp_path)._prove(tmp_path, FAST, before).timing  # type: ignore[arg-type]
    assert found is not None
    assert len(found.rounds_ms) == rounds
    assert BETWEEN_PROCESSES.faster(found.speedup_x) == sure


def test_what_seems_faster_is_measured_on_until_it_is_sure_or_the_time_is_up() -> None:
    unsure, sure = (interval.timing for interval in (trial(FAST, 1.4), trial(FAST, 1.5)))
    assert unsure is not None
    assert sure is not None
    unsure = unsure.model_copy(update={"speedup_x": Interval(median=1.4, low=1.0, high=2.0)})
    budgets: list[float] = []

    def time_once(_running: Any, _reference: Any, budget_s: float) -> Timing:
        budgets.append(budget_s)
        return unsure if len(budgets) == 1 else sure

    running, reference = MagicMock(turn_s=0.1), MagicMock(turn_s=0.1)
    for limit_s, found in ((60.0, len(unsure.rounds_ms) + len(sure.rounds_ms)), (5.0, len(unsure.rounds_ms))):
        budgets.clear()
        arguments: Any = [None] * 4
        runner = StudyRunner(*arguments, Settings(time_limit_s=limit_s), *arguments[:3], time.monotonic(), 0)
        runner._time_once = time_once  # type: ignore[method-assign]
        timing = runner.time(running, reference, 3.0)
        assert len(timing.rounds_ms) == found
        assert budgets == [3.0, 6.0][: len(budgets)]


def test_where_no_proof_bears_it_out_the_original_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    decision, runner = decided(monkeypatch, tmp_path, [trial(FAST, 3.0)], {FAST: trial(FAST, 1.0)})
    assert decision.chosen.trial is not None
    assert decision.chosen.trial.recipe == REFERENCE_RECIPE
    assert runner.proven == [FAST, REFERENCE_RECIPE]


def test_the_original_is_handed_back_also_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trials = [trial(FAST, 3.0), trial(NEXT, 2.0)]
    decision, runner = decided(monkeypatch, tmp_path, trials, {FAST: trial(FAST, 1.0)}, left_s=0.0)
    assert runner.proven == [FAST, REFERENCE_RECIPE]
    assert decision.chosen.trial is not None
    assert decision.chosen.trial.recipe == REFERENCE_RECIPE
    assert decision.folder is not None
    assert "it could not be proven within the time limit" in " ".join(runner.notes)


def test_a_proof_much_slower_than_the_trial_lets_others_compete(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trials = [trial(FAST, 3.0), trial(NEXT, 2.5), trial(SLOW, 1.5)]
    decision, runner = decided(monkeypatch, tmp_path, trials, {FAST: trial(FAST, 2.0), NEXT: trial(NEXT, 2.4)})
    assert decision.chosen.trial is not None
    assert decision.chosen.trial.recipe == NEXT
    assert runner.proven == [FAST, NEXT]


def test_finalists_that_are_near_each_other_are_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One is faster in the first process and slower in the second by more: both processes decide."""
    second = {FAST: trial(FAST, 2.6), NEXT: trial(NEXT, 2.9)}
    started: list[Recipe] = []

    def start_artifact(folder: Path, recipe: Recipe, _facts: Any, limits: Limits, **_options: Any) -> Any:
        assert limits == Limits(timeout_s=7.0, memory_bytes=1 << 30), "those of a trial"
        started.append(recipe)
        running = MagicMock(recipe=recipe, turn_s=0.5)
        running.name = folder.name
        return running

    def race(running: Any, _reference: Any, **_options: Any) -> Any:
        timings = {each.name: second[each.recipe].timing for each in running}
        return SimpleNamespace(timing=lambda name, **_options: timings.get(name), order="level", rounds=12)

    monkeypatch.setattr("togi.study.finals.race", race)
    trials = [trial(FAST, 3.0), trial(NEXT, 2.95), trial(SLOW, 1.5)]
    limits = {"trial_timeout_s": 7, "trial_memory_bytes": "1GiB"}
    decision, runner = decided(monkeypatch, tmp_path, trials, {}, start_artifact, **limits)
    assert runner.proven == [FAST, NEXT]
    assert started == [FAST, NEXT]
    assert decision.chosen.trial is not None
    assert decision.chosen.trial.recipe == NEXT
    assert decision.chosen.trial.timing is not None
    assert decision.chosen.trial.timing.speedup_x.median == pytest.approx(2.925, rel=0.01)
    assert list(tmp_path.iterdir()) == [decision.folder]

    started.clear()
    hurried, runner = decided(monkeypatch, tmp_path, trials, {}, left_s=15.0)
    assert runner.proven == [FAST]
    assert started == []
    assert hurried.chosen.trial is not None
    assert hurried.chosen.trial.recipe == FAST


@pytest.mark.parametrize(("raced", "rounds", "sure"), [((1.0, 1.3, 1.7), 15, True), ((0.7, 0.9, 1.5), 3, False)])
def test_a_race_that_points_to_it_without_being_sure_counts_together_with_the_trial(
    tmp_path: Path, raced: tuple[float, float, float], rounds: int, sure: bool
) -> None:
    """A program of a second a call has a few rounds in its race: they do not undo what its trial was sure of."""
    low, median, high = raced
    before = trial(FAST, 1.4)
    update = {
        "speedup_x": Interval(low=low, median=median, high=high),
        "rounds_ms": tuple((10.0, 10.0 / x) for x in (low, median, high)),
    }
    runner = Processes([before], {}, Settings())
    Finals(runner, tmp_path)._record(FAST, before.timing.model_copy(update=update), again=False)  # type: ignore
    found = runner.log.last(FAST)
    assert found is not None
    assert found.timing is not None
    assert len(found.timing.rounds_ms) == rounds
    assert BETWEEN_PROCESSES.faster(found.timing.speedup_x) == sure


DISTURBED, CALM = 18.0, 10.0
"""What the reference takes, in ms."""


@pytest.mark.parametrize(
    ("reference_ms", "left_s", "races", "recorded"),
    [
        ([CALM], math.inf, 1, True),
        ([DISTURBED, CALM], math.inf, 2, True),
        ([DISTURBED, DISTURBED], math.inf, 2, False),
        ([DISTURBED], 11.0, 1, False),
    ],
)
def test_a_disturbed_race_is_repeated_once_where_time_is_left(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    reference_ms: list[float],
    left_s: float,
    races: int,
    recorded: bool,
) -> None:
    runner = Processes([trial(FAST, 3.0)], {}, Settings())
    runner.time_left_s, runner.slowest_ms = left_s, 1.3 * CALM
    runner.doubt = lambda timing: "disturbed" if timing.reference_ms > runner.slowest_ms else ""
    asked: list[float] = []

    def race(running: Any, _reference: Any, **_options: Any) -> Any:
        took_ms = reference_ms[len(asked)]
        (each,) = running

        def timing(name: str, *, slowest_ms: float) -> Any:
            assert (name, slowest_ms) == (each.name, 1.3 * CALM)
            found = trial(FAST, 2.5).timing
            assert found is not None
            return found.model_copy(update={"rounds_ms": ((took_ms, 4.0),) * 12})

        asked.append(took_ms)
        return SimpleNamespace(timing=timing, order="fast", rounds=12)

    monkeypatch.setattr("togi.study.finals.race", race)
    Finals(runner, tmp_path)._fair_race([runner.warm(FAST)], 5.0)  # type: ignore[arg-type]
    assert (len(asked), runner.paused) == (races, races - 1)
    last = runner.log.last(FAST)
    assert last is not None
    assert last.timing is not None
    assert last.timing.speedup_x.median == (2.5 if recorded else 3.0)
    assert ("The race: fast." in runner.notes) is recorded
    assert any("too disturbed to be used (disturbed)" in note for note in runner.notes) is not recorded


def test_what_the_race_measured_undisturbed_counts_though_another_was_disturbed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It left when a neighbour came, and the rounds that it shared are few."""
    runner = Processes([trial(FAST, 3.0), trial(NEXT, 2.9)], {}, Settings())
    left, stayed = trial(NEXT, 1.0).timing, trial(FAST, 2.5).timing
    runner.doubt = lambda timing: "disturbed" if timing is left else ""
    found = {FAST.label: stayed, NEXT.label: left}
    raced = SimpleNamespace(timing=lambda name, **_options: found[name], order="fast", rounds=12)
    monkeypatch.setattr("togi.study.finals.race", lambda *_arguments, **_options: raced)
    Finals(runner, tmp_path)._fair_race([runner.warm(FAST), runner.warm(NEXT)], 5.0)  # type: ignore[list-item]
    speeds = [runner.log.last(each).timing.speedup_x.median for each in (FAST, NEXT)]  # type: ignore[union-attr]
    assert speeds == [2.5, 2.9]
    assert runner.paused == 0


def test_what_extends_the_choice_and_is_near_it_is_not_proven_beside_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It could not become the choice, and would take the time of one that can."""
    laden = Recipe(choices=(Choice(stage=Stage.REWRITE, technique="pad"), *FAST.choices))
    trials = [trial(laden, 3.09), trial(FAST, 3.0), trial(SLOW, 1.5)]
    decision, runner = decided(monkeypatch, tmp_path, trials, {})
    assert runner.proven == [FAST]
    assert decision.chosen.trial is not None
    assert decision.chosen.trial.recipe == FAST


def test_what_cannot_be_loaded_says_so_in_its_trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    decision, runner = decided(
        monkeypatch, tmp_path, [trial(FAST, 3.0), trial(NEXT, 2.0)], {FAST: "a library is missing"}
    )
    assert decision.chosen.trial is not None
    assert decision.chosen.trial.recipe == NEXT
    last = runner.log.last(FAST)
    assert last is not None
    assert last.reason == "it could not be saved: a library is missing"


def test_where_nothing_can_be_saved_the_fastest_is_named_without_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    decision, runner = decided(
        monkeypatch, tmp_path, [trial(FAST, 3.0)], {FAST: "no file form", REFERENCE_RECIPE: "no file form"}
    )
    assert decision.chosen.trial is not None
    assert decision.chosen.trial.recipe == FAST
    why = "it has no file form here: it runs the live module."
    assert runner.notes == [f"{FAST.label} was set aside: {why}", f"The original was not saved: {why}"]
    assert decision.folder is None
    assert list(tmp_path.iterdir()) == []


def test_files_that_need_more_memory_than_the_limit_are_not_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trials = [trial(FAST, 3.0, mib=5), trial(NEXT, 2.0, mib=4)]
    decision, _ = decided(monkeypatch, tmp_path, trials, {FAST: trial(FAST, 3.0, mib=9)}, max_memory_bytes=8 << 20)
    assert decision.chosen.trial is not None
    assert decision.chosen.trial.recipe == NEXT


def test_where_nothing_fits_nothing_is_proven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    decision, runner = decided(monkeypatch, tmp_path, [trial(FAST, 3.0)], {}, max_memory_bytes=1 << 20)
    assert decision.chosen.trial is None
    assert "10.0 MiB" in decision.chosen.reason
    assert runner.proven == []


class Raced(Exception):
    """Its arguments: who took part beside the reference."""


def raced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trials: list[Trial], left_s: float = math.inf) -> Processes:
    """The race of a study with these trials; raises Raced where it takes place."""

    def race(running: Any, _reference: Any, **_options: Any) -> None:
        raise Raced(*(each.recipe for each in running))

    monkeypatch.setattr("togi.study.finals.race", race)
    runner = Processes([trial(REFERENCE_RECIPE, 1.0), *trials], {}, Settings(effort="thorough"))
    runner.time_left_s = left_s
    Finals(runner, tmp_path)._race()  # type: ignore[arg-type]
    return runner


def test_a_race_takes_place_where_it_can_change_the_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(Raced) as several:
        raced(monkeypatch, tmp_path, [trial(FAST, 3.0), trial(NEXT, 2.9), trial(SLOW, 0.9)])
    assert several.value.args == (FAST, NEXT)
    with pytest.raises(Raced) as unsure:
        raced(monkeypatch, tmp_path, [trial(FAST, 1.045)])
    assert unsure.value.args == (FAST,)
    raced(monkeypatch, tmp_path, [trial(FAST, 3.0), trial(SLOW, 0.9)])
    raced(monkeypatch, tmp_path, [trial(SLOW, 0.9)])


def test_a_race_has_the_time_that_is_left_before_the_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A round of three takes 1.5 s here, and a dozen are needed; the proof takes 10 s."""
    trials = [trial(FAST, 3.0), trial(NEXT, 2.9), trial(SLOW, 2.8)]
    with pytest.raises(Raced) as fewer:
        raced(monkeypatch, tmp_path, trials, left_s=30.0)
    assert fewer.value.args == (FAST, NEXT)
    runner = raced(monkeypatch, tmp_path, trials, left_s=15.0)
    assert runner.notes == ["No time was left for a race of the finalists: their trials decide."]


@pytest.mark.parametrize("phases_s", [{}, {"measure": 62.0}], ids=["failed", "measured beside others"])
def test_the_reference_tells_how_long_a_proof_takes(phases_s: dict[str, float]) -> None:
    before = trial(REFERENCE_RECIPE, 1.0).model_copy(update={"phases_s": {"start": 1.0, "build": 2.0, **phases_s}})
    runner = SimpleNamespace(log=SimpleNamespace(last=lambda _: before), limit_s=None)
    assert StudyRunner.proof_s(runner) == PROOF_BUDGET_S + 3.0 + 2.0  # type: ignore[arg-type]


def test_what_is_saved_is_asked_less_where_little_time_is_left() -> None:
    """Its start takes 3 s, and verifying it and what it falls back on 2 s each."""
    before = trial(REFERENCE_RECIPE, 1.0).model_copy(update={"phases_s": {"start": 3.0, "verify": 2.0}})

    def asked_s(left_s: float) -> float:
        runner = SimpleNamespace(log=SimpleNamespace(last=lambda _: before), left_s=lambda: left_s, limit_s=None)
        return StudyRunner.ask_s(runner)  # type: ignore[arg-type]

    needed_s = PROOF_BUDGET_S + 3.0 + 2 * 2.0
    assert [asked_s(needed_s + more_s) for more_s in (100.0, 5.0, -5.0)] == [8.0, 5.0, 2.0]


@pytest.mark.parametrize(
    ("verify_s", "limit_s", "ask_s"),
    [
        (0.01, None, 2.0),
        (1.0, None, 4.0),
        (60.0, None, 10.0),
        (60.0, 600.0, 10.0),
        (60.0, 100.0, 8.0),
        (60.0, 1.0, 2.0),
    ],
)
def test_values_beyond_the_samples_are_asked_for_longer_where_the_original_is_slow_and_the_limit_long(
    verify_s: float, limit_s: float | None, ask_s: float
) -> None:
    before = trial(REFERENCE_RECIPE, 1.0).model_copy(update={"phases_s": {"verify": verify_s}})
    runner = SimpleNamespace(log=SimpleNamespace(last=lambda _: before), left_s=lambda: math.inf, limit_s=limit_s)
    assert StudyRunner.ask_s(runner) == ask_s  # type: ignore[arg-type]


def test_another_run_of_the_same_study_keeps_its_artifact(tmp_path: Path) -> None:
    study = Log.id[:12]
    other, ended, before = (tmp_path / f"{study}-{FAST.id}{end}.togi" for end in (f"-{os.getppid()}", "-99999999", ""))
    for folder in (other, ended, before):
        folder.mkdir()
    found = Finals(Processes([], {}, Settings()), tmp_path)._folder(FAST)
    assert found.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([other.name, found.name])


def test_a_process_that_has_ended_since_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may end a paused one when memory runs out."""
    runner = object.__new__(StudyRunner)
    runner.settings = Settings()
    runner._reference = SimpleNamespace(ended=TrialEnded)  # type: ignore[assignment]
    runner._warm = {FAST: SimpleNamespace(ended=TrialEnded), NEXT: (alive := SimpleNamespace(ended=None))}  # type: ignore[dict-item]
    started: list[Recipe] = []

    def start(recipe: Recipe, _timeout_s: float) -> Any:
        started.append(recipe)
        return SimpleNamespace(ended=None, warm=lambda: None)

    monkeypatch.setattr(runner, "_start", start)
    assert runner.reference() is runner.reference()
    assert runner.warm(FAST) is runner.warm(FAST)
    assert runner.warm(NEXT) is alive
    assert started == [REFERENCE_RECIPE, FAST]


@pytest.mark.parametrize(("reference_ms", "doubted"), [(10.5, False), (15.0, False), (19.0, False), (800.0, True)])
def test_a_session_that_is_disturbed_from_its_start_is_told_by_the_journal(
    tmp_path: Path, reference_ms: float, doubted: bool
) -> None:
    """What was 10 ms in an earlier session: somewhat slower is another day, 80 times is a neighbour."""
    survey = SimpleNamespace(facts=Facts(machine=machine(), module_class="Net"), signature=None)
    with Journal.open(tmp_path / "journal.sqlite") as journal:

        def session() -> StudyRunner:
            opened = (None, "net.py:make", survey, "", Settings(), journal, Progress())
            return StudyRunner.open(*opened, started=0.0, resume=True)  # type: ignore[arg-type]

        session().log.append(trial(FAST, 3.0))
        timing = trial(NEXT, 2.0).timing
        assert timing is not None
        slowed = timing.model_copy(update={"rounds_ms": ((reference_ms, 1.0),) * 12})
        assert bool(found := session().doubt(slowed)) is doubted
        assert (reference_ms > session().slowest_ms) is doubted
        assert not doubted or found == "disturbed: the reference took 80.0 times as long as at its best in this study"


def test_a_study_learns_from_the_others_of_its_journal_unless_it_begins_anew(tmp_path: Path) -> None:
    survey = SimpleNamespace(facts=Facts(machine=machine(), module_class="Net"), signature=None)
    with Journal.open(tmp_path / "journal.sqlite") as journal:

        def session(subject: str, *, resume: bool = True) -> StudyRunner:
            opened = (None, subject, survey, "", Settings(), journal, Progress())
            return StudyRunner.open(*opened, started=0.0, resume=resume)  # type: ignore[arg-type]

        first = session("one.py:make")
        for tried, speedup_x in ((REFERENCE_RECIPE, 1.0), (recipe(onnxruntime={}, no_grad={}), 5.0)):
            first.log.append(trial(tried, speedup_x))
        learned = session("other.py:make").experience
        assert learned.used == 1
        assert "onnxruntime 5.00x" in learned.sentence({"onnxruntime"})
        assert session("other.py:make", resume=False).experience.used == 0
        assert session("one.py:make").experience.used == 0  # its own trials are known


def composed_of(**parts: str) -> Recipe:
    return Recipe(choices=(Choice(stage=Stage.ENGINE, technique=PARTS, options=parts), *REFERENCE_RECIPE.choices))


def bare_runner(*trials: Trial, **changes: Any) -> StudyRunner:
    """One that has nothing but a journal."""
    logged = list(trials)
    arguments: dict[str, Any] = {
        **dict.fromkeys(("pool", "facts", "signature", "search", "progress")),
        "subject": "program",
        "settings": Settings(),
        "log": Log(logged),
        "started": 0.0,
    }
    return StudyRunner(**{**arguments, **changes})


def test_what_another_study_put_together_cannot_be_chosen() -> None:
    """Its files are there."""
    here, there = composed_of(a="openvino"), composed_of(a="torchscript")
    runner = bare_runner(trial(REFERENCE_RECIPE, 1.0), trial(there, 3.0), trial(here, 2.0))
    runner.composed[here] = Path("here")
    assert [each.recipe for each in runner.trials()] == [REFERENCE_RECIPE, here]
    chosen = Finals(runner, Path()).choice()
    assert chosen.trial is not None
    assert chosen.trial.recipe == here


@pytest.mark.parametrize(("earlier", "then", "starts"), [("ok", "", 0), ("failed", "ok", 1), ("failed", "failed", 1)])
def test_a_reference_that_failed_is_tried_once_more(
    earlier: str, then: str, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {
        "ok": trial(REFERENCE_RECIPE, 1.0),
        "failed": Trial(recipe=REFERENCE_RECIPE, outcome=Outcome.OUT_OF_MEMORY, reason="it needed 9 GiB"),
    }
    runner, started = bare_runner(found[earlier]), []

    def again(candidate: Recipe, _left_s: float) -> bool:
        started.append(candidate)
        runner.log.append(found[then])
        return True

    monkeypatch.setattr(runner, "explore", lambda _seconds: None)
    monkeypatch.setattr(runner, "_try", again)
    if then == "failed":
        with pytest.raises(SubjectError, match=r"its reference .* did not: it needed 9 GiB"):
            runner.try_reference()
    else:
        runner.try_reference()
    assert started == [REFERENCE_RECIPE] * starts


@pytest.mark.parametrize(("left_s", "tried"), [(10.0, True), (-1.0, False)])
def test_a_program_is_put_together_only_where_there_is_time_for_it(
    left_s: float, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, allowed, closed = bare_runner(progress=MagicMock()), list[float](), list[bool]()
    composed = composed_of(a="openvino")

    def attempt(candidate: Recipe, allowed_s: float) -> bool:
        allowed.append(allowed_s)
        runner.log.append(trial(candidate, 2.0))
        return True

    runner._warm[composed] = SimpleNamespace(close=lambda: closed.append(True))  # type: ignore[assignment]
    monkeypatch.setattr(runner, "explore_s", lambda **_: left_s)
    monkeypatch.setattr(runner, "_try", attempt)
    assert (runner.try_composed(composed, Path()) is not None) == tried
    assert allowed == [left_s] * tried
    assert closed == [True], "what was put together before with the same parts is gone"
