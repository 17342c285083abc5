"""The end of a study: the fastest recipes race, the chosen one is saved, and what was saved is proven.

``decide.choose`` chooses, over the last trial of each recipe. What was saved is measured again from its files, and that
measurement becomes its last trial: where it does not bear out the choice, another is made.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from togi.artifact.manifest import Saved, in_turn, read_manifest
from togi.core.records import REFERENCE_RECIPE, Interval, Outcome, Recipe, Timing, Trial
from togi.decide.choose import Budget, Chosen, acceptable, choose, extends, rank
from togi.decide.faster import BETWEEN_PROCESSES
from togi.machine.limits import is_running
from togi.measure import RaceResult, race, together
from togi.study.runner import PROOF_BUDGET_S, StudyRunner, enough_s
from togi.worker.launch import NoTimeLeft
from togi.worker.supervise import AT_ONCE, RunningTrial, TrialEnded

FINALISTS = 4
_RIVALS = 2
"""At most so many are proven besides the choice."""
_LONGEST_RACE_S = 45.0
_AT_ONCE = {Outcome.TIMED_OUT: "hangs", Outcome.CRASHED: "ends its process"}
"""What becomes of an engine that cannot serve callers at once, besides wrong answers."""
_CALLERS = 2
"""So many at once try what was raced for one caller."""


@final
@dataclass(frozen=True)
class Decision:
    """What a study ends with."""

    chosen: Chosen
    folder: Path | None
    """The proven artifact; None where nothing was chosen or nothing could be saved."""
    finalists: tuple[Recipe, ...]
    """Those that raced, the reference among them, fastest first."""


@final
class Finals:
    """Race, choice and proof of one study."""

    def __init__(self, runner: StudyRunner, keep: Path) -> None:
        self.runner = runner
        self.keep = keep
        self._proven: dict[Recipe, Path] = {}
        self.unusable: dict[Recipe, str] = {}
        """What was set aside, and why."""
        self._ended: dict[Recipe, str] = {}
        """What was not saved or proven since its process hung or ended: no choice without files either."""
        self._one_at_a_time: set[Recipe] = set()
        """What hung or ended where two called at once."""
        self._saved_only: Decision | None = None

    def decide(self) -> Decision:
        """Race, then save and prove what is chosen until the choice rests on a proof. The original, which is not timed
        again, is proven also when the time is up: there is always something to hand back."""
        finalists = self._race()
        chosen = self._settle()
        if rivals := self._rivals(chosen):
            for rival in rivals:
                self._save_and_prove(rival)
            self._start_again()
            chosen = self._settle()
        if chosen.trial is None and self.unusable:  # nothing can be saved: the choice is then made without files
            chosen = choose(self.runner.trials(), Budget.of(self.runner.settings), unusable=self._ended)
        best = None if chosen.trial is None else chosen.trial.recipe
        for recipe, folder in self._proven.items():
            if recipe != best:
                shutil.rmtree(folder, ignore_errors=True)
        return Decision(chosen, None if best is None else self._proven.get(best), finalists)

    def _settle(self) -> Chosen:
        """The choice, saved and proven; another where the proof does not bear it out."""
        chosen = self.choice()
        while chosen.trial is not None and chosen.trial.recipe not in self._proven:
            candidate = chosen.trial.recipe
            if self._proven and self._time_is_up() and candidate != REFERENCE_RECIPE:
                self.set_aside(candidate, "it could not be proven within the time limit")
            else:
                self._save_and_prove(candidate)
            chosen = self.choice()
        return chosen

    def save_only(self, first: Recipe | None = None) -> Decision:
        """For a part of a program: what its trials choose is saved; the trial of the whole is its race and proof.

        Called again after more trials, it saves only what is chosen anew. ``first``: this in place of what they choose,
        if it can be."""
        while (chosen := self.choice(first)).trial is not None and not chosen.trial.recipe.is_reference:
            candidate, before = chosen.trial.recipe, self._saved_only
            if before is not None and before.chosen.trial is not None and before.chosen.trial.recipe == candidate:
                return before
            folder = self._folder(candidate)
            try:
                running = self.runner.warm(candidate)
                if running is None:
                    self.set_aside(candidate, "it could not be built again")
                elif self._saved(running, folder, chosen.trial) is not None:
                    self._saved_only = Decision(chosen, folder, ())
                    return self._saved_only
            except TrialEnded as ended:
                self.set_aside(candidate, f"it could not be saved: {ended}", hangs=_hangs(ended))
        return Decision(chosen, None, ())

    def set_aside(self, candidate: Recipe, why: str, *, hangs: bool = False) -> None:
        """It is not a choice any more, and its last trial says so. ``hangs``: so do the choices of later studies."""
        self.unusable[candidate] = why
        what = "The original was not saved" if candidate == REFERENCE_RECIPE else f"{candidate.label} was set aside"
        self.runner.notes.append(f"{what}: {why}.")
        last = self.runner.log.last(candidate)
        if last is not None:
            reason = f"{last.reason}; {why}" if last.reason and why not in last.reason else why
            ended = {"outcome": Outcome.TIMED_OUT} if hangs and candidate != REFERENCE_RECIPE else {}
            self.runner.log.append(last.model_copy(update={"reason": reason, **ended}))

    def _folder(self, candidate: Recipe) -> Path:
        """An empty folder for its artifact, of this process: another may work on the same study. What earlier processes
        kept of the same recipe goes."""
        name = f"{self.runner.log.id[:12]}-{candidate.id}"
        for kept in self.keep.glob(f"{name}*.togi"):
            owner = kept.stem.removeprefix(name).removeprefix("-")
            if not owner.isdigit() or int(owner) == os.getpid() or not is_running(int(owner)):
                shutil.rmtree(kept, ignore_errors=True)
        folder = self.keep / f"{name}-{os.getpid()}.togi"
        folder.mkdir(parents=True)
        return folder

    def choice(self, first: Recipe | None = None) -> Chosen:
        """Going by what was measured by now. ``first``: this in any case, if it can be."""
        settings = self.runner.settings
        trial = None if first is None or first in self.unusable else self.runner.log.last(first)
        if trial is not None and acceptable(trial, Budget.of(settings)):
            return Chosen(trial=trial, reason="it was asked for")
        return choose(self.runner.trials(), Budget.of(settings), proven=self._proven, unusable=self.unusable)

    def _time_is_up(self) -> bool:
        return self.runner.left_s() < self.runner.proof_s()

    def _race(self) -> tuple[Recipe, ...]:
        """The fastest recipes besides the reference. Their trials are recorded again with what the race measured.

        None where it could change nothing: a single one that is faster beyond doubt is measured once more when it is
        proven. And none where too little time is left for a race that would say anything.
        """
        runner, candidates = self.runner, self._candidates()
        if not candidates or (len(candidates) == 1 and self._surely_faster(candidates[0])):
            return (*candidates, REFERENCE_RECIPE)
        running = [each for recipe in candidates if (each := runner.warm(recipe)) is not None]
        reference = runner.reference()
        left_s = runner.left_s() - runner.proof_s()
        while len(running) > 1 and enough_s(0.0, [reference, *running]) > left_s:
            running.pop()
        if not running or enough_s(0.0, [reference, *running]) > left_s:
            runner.notes.append("No time was left for a race of the finalists: their trials decide.")
            return (*candidates, REFERENCE_RECIPE)
        result = self._fair_race(running, min(enough_s(_LONGEST_RACE_S, [reference, *running]), left_s))
        speeds = {entry.name: entry.speedup_x.median if entry.speedup_x else 0.0 for entry in result.entries}
        fastest_first = sorted((reference, *running), key=lambda each: -speeds[each.name])
        return tuple(each.recipe for each in fastest_first)

    def _fair_race(self, running: Sequence[RunningTrial], budget_s: float, *, again: bool = False) -> RaceResult:
        """Them and the reference in turns; once more where the machine disturbed all of it and there is time. What it
        measured undisturbed is recorded: ``again`` together with what other processes of the same recipes measured."""
        runner = self.runner
        result, sure, doubt = self._race_once(running, budget_s)
        left_s = runner.left_s() - runner.proof_s()
        if doubt and left_s > enough_s(0.0, [runner.reference(), *running]):
            runner.pause()
            result, sure, doubt = self._race_once(running, min(budget_s, left_s))
        if doubt:
            runner.notes.append(
                f"The finalists' race was too disturbed to be used ({doubt}), so their trials before it decide."
            )
        else:
            for each in running:
                self._record(each.recipe, sure.get(each.name), again=again)
            runner.notes.append(f"The race: {result.order}.")
        return result

    def _race_once(
        self, running: Sequence[RunningTrial], budget_s: float
    ) -> tuple[RaceResult, Mapping[str, Timing], str]:
        """The race, what it measured of each that was not disturbed, and where that is nothing, why."""
        runner, reference = self.runner, self.runner.reference()
        by_name = {each.name: each.recipe for each in (reference, *running)}
        result = race(
            running,
            reference,
            budget_s=budget_s,
            seed=runner.settings.seed,
            on_round=lambda number, speedups_x: runner.progress.race_round(
                number, {by_name[name]: interval for name, interval in speedups_x.items()}
            ),
        )
        found = {each.name: result.timing(each.name, slowest_ms=runner.slowest_ms) for each in running}
        timings = {name: timing for name, timing in found.items() if timing is not None}
        if not any(math.isfinite(timing.speedup_x.high) for timing in timings.values()):
            return result, {}, f"{result.rounds} rounds are too few to conclude anything"
        doubts = {name: runner.doubt(timing) for name, timing in timings.items()}
        sure = {name: timing for name, timing in timings.items() if not doubts[name]}
        return result, sure, "" if sure else next(iter(doubts.values()))

    def _rivals(self, chosen: Chosen) -> Sequence[Recipe]:
        """Those that cannot be distinguished from the choice, as far as there is time to prove them and start them
        again, but for those that extend it: near it, they cannot become the choice.

        Two processes of one recipe differ for as long as they live: one process each decides nothing between them.
        """
        if chosen.trial is None or chosen.trial.recipe.is_reference:
            return []
        ranked = rank(self.runner.trials(), Budget.of(self.runner.settings))
        settled, best = {*self._proven, *self.unusable, REFERENCE_RECIPE}, chosen.trial.recipe
        open_still = [recipe for recipe in ranked if recipe not in settled and not extends(recipe, best)]
        near = self._near(open_still, best)
        affordable = self.runner.left_s() / self.runner.proof_s() - 1
        return near[: max(0, int(min(affordable, _RIVALS)))]

    def _near(self, recipes: Iterable[Recipe], fastest: Recipe) -> list[Recipe]:
        """Those that are as fast as one of them, as far as processes of their own can tell."""
        least_x = self._speedup_x(fastest).median / BETWEEN_PROCESSES.band_x
        return [recipe for recipe in recipes if self._speedup_x(recipe).median >= least_x]

    def _start_again(self) -> None:
        """Race the proven that are near each other once more, loaded into processes of their own: what each measures
        is then of both its processes."""
        runner, proven = self.runner, [recipe for recipe in self._proven if not recipe.is_reference]
        fastest = max(proven, key=lambda recipe: self._speedup_x(recipe).median)
        contenders = self._near(proven, fastest)
        if len(contenders) < 2 or self._time_is_up():
            return
        try:
            with ExitStack() as stack:
                running = []
                for recipe in contenders:
                    folder = self._proven[recipe]
                    loaded = runner.pool.start_artifact(folder, recipe, runner.facts, runner.limits, check=False)
                    stack.callback(loaded.close)
                    runner.make_ready(loaded, folder)
                    running.append(loaded)
                budget_s = min(enough_s(PROOF_BUDGET_S, [runner.reference(), *running]), max(1.0, runner.left_s()))
                self._fair_race(running, budget_s, again=True)
        except (TrialEnded, NoTimeLeft) as ended:
            runner.notes.append(f"The finalists were not started again: {ended}")

    def _for_callers(self, loaded: RunningTrial, folder: Path, candidate: Recipe, trial: Trial) -> tuple[str, ...]:
        """What should be known of it where several call at once. Where that hangs or ends it, callers wait for each
        other, by a lock round its calls, and it is verified and asked anew so. Raises TrialEnded where that fails too.
        """
        try:
            return _served_at_once(loaded)
        except TrialEnded as ended:
            what = _AT_ONCE.get(ended.ending.outcome)
            if what is None or ended.cut_off or ended.ending.stage != AT_ONCE or candidate in self.runner.composed:
                raise
        self._one_at_a_time.add(candidate)
        written = read_manifest(folder)
        in_turn_only = Saved(links=in_turn(written.chain), domains=written.signature.domains)
        self.runner.write_manifest(folder, trial, in_turn_only)
        with self._loaded(folder, candidate) as again:
            again.warm(limit_s=0.0)
            notes = _served_at_once(again)
        return (f"it {what} where {_CALLERS} call at once, so callers wait for each other", *notes)

    @contextmanager
    def _loaded(self, folder: Path, candidate: Recipe) -> Iterator[RunningTrial]:
        """In a fresh process, from its files, and right. Raises TrialEnded where it is not."""
        runner = self.runner
        with runner.pool.start_artifact(folder, candidate, runner.facts, runner.limits, check=True) as loaded:
            outcome, reason = runner.accepted(loaded)
            if outcome is not Outcome.OK:
                raise loaded.end(outcome, f"loaded from its files, {reason}", "proof")
            yield loaded

    def _candidates(self) -> Sequence[Recipe]:
        """The fastest that may be faster than the reference; those that are surely not only where limits decide."""
        unraced = (REFERENCE_RECIPE, Recipe())
        found = [each for each in self.runner.search.finalists(FINALISTS + len(unraced)) if each not in unraced]
        if not Budget.of(self.runner.settings).limited:
            found = [each for each in found if not BETWEEN_PROCESSES.at_most_same(self._speedup_x(each))]
        return found[:FINALISTS]

    def _surely_faster(self, candidate: Recipe) -> bool:
        return BETWEEN_PROCESSES.faster(self._speedup_x(candidate))

    def _speedup_x(self, finalist: Recipe) -> Interval:
        trial = self.runner.log.last(finalist)
        assert trial is not None  # the search was told of it, and it was timed
        assert trial.timing is not None
        return trial.timing.speedup_x

    def _record(self, recipe: Recipe, timing: Timing | None, *, again: bool) -> None:
        """Append the finalist's race to the journal: its last trial, timed anew; ``again``, or where the race does no
        more than point to it, together with what was measured before."""
        before = self.runner.log.last(recipe)
        if timing is None or not math.isfinite(timing.speedup_x.high) or before is None or before.timing is None:
            return
        if again or (before.outcome is Outcome.OK and BETWEEN_PROCESSES.points_to_faster(timing.speedup_x)):
            timing = together(before.timing, timing)
        kept = {name: getattr(before.timing, name) for name in ("first_call_ms", "build_s", "start_ms", "energy_mj")}
        self.runner.log.append(before.model_copy(update={"timing": timing.model_copy(update=kept)}))

    def _save_and_prove(self, candidate: Recipe) -> None:
        """Either its last trial measures what was saved, or it is set aside with the reason."""
        runner = self.runner
        runner.progress.saving(candidate)
        folder = self._folder(candidate)
        try:
            running = runner.reference() if candidate == REFERENCE_RECIPE else runner.warm(candidate)
            trial = runner.log.last(candidate)
            if running is None or trial is None:
                self.set_aside(candidate, "it could not be built again")
            elif (saved := self._saved(running, folder, trial)) is not None:
                proof = self._prove(folder, candidate, trial)
                if candidate in self._one_at_a_time:
                    saved = saved.model_copy(update={"links": in_turn(saved.links)})
                runner.write_manifest(folder, proof, saved)
                runner.log.append(proof)
                self._proven[candidate] = folder
                self._compare(candidate, trial, proof)
                return
        except (TrialEnded, NoTimeLeft) as ended:
            if candidate != REFERENCE_RECIPE:
                self._ended[candidate] = str(ended)
            self.set_aside(candidate, f"it could not be saved: {ended}", hangs=_hangs(ended))
        shutil.rmtree(folder, ignore_errors=True)

    def _compare(self, candidate: Recipe, before: Trial, proof: Trial) -> None:
        """Say where what was saved is no longer what was measured before."""
        if candidate == REFERENCE_RECIPE or before.timing is None or proof.timing is None:
            return
        was, found = before.timing.speedup_x, proof.timing.speedup_x
        if BETWEEN_PROCESSES.faster(was) and not BETWEEN_PROCESSES.faster(found):
            self.runner.notes.append(
                f"{candidate.label} was {was.median:.2f} x as fast while it was built, but loaded from its files it is "
                f"not faster beyond doubt ({_between(found)})."
            )

    def _saved(self, running: RunningTrial, folder: Path, trial: Trial) -> Saved | None:
        """Write the files of each engine, and the manifest. None where there are none: the recipe is set aside."""
        saved = running.save(folder, self.runner.ask_s())
        if saved.unsaveable:
            self.set_aside(running.recipe, f"it has no file form here: {saved.unsaveable}")
            return None
        if saved.wrong:
            self.set_aside(running.recipe, f"it is wrong beyond the samples: {saved.wrong}")
            return None
        self.runner.notes += saved.notes
        if words := self.runner.signature.within(saved.domains).domains_in_words():
            self.runner.notes.append(
                f"{running.recipe.label} refuses values for which it was not proven: it takes calls where "
                f"{' and '.join(words)}."
            )
        self.runner.write_manifest(folder, trial, saved)
        return saved

    def _prove(self, folder: Path, candidate: Recipe, trial: Trial) -> Trial:
        """Load the artifact in a fresh process, verify it, and measure its speed next to the original, and its memory.
        The original itself is not timed again; what the machine disturbed does not count.

        Raises TrialEnded when it cannot be loaded or is not as right as the candidate it was made of.
        """
        runner = self.runner
        with self._loaded(folder, candidate) as loaded:
            outcome, reason = runner.accepted(loaded)
            timing = trial.timing
            if candidate != REFERENCE_RECIPE:
                runner.make_ready(loaded, folder)
                timing = runner.time(loaded, runner.reference(), PROOF_BUDGET_S)
                if doubt := runner.doubt(timing):  # what was saved is right; how fast it is, its trial tells
                    timing, outcome, reason = trial.timing, trial.outcome, trial.reason
                    runner.notes.append(
                        f"{candidate.label} could not be timed again from its files ({doubt}), so its time before that "
                        "counts."
                    )
                elif (trial.timing is not None and trial.outcome is Outcome.OK) and (
                    candidate in runner.composed  # its trial ran from these files too
                    or BETWEEN_PROCESSES.points_to_faster(timing.speedup_x)
                ):
                    timing = together(trial.timing, timing)
            else:
                loaded.warm(limit_s=0.0)
            if timing is not None and timing.start_ms is None:
                timing = timing.model_copy(update={"start_ms": loaded.start_ms})
            found: dict[str, object] = {"timing": timing, "error": loaded.error, "footprint": loaded.footprint()}
            if candidate != REFERENCE_RECIPE and runner.facts.callers == 1:  # else verification had them all
                found["notes"] = (*trial.notes, *self._for_callers(loaded, folder, candidate, trial))
            return trial.model_copy(update={**found, "outcome": outcome, "reason": reason})


def _hangs(ended: TrialEnded | NoTimeLeft) -> bool:
    return isinstance(ended, TrialEnded) and ended.ending.outcome is Outcome.TIMED_OUT and not ended.cut_off


def _served_at_once(loaded: RunningTrial) -> tuple[str, ...]:
    """What should be known of it where several call at once, as a server's threads do with what was raced for one.
    Raises TrialEnded where they are given wrong answers and the original's would be right."""
    asked = loaded.asked_at_once(_CALLERS)
    if asked.problems:
        raise loaded.end(Outcome.WRONG, f"loaded from its files, {asked.problems[0]}", "proof")
    return (asked.note,) if asked.note else ()


def _between(interval: Interval) -> str:
    return f"between {interval.low:.2f} and {interval.high:.2f} x"
