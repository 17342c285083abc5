"""Trials of a program with tuned parts in place: which of them stay, and which is to blame where it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from togi.core.recipe import PartKey, Recipe
from togi.core.records import Outcome, Trial
from togi.decide.faster import BETWEEN_PROCESSES
from togi.study.parts.assembly import NOTHING_TUNED, Assembly, TunedPart, fastest_of
from togi.study.parts.in_place import InPlace, by_torch
from togi.study.parts.part_study import PartStudy
from togi.techniques import is_exact

_ENDED = (Outcome.FAILED, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY)
"""How a program may end with its parts in place, besides being wrong."""
_PROMISE = 0.1
"""Of the program's time. What promises less by itself may be lost in the noise of the program."""


class TimeForTrials(Protocol):
    """``TimeBudget``."""

    def explore_s(self) -> float:
        """What is left for trials."""
        ...


class ProgramTrials:
    """Tries a program with what its parts have, until it is right and fast."""

    def __init__(
        self,
        studies: Sequence[PartStudy],
        in_place: Sequence[InPlace],
        attempt: Callable[[Assembly], Trial | None],
        budget: TimeForTrials,
    ) -> None:
        """
        Args:
            attempt: a trial of the program; None where no time is left for it.
            budget: of the program's study.
        """
        self._studies, self._in_place = studies, in_place
        self._attempt, self._budget = attempt, budget
        self.assemblies: list[Assembly] = []
        """All that were tried, in their order."""

    @property
    def fastest(self) -> Assembly:
        return fastest_of(self.assemblies)

    def chosen(self, trial: Trial | None) -> Assembly:
        """What is in place in the program of a trial."""
        if trial is not None:
            for assembly in reversed(self.assemblies):
                if assembly.trial is not None and assembly.trial.recipe == trial.recipe:
                    return assembly
        return NOTHING_TUNED

    @property
    def untried_share(self) -> float:
        """The share of the program's time that parts should save with what they have now, next to what they had when it
        was last tried."""
        last = self.assemblies[-1].parts if self.assemblies else {}
        return sum(max(0.0, study.should_save - study.saves(last.get(study.key))) for study in self._studies)

    def try_parts(self, if_saves: float = 0.0) -> None:
        """The program with all parts that became faster, until it is right and fast, or the time is over: unless less
        of its time than ``if_saves`` is to be gained."""
        if if_saves and self.untried_share <= if_saves:
            return
        for study in self._studies:
            study.save()
        while self._try_together() and self._budget.explore_s() > 0:
            pass

    def _try_together(self) -> bool:
        """The program with what its parts have now, unless it was tried so. True where they have something else then:
        where it was wrong or ended, what is second best for the one that is to blame, or the original; where it was
        slower than its parts by themselves promise, what they had before."""
        assembly = Assembly({study.key: study.best for study in self._studies if study.best is not None})
        if not assembly.parts or self._is_judged(assembly):
            return False
        assembly.trial = trial = self._attempt(assembly)
        if trial is not None and trial.outcome is Outcome.OUT_OF_MEMORY and self._free_memory():
            return True
        self.assemblies.append(assembly)
        if trial is None or trial.outcome not in (Outcome.WRONG, *_ENDED):
            return self._go_back() or self._dismissed()
        guilty = self._to_blame(assembly, trial)
        fault = "was not right" if trial.outcome is Outcome.WRONG else "ended"
        why = f"the program {fault} with it: {trial.reason or trial.outcome.value}"
        guilty.leave_out(why, errs=trial.outcome is Outcome.WRONG)
        guilty.save()
        return True

    def _is_judged(self, assembly: Assembly) -> bool:
        """A program that could not be judged is tried once more."""
        trials = [tried.trial for tried in self.assemblies if tried.recipe == assembly.recipe]
        return len(trials) > 1 or any(trial is None or trial.outcome is not Outcome.UNSTABLE for trial in trials)

    def _free_memory(self) -> bool:
        """End what is kept of the parts' trials. False where that is nothing."""
        return sum(study.free_memory() for study in self._studies) > 0

    def _to_blame(self, assembly: Assembly, trial: Trial) -> PartStudy:
        """The part whose error is largest on the calls that the original makes, where these were looked at. Else one
        that is approximate, if it is by its error that the program is wrong; then one with which it was not right
        before; of these the one that errs most by itself."""
        forced = {} if trial.error is None else {calls.path: calls for calls in trial.error.forced}
        right = {part for tried in self.assemblies if tried.speedup_x for part in tried.recipe.parts}
        errs = trial.error is not None and not trial.error.problems

        def guilt(study: PartStudy) -> tuple[float, bool, bool, float]:
            tuned = assembly.parts[study.key]
            served = [forced[path] for entry, _ in tuned.artifacts if (path := entry.key.path) in forced]
            alone = tuned.trial.error.units if tuned.trial.error is not None else 0.0
            worst = max((calls.units for calls in served if not calls.faithful), default=0.0)
            approximate = errs and not is_exact(tuned.recipe)
            return worst, approximate, (study.key, tuned.recipe) not in right, alone

        return max((study for study in self._studies if study.key in assembly.parts), key=guilt)

    def _go_back(self) -> bool:
        """To what parts had when the program was fastest, where those that joined since should have made it faster than
        it is: a part's trial is not its work in the program. False where there is nothing to go back to."""
        *earlier, now = self.assemblies
        before = fastest_of(earlier)
        joined = [study for study in self._studies if study.key in now.parts.keys() - before.parts.keys()]
        changed = {
            study.key: tuned
            for study in self._studies
            if (tuned := before.parts.get(study.key)) is not None
            and study.key in now.parts
            and tuned.recipe != now.parts[study.key].recipe
            and study.may_return_to(tuned)
        }
        if not changed or not joined or not now.speedup_x or not before.speedup_x:
            return False
        joined_save = sum(study.saves(now.parts[study.key]) for study in joined)
        if BETWEEN_PROCESSES.band_x / now.speedup_x <= 1 / before.speedup_x - joined_save:
            return False
        for study in self._studies:
            study.best = changed.get(study.key, study.best)
        return True

    def _dismissed(self) -> bool:
        """Whether the engine of the one part that is new in the program made it no faster, much as it promised: alone,
        again and again with the same sizes, it works with warm caches and cores of its own. Another has its turn."""
        *earlier, now = self.assemblies
        before = fastest_of(earlier)
        new = [
            study
            for study in self._studies
            if study.key in now.parts and now.parts[study.key] is not before.parts.get(study.key)
        ]
        if len(new) != 1 or not now.speedup_x or now.speedup_x > max(1.0, before.speedup_x):
            return False
        (study,) = new
        tuned, instead = now.parts[study.key], before.parts.get(study.key)
        if not tuned.recipe.engine or study.saves(tuned) - study.saves(instead) < _PROMISE:
            return False
        study.dismiss("the program was not faster with it", instead)
        study.save()
        return True

    def try_rivals(self) -> None:
        """The fastest program with another engine for a part that is nearly as fast with it alone, most worth first:
        which of them is faster in the program, the program tells."""
        if not self.fastest.parts:
            return
        for study in self._studies:
            for rival in study.rivals(self.fastest.parts.get(study.key)):
                tried = self.fastest.trial
                takes_s = rival.cost_s + (0.0 if tried is None else tried.cost_s)  # to save it, and in the program
                if self._budget.explore_s() < takes_s:
                    continue
                for other in self._studies:
                    other.best = self.fastest.parts.get(other.key)
                study.save(rival.recipe)
                self._try_together()

    def try_in_place(self, *, first: bool = False) -> None:
        """The fastest program with what is not captured compiled where it stands, instead of the parts inside of it.
        ``first``: only where most of these had their turn, and other engines than torch's own save nothing there, and
        until one is faster."""
        for place in self._in_place:
            inside = [study for study in self._studies if place.holds(study.key.path)]
            if first and not _left_to_torch(inside):
                continue
            while (tuned := place.next()) is not None:
                assembly = Assembly({**self._outside(place, inside), place.key: tuned})
                self._try(assembly)
                if first and assembly is self.fastest and assembly.speedup_x > 1.0:
                    return

    def _outside(self, place: InPlace, inside: Iterable[PartStudy]) -> dict[PartKey, TunedPart]:
        """What the fastest program has elsewhere."""
        replaced = {study.key for study in inside} | {other.key for other in self._in_place if place.meets(other)}
        return {key: tuned for key, tuned in self.fastest.parts.items() if key not in replaced}

    def try_settings(self, settings: Recipe) -> None:
        """Settings alone, round the calls of the modules that are not captured, unless they were tried there."""
        places = [place for place in self._in_place if not place.repeats]
        assembly = Assembly({place.key: place.tuned(settings) for place in places})
        if places and all(tried.recipe != assembly.recipe for tried in self.assemblies):
            self._try(assembly)

    def _try(self, assembly: Assembly) -> None:
        assembly.trial = self._attempt(assembly)
        self.assemblies.append(assembly)


def _left_to_torch(inside: Sequence[PartStudy]) -> bool:
    """Whether most of these parts had their turn and no engine besides torch's own is fastest for one."""
    share = sum(study.part.share for study in inside)
    had_turn = sum(study.part.share for study in inside if study.had_turn)
    best = [study.best.recipe for study in inside if study.best is not None]
    return 2 * had_turn >= share and all(map(by_torch, best))
