"""The drop of an accuracy: what so many samples prove, and how seldom what is beyond the budget passes for within."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

import pytest

from togi.core.records import Drop
from togi.decide.paired import (
    Standing,
    at_least,
    at_most,
    binomial,
    by_group,
    flips,
    halves,
    said,
    samples_needed,
    scores,
    standing,
    times_the_data,
)

SIMULATIONS = 100

known_flips = functools.cache(flips)


def accepted_share(accepts: list[bool]) -> float:
    return sum(accepts) / len(accepts)


@pytest.mark.parametrize(
    ("losses", "seen", "points"),
    [
        (0, 100, 2.95),
        (1, 100, 4.66),
        (0, 300, 0.99),
        (1, 300, 1.57),
        (3, 300, 2.56),
        (10, 2000, 0.85),
        (15, 2000, 1.15),
    ],
)
def test_what_so_many_samples_prove(losses: int, seen: int, points: float) -> None:
    assert round(100 * flips(losses, seen, seen).high, 2) == points


def test_three_hundred_samples_without_a_loss_prove_a_point_with_gains_or_without() -> None:
    assert standing(flips(0, 300, 300), 0.01) is Standing.PROVEN
    assert standing(flips(0, 300, 300, gains=0), 0.01) is Standing.PROVEN
    assert standing(flips(1, 300, 300), 0.01) is Standing.UNDECIDED


@pytest.mark.parametrize(
    ("max_drop", "share", "needed"),
    [(0.01, 0.0, 299), (0.01, 0.002, 628), (0.01, 0.005, 1941), (0.02, 0.005, 386), (0.02, 0.01, 969)],
)
def test_how_many_samples_would_do(max_drop: float, share: float, needed: int) -> None:
    assert samples_needed(max_drop, share) == needed


@pytest.mark.parametrize(("max_drop", "share"), [(0.01, 0.01), (0.01, 0.02), (0.01, 0.00999), (0.0, 0.0)])
def test_no_number_of_samples_proves_what_is_not_so(max_drop: float, share: float) -> None:
    assert samples_needed(max_drop, share) is None


@pytest.mark.parametrize(("share", "max_drop"), [(0.002, 0.01), (0.005, 0.02)])
def test_so_many_samples_do_in_four_of_five_cases(share: float, max_drop: float) -> None:
    seen, draw = samples_needed(max_drop, share), random.Random(1)
    assert seen is not None
    proven = [
        standing(known_flips(sum(draw.random() < share for _ in range(seen)), seen, seen), max_drop) is Standing.PROVEN
        for _ in range(SIMULATIONS)
    ]
    assert 0.7 < accepted_share(proven) < 0.95


def test_the_exact_bounds_are_those_of_the_binomial_distribution() -> None:
    for count, of in ((0, 1), (0, 40), (3, 40), (20, 40), (39, 40)):
        assert binomial(count, of, at_most(count, of, 0.05)) == pytest.approx(0.05, abs=1e-9)
        if count:
            assert 1 - binomial(count - 1, of, at_least(count, of, 0.05)) == pytest.approx(0.05, abs=1e-9)
    assert (at_most(40, 40, 0.05), at_least(0, 40, 0.05)) == (1.0, 0.0)


def looks(differences: list[float], planned: int, *, graded: bool) -> Iterator[Drop]:
    """The drop after each fifth of the samples."""
    ends = [planned * fifth // 5 for fifth in range(1, 6)]
    for end in ends:
        seen = differences[:end]
        yield scores(seen, planned) if graded else known_flips(seen.count(1.0), end, planned, gains=seen.count(-1.0))


@pytest.mark.thorough
@pytest.mark.parametrize("graded", [False, True], ids=["right or wrong", "graded"])
@pytest.mark.parametrize(("lost", "gained", "budget"), [(0.021, 0.0, 0.02), (0.06, 0.03, 0.028), (0.3, 0.1, 0.19)])
def test_a_drop_outside_of_the_budget_is_accepted_in_at_most_one_of_twenty(
    lost: float, gained: float, budget: float, graded: bool
) -> None:
    """Whoever looks five times and takes the first answer is not better off than who looks once."""
    draw, accepts, planned = random.Random(7), [], 300
    for _ in range(SIMULATIONS):
        differences = draw.choices([1.0, -1.0, 0.0], [lost, gained, 1 - lost - gained], k=planned)
        standings = (standing(drop, budget) for drop in looks(differences, planned, graded=graded))
        accepts.append(next((s for s in standings if s is not Standing.UNDECIDED), None) is Standing.PROVEN)
    assert accepted_share(accepts) <= 1 / 20


def test_what_is_within_is_seldom_stopped_as_outside_however_often_one_looks() -> None:
    draw, stopped, planned = random.Random(3), [], 300
    for _ in range(SIMULATIONS):
        differences = draw.choices([1.0, 0.0], [0.02, 0.98], k=planned)
        stopped.append(
            any(standing(d, 0.02) is Standing.OUTSIDE for d in list(looks(differences, planned, graded=False))[:-1])
        )
    assert accepted_share(stopped) <= 1 / 20


def test_what_is_surely_outside_is_seen_early() -> None:
    assert standing(flips(12, 40, 2000), 0.02) is Standing.OUTSIDE
    assert standing(flips(1, 40, 2000), 0.02) is Standing.UNDECIDED


def test_nothing_is_proven_before_all_samples_are_seen() -> None:
    assert standing(flips(0, 1999, 2000), 0.02) is Standing.UNDECIDED
    assert standing(flips(0, 2000, 2000), 0.02) is Standing.PROVEN


@pytest.mark.parametrize("seen", [1, 10, 300])
@pytest.mark.parametrize("losses", [0, 1])
def test_the_ends_enclose_the_mean_early_and_late(losses: int, seen: int) -> None:
    for planned in (seen, 2 * seen):
        for gains in (None, 0):
            drop = flips(losses, seen, planned, gains=gains)
            assert -1 <= drop.low <= drop.mean <= drop.high <= 1


def test_scores_that_do_not_differ_take_few_samples_more_than_what_is_right_or_wrong() -> None:
    """For right or wrong 300 prove a point; the price for looking early is the rest."""
    assert flips(0, 300, 300).high < 0.01
    assert scores([0.0] * 370, 370).high < 0.01


def test_a_large_bet_is_lost_for_good() -> None:
    """By a rounding that leaves a billionth of it, thousands of samples without a loss would win it back."""
    assert scores([1.0] + [0.0] * 20_000, 30_000).high > 1 / 20_001
    assert scores([1.0] * 100 + [0.0] * 19_900, 30_000).high > 100 / 20_000


def test_nothing_seen_says_nothing() -> None:
    assert scores([], 10) == Drop(mean=0.0, low=-1.0, high=1.0, seen=0, planned=10)


def test_samples_of_one_group_count_as_one() -> None:
    """300 crops of 5 pictures are 5 samples."""
    pictures = [index % 5 for index in range(300)]
    alone, grouped = flips(0, 300, 300), scores(by_group([0.0] * 300, pictures), 5)
    assert alone.high < 0.01
    assert grouped.seen == 5
    assert grouped.high > 0.4
    assert by_group([1.0, 0.0, 0.5], ["a", "a", "b"]) == [0.5, 0.5]


def test_halves_share_no_group_and_lose_no_sample() -> None:
    draw = random.Random(0)
    for seed in range(20):
        groups = [draw.randrange(12) for _ in range(100)]
        choice, confirmation = halves(groups, seed)
        assert sorted(choice + confirmation) == list(range(100))
        assert not {groups[i] for i in choice} & {groups[i] for i in confirmation}
        assert min(len(choice), len(confirmation)) >= 25
    assert halves(groups, 1) == halves(groups, 1)


def test_the_luckiest_of_many_is_not_accepted_on_samples_that_did_not_choose_it() -> None:
    """All 40 recipes lose 4 of 100 samples, and 3 are allowed. Chosen and judged by the same samples the luckiest would
    pass more than one time in twenty."""
    draw, naive, confirmed = random.Random(11), [], []
    choice, confirmation = halves(range(400), 0)
    for _ in range(SIMULATIONS):
        recipes = [[draw.random() < 0.04 for _ in range(400)] for _ in range(40)]
        luckiest = min(recipes, key=lambda lost: sum(lost[i] for i in choice))
        naive.append(standing(known_flips(sum(luckiest[i] for i in choice), 200, 200), 0.03) is Standing.PROVEN)
        confirmed.append(
            standing(known_flips(sum(luckiest[i] for i in confirmation), 200, 200), 0.03) is Standing.PROVEN
        )
    assert accepted_share(naive) > 1 / 20 >= accepted_share(confirmed)


@pytest.mark.parametrize(
    ("drop", "max_drop", "sentence"),
    [
        (
            flips(0, 300, 300),
            0.01,
            "300 samples without a loss prove a drop of at most 1 point, within the allowed",
        ),
        (
            flips(1, 300, 300),
            0.01,
            "300 samples, 1 of them lost, prove a drop of at most 1.6 points, not the allowed 1 point: about",
        ),
        (
            flips(0, 100, 100),
            0.01,
            "100 samples without a loss prove a drop of at most 3 points, not the allowed",
        ),
        (
            flips(9, 300, 300),
            0.01,
            "300 samples, 9 of them lost, show a drop of at least 1.5 points, above the",
        ),
        (flips(8, 300, 300), 0.02, "at this share no number of samples would"),
    ],
)
def test_how_it_is_said(drop: Drop, max_drop: float, sentence: str) -> None:
    assert sentence in said(drop, max_drop)


@pytest.mark.parametrize(
    ("drop", "max_drop", "sentence"),
    [
        (flips(1, 406, 406), 0.01, "not the allowed 1 point: about 773 would do, 1.9 times the data"),
        (flips(0, 100, 100), 0.01, "not the allowed 1 point: about 299 would do, 3.0 times the data"),
        (scores([0.01] * 300 + [0.2] * 20, 320), 0.03, " times the data"),
        (scores([0.04] * 300, 300), 0.04, "not the allowed 0.04: at this mean no number of samples would"),
        (flips(0, 0, 0), 0.01, "not the allowed 1 point"),
    ],
)
def test_how_many_more_data_would_do_is_said(drop: Drop, max_drop: float, sentence: str) -> None:
    """Of answers that count one half is seen at a time: their number alone says nothing of how many to give."""
    assert said(drop, max_drop, points=drop.losses is not None).endswith(sentence)


@pytest.mark.parametrize("most", [0.5, 0.05])
@pytest.mark.parametrize("seen", [80, 300])
def test_so_many_times_the_data_prove_what_is_graded_and_fewer_do_not(most: float, seen: int) -> None:
    draw = random.Random(5)
    differences = [most * draw.random() for _ in range(seen)]
    drop = scores(differences, seen)
    budget = drop.mean + (drop.high - drop.mean) / 2
    least_x, most_x = times_the_data(drop, budget)
    assert (least_x, most_x) == (pytest.approx(2), pytest.approx(4))
    enough, too_few = [differences * 5, differences[: seen // 2] * 3]
    assert standing(scores(enough, len(enough)), budget) is Standing.PROVEN
    assert standing(scores(too_few, len(too_few)), budget) is Standing.UNDECIDED


def test_rounding_never_puts_a_bound_on_the_other_side_of_the_budget() -> None:
    for seen in range(290, 330, 4):
        for losses in range(3):
            for budget in (0.01, 0.0099, 0.02):
                drop = flips(losses, seen, seen)
                shown = float(said(drop, budget).split("at most ")[1].split()[0])
                assert (shown <= 100 * budget) is (drop.high <= budget)


def test_a_score_that_is_no_share_is_not_said_in_points() -> None:
    divergence = scores([0.001] * 400 + [0.02] * 20, 420)
    assert said(divergence, 0.5, points=False).endswith("within the allowed 0.5")
    assert "point" not in said(divergence, 1e-6, points=False)
