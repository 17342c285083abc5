"""Parts of a program and the program itself, whose trials end as a test says."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from togi.core.recipe import PartKey, Recipe
from togi.core.records import ErrorReport, ForcedCalls, Interval, Outcome, Timing, Trial
from togi.decide.choose import Chosen
from togi.program.parts import Part, Uncaptured
from togi.study.finals import Decision
from togi.study.parts.assembly import Assembly, TunedPart
from togi.study.parts.in_place import InPlace
from togi.study.parts.part_study import PartStudy
from togi.study.parts.program_trials import ProgramTrials
from togi.subject.effects import Effects
from togi.techniques import recipe

ONE = Interval(median=1.0, low=1.0, high=1.0)
OPENVINO = recipe(openvino={})


def report(units: float, *forced: ForcedCalls, rmse: float = 0.0) -> ErrorReport:
    return ErrorReport(faithful=units <= 8, units=units, rmse=rmse, max_abs=0.0, forced=forced)


def timed(speedup_x: float) -> Timing:
    return Timing(latency_ms=ONE, speedup_x=Interval(median=speedup_x, low=0.95 * speedup_x, high=1.05 * speedup_x))


def trial(of: Recipe, speedup_x: float = 2.0, units: float = 1.0, rmse: float = 0.0) -> Trial:
    error = report(units, rmse=rmse)
    return Trial(recipe=of, outcome=Outcome.OK, error=error, timing=timed(speedup_x), cost_s=5.0)


def part(path: str, *alike: str, form: int = 0, share: float = 0.4) -> Part:
    """Without a survey, which nothing here asks for."""
    return Part.model_construct(
        key=PartKey(path=path, form=form),
        copies=(path, *alike),
        module="Linear",
        calls=1,
        share=share,
        inputs="",
        proof={each: f"{each}-proof" for each in (path, *alike)},
        effects=Effects(),
        weights=dict.fromkeys((path, *alike), ""),
        settings={each: {} for each in (path, *alike)},
    )


class Trials:
    """The trials of a part, fastest first."""

    stopped = "the time is over"

    def __init__(self, *found: Trial) -> None:
        self.found = list(found)
        self.unusable: dict[Recipe, str] = {}
        self.wrong: set[Recipe] = set()
        """Of these, with which the program was not right."""
        self.later: list[Trial] = []
        """What exploring finds, one each time."""
        self.promised: list[float] = []
        """What one more trial is expected to save, before each time it is explored; then nothing."""
        self.explored: list[float] = []
        """Seconds that it was given."""
        self.not_built: set[str] = set()
        """Copies that cannot be."""
        self.closed = self.memory_to_free = self.faithful_alone = False
        self._saved: Decision | None = None

    def trials(self) -> list[Trial]:
        return self.found

    def promises(self, seconds: float) -> float:
        return self.promised[0] if self.promised else 0.0

    def explore(self, seconds: float, *, first_gain: bool = False, trials: int | None = None) -> None:
        self.explored.append(seconds)
        if self.later:
            self.found.insert(0, self.later.pop(0))
        if not first_gain and self.promised:
            self.promised.pop(0)

    def choice(self) -> Chosen:
        usable = (trial for trial in self.found if trial.recipe not in self.unusable)
        return Chosen(trial=next(usable, None), reason="")

    def save(self, first: Recipe | None = None) -> Decision:
        asked_for = [each for each in self.found if each.recipe == first and first not in self.unusable]
        chosen = asked_for[0] if asked_for else self.choice().trial
        if chosen is None or chosen.recipe.is_reference:
            return Decision(Chosen(trial=None, reason=""), None, ())
        if self._saved is None or self._saved.chosen.trial != chosen:
            self._saved = Decision(Chosen(trial=chosen, reason=""), Path("saved"), ())
        return self._saved

    def set_aside(self, candidate: Recipe, reason: str, *, wrong: bool) -> None:
        self.unusable[candidate] = reason
        self.wrong |= {candidate} if wrong else set()

    def dismiss(self, recipe: Recipe, reason: str) -> None:
        self.unusable |= {trial.recipe: reason for trial in self.found if trial.recipe.engine == recipe.engine}

    def leave_approximate(self) -> None:
        self.faithful_alone = True

    def copy(self, path: str, recipe: Recipe) -> Path | None:
        return None if path in self.not_built else Path(path)

    def free_memory(self) -> bool:
        freed, self.memory_to_free = self.memory_to_free, False
        return freed

    def conclude(self, decision: Decision) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def study_of(of: Part, trials: Trials, before: Recipe | None = None) -> PartStudy:
    """One that is open, and has saved what its trials choose."""
    study = PartStudy(of, lambda *_: trials, before=before)
    study.explore(0.0)
    if before is None:
        study.save()
    return study


class Faster:
    """A part that is twice as fast with OpenVINO, then with others."""

    def __init__(self, path: str, units: float = 1.0, *others: Recipe, share: float = 0.4) -> None:
        self.trials = Trials(*(trial(each, units=units) for each in (OPENVINO, *others)))
        self.study = study_of(part(path, share=share), self.trials)

    def gain(self, speedup_x: float = 2.0, units: float = 1.0, **engine: Any) -> Recipe:
        """It is so much faster now, with ``engine``."""
        found = recipe(**engine) if engine else OPENVINO
        self.trials.found.insert(0, trial(found, speedup_x, units))
        return found


class NotYetFaster(Faster):
    """One on which nothing was tried."""

    def __init__(self, path: str, share: float = 0.4) -> None:
        self.trials = Trials()
        self.study = study_of(part(path, share=share), self.trials)


def in_place(path: str, *engines: Recipe, alike: Iterable[str] = ()) -> InPlace:
    """A module that is not captured, or blocks that are alike, with what is tried on it."""
    places = [Uncaptured(path=each, module="Network", share=0.4, calls=1, weights="") for each in (path, *alike)]
    left = [tuned_in_place(each) for each in engines]

    class Planned(InPlace):
        def next(self) -> TunedPart | None:
            return left.pop(0) if left else None

        def tuned(self, chosen: Recipe) -> TunedPart:
            return tuned_in_place(chosen)

    return Planned(None, *places)  # type: ignore[arg-type]


def tuned_in_place(chosen: Recipe) -> TunedPart:
    return TunedPart(Trial(recipe=chosen, outcome=Outcome.OK), ())


class Program:
    """A program that is right as long as none of ``guilty`` is in place: a part, or what is done to it."""

    left_s = math.inf
    cost_s = 0.0
    """What a trial of it takes."""
    fault = Outcome.WRONG
    """How it ends with the guilty."""

    def __init__(self, *guilty: str, forced: Iterable[ForcedCalls] = ()) -> None:
        self.guilty, self.forced = set(guilty), tuple(forced)
        self.tried: list[set[str]] = []
        """The parts in place, by trial."""
        self.done: list[set[str]] = []
        """What was done to them."""
        self.speeds: dict[int, float] = {}
        """Its speed-up by the number of the trial; else 1.5."""

    def trials_with(self, *parts: Faster, in_place: Iterable[InPlace] = ()) -> ProgramTrials:
        studies = [each.study for each in parts]
        return ProgramTrials(studies, list(in_place), self.attempt, self)

    def explore_s(self) -> float:
        return self.left_s

    def attempt(self, assembly: Assembly) -> Trial:
        self.tried.append({key.label for key in assembly.parts})
        self.done.append({tuned.recipe.short_label for tuned in assembly.parts.values()})
        wrong = self.guilty & (self.tried[-1] | self.done[-1])
        outcome = self.fault if wrong else Outcome.OK
        error = report(50.0 if wrong else 1.0, *self.forced) if outcome in (Outcome.OK, Outcome.WRONG) else None
        timing = None if wrong else timed(self.speeds.get(len(self.tried), 1.5))
        reason = "50 units" * bool(wrong)
        return Trial(
            recipe=assembly.recipe, outcome=outcome, reason=reason, error=error, timing=timing, cost_s=self.cost_s
        )
