"""Whom the race puts first: nobody who is not faster beyond doubt, and among equals the simplest."""

from __future__ import annotations

from togi.core.records import Interval, Noise, Recipe
from togi.decide.faster import BETWEEN_PROCESSES
from togi.measure import RaceEntry, RaceResult, Verdict
from togi.study.finals import ranking
from togi.techniques import recipe

RECIPES = {
    "eager": recipe(no_grad={}),
    "plain": recipe(openvino={}, no_grad={}),
    "long": recipe(channels_last={}, openvino={}, no_grad={}),
    "slow": recipe(channels_last={}, no_grad={}),
}


def lane(name: str, median: float, width: float = 0.02, left_at: int | None = None) -> RaceEntry:
    speedup = Interval(median=median, low=median - width, high=median + width)
    return RaceEntry(name=name, rounds_ms=(), speedup_x=speedup, left_at=left_at, noise=Noise())


def result(verdict: Verdict, *lanes: RaceEntry) -> RaceResult:
    reference = lane("eager", 1.0, 0.0)
    return RaceResult(
        reference="eager",
        winner="eager",
        verdict=verdict,
        sentence="",
        entries=(reference, *lanes),
        rounds=8,
        wall_s=1.0,
        criterion=BETWEEN_PROCESSES,
    )


def ranked(verdict: Verdict, *lanes: RaceEntry) -> list[str]:
    recipes: dict[str, Recipe] = RECIPES
    return ranking(result(verdict, *lanes), recipes)


def test_the_fastest_comes_first_and_the_reference_last() -> None:
    assert ranked(Verdict.SEPARATED, lane("plain", 2.0, left_at=8), lane("long", 3.0)) == ["long", "plain", "eager"]


def test_equals_are_ranked_by_simplicity() -> None:
    assert ranked(Verdict.EQUIVALENT, lane("long", 2.01), lane("plain", 2.0)) == ["plain", "long", "eager"]


def test_among_those_not_told_apart_the_better_median_wins_where_it_matters() -> None:
    assert ranked(Verdict.EQUIVALENT, lane("long", 2.06), lane("plain", 2.0)) == ["long", "plain", "eager"]


def test_one_that_left_the_race_is_not_an_equal() -> None:
    lanes = [lane("long", 2.01), lane("plain", 1.5, left_at=9)]
    assert ranked(Verdict.EQUIVALENT, *lanes) == ["long", "plain", "eager"]


def test_what_is_not_faster_beyond_doubt_does_not_stand_before_the_reference() -> None:
    lanes = [lane("slow", 0.7), lane("plain", 1.03), lane("long", 1.5, width=0.49)]
    assert ranked(Verdict.CANNOT_TELL, *lanes) == ["eager"]
