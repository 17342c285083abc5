"""A distribution-free confidence sequence for a median: valid however often one looks.

A race looks at its ratios after every round and stops when it likes what it sees. An interval made for one look is too
narrow for that. This one holds at all rounds at once: over a whole race, stopped by any rule, the median lies outside
of it at any time with probability at most ``1 - confidence``.

Method: if m is the median, each value falls below m with probability 1/2, whatever fell before. The beta-binomial
mixture (uniform prior) of the likelihood ratio against 1/2 is then a martingale, which by Ville's inequality exceeds
``1 / alpha`` ever with probability at most ``alpha``. All m that it has not rejected form the interval; its ends are
order statistics. No distribution, no variance and no independence of sizes is assumed. The rounds of a race are taken
in random order, so two equal candidates give ratios above and below 1 with probability 1/2 each, even where the noise
drifts, is heavy-tailed or lasts over many rounds.

What it cannot know: a difference that lasts as long as the process does, because of where its memory lies
(``decide.faster.PROCESS_BIAS``).

Sources: H. Robbins, "Statistical methods related to the law of the iterated logarithm", Ann. Math. Statist. 41 (1970);
S. R. Howard and A. Ramdas, "Sequential estimation of quantiles with applications to A/B testing and best-arm
identification", Bernoulli 28 (2022), arXiv:1906.09712.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

from togi.core.records import Interval
from togi.decide.faster import CONFIDENCE


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median of ``values`` with an interval that stays valid under repeated looks.

    Args:
        values: at least one finite number, in any unit, in any order.
        confidence: of the whole sequence of intervals, strictly between 0 and 1.

    Returns:
        An interval in the same unit. Its ends are -inf and inf while there are too few values to say anything.

    Raises:
        ValueError: no values, or a confidence outside (0, 1).
    """
    if not values:
        raise ValueError("no values: an interval needs at least one round")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is {confidence}: give a number strictly between 0 and 1, such as 0.95")
    ordered = sorted(values)
    rank = _rank(len(ordered), confidence)
    low, high = (ordered[rank - 1], ordered[-rank]) if rank else (-math.inf, math.inf)
    return Interval(median=statistics.median(ordered), low=low, high=high)


def times_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """As ``median_interval``, of positive numbers: its low end is 0 while there are too few rounds."""
    interval = median_interval(values, confidence)
    return Interval(median=interval.median, low=max(interval.low, 0.0), high=interval.high)


def ratio_interval(
    numerators: Sequence[float], denominators: Sequence[float], confidence: float = CONFIDENCE
) -> Interval:
    """The median of paired ratios of positive numbers; its low end is 0 while there are too few rounds."""
    return times_interval([above / below for above, below in zip(numerators, denominators, strict=True)], confidence)


def rounds_needed(confidence: float = CONFIDENCE) -> int:
    """The least number of rounds after which an interval has finite ends."""
    return next(count for count in range(1, 10_000) if _rank(count, confidence))


@functools.lru_cache(maxsize=4096)
def _rank(count: int, confidence: float) -> int:
    """The smallest number of values below m that does not reject m as the median; 0: even none below is not evidence.

    The ends of the interval are then the rank-th smallest and the rank-th largest value. (Values equal to m count on
    either side, which can only make the interval wider than needed.)
    """
    threshold = -math.log1p(-confidence)
    return next(below for below in range(count // 2 + 1) if _evidence(below, count) < threshold or 2 * below >= count)


def _evidence(below: int, count: int) -> float:
    """Log of the mixture martingale: ``B(1 + s, 1 + n - s) / B(1, 1) * 2^n``, for s of n values below."""
    log_beta = math.lgamma(1 + below) + math.lgamma(1 + count - below) - math.lgamma(2 + count)
    return log_beta + count * math.log(2.0)
