import math
import random
import statistics
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from togi.measure import median_interval, ratio_interval, rounds_needed


def test_too_few_values_say_nothing():
    found = median_interval([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.2])
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_ends_are_finite_from_the_needed_number_on():
    needed = rounds_needed(0.95)
    assert needed == 8
    assert math.isfinite(median_interval(list(range(needed))).low)
    assert not math.isfinite(median_interval(list(range(needed - 1))).low)


def test_more_confidence_needs_more_rounds():
    assert rounds_needed(0.99) > rounds_needed(0.95) > rounds_needed(0.5)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=60), st.floats(0.5, 0.99))
def test_interval_holds_the_median_and_does_not_depend_on_the_order(values, confidence):
    found = median_interval(values, confidence)
    assert found.low <= found.median <= found.high
    assert found.median == statistics.median(values)
    assert median_interval(values[::-1], confidence) == found


@given(st.lists(st.floats(0.1, 10), min_size=8, max_size=40))
def test_one_outlier_moves_the_interval_at_most_to_the_neighbouring_values(values):
    ordered = sorted(values)
    assert median_interval([*values, 1e12]).low >= ordered[0]


def test_ratio_interval_is_paired():
    slow, fast = [2.0 * k for k in range(1, 21)], [1.0 * k for k in range(1, 21)]
    found = ratio_interval(slow, fast)
    assert (found.low, found.median, found.high) == (2.0, 2.0, 2.0)


def test_ratios_are_never_negative_where_nothing_is_known():
    assert ratio_interval([1.0], [2.0]).low == 0.0


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95])
def test_confidence_must_be_a_probability(confidence):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        median_interval([1.0], confidence)


def test_no_values_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])


def _ever_excludes_the_median(rng: random.Random, confidence: float, looks: int) -> bool:
    values = []
    for _ in range(looks):
        values.append(rng.lognormvariate(0.0, 1.0))
        found = median_interval(values, confidence)
        if not found.low <= 1.0 <= found.high:
            return True
    return False


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_looking_after_every_round_keeps_the_error_below_the_stated(confidence):
    """Over 200 looks each; 3 standard errors of 300 races are allowed."""
    rng, races = random.Random(7), 300
    wrong = sum(_ever_excludes_the_median(rng, confidence, 200) for _ in range(races)) / races
    alpha = 1 - confidence
    assert wrong <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / races)


def test_an_interval_for_one_look_would_fail_the_same_test():
    """The test above can fail: the textbook sign interval, looked at after every round, is wrong far too often."""
    rng, races, wrong = random.Random(7), 300, 0
    for _ in range(races):
        below = 0
        for count in range(1, 201):
            below += rng.lognormvariate(0.0, 1.0) < 1.0
            if count >= 8 and abs(below - count / 2) > 1.96 * math.sqrt(count) / 2:
                wrong += 1
                break
    assert wrong / races > 0.15


def test_interval_narrows_as_values_come():
    rng = random.Random(3)
    values = [rng.gauss(1.0, 0.1) for _ in range(400)]
    widths = [(lambda i: i.high - i.low)(median_interval(values[:count])) for count in (10, 40, 400)]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.05


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_the_ends_are_the_values_that_the_likelihood_ratio_does_not_reject(confidence):
    """Against the mixture in exact fractions: s of n below has ratio ``2^n s! (n - s)! / (n + 1)!``."""
    for count in range(1, 60):
        values = [float(k) for k in range(1, count + 1)]

        def rejects(below, count=count):
            ratio = Fraction(
                2**count * math.factorial(below) * math.factorial(count - below), math.factorial(count + 1)
            )
            return ratio >= 1 / (1 - confidence)

        low = next(k for k in range(count + 1) if not rejects(k) or 2 * k >= count)
        found = median_interval(values, confidence)
        assert (found.low, found.high) == ((low, count + 1 - low) if low else (-math.inf, math.inf))
