"""Intervals of speed-ups as races come to, and shares that gates forgive, for property tests."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from togi.core.records import Interval

factors = st.floats(0, 14).map(lambda exponent: 10.0 ** (exponent - 7)) | st.floats(0.8, 1.25)
shares = st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.5, 1.0]) | st.floats(0, 1)


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    """Any that a race can come to, those of too few rounds among them."""
    median = draw(factors)
    low, high = (1 + draw(st.floats(0, 3) | st.floats(0, 0.05)) for _ in range(2))
    ends = draw(st.sampled_from([(median / low, median * high)] * 3 + [(0.0, math.inf)]))
    return Interval(median=median, low=ends[0], high=ends[1])
