"""Chooses the sizes to capture: the buckets that need least padding. Pure Python; exact, not a heuristic.

A call of size ``n`` runs in the smallest bucket ``b >= n`` and computes ``b - n`` for nothing. That time grows in
proportion to this padding is an assumption (attention grows faster).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate


def choose_buckets(calls: Mapping[int, int], count: int) -> tuple[int, ...]:
    """At most ``count`` buckets, ascending, that cover every size with the least padding over all calls.

    Some optimum has buckets at sizes that occur only, so this is the partition of the sorted sizes into ``count`` runs,
    each padded to its last. The dynamic programme over runs needs, for each size, the lower envelope of lines at an
    increasing abscissa (the "convex hull trick"), so it takes steps in proportion to ``count`` times the number of
    different sizes. Integers throughout: nothing is rounded.

    Args:
        calls: how often each size occurs; at least one size, each above zero and each at least once.
        count: at least 1.
    """
    sizes = sorted(calls)
    if count >= len(sizes):
        return tuple(sizes)
    before = [0, *accumulate(calls[size] for size in sizes)]  # calls of the first i sizes
    best = [0] + [size * before[i] for i, size in enumerate(sizes, start=1)]  # padded total of the first i: one bucket
    starts: list[list[int]] = []
    for used in range(1, count):
        best, start = _with_one_more(sizes, before, best, used)
        starts.append(start)
    ends, end = [], len(sizes)
    for start in reversed(starts):
        ends.append(sizes[end - 1])
        end = start[end]
    return tuple(reversed([*ends, sizes[end - 1]]))


def _with_one_more(
    sizes: Sequence[int], before: Sequence[int], best: Sequence[int], used: int
) -> tuple[list[int], list[int]]:
    """The least padded totals of the first j sizes in ``used + 1`` buckets, and where the last bucket starts: the least
    ``best[i] + size * (before[j] - before[i])``. Each i is a line in ``size`` of slope ``-before[i]``."""
    totals, start = [0] * len(best), [0] * len(best)
    hull: list[int] = []
    first = 0
    for j in range(used + 1, len(best)):
        new = j - 1
        while len(hull) - first >= 2:
            a, b = hull[-2], hull[-1]
            if (best[new] - best[a]) * (before[b] - before[a]) > (best[b] - best[a]) * (before[new] - before[a]):
                break
            hull.pop()
        hull.append(new)
        size = sizes[j - 1]
        while first + 1 < len(hull):
            a, b = hull[first], hull[first + 1]
            if best[b] - size * before[b] > best[a] - size * before[a]:
                break
            first += 1
        start[j] = hull[first]
        totals[j] = best[hull[first]] + size * (before[j] - before[hull[first]])
    return totals, start


def padding(calls: Mapping[int, int], buckets: Sequence[int]) -> int:
    """Count what calls in these ascending buckets compute for nothing, in units of size, without larger calls."""
    places = ((size, times, bisect_left(buckets, size)) for size, times in calls.items())
    return sum(times * (buckets[at] - size) for size, times, at in places if at < len(buckets))
