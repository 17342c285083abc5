"""A budget never costs: a study in which approximate recipes may be tried begins as the study without them."""

from __future__ import annotations

import itertools

import pytest

from tests.search.search_landscapes import CONVOLUTIONAL, Fake, Landscape, family, measured_trial
from togi.core.choices import Effort
from togi.core.records import Outcome, Recipe, Stage, Trial
from togi.core.settings import Settings
from togi.search import Search
from togi.techniques.base import Technique

LEFT_OUT = ("pad", "allocator")
APPROXIMATE = {id for id, technique in family().items() if not technique.exact}


def is_faithful(recipe: Recipe) -> bool:
    return all(choice.technique not in APPROXIMATE for choice in recipe.choices)


class WrongBudget(Landscape):
    """Nothing approximate keeps the budget."""

    def trial(self, recipe: Recipe) -> Trial:
        trial = super().trial(recipe)
        if is_faithful(recipe):
            return trial
        return Trial(recipe=recipe, outcome=Outcome.WRONG, stage="verify", reason="above it", cost_s=trial.cost_s)


def study(
    landscape: Landscape, *, budget: bool, limit_s: float | None = None, wait_s: float = 0.0, **settings: object
) -> list[Trial]:
    """Its trials; a trial takes what the landscape says, and the first approximate one waits."""
    now, trials = [0.0], list[Trial]()
    bound = {"max_error": 1.0} if budget else {}
    given = Settings(without=LEFT_OUT, time_limit_s=limit_s, **bound, **settings)  # type: ignore[arg-type]
    search = Search(CONVOLUTIONAL, given, family(), clock=lambda: now[0])
    search.approximate_waits(wait_s)
    while (recipe := search.next()) is not None and len(trials) < 80:
        trials.append(landscape.trial(recipe))
        now[0] += trials[-1].cost_s
        if not is_faithful(recipe):
            now[0] += wait_s
            search.approximate_waits(wait_s := 0.0)
        search.tell(trials[-1])
    return trials


def best_at(trials: list[Trial], time_s: float) -> float:
    """The fastest that was found until then."""
    ends = itertools.accumulate(trial.cost_s for trial in trials)
    found = [t.timing.speedup_x.median for t, end in zip(trials, ends, strict=True) if end <= time_s and t.timing]
    return max(found, default=1.0)


def before_the_first_approximate(trials: list[Trial]) -> list[Recipe]:
    return [trial.recipe for trial in itertools.takewhile(lambda t: is_faithful(t.recipe), trials)]


@pytest.mark.parametrize("limit_s", [None, 240.0])
@pytest.mark.parametrize("seed", range(6))
def test_it_begins_as_the_study_without_a_budget(seed: int, limit_s: float | None) -> None:
    with_budget = study(Landscape(seed), budget=True, limit_s=limit_s)
    without = [trial.recipe for trial in study(Landscape(seed), budget=False, limit_s=limit_s)]
    first = before_the_first_approximate(with_budget)
    assert first == without[: len(first)]
    assert len(first) > 3
    assert len(first) < len(with_budget), "what is approximate has its turn"


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_what_is_found_is_at_no_time_slower_though_every_approximate_recipe_is_wrong(seed: int) -> None:
    with_budget, without = study(WrongBudget(seed), budget=True), study(WrongBudget(seed), budget=False)
    for end in itertools.accumulate(trial.cost_s for trial in without):
        assert best_at(with_budget, end) >= best_at(without, end)


@pytest.mark.parametrize("effort", [Effort.QUICK, Effort.NORMAL])
def test_what_is_approximate_and_right_is_found(effort: Effort) -> None:
    with_budget = study(Landscape(3), budget=True, effort=effort)
    assert any(not is_faithful(trial.recipe) for trial in with_budget)


def test_a_short_study_gives_what_is_approximate_two_thirds_of_its_time() -> None:
    """Else a budget would be stated and never tried."""
    trials = study(Landscape(0), budget=True, limit_s=40.0)
    first_s = sum(trial.cost_s for trial in trials[: len(before_the_first_approximate(trials))])
    assert first_s < sum(trial.cost_s for trial in trials)


def test_what_approximate_recipes_wait_for_is_theirs() -> None:
    """Validation data that the original answers for long are answered once one is tried."""

    def first_approximate_s(wait_s: float) -> float:
        trials = study(Landscape(0), budget=True, limit_s=240.0, wait_s=wait_s)
        assert any(not is_faithful(trial.recipe) for trial in trials) == (wait_s < 240)
        return sum(trial.cost_s for trial in trials[: len(before_the_first_approximate(trials))])

    at_once, after_a_wait, never = map(first_approximate_s, (0.0, 120.0, 300.0))
    assert 48 <= after_a_wait < at_once < never


def test_a_space_without_exact_alternatives_is_searched_all_the_same() -> None:
    trials = study(Landscape(0), budget=True, only=("int8", "vino"))
    assert any(not is_faithful(trial.recipe) for trial in trials)


def millions_of_recipes() -> dict[str, Technique]:
    return {**family(), **{f"rewrite_{i}": Fake(f"rewrite_{i}", Stage.REWRITE) for i in range(25)}}


def test_a_large_space_is_not_walked_to_its_end_for_what_is_approximate() -> None:
    """Where there is none, and where all is ruled out."""
    without = {id: technique for id, technique in millions_of_recipes().items() if technique.exact}
    exact = Search(CONVOLUTIONAL, Settings(), without, clock=lambda: 0.0)
    exact.tell(measured_trial(exact.space.reference, 1.0))
    assert exact.next() is not None
    search = Search(CONVOLUTIONAL, Settings(max_error=1.0), millions_of_recipes(), clock=lambda: 0.0)
    search.tell(measured_trial(search.space.reference, 1.0))
    for id in ("int8", "bf16"):
        failing = next(r for r in search.space.approximate() if id in r.techniques)
        search.tell(Trial(recipe=failing, outcome=Outcome.MISSING, stage=id, reason="not installed"))
    following = search.next()
    assert following is not None
    assert is_faithful(following)
