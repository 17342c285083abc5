"""How far an accuracy dropped, sample by sample, and whether it is proven to have dropped by no more than a budget.

The original and the candidate answer the same samples, so each sample has a difference: the original's score less the
candidate's, above zero where the candidate is worse. Differences lie between -1 and 1. The mean of all that could be
drawn is bounded, without assumptions on how they are distributed:

- When all samples that were planned have been seen: by exact binomial bounds on the share of losses and of gains (C. J.
  Clopper and E. S. Pearson, Biometrika 26, 1934). 300 samples without a loss prove a drop of at most 1 point.
- Before that, and for scores other than right and wrong: by betting (I. Waudby-Smith and A. Ramdas, "Estimating means
  of bounded random variables by betting", Journal of the Royal Statistical Society B 86, 2024). Whoever bets against
  the mean ``m`` would have to be rich by chance if ``m`` were right; by Ville's inequality that is as unlikely at all
  looks together as at one. So one may look as often as one likes.

An early look can end a recipe that is surely outside of the budget. It accepts one of scores alone, whose bound is the
same at every look. Of what is right or wrong none is accepted before all samples are seen: the exact bound is tighter
then, and looking before cannot make it wrong. So at most one in twenty recipes that are outside is accepted, however
often one looks. Ends that hold with 95 % are one-sided.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

from togi.core.backports import StrEnum
from togi.core.quantities import significant
from togi.core.records import Drop

CONFIDENCE = 0.95
"""Of each end of an interval."""
_RISK = 1 - CONFIDENCE
_OF_GAINS = _RISK / 64
"""The part of the risk that is spent on the gains. So little that 300 samples without a loss still prove a point."""
_BETS = tuple(2.0**-power for power in range(10))
"""Shares of the largest bet that cannot end below zero; each stake is proportional to its share. The largest wins
soonest where samples hardly differ, as scores of few bits do. The small ones win where they differ much, and there it
takes so many samples that a smaller stake costs little."""
_STEPS = 60
"""Of a bisection: ends are exact to the last bits."""
_MOST_SAMPLES = 1_000_000
_DIGITS = range(2, 12)


class Standing(StrEnum):
    """What the samples seen so far say of a budget."""

    PROVEN = "proven"
    """The drop is within, beyond doubt."""
    OUTSIDE = "outside"
    """The drop is above it, beyond doubt."""
    UNDECIDED = "undecided"


def standing(drop: Drop, max_drop: float) -> Standing:
    """What a drop says of a budget."""
    holds_at_every_look = drop.losses is None
    if drop.high <= max_drop and (drop.complete or holds_at_every_look):
        return Standing.PROVEN
    return Standing.OUTSIDE if drop.low > max_drop else Standing.UNDECIDED


def said(drop: Drop, max_drop: float, *, points: bool = True) -> str:
    """The standing, in a sentence without its end; with how many samples would do where these do not. ``points``: of a
    share, in hundredths."""
    of = f"{drop.seen:,} samples"
    if drop.losses is not None:
        of += f", {drop.losses:,} of them lost," if drop.losses else " without a loss"
    allowed, scale = _named(max_drop, points), 100 if points else 1
    proof = f"{of} prove a drop of at most {_named(_rounded(drop.high, max_drop, math.ceil, scale), points)}"
    match standing(drop, max_drop):
        case Standing.PROVEN:
            return f"{proof}, within the allowed {allowed}"
        case Standing.OUTSIDE:
            least = _named(_rounded(drop.low, max_drop, math.floor, scale), points)
            return f"{of} show a drop of at least {least}, above the allowed {allowed}"
        case _:
            return f"{proof}, not the allowed {allowed}{_enough(drop, max_drop)}"


def _enough(drop: Drop, max_drop: float) -> str:
    """In samples, and as a multiple of the data: of these one half is seen at a time, and not every answer counts."""
    least, most = times_the_data(drop, max_drop)
    if most == math.inf:
        return f": at this {'mean' if drop.losses is None else 'share'} no number of samples would"
    if most <= 1 or not drop.seen:
        return ""
    return f": about {round(most * drop.seen):,} would do, {times_in_words(least, most)} times the data"


def times_the_data(drop: Drop, max_drop: float) -> tuple[float, float]:
    """At least and at most how many times as many data prove a budget that these do not prove, if the rest is like
    them. Of what is right or wrong in four of five cases, else as a bound narrows: at most with their number, and at
    least with its square root. Infinite where no number proves it; ``drop`` is complete."""
    mean = max(drop.mean, 0.0)
    if drop.losses is None:
        narrower = (drop.high - mean) / (max_drop - mean) if mean < max_drop else math.inf
        return narrower, narrower**2
    needed = samples_needed(max_drop, mean, gains=drop.gains is not None)
    times = math.inf if needed is None else needed / max(drop.seen, 1)
    return times, times


def times_in_words(least: float, most: float) -> str:
    """``2.8``, ``1.5 to 2.3``."""
    low, high = significant(least, 2), significant(most, 2)
    return high if low == high else f"{low} to {high}"


def flips(losses: int, seen: int, planned: int, *, gains: int | None = None) -> Drop:
    """The drop where each answer is right or wrong; without ``gains`` where it agrees with the original's or not."""
    gained = gains or 0
    if seen < planned:
        every = {1.0: losses, -1.0: gained, 0.0: seen - losses - gained}
        counts = {value: count for value, count in every.items() if count}
        low, high = -_most(_negated(counts)), _most(counts)
    elif gains is None:
        low, high = at_least(losses, seen, _RISK), at_most(losses, seen, _RISK)
    else:
        low = at_least(losses, seen, _RISK - _OF_GAINS) - at_most(gains, seen, _OF_GAINS)
        high = at_most(losses, seen, _RISK - _OF_GAINS) - at_least(gains, seen, _OF_GAINS)
    mean = (losses - gained) / seen if seen else 0.0
    return Drop(mean=mean, low=low, high=high, seen=seen, planned=planned, losses=losses, gains=gains)


