"""The end of a study: the fastest recipes race, the chosen one is saved, and what was saved is proven.

``decide.choose`` chooses, over the last trial of each recipe. What was saved is measured again from its files, and that
measurement becomes its last trial: where it does not bear out the choice, another is made.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from togi.core.quantities import seconds
from togi.core.records import Interval, Recipe, measured
from togi.decide.budget import Budget
from togi.decide.choose import Chosen, acceptable, choose, extends, rank
from togi.decide.faster import BETWEEN_PROCESSES
from togi.study.final_race import FinalRace
from togi.study.open_study import OpenStudy
from togi.study.proof import Prover, waits_for_confirmation
from togi.worker.launch import NoTimeLeft
from togi.worker.supervise import TrialEnded

_RIVALS = 2
"""At most so many are proven besides the choice."""
_UNCONFIRMED = (
    "one half of the validation data accepted it, and the other half, which judges saved files, did not confirm it"
)


@dataclass(frozen=True)
class Decision:
    """What a study ends with."""

    chosen: Chosen
    folder: Path | None
    """The proven artifact; None where nothing was chosen or nothing could be saved."""
    finalists: tuple[Recipe, ...]
    """Those that raced, the reference among them, fastest first."""


class Finals:
    """Race, choice and proof of one study."""

    def __init__(self, study: OpenStudy, keep: Path) -> None:
        """``keep``: the folder of the artifacts."""
        self._study = study
        self._race = FinalRace(study)
        self._prover = Prover(study, keep)
        self._limits = Budget.of(study.subject.settings)
        self._saved_only: Decision | None = None

    @property
    def unusable(self) -> dict[Recipe, str]:
        """What was set aside, and why."""
        return self._prover.unusable

    def decide(self) -> Decision:
        """Race, then save and prove what is chosen until the choice rests on a proof. The original, which is not timed
        again, is proven also when the time is up: there is always something to hand back."""
        finalists = self._raced()
        chosen = self._settle()
        if rivals := self._rivals(chosen):
            for rival in rivals:
                self._prover.save_and_prove(rival)
            self._start_again()
            chosen = self._settle()
        if chosen.trial is None and self.unusable:  # nothing can be saved: the choice is then made without files
            chosen = self.without_files()
        best = None if chosen.trial is None else chosen.trial.recipe
        proven = self._prover.proven
        for recipe, folder in proven.items():
            if recipe != best:
                shutil.rmtree(folder, ignore_errors=True)
        return Decision(chosen, None if best is None else proven.get(best), finalists)

    def without_files(self, unconfirmed: str = _UNCONFIRMED) -> Chosen:
        """The choice where nothing could be saved: going by the trials, without what failed to be saved or proven, and
        without what one half of the validation data alone accepted: of many recipes the luckiest looks best there.

        ``unconfirmed``: why that is set aside."""
        while True:
            chosen = choose(
                self._study.trials(), self._limits, unusable=self._prover.failed, told_apart=self._race.told_apart
            )
            if chosen.trial is None or not waits_for_confirmation(chosen.trial):
                return chosen
            self._prover.fails(chosen.trial.recipe, unconfirmed)

    def in_time(self) -> Decision:
        """The choice where no process may be asked any more: a program of parts has its files, and anything else has
        none."""
        chosen = self.without_files(f"{_UNCONFIRMED} before the time was over. Give a longer --time-limit")
        return Decision(chosen, None if chosen.trial is None else self._prover.keep(chosen.trial), ())

    def save_only(self, first: Recipe | None = None) -> Decision:
        """For a part of a program: what its trials choose is saved; the trial of the whole is its race and proof.

        Called again after more trials, it saves only what is chosen anew. ``first``: this in place of what they choose,
        if it can be."""
        while (chosen := self.choice(first)).trial is not None and not chosen.trial.recipe.is_reference:
            candidate, before = chosen.trial.recipe, self._saved_only
            if before is not None and before.chosen.trial is not None and before.chosen.trial.recipe == candidate:
                return before
            if (folder := self._prover.save(candidate, chosen.trial)) is not None:
                self._saved_only = Decision(chosen, folder, ())
                return self._saved_only
        return Decision(chosen, None, ())

    def set_aside(self, candidate: Recipe, why: str) -> None:
        """It is not a choice any more, and its last trial says so."""
        self._prover.set_aside(candidate, why)

    def choice(self, first: Recipe | None = None) -> Chosen:
        """Going by what was measured by now. ``first``: this in any case, if it can be."""
        trial = None if first is None or first in self.unusable else self._study.log.last(first)
        candidate = None if trial is None else trial.measured
        if candidate is not None and acceptable(candidate, self._limits):
            return Chosen(trial=trial, reason="it was asked for")
        return choose(
            self._study.trials(),
            self._limits,
            proven=self._prover.proven,
            unusable=self.unusable,
            told_apart=self._race.told_apart,
        )

    def _settle(self) -> Chosen:
        """The choice, saved and proven; another where the proof does not bear it out."""
        chosen = self.choice()
        while chosen.trial is not None and chosen.trial.recipe not in self._prover.proven:
            candidate = chosen.trial.recipe
            late = self._time_is_up(candidate) and not self._prover.stands(chosen.trial)
            if self._prover.proven and late and not candidate.is_reference:
                self.set_aside(candidate, "it could not be proven within the time limit")
            elif not self._prover.proven and self._takes_too_long(candidate) and self._others_in_time(candidate):
                left_s, takes_s = self._study.budget.left_s, self._least_proof_s(candidate)
                why = f"saving and proving it takes about {seconds(takes_s)}, and {seconds(max(0.0, left_s))} were left"
                self.set_aside(candidate, why)
            else:
                self._prover.save_and_prove(candidate)
            chosen = self.choice()
        return chosen

    def _takes_too_long(self, recipe: Recipe) -> bool:
        if recipe.is_reference or self._prover.stands(self._study.log.last(recipe)):
            return False
        return self._least_proof_s(recipe) > self._study.budget.left_s

    def _others_in_time(self, candidate: Recipe) -> bool:
        """Something else that is faster than the original can be saved and proven in the time that is left."""
        ranked = rank(self._study.trials(), self._limits, self._race.told_apart)
        faster = itertools.takewhile(lambda recipe: not recipe.is_reference, ranked)
        settled = {candidate, *self.unusable}
        return any(recipe not in settled and not self._takes_too_long(recipe) for recipe in faster)

    def _least_proof_s(self, recipe: Recipe) -> float:
        """With building it again, where the race left no process of it."""
        loading_s = self._study.budget.least_proof_s(self._study.compiled_when_loaded(recipe))
        return self._study.rebuilding_s(recipe) + loading_s

    def _time_is_up(self, recipe: Recipe | None = None) -> bool:
        """For a proof: that of ``recipe``, if it may have to be built again for it."""
        return self._study.budget.left_s < self._study.budget.proof_s + self._study.rebuilding_s(recipe)

    def _raced(self) -> tuple[Recipe, ...]:
        """The fastest recipes and the reference, after their race, fastest first.

        There is none where it could change nothing: a single one that is faster beyond doubt is measured once more when
        it is proven.
        """
        candidates, speedups_x = self._candidates(), self._speedups_x()
        sure = [recipe for recipe in candidates if BETWEEN_PROCESSES.faster(speedups_x[recipe])]
        if len(candidates) < 2 and sure == [*candidates]:
            return (*candidates, self._study.subject.reference)
        # while nothing is faster beyond doubt there is nothing to prove, unless its files are made in that
        stand = all(self._prover.stands(self._study.log.last(recipe)) for recipe in candidates)
        return self._race.of_trials(candidates, for_proof=bool(sure) or not stand)

    def _candidates(self) -> Sequence[Recipe]:
        """The fastest that may be faster than the reference; those that are surely not only where limits decide."""
        unraced, count = (self._study.subject.reference, Recipe()), self._study.pace.finalists
        fastest = [recipe for recipe in self._study.search.finalists(count + len(unraced)) if recipe not in unraced]
        if not self._limits.limited:
            speedups_x = self._speedups_x()
            fastest = [recipe for recipe in fastest if not BETWEEN_PROCESSES.at_most_same(speedups_x[recipe])]
        return fastest[:count]

    def _rivals(self, chosen: Chosen) -> Sequence[Recipe]:
        """Those that cannot be distinguished from the choice, as far as there is time to prove them and start them
        again, but for those that extend it, which cannot become the choice near it, and those that lost against it.

        Two processes of one recipe differ for as long as they live: one process each decides nothing between them.
        """
        if chosen.trial is None or chosen.trial.recipe.is_reference:
            return []
        ranked = rank(self._study.trials(), self._limits, self._race.told_apart)
        settled = {*self._prover.proven, *self.unusable, self._study.subject.reference}
        best = chosen.trial.recipe
        settled |= {slower for faster, slower in self._race.told_apart if faster == best}
        undecided = [recipe for recipe in ranked if recipe not in settled and not extends(recipe, best)]
        return self._affordable(self._near(undecided, best))[:_RIVALS]

    def _affordable(self, rivals: Iterable[Recipe]) -> list[Recipe]:
        """Those that can be built again and proven, and started again, in the time that is left."""
        budget, affordable = self._study.budget, list[Recipe]()
        left_s = budget.left_s - budget.proof_s
        for rival in rivals:
            takes_s = budget.proof_s + self._study.rebuilding_s(rival)
            if takes_s <= left_s:
                left_s -= takes_s
                affordable.append(rival)
        return affordable

    def _near(self, recipes: Iterable[Recipe], fastest: Recipe) -> list[Recipe]:
        """Those that are as fast as one of them, as far as processes of their own can tell."""
        speedups_x = self._speedups_x()
        least_x = speedups_x[fastest].median / BETWEEN_PROCESSES.band_x
        return [recipe for recipe in recipes if speedups_x[recipe].median >= least_x]

    def _start_again(self) -> None:
        """Race the proven that are near each other once more, loaded into processes of their own: what each measures
        is then of both its processes."""
        study, subject = self._study, self._study.subject
        proven = [recipe for recipe in self._prover.proven if not recipe.is_reference]
        speedups_x = self._speedups_x()
        contenders = self._near(proven, max(proven, key=lambda recipe: speedups_x[recipe].median))
        if len(contenders) < 2 or self._time_is_up():
            return
        try:
            with ExitStack() as stack:
                running = []
                for recipe in contenders:
                    folder = self._prover.proven[recipe]
                    loaded = subject.pool.start_artifact(
                        folder, recipe, subject.facts, subject.limits, check=None, name=recipe.label
                    )
                    stack.callback(loaded.close)
                    study.processes.make_ready(loaded, folder)
                    running.append(loaded)
                budget_s = min(self._race.enough_s(study.pace.proof_s, running), max(1.0, study.budget.left_s))
                self._race.run(running, budget_s, again=True)
        except (TrialEnded, NoTimeLeft) as ended:
            study.notes.append(f"The finalists were not started again: {ended}")

    def _speedups_x(self) -> dict[Recipe, Interval]:
        """Of each recipe as it was measured last."""
        return {trial.recipe: trial.speedup_x for trial in measured(self._study.log.trials())}
