"""The largest batch that fits, by interpolation between fake runs."""

from __future__ import annotations

from collections.abc import Callable

_MOST_RUNS = 14
_MOST_ROWS = 1 << 22


def largest_batch(need_bytes: Callable[[int], int], limit_bytes: int, *, start: int = 1) -> int:
    """The largest ``batch`` with ``need_bytes(batch) <= limit_bytes``; 0 where 1 does not fit.

    The need is nearly linear in the batch, so the next size is interpolated; where that stalls, halved. It ends when
    two neighbours are found or after 14 runs, with a size that fits.
    """
    if need_bytes(1) > limit_bytes:
        return 0
    low, low_need = 1, need_bytes(1)
    high, high_need = 0, 0
    guess = max(2, start)
    for run in range(_MOST_RUNS):
        need = need_bytes(guess)
        if need <= limit_bytes:
            slope = (need - low_need) / (guess - low)
            low, low_need = guess, need
        else:
            slope = (need - low_need) / (guess - low)
            high, high_need = guess, need
        if high == low + 1 or low >= _MOST_ROWS:
            break
        if high:
            share = (limit_bytes - low_need) / (high_need - low_need)
            guess = low + int(share * (high - low)) if run % 3 < 2 else (low + high) // 2
            guess = min(max(guess, low + 1), high - 1)
        else:
            ahead = int((limit_bytes - low_need) / slope) if slope > 0 else low
            guess = min(low + max(1, ahead), 64 * low, _MOST_ROWS)
    return low


def halvings(batch: int) -> list[int]:
    """``batch`` and its halves, down to 1."""
    found = []
    while batch >= 1:
        found.append(batch)
        batch //= 2
    return found
