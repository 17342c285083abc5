"""Picks the recipe with the largest expected improvement per second, until none is worth a trial."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from togi.core.choices import Effort
from togi.core.records import Facts, MeasuredTrial, Outcome, Recipe, Stage, Trial, Untried, Unused, measured
from togi.core.settings import Settings
from togi.decide.budget import Budget, memory_of
from togi.decide.choose import acceptable
from togi.decide.faster import BETWEEN_PROCESSES, may_yet_lead
from togi.search.configurations import TechniqueConfiguration
from togi.search.experience import Experience
from togi.search.failures import FailureModel
from togi.search.features import Atoms, RecipeFeatures
from togi.search.model import Regression, expected_improvement
from togi.search.pool import RecipePool
from togi.search.puzzles import slow_in_company
from togi.search.space import Space
from togi.techniques.base import Technique
from togi.techniques.registry import all_techniques

COUNTED = 20_000
"""Where counting what could be tried ends."""
REMEMBERED = 400
"""Predictions are made from at most this many trials: the fastest half and the latest half."""
COST_SPREAD = 1.5
"""Spreads of log cost are this multiple of those of log latency."""
HOPED_X = 1.5
"""While nothing is faster, a trial may be expected to take this many times the time that is left: costs are guesses."""
ORIGINALS_SHARE = 0.05
"""Of the time that is left, what the original as it is called today may take while there is something else to try."""
MODEST_SHARE = 1 / 3
"""While a much cheaper engine is untried, a trial may be expected to take this share of the time that is left."""
CHEAPER_X, AS_PROMISING = 0.5, 0.25
"""An engine is much cheaper than another at this share of its cost, if at least this share of its improvement is
expected of it."""
MUCH, LATER_S = 0.5, 10.0
"""While nothing is faster, the next trial promises at least this share of the most that any promises, and takes at most
so many seconds longer than the most worthwhile of these."""
FEWER_BYTES_X = 2.0
"""The most that half of the bytes gain: where reading weights takes all of the time."""
MEMORY_SPREAD, MEMORY_NOISE = 2.0, 0.05
"""Spreads of log memory are this multiple of those of log latency; and the standard deviation of what recipes do not
share, and of the measurement."""
WIDENED_AROUND = 3
"""Neighbours are taken of this many of the best recipes."""


@dataclass(frozen=True)
class _Aim:
    """What the next trial is made for: less time than the fastest that fits, or, while nothing fits, less memory."""

    log_latency: float
    """Of the fastest that can be chosen, over the reference."""
    log_limit: float | None
    """Of memory, over what the reference takes; None without one."""
    least: float | None
    """The log of the least that a recipe took, over the reference, while nothing fits."""

    def worth(self, mean: float, deviation: float, memory: tuple[float, float] | None) -> float:
        """The share of time by which a recipe is expected to be better, or of the memory by which nothing fits. Both
        predictions are of logs, with their standard deviation."""
        faster = expected_improvement(self.log_latency, mean, deviation)
        if memory is None or self.log_limit is None:
            return faster
        if self.least is None:
            return faster * 0.5 * math.erfc((memory[0] - self.log_limit) / (memory[1] * math.sqrt(2)))
        # nothing is gained by less than the limit; of what is small enough a fast one is worth more
        smaller = expected_improvement(self.least, *memory) - expected_improvement(self.log_limit, *memory)
        # relative to what is missing: the nearer the limit, the less there is to save, and the more it is worth
        return smaller / (self.least - self.log_limit) * min(1.0, math.exp(-mean))


@dataclass(frozen=True)
class Acquisition:
    """What is expected of one recipe that was not tried."""

    recipe: Recipe
    exact: bool
    improvement: float
    """Expected share by which the best time falls, with the chance of failing counted in."""
    speedup_x: float
    speedup_low_x: float
    speedup_high_x: float
    cost_s: float

    def value(self, cost_weight: float) -> float:
        """Improvement per second; less than per second where fewer trials matter more than less time."""
        return self.improvement / math.pow(self.cost_s, cost_weight)


class Search:
    """Give it every finished trial with ``tell``; ask for the ``next`` recipe until there is none.

    Deterministic: the same trials and seed give the same recipes. To resume, pass the journal's trials.
    """

    def __init__(
        self,
        facts: Facts,
        settings: Settings,
        techniques: Mapping[str, Technique] | None = None,
        trials: Iterable[Trial] = (),
        *,
        disturbed: Iterable[Trial] = (),
        space: Space | None = None,
        firsts: Sequence[Recipe] | None = None,
        experience: Experience | None = None,
        max_trials: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``techniques``: all that are installed by default. ``disturbed``: trials of earlier sessions that the
        machine disturbed, or that may end otherwise now. Their recipes are tried again: only their cost is known.
        ``firsts``: what is tried before all else, or is like it here (``Space.like``); by default the reference, and
        the original as it is called today once something is faster than the reference, or nothing else is left (with
        effort ``quick`` only then).
        ``experience``: of earlier studies. ``max_trials``: at most so many recipes, by default as many as the effort
        allows. ``clock``: seconds. Time is the settings' limit (``allow`` sets another).

        Raises UnknownNameError when the settings name a technique that does not exist.
        """
        self.settings = settings
        self._budget = Budget.of(settings)
        self._max_trials = settings.effort.max_trials if max_trials is None else max_trials
        self.space = space or Space.of(facts, settings, all_techniques() if techniques is None else techniques)
        originals = self.space.originals if firsts is None else ()
        here = (self.space.like(recipe) for recipe in firsts or ())
        self._firsts = originals[:1] if firsts is None else tuple(dict.fromkeys(filter(None, here)))
        self._original = next((recipe for recipe in originals if not recipe.choices), None)
        self.stopped = ""
        """Why ``next`` answered None, in a sentence."""
        self.out_of_time = False
        """That was since no time was left."""
        self._clock, self._begun = clock, clock()
        self._explored_since = self._begun
        """When the reference was known."""
        self._time_limit_s = settings.time_limit_s
        self._failure_model = FailureModel()
        self._trials: dict[Recipe, Trial] = {}
        self._pool = RecipePool(self.space, self._worth_trying)
        earlier = experience or Experience()
        self._latency = Regression(lambda features: features.expected_log_latency + earlier.log_latency(features))
        self._cost = Regression(
            lambda features: features.expected_log_cost + earlier.log_cost(features), scale=COST_SPREAD, noise=0.2
        )
        self._memory = Regression(
            lambda features: features.expected_log_memory, scale=MEMORY_SPREAD, noise=MEMORY_NOISE
        )
        self._disturbed = [trial for trial in disturbed if trial.cost_s > 0 and self.space.holds(trial.recipe)]
        self._gave_way: dict[Recipe, float] = {}
        """Seconds that trials took before they gave way to others. They are not at their end."""
        self._dismissed: set[str] = set()
        """Engines that cannot be chosen any more."""
        self._set_aside: dict[Recipe, bool] = {}
        """Recipes that cannot be, and whether they are wrong where they are used, whatever their trials say."""
        self._faithful_alone = False
        self._wait_s = 0.0
        """What the next approximate trial waits for, once."""
        self._acquisitions: list[Acquisition] | None = None
        self._slow_in_company: dict[RecipeFeatures, Atoms] | None = None
        self._planned: int | None = None
        self._pool.refilled()
        for trial in trials:
            self.tell(trial)

    def allow(self, seconds: float) -> None:
        """The time limit from now on."""
        self._time_limit_s, self._begun = seconds, self._clock()

    @property
    def excluded(self) -> tuple[Trial, ...]:
        """One trial (refused, missing, failed) for each technique that is not tried at all, with the reason."""
        return self.space.excluded

    @property
    def planned(self) -> int:
        """How many recipes could be tried, the reference and the original included; counting ends at 20,000."""
        if self._planned is None:
            self._planned = (
                len(self.space.originals) - 1 + sum(1 for _ in itertools.islice(self.space.recipes(), COUNTED))
            )
        return self._planned if self._max_trials is None else min(self._max_trials, self._planned)

    def tell(self, trial: Trial) -> str:
        """A trial has ended (or is read from the journal). Returns what it teaches, as a sentence, or nothing."""
        self._acquisitions = self._slow_in_company = None
        self._gave_way.pop(trial.recipe, None)
        known = trial.recipe in self._trials
        self._trials[trial.recipe] = trial
        self._pool.drop(trial.recipe)
        if trial.recipe == self.space.reference and not known:
            self._explored_since = self._clock()
        if not self.space.holds(trial.recipe):
            return ""
        features = self.space.features(trial.recipe)
        measurement = trial.measured
        if measurement is not None and measurement.eligible and self._is_of_no_use(measurement):
            self._failure_model.doubt(features)
        lesson = ""
        if not known and features in self._puzzles():
            self._failure_model.doubt(features)
        elif not known:
            lesson = self._failure_model.learn(features, trial)
        if lesson:
            self._pool.sift()
        if trial.recipe in [best.recipe for best in self._fastest_first()[:WIDENED_AROUND]]:
            self._pool.add(self.space.neighbours(trial.recipe))
        return lesson

    def gave_way(self, trial: Trial) -> bool:
        """Note a trial that was paused so that others have their turn: it may go on once there is as much time as it
        had. Returns False for one that has gone on before: ``tell`` that one."""
        recipe = trial.recipe
        if recipe in self._gave_way or not self.space.holds(recipe):
            return False
        self._acquisitions = None
        self._gave_way[recipe] = trial.cost_s
        return True

    def dismiss(self, recipe: Recipe) -> None:
        """Its engine cannot be chosen any more, and what was measured with it is not a bar for others: it does not hold
        where it is used."""
        self._dismissed.add(recipe.engine)
        self._acquisitions = None
        self._pool.sift()

    def set_aside(self, recipe: Recipe, *, wrong: bool) -> None:
        """It cannot be chosen any more, so that it is not a bar for others; what it taught of their speed stays.
        ``wrong``: where it is used, so that what errs less has its turn."""
        before = self._set_aside.get(recipe)
        self._set_aside[recipe] = wrong or before is True
        if self._set_aside[recipe] is not before:
            self._acquisitions = None

    def leave_approximate(self) -> None:
        """Faithful recipes alone are tried from now on."""
        self._faithful_alone, self._acquisitions = True, None
        self._pool.leave_approximate()
        self._pool.sift()

    def approximate_waits(self, seconds: float) -> None:
        """The next approximate trial first waits so long for what it is judged by. Its own costs do not hold that."""
        self._wait_s = seconds

    def spent_s(self, recipe: Recipe) -> float:
        """What a trial took before it gave way."""
        return self._gave_way.get(recipe, 0.0)

    def next(self, busy: Collection[str] = ()) -> Recipe | None:
        """The recipe to try now, or None when it is time to stop (``stopped`` says why).

        ``busy``: ids of recipes that another process is trying; they are passed over. Asking changes nothing.
        """
        self.stopped = ""
        self.out_of_time = False
        if (first := self._first(busy)) is not None:
            return None if self._time_is_up() else first
        original = self._original if self._original not in self._trials and Recipe().id not in busy else None
        soon = self.settings.effort is not Effort.QUICK  # where what is faster is looked for first
        if original is not None and soon and self.gained() and self._another_reference_fits(ORIGINALS_SHARE):
            return original
        worthwhile = self._most_worthwhile(busy, spared=0 if original is None else 1)
        chosen = None if worthwhile is None else worthwhile.recipe
        if chosen is None and original is not None and self._another_reference_fits():
            self.stopped, chosen = "", original
        return chosen

    def promises(self, busy: Collection[str] = ()) -> float:
        """The share of the best time, a second, by which the next trial should lower it; 0 where there is none."""
        first = self._first(busy)
        expected = next((p for p in self._ranked() if p.recipe == first), None) or self._most_worthwhile(busy, spared=0)
        return 0.0 if expected is None else expected.improvement / expected.cost_s

    def _first(self, busy: Collection[str]) -> Recipe | None:
        """What is tried before all else and is not known to fail."""
        for first in self._firsts:
            if first in self._trials or first in self._gave_way or first.id in busy:
                continue
            if first == self.space.reference or not self._failure_model.ruled_out(self.space.features(first).atoms):
                return first
        return None

    def _most_worthwhile(self, busy: Collection[str], spared: int) -> Acquisition | None:
        """``spared``: so many of the trials that the effort allows are for something else."""
        if self._max_trials is not None and len(self._trials) + spared >= self._max_trials:
            self.stopped = f"{len(self._trials)} recipes tried, as many as effort '{self.settings.effort}' allows"
            return None
        if self._time_is_up():
            return None
        acquisitions = [p for p in self._ranked() if not busy or p.recipe.id not in busy]
        if not acquisitions:
            self.stopped = "what is left is being tried" if busy else "every recipe that can work has been tried"
            return None
        if max(p.improvement for p in acquisitions) < (least := self.settings.effort.least_improvement):
            share = f"{least * 100:g} %"
            goal = f"be {share} faster than the best so far"
            if self._wanted().least is not None:
                goal = f"save {share} of what the least so far takes beyond the limit of memory"
            self.stopped = f"no recipe left is expected to {goal}"
            return None
        left_s, gained = self._time_left_s(), self.gained()
        hoped_s = left_s * (1 if gained else HOPED_X)
        affordable = [p for p in acquisitions if p.cost_s + (0.0 if p.exact else self._wait_s) <= hoped_s]
        untried = self._untried_engines(acquisitions)
        affordable = [p for p in affordable if self._is_modest(p, left_s) or not self._is_dear(p, untried)]
        if not affordable:
            self.stopped = f"{left_s:.0f} s are left, too few for any recipe that is left"
            self.out_of_time = True
            return None
        affordable = self._faithful_first(affordable)
        return self._begun_instead(affordable[0] if gained else self._first_gain(affordable), affordable)

    def _first_gain(self, affordable: Sequence[Acquisition]) -> Acquisition:
        """A first gain is worth more than a cheap trial, and most of it soon more than all of it after a compilation. A
        choice of which no speed is expected waits: another number of threads, say, can cost a factor of ten. Where the
        reference takes too much memory, it is less memory that is the gain."""
        least = MUCH * max(p.improvement for p in affordable)
        promising = [p for p in affordable if p.improvement >= least]
        soon = [p for p in promising if p.cost_s <= promising[0].cost_s + LATER_S]
        hopeful = [] if self._reference_is_too_large() else [p for p in soon if self.space.features(p.recipe).hopeful]
        return max(hopeful or soon, key=lambda p: p.improvement)

    def _begun_instead(self, chosen: Acquisition, affordable: Sequence[Acquisition]) -> Acquisition:
        """A trial with the same engine that gave way, and so is sooner done."""
        begun = (p for p in affordable if p.recipe in self._gave_way and p.cost_s <= chosen.cost_s)
        return next((p for p in begun if p.recipe.engine == chosen.recipe.engine), chosen)

    def has_cheaper(self, recipe: Recipe) -> bool:
        """Whether an engine that takes much less time, and of which something is expected, was not tried yet."""
        untried = self._untried_engines(self._ranked())
        return any(self._is_dear(p, untried) for p in self._ranked() if p.recipe == recipe)

    def _is_modest(self, expected: Acquisition, left_s: float) -> bool:
        return expected.cost_s <= left_s * MODEST_SHARE and expected.recipe not in self._gave_way

    def _is_dear(self, expected: Acquisition, untried: Mapping[str, Acquisition]) -> bool:
        """Next to the cheapest recipes of untried engines."""
        least = max(AS_PROMISING * expected.improvement, self.settings.effort.least_improvement)
        return any(
            cheapest.cost_s <= CHEAPER_X * expected.cost_s and cheapest.improvement >= least
            for cheapest in untried.values()
        )

    def _untried_engines(self, acquisitions: Sequence[Acquisition]) -> dict[str, Acquisition]:
        """The cheapest recipe with each engine that no trial was made with."""
        tried = {recipe.engine for recipe in (*self._trials, *self._gave_way)}
        dearest_first = sorted(acquisitions, key=lambda p: -p.cost_s)
        return {engine: p for p in dearest_first if (engine := p.recipe.engine) and engine not in tried}

    def _faithful_first(self, affordable: list[Acquisition]) -> list[Acquisition]:
        """The faithful ones alone while a study without a budget would go on, so that the budget costs nothing; for a
        third of the study at most, since a budget that nobody tries brings nothing. Then the most promising of all."""
        faithful = [p for p in affordable if p.exact]
        promising = any(p.improvement >= self.settings.effort.least_improvement for p in faithful)
        return faithful if promising and not self._third_is_over() else affordable

    def _third_is_over(self) -> bool:
        """Of the trials that the effort allows, or of the time that is left besides that wait, and a fifth of all time
        at least."""
        tried = self._max_trials is not None and 3 * len(self._trials) >= self._max_trials
        left_s = self._time_left_s()
        return tried or self._clock() - self._explored_since >= max((left_s - self._wait_s) / 2, left_s / 4)

    def _another_reference_fits(self, share: float = 1.0) -> bool:
        """That share of the time left is enough for the original, which takes about as long as the reference."""
        reference = self._trials.get(self.space.reference)
        return reference is not None and reference.cost_s <= share * self._time_left_s()

    def gained(self) -> bool:
        """Something is better than the reference: faster beyond doubt, or small enough where the reference is not."""
        enough = self._reference_is_too_large()
        return any(enough or BETWEEN_PROCESSES.faster(trial.speedup_x) for trial in self._fastest_first())

    def points_to_gain(self) -> bool:
        """The fastest is faster by what was measured of it, and not beyond doubt."""
        return any(BETWEEN_PROCESSES.points_to_faster(fastest.speedup_x) for fastest in self._fastest_first()[:1])

    def _is_of_no_use(self, trial: MeasuredTrial) -> bool:
        """It exceeds a limit of which nothing is predicted: what others take of memory is (``_predict_memory``)."""
        unknown = trial.footprint is None or self._reference_bytes() is None
        limits = self._budget if unknown else self._budget.model_copy(update={"max_memory_bytes": None})
        return not limits.fits(trial)

    def why(self, recipe: Recipe) -> str:
        """Why this recipe is worth a trial, in a sentence."""
        if recipe == self.space.reference:
            if recipe.trains:
                return "the training step as it is: what every speed-up relates to"
            return "plain eager without autograd: what every speed-up relates to"
        if recipe == Recipe():
            return "the original as it is called today"
        acquisition = next((p for p in self._ranked() if p.recipe == recipe), None)
        relation = self._relation(recipe)
        if acquisition is None:
            return relation
        ends = f"{acquisition.speedup_low_x:.1f} to {acquisition.speedup_high_x:.1f}"
        return f"{relation}: {acquisition.speedup_x:.1f}x expected ({ends}), about {acquisition.cost_s:.0f} s"

    def untried(self) -> tuple[Untried, ...]:
        """The techniques that could have been tried and were in no trial, with why the search ended before."""
        tried = {choice.technique for recipe in self._trials for choice in recipe.every_choice}
        left = dict.fromkeys(configuration.technique.id for configuration in self.space.configurations)
        reason = self.stopped or "the time for trials is over"
        kind = Unused.NO_TIME if self.out_of_time or not self.stopped else Unused.NOT_WORTH_IT
        return tuple(Untried(technique=id, reason=reason, unused=kind) for id in left if id not in tried)

    def remaining(self) -> int:
        """How many recipes may still be tried, as far as known now."""
        least = self.settings.effort.least_improvement
        count = sum(1 for p in self._ranked() if p.improvement >= least)
        if least == 0:
            count = max(count, self.planned - len(self._trials))
        return count if self._max_trials is None else min(count, max(self._max_trials - len(self._trials), 0))

    def finalists(self, count: int) -> tuple[Recipe, ...]:
        """Up to ``count`` recipes for the last race, fastest first: those that may yet turn out the fastest."""
        fastest = self._fastest_first()[:count]
        return tuple(trial.recipe for trial in fastest if may_yet_lead(trial.speedup_x, fastest[0].speedup_x))

    def _fastest_first(self) -> list[MeasuredTrial]:
        """Acceptable trials that can be chosen, fastest first."""
        known = (trial for trial in self._trials.values() if trial.recipe.engine not in self._dismissed)
        usable = (trial for trial in known if trial.recipe not in self._set_aside)
        acceptable_trials = [trial for trial in measured(usable) if acceptable(trial, self._budget)]
        return sorted(acceptable_trials, key=lambda trial: -trial.speedup_x.median)

    def _time_left_s(self) -> float:
        limit = self._time_limit_s
        return math.inf if limit is None else limit - (self._clock() - self._begun)

    def _time_is_up(self) -> bool:
        if self._time_left_s() > 0:
            return False
        self.stopped = "the time for trials is over"
        self.out_of_time = True
        return True

    def _worth_trying(self, recipe: Recipe, features: RecipeFeatures) -> bool:
        """It was not tried, and holds nothing that is known to fail, was dismissed or is not wanted."""
        known = recipe in self._trials or recipe.engine in self._dismissed
        wanted = features.exact or not self._faithful_alone
        return wanted and not known and not self._failure_model.ruled_out(features.atoms)

    def _ranked(self) -> list[Acquisition]:
        """The untried recipes of the pool that can work, the most worthwhile first."""
        if self._acquisitions is None:
            self._acquisitions = self._acquire()
        return self._acquisitions

    def _acquire(self) -> list[Acquisition]:
        blamed = set(self._puzzles().values())
        untried = self._due([f for f in self._pool.refilled() if not any(atoms <= f.atoms for atoms in blamed)])
        if not untried:
            return []
        mean, deviation = self._predict_latency(untried)
        cost, wanted = self._predict_cost(untried), self._wanted()
        memory: Sequence[tuple[float, float] | None] = self._predict_memory(untried) or [None] * len(untried)
        latency = zip(map(float, mean), map(float, deviation), strict=True)
        acquisitions = [
            _acquisition_of(features, m, d, c, self._failure_model.chance(features) * wanted.worth(m, d, taken))
            for features, (m, d), c, taken in zip(untried, latency, cost, memory, strict=True)
        ]
        faithful = sum(acquisition.exact for acquisition in acquisitions)
        acquisitions = [*self._shuffled(acquisitions[:faithful]), *self._shuffled(acquisitions[faithful:])]
        cost_weight = self.settings.effort.cost_weight
        return sorted(acquisitions, key=lambda p: -p.value(cost_weight))

    def _due(self, untried: Sequence[RecipeFeatures]) -> list[RecipeFeatures]:
        """Without those that wait for others: what errs less than choices that were not found wrong, and what has fewer
        bits than choices that were not found right, or so slow that half of the bytes cannot make it the fastest."""
        trials = self._trials.values()
        wrong_in_use = [recipe for recipe, wrong in self._set_aside.items() if wrong]
        found_wrong = [*wrong_in_use, *(t.recipe for t in trials if t.outcome is Outcome.WRONG)]
        wrong = {choice.label for recipe in found_wrong for choice in recipe.choices}
        right = {choice.label for t in trials if t.outcome is Outcome.OK for choice in t.recipe.choices}
        right -= {choice.label for recipe in wrong_in_use for choice in recipe.choices}
        fastest = self._fastest_first()
        near = [t for t in fastest if FEWER_BYTES_X * t.speedup_x.median >= fastest[0].speedup_x.median]
        worth_fewer = {choice.label for trial in near for choice in trial.recipe.choices}

        def is_due(one: TechniqueConfiguration) -> bool:
            mends = not one.mends or (not one.mends.isdisjoint(wrong) and one.mends.isdisjoint(right))
            return mends and not (one.coarsens and one.coarsens.isdisjoint(worth_fewer))

        return [features for features in untried if all(map(is_due, features.configurations))]

    def _shuffled(self, acquisitions: list[Acquisition]) -> list[Acquisition]:
        """In an order that does not depend on any others."""
        random.Random(self.settings.seed).shuffle(acquisitions)
        return acquisitions

    def _predict_latency(self, untried: Sequence[RecipeFeatures]) -> tuple[Iterable[float], Iterable[float]]:
        known = [trial for trial in self._remembered() if self.space.features(trial.recipe) not in self._puzzles()]
        observed = [-math.log(trial.speedup_x.median) for trial in known]
        return self._latency.predict([self.space.features(trial.recipe) for trial in known], observed, untried)

    def _predict_memory(self, untried: Sequence[RecipeFeatures]) -> list[tuple[float, float]] | None:
        """Of each, mean and standard deviation of the log of what it takes over what the reference takes. None without
        a limit of memory, or where nobody knows what the reference takes."""
        taken = self._log_memory()
        if self._log_limit() is None:
            return None
        tried = [self.space.features(recipe) for recipe in list(taken)[-REMEMBERED:]]
        mean, deviation = self._memory.predict(tried, [taken[features.recipe] for features in tried], untried)
        return [(float(m), float(d)) for m, d in zip(mean, deviation, strict=True)]

    def _log_memory(self) -> dict[Recipe, float]:
        """Of each recipe whose memory was measured, the log of that over the reference's."""
        whole_bytes = self._reference_bytes()
        taken = {trial.recipe: memory_of(trial) for trial in measured(self._known())}
        return {
            recipe: math.log(taken_bytes / whole_bytes)
            for recipe, taken_bytes in taken.items()
            if whole_bytes is not None and 0 < taken_bytes < math.inf
        }

    def _log_limit(self) -> float | None:
        """The same of the limit; None without one, or where nobody knows what the reference takes."""
        limit_bytes, whole_bytes = self._budget.max_memory_bytes, self._reference_bytes()
        if limit_bytes is None or whole_bytes is None:
            return None
        return math.log(max(limit_bytes, 1) / whole_bytes)

    def _reference_bytes(self) -> float | None:
        """What the reference takes; None where that is not known."""
        reference = self._trials.get(self.space.reference)
        known = None if reference is None else reference.measured
        taken_bytes = math.inf if known is None else memory_of(known)
        return taken_bytes if 0 < taken_bytes < math.inf else None

    def _reference_is_too_large(self) -> bool:
        """So that anything that fits is better, even if it is slower."""
        return (log_limit := self._log_limit()) is not None and log_limit < 0

    def _wanted(self) -> _Aim:
        """What the next trial is made for."""
        fastest, log_limit = self._fastest_first(), self._log_limit()
        log_latency = -math.log(fastest[0].speedup_x.median) if fastest else 0.0
        least = None
        if log_limit is not None and self._reference_is_too_large() and not fastest:
            least = min(taken for taken in self._log_memory().values() if taken > log_limit)  # the reference's is
        return _Aim(log_latency, log_limit, least)

    def _predict_cost(self, untried: Sequence[RecipeFeatures]) -> list[float]:
        # one that was refused ended before most of what the others take
        known = [t for t in self._known() if t.cost_s > 0 and t.outcome is not Outcome.REFUSED][-REMEMBERED:]
        costs = {trial.recipe: trial.cost_s for trial in (*self._disturbed, *known)}
        costs |= {recipe: 2 * took_s for recipe, took_s in self._gave_way.items() if took_s > 0}
        observed = [math.log(cost_s) for cost_s in costs.values()]
        mean, _ = self._cost.predict([self.space.features(recipe) for recipe in costs], observed, untried)
        predicted = [math.exp(float(value)) for value in mean]
        return [self._still_s(features.recipe, cost_s) for features, cost_s in zip(untried, predicted, strict=True)]

    def _still_s(self, recipe: Recipe, cost_s: float) -> float:
        """What of its cost is to come."""
        spent_s = self._gave_way.get(recipe, 0.0)
        return max(cost_s - spent_s, spent_s)

    def cost_s(self, recipe: Recipe) -> float:
        """What a trial of it should take; infinite where nothing is known of such a one."""
        known = recipe.choices and self.space.holds(recipe)
        return self._predict_cost([self.space.features(recipe)])[0] if known else math.inf

    def _known(self) -> list[Trial]:
        """Trials that say something of other recipes: the original has no choice in common with any."""
        return [t for t in self._trials.values() if t.recipe.choices and self.space.holds(t.recipe)]

    def _remembered(self) -> list[MeasuredTrial]:
        known = [trial for trial in measured(self._known()) if trial.eligible]
        if len(known) <= REMEMBERED:
            return known
        fastest = sorted(known, key=lambda trial: -trial.speedup_x.median)[: REMEMBERED // 2]
        return list({trial.recipe: trial for trial in (*fastest, *known[-REMEMBERED // 2 :])}.values())

    def _puzzles(self) -> dict[RecipeFeatures, Atoms]:
        """Recipes that are slow in company, with what is to blame: nothing is learned from them, and what holds that is
        not tried."""
        if self._slow_in_company is None:
            known = {self.space.features(trial.recipe): trial for trial in self._remembered()}
            self._slow_in_company = slow_in_company(known, self._latency)
        return self._slow_in_company

    def _relation(self, recipe: Recipe) -> str:
        """How a recipe relates to what was tried."""
        engine = next(iter(recipe.at(Stage.ENGINE)), None)
        tried = {choice.technique for t in self._trials for choice in t.choices}
        if engine is not None and engine.technique not in tried:
            return f"first trial of {engine.technique}"
        new = [choice.label for choice in recipe.choices if choice.technique not in tried]
        if new:
            return f"first trial of {' and '.join(new)}"
        fastest = self._fastest_first()
        best = fastest[0].recipe if fastest else self.space.reference
        added = [c.label for c in recipe.listed if c not in best.listed]
        dropped = [c.label for c in best.listed if c not in recipe.listed]
        changes = [f"with {' and '.join(added)}"] * bool(added) + [f"without {' and '.join(dropped)}"] * bool(dropped)
        return f"the best so far {' and '.join(changes)}"


def _acquisition_of(
    features: RecipeFeatures, mean: float, deviation: float, cost_s: float, improvement: float
) -> Acquisition:
    return Acquisition(
        recipe=features.recipe,
        exact=features.exact,
        improvement=improvement,
        speedup_x=math.exp(-mean),
        speedup_low_x=math.exp(-mean - 1.64 * deviation),
        speedup_high_x=math.exp(-mean + 1.64 * deviation),
        cost_s=cost_s,
    )
