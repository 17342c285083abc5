"""The best speed-up so far over time as one line of text: the small form of the curve that the report's page draws."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = ".:-=+*%#"


def sparkline(gains: Sequence[tuple[float, float]], until_s: float, width: int, *, ascii_only: bool) -> str:
    """``width`` stretches of time, as high as what was the best at the end of each.

    The lowest character stands for a speed-up of 1, the highest for the largest; a gain is never as low as none.

    Args:
        gains: seconds, and the speed-up from then on; both ascending, the speed-ups above 1.
        until_s: what the line's end stands for, from 0 on.
        ascii_only: without block characters, for terminals of other encodings than Unicode's.
    """
    heights = _ASCII if ascii_only else _BLOCKS
    largest = gains[-1][1]
    line = ""
    for stretch in range(1, width + 1):
        best = max((speedup for after_s, speedup in gains if after_s <= stretch / width * until_s), default=1.0)
        line += heights[math.ceil((best - 1.0) / (largest - 1.0) * (len(heights) - 1))]
    return line