def scores(differences: Sequence[float], planned: int) -> Drop:
    """The drop of a score that is not right or wrong alone, or of groups (``by_group``). ``differences``: from -1 to
    1."""
    counts = Counter(differences)
    mean = math.fsum(differences) / len(differences) if differences else 0.0
    low, high = -_most(_negated(counts)), _most(counts)
    return Drop(mean=mean, low=low, high=high, seen=len(differences), planned=planned)


def by_group(differences: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """The mean difference of each group. Samples of one group (crops of a picture, frames of a voice) are not
    independent, so they count as one."""
    of: dict[Hashable, list[float]] = {}
    for difference, group in zip(differences, groups, strict=True):
        of.setdefault(group, []).append(difference)
    return [math.fsum(found) / len(found) for found in of.values()]


def halves(groups: Sequence[Hashable], seed: int) -> tuple[list[int], list[int]]:
    """Indices of the samples to choose by, and of those to confirm the choice by. No group is in both.

    Of many recipes the luckiest looks best on the samples that chose it, so only others can tell how good it is.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    drawn = list(members.values())
    random.Random(seed).shuffle(drawn)
    parts: tuple[list[int], list[int]] = [], []
    for indices in drawn:
        min(parts, key=len).extend(indices)
    return sorted(parts[0]), sorted(parts[1])


def samples_needed(max_drop: float, share: float = 0.0, *, gains: bool = False, power: float = 0.8) -> int | None:
    """How many samples prove ``max_drop`` with probability ``power``, if a ``share`` of them is lost. None: no number
    that anybody has. ``gains``: there may be some."""
    if not 0 <= share < max_drop <= 1:
        return None
    risk = _RISK - _OF_GAINS if gains else _RISK

    def enough(losses: int) -> bool:
        return binomial(losses, _least(losses, max_drop, risk), share) >= power

    most = _doubled(enough, lambda losses: _least(losses, max_drop, risk) > _MOST_SAMPLES)
    if most is None:
        return None
    return _least(_first(enough, most // 2, most), max_drop, risk)


def at_most(count: int, of: int, risk: float) -> float:
    """The largest share with which so few are seen with a probability of ``risk`` or more."""
    if count >= of:
        return 1.0
    return _root(lambda share: binomial(count, of, share) - risk, count / of, 1.0)


def at_least(count: int, of: int, risk: float) -> float:
    """The smallest share with which so many are seen with a probability of ``risk`` or more."""
    return 0.0 if count == 0 else 1.0 - at_most(of - count, of, risk)


def binomial(count: int, of: int, share: float) -> float:
    """The probability of ``count`` or fewer."""
    if share <= 0 or count >= of:
        return 1.0
    if share >= 1:
        return 0.0
    odds, constant = math.log(share) - math.log1p(-share), math.lgamma(of + 1) + of * math.log1p(-share)
    terms = (constant - math.lgamma(k + 1) - math.lgamma(of - k + 1) + k * odds for k in range(count + 1))
    return min(1.0, math.fsum(map(math.exp, terms)))


def _most(counts: Mapping[float, int]) -> float:
    """The upper end of the mean of differences that were seen so often, valid at every look."""
    seen = sum(counts.values())
    if seen == 0:
        return 1.0
    mean = math.fsum(value * count for value, count in counts.items()) / seen
    rich = -math.log(_RISK)
    return _root(lambda end: rich - _log_capital(counts, end), mean, 1.0)


def _log_capital(counts: Mapping[float, int], mean: float) -> float:
    """What betting 1 on differences below ``mean`` has become. It does not grow in the long run if they are not, and
    is larger the larger ``mean`` is."""
    if mean >= 1:
        return math.inf
    room = 1 - mean  # a sample that is wholly worse takes all of the largest bet, to the last bit
    logs = [sum(count * _log((room - bet * (value - mean)) / room) for value, count in counts.items()) for bet in _BETS]
    largest = max(logs)
    won = math.fsum(bet * math.exp(log - largest) for bet, log in zip(_BETS, logs, strict=True))
    return largest + math.log(won / math.fsum(_BETS))


def _negated(counts: Mapping[float, int]) -> dict[float, int]:
    return {-value: count for value, count in counts.items()}


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _least(losses: int, max_drop: float, risk: float) -> int:
    """The fewest samples of which so many may be lost."""
    least = losses + 1
    while binomial(losses, least, max_drop) > risk:
        least *= 2
    return _first(lambda of: binomial(losses, of, max_drop) <= risk, least // 2, least)


def _doubled(enough: Callable[[int], bool], too_many: Callable[[int], bool]) -> int | None:
    """A number that is enough, found by doubling; None where it would be too many."""
    number = 0
    while not enough(number):
        number = max(1, 2 * number)
        if too_many(number):
            return None
    return number


def _first(holds: Callable[[int], bool], below: int, above: int) -> int:
    """The first number from ``below`` on for which it holds; it holds for ``above``."""
    while below < above:
        middle = (below + above) // 2
        below, above = (below, middle) if holds(middle) else (middle + 1, above)
    return below


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a function falls to zero. The upper end, so that a bound is never too small."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high


def _rounded(share: float, limit: float, rounded: Callable[[float], int], scale: int) -> float:
    """A bound with as many digits as it takes to see on which side of the limit it is."""
    value = shown = scale * share
    for digits in _DIGITS:
        step = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - digits) if value else 1.0
        shown = rounded(value / step) * step
        if (shown <= scale * limit) is (share <= limit):
            break
    return shown / scale


def _named(share: float, points: bool) -> str:
    """``1 point``, ``1.6 points``; without points ``0.016``."""
    text = f"{100 * share if points else share:.10g}"
    if not points:
        return text
    return f"{text} point" if text == "1" else f"{text} points"
