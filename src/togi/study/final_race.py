"""The race of the finalists: the fastest recipes and the reference take turns, and what it measures is recorded."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from togi.core.records import Outcome, Recipe, Timing
from togi.decide.faster import BETWEEN_PROCESSES
from togi.measure import RaceResult, race, together
from togi.study.open_study import OpenStudy
from togi.worker.supervise import RunningTrial

_HANGS_X = 10.0
"""A turn that takes so many times as long as it should when the time of the study is over is none that it cut off."""


class FinalRace:
    """Races warm processes of one study."""

    def __init__(self, study: OpenStudy) -> None:
        self._study = study
        self.told_apart: set[tuple[Recipe, Recipe]] = set()
        """Of those that raced, who is faster than whom (``decide.choose.ToldApart``)."""

    def of_trials(self, candidates: Sequence[Recipe], *, for_proof: bool = True) -> tuple[Recipe, ...]:
        """Race these and the reference, as many as there is time for. Returns all of them, fastest first.

        There is no race where too little time is left for one that would say anything. ``for_proof``: the time that a
        proof takes is kept; else one of them races in it where there is no other.
        """
        study = self._study
        if study.budget.left_s <= (study.budget.proof_s if for_proof else 0.0):  # nor to start the reference again
            return self._unraced(candidates)
        running = self._warm(candidates)
        reference = study.processes.reference()
        left_s = study.budget.left_s - study.budget.proof_s
        while len(running) > 1 and self.enough_s(0.0, running) > left_s:
            running.pop()
        if not for_proof and self.enough_s(0.0, running) > left_s:
            left_s = study.budget.left_s
        if not running or self.enough_s(0.0, running) > left_s:
            return self._unraced(candidates)
        result = self.run(running, min(self.enough_s(study.pace.race_s, running), left_s))
        speeds = {entry.name: entry.speedup_x.median if entry.speedup_x else 0.0 for entry in result.entries}
        fastest_first = sorted((reference, *running), key=lambda process: -speeds[process.name])
        return tuple(process.recipe for process in fastest_first)

    def _unraced(self, candidates: Sequence[Recipe]) -> tuple[Recipe, ...]:
        self._study.notes.append("No time was left for a race of the finalists: their trials decide.")
        return (*candidates, self._study.subject.reference)

    def _warm(self, fastest_first: Sequence[Recipe]) -> list[RunningTrial]:
        """Their processes. What is not warm is built again as far as that leaves time for the proof."""
        study, running = self._study, list[RunningTrial]()
        for candidate in fastest_first:
            rebuilding_s = study.rebuilding_s(candidate)
            if rebuilding_s and study.budget.left_s - rebuilding_s < study.budget.proof_s:
                continue
            if (process := study.processes.warm(candidate)) is not None:
                running.append(process)
        return running

    def run(self, running: Sequence[RunningTrial], budget_s: float, *, again: bool = False) -> RaceResult:
        """Race them; once more where the machine disturbed all of it and there is time. What it measured undisturbed is
        recorded: ``again`` together with what other processes of the same recipes measured."""
        study = self._study
        result, sure, doubt = self._once(running, budget_s, again=again)
        running = [process for process in running if not self._hung(process, result, budget_s)]
        left_s = study.budget.left_s - study.budget.proof_s
        if doubt and left_s > self.enough_s(0.0, running):
            study.stopwatch.pause()
            result, sure, doubt = self._once(running, min(budget_s, left_s), again=again)
        if doubt:
            study.notes.append(f"The finalists' race could not be used ({doubt}), so their trials before it decide.")
            return result
        for process in running:
            if (timing := sure.get(process.name)) is not None:
                self._record(process.recipe, timing)
        self._tell_apart({process.name: process.recipe for process in running if process.name in sure}, result)
        study.notes.append(f"The race: {result.order}.")
        return result

    def _hung(self, process: RunningTrial, result: RaceResult, budget_s: float) -> bool:
        """Whether it ended since it did not come back from a turn. Its last trial then says so, and it cannot be
        chosen any more: what it measured before counts for nothing where it may hang in somebody's hands."""
        ended, before = process.ended, self._study.log.last(process.recipe)
        if ended is None or ended.ending.outcome is not Outcome.TIMED_OUT or process.recipe.is_reference:
            return False
        if ended.cut_off and result.wall_s - budget_s < _HANGS_X * process.turn_s:
            return False
        why = f"in the race of the finalists {ended.ending.reason}"
        self._study.notes.append(f"{process.recipe.label} was set aside: {why}.")
        if before is not None:
            update = {"outcome": Outcome.TIMED_OUT, "reason": why, "stage": ended.ending.stage}
            self._study.log.append(before.model_copy(update=update))
        return True

    def enough_s(self, budget_s: float, running: Sequence[RunningTrial]) -> float:
        """The budget, or what enough rounds of these and the reference take, if that is more."""
        return self._study.stopwatch.enough_s(budget_s, [self._study.processes.reference(), *running])

    def _once(
        self, running: Sequence[RunningTrial], budget_s: float, *, again: bool
    ) -> tuple[RaceResult, Mapping[str, Timing], str]:
        """The race, what is known now of each that it measured undisturbed, and where that is nothing, why."""
        study, reference = self._study, self._study.processes.reference()
        by_name = {process.name: process.recipe for process in (reference, *running)}
        result = race(
            running,
            reference,
            budget_s=budget_s,
            seed=study.subject.settings.seed,
            clock=study.clock,
            on_round=lambda number, speedups_x: study.progress.race_round(
                number, {by_name[name]: interval for name, interval in speedups_x.items()}
            ),
        )
        slowest_ms = study.stopwatch.slowest_ms
        every = {process.name: result.timing(process.name, slowest_ms=slowest_ms) for process in running}
        timings = {name: timing for name, timing in every.items() if timing is not None}
        known = {name: self._with_trial(by_name[name], timing, again=again) for name, timing in timings.items()}
        if not any(timing.speedup_x.has_ends for timing in known.values()):
            return result, {}, f"{result.rounds} rounds are too few to conclude anything"
        doubts = {name: study.stopwatch.doubt(timing) for name, timing in timings.items()}
        sure = {name: timing for name, timing in known.items() if not doubts[name]}
        return result, sure, "" if sure else next(iter(doubts.values()))

    def _with_trial(self, recipe: Recipe, timing: Timing, *, again: bool) -> Timing:
        """What the race measured: ``again``, or where it is too little for an interval or does no more than point to
        it, together with what was measured before."""
        before = self._study.log.last(recipe)
        if before is None or before.timing is None:
            return timing
        unsure = not timing.speedup_x.has_ends or BETWEEN_PROCESSES.points_to_faster(timing.speedup_x)
        return together(before.timing, timing) if again or (before.outcome is Outcome.OK and unsure) else timing

    def _tell_apart(self, racing: Mapping[str, Recipe], result: RaceResult) -> None:
        """Note what the race says of each two, in the rounds that both were in: what each measures next to the original
        may be of another moment, as its proof is. Of those that race again this race counts."""
        recipes = set(racing.values())
        self.told_apart = {pair for pair in self.told_apart if not recipes.issuperset(pair)}
        for (name, recipe), (other, slower) in itertools.permutations(racing.items(), 2):
            speed_x = result.speed_x(name, over=other)
            if speed_x is not None and result.criterion.faster(speed_x):
                self.told_apart.add((recipe, slower))

    def _record(self, recipe: Recipe, timing: Timing) -> None:
        """Append the finalist's race to the journal: its last trial, timed anew."""
        before = self._study.log.last(recipe)
        if before is None or before.timing is None or not timing.speedup_x.has_ends:
            return
        of_its_trial = {
            name: getattr(before.timing, name) for name in ("first_call_ms", "build_s", "start_ms", "energy_mj")
        }
        self._study.log.append(before.model_copy(update={"timing": timing.model_copy(update=of_its_trial)}))
