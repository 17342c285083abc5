"""Error measures: pure properties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from togi.decide.faithful import MAX_UNITS, in_units
from togi.verify.compare import (
    between,
    columns_apart,
    difference,
    identical,
    mismatches,
    sentinel_threshold,
    threshold_of_large,
    together,
)
from togi.verify.units import error_in_units

finite = st.floats(-1e3, 1e3, allow_nan=False, width=32)
lists = st.lists(finite, min_size=1, max_size=40)
quick = settings(max_examples=60, deadline=None)


def against(output, truth, eager=None, threshold=math.inf):
    truth = torch.as_tensor(truth, dtype=torch.float64)
    eager = truth.float() if eager is None else torch.as_tensor(eager)
    return difference(torch.as_tensor(output), truth, eager, threshold)


@quick
@given(lists)
def test_a_tensor_is_not_a_distance_from_itself(values):
    t = torch.tensor(values, dtype=torch.float64)
    found = difference(t, t, t)
    assert (found.rms, found.peak, found.rmse, found.max_abs, found.misplaced) == (0, 0, 0, 0, 0)


@quick
@given(lists, st.data())
def test_rms_and_peak_agree_with_their_definitions(values, data):
    other = data.draw(st.lists(finite, min_size=len(values), max_size=len(values)))
    o, t = torch.tensor(other, dtype=torch.float64), torch.tensor(values, dtype=torch.float64)
    found = difference(o, t, t)
    assert found.rms == pytest.approx(float((o - t).square().mean().sqrt()), rel=1e-12)
    assert found.peak == float((o - t).abs().max())
    assert found.rms <= found.peak * (1 + 1e-12)
    assert found.scale == pytest.approx(float(t.square().mean().sqrt()), rel=1e-12)


@quick
@given(lists, st.integers(0, 39), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_non_finite_element_is_an_infinite_error(values, at, bad):
    o = torch.tensor(values, dtype=torch.float64)
    o[at % len(values)] = bad
    found = against(o, values)
    assert found.misplaced == 1
    assert found.rms == found.peak == found.rmse == math.inf
    assert found.first == at % len(values)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_the_same_non_finite_pattern_is_right(special):
    values = torch.tensor([1.0, special, 2.0])
    assert difference(values, values.double(), values).rms == 0
    other = torch.tensor([1.0, 0.0, 2.0])
    assert difference(other, values.double(), values).misplaced == 1


def test_the_sign_of_infinity_matters():
    assert against([-math.inf, 1.0], [math.inf, 1.0]).misplaced == 1


def test_where_eager_overflows_the_candidate_may_be_right_or_overflow_alike():
    truth, eager = torch.tensor([7e4, 1.0], dtype=torch.float64), torch.tensor([math.inf, 1.0], dtype=torch.float16)
    assert difference(torch.tensor([math.inf, 1.0]), truth, eager).misplaced == 0
    assert difference(torch.tensor([7e4, 1.0]), truth, eager).misplaced == 0
    assert difference(torch.tensor([0.0, 1.0]), truth, eager).misplaced == 1


def test_all_nan_is_not_equal_to_numbers():
    assert against([math.nan] * 3, [0.0] * 3).rms == math.inf


def test_ratio_never_divides_zero_by_zero():
    assert in_units(0.0, 0.0) == 0.0
    assert in_units(1e-30, 0.0) == math.inf
    assert in_units(math.nan, 1.0) == math.inf
    assert in_units(1.0, math.nan) == math.inf
    assert in_units(3.0, 2.0) == 1.5


@pytest.mark.parametrize("mask", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_a_mask_value_does_not_hide_errors_next_to_it(mask):
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    logits[::3] = mask
    threshold = sentinel_threshold(logits)
    wrong = logits.clone()
    wrong[1] += 0.01
    assert threshold == abs(mask) or threshold == pytest.approx(abs(mask))
    found = difference(wrong, logits.double(), logits, threshold)
    assert found.peak == pytest.approx(0.01, rel=1e-3)
    assert found.scale < 2
    unmasked = logits.clone()
    unmasked[0] = 0.0
    assert difference(unmasked, logits.double(), logits, threshold).misplaced == 1


def test_large_outputs_are_not_sentinels():
    assert sentinel_threshold(torch.linspace(1e4, 1e6, 50)) == math.inf
    assert sentinel_threshold(torch.randn(50)) == math.inf


def test_blocks_change_nothing(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    t, o = torch.randn(1000, generator=generator).double(), torch.randn(1000, generator=generator).double()
    whole = difference(o, t, t)
    monkeypatch.setattr("togi.verify.compare._BLOCK", 7)
    parts = difference(o, t, t)
    assert parts.rms == pytest.approx(whole.rms, rel=1e-12)
    assert (parts.peak, parts.first, parts.count) == (whole.peak, whole.first, whole.count)


def test_an_empty_tensor_has_no_error():
    empty = torch.empty(0, 3)
    assert difference(empty, empty.double(), empty).rms == 0
    assert mismatches(empty.long(), empty.long(), empty.long()) == 0


def test_complex_numbers_are_measured_by_both_parts():
    t = torch.tensor([1 + 1j, 2.0])
    o = t + 0.5j
    assert difference(o, torch.view_as_real(t.to(torch.complex128)), t).peak == pytest.approx(0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float64])
def test_every_float_type_is_compared(dtype):
    t = torch.tensor([1.0, -2.0, 0.5])
    assert difference(t.to(dtype), t.double(), t.to(dtype)).rms == 0
    assert identical(t.to(dtype), t.to(dtype))


def test_either_side_of_a_tie_is_right():
    truth, eager = torch.tensor([1, 2, 3]), torch.tensor([1, 0, 3])
    assert mismatches(truth, truth, eager) == mismatches(eager, truth, eager) == 0
    assert mismatches(torch.tensor([1, 5, 4]), truth, eager) == 2


def test_identical_tells_shape_dtype_and_nan():
    nan = torch.tensor([math.nan, 0.0])
    assert identical(nan, nan.clone())
    assert not identical(nan, torch.tensor([0.0, 0.0]))
    assert not identical(torch.ones(2), torch.ones(2).double())
    assert not identical(torch.ones(2), torch.ones(1, 2))


def apart(*outputs):
    return [(dim, list(columns)) for dim, columns, _ in columns_apart(list(outputs))]


def test_columns_of_other_magnitudes_are_told_apart_by_the_gap_between_them():
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    assert apart(x) == []
    assert apart(x * torch.tensor([1900.0] * 4 + [80.0, 1.0])) == [(1, [0, 1, 2, 3]), (1, [4]), (1, [5])]
    assert apart(x * 3.0 ** torch.arange(6)) == []
    assert apart((x * torch.tensor([1900.0] * 4 + [1.0] * 2)).t()[None]) == [(1, [0, 1, 2, 3]), (1, [4, 5])]
    assert apart(x * torch.tensor([1.0, 1, 1, 1, 1, 0])) == []
    kinds = [columns.kind for columns in columns_apart([x * torch.tensor([1e9, 1e9, 1e3, 1e3, 1.0, 1.0])])]
    assert kinds == [0, 1, 1]


def test_few_numbers_are_small_by_chance():
    generator = torch.Generator().manual_seed(0)
    for shape in [(1, 1000), (2, 1000), (1, 64), (1000,), (3, 100_000)]:
        assert apart(torch.randn(shape, generator=generator)) == []
    assert apart(torch.tensor([[0.5, 1.7e9]])) == [(1, [1]), (1, [0])]
    assert apart(torch.randn(8400, 64, generator=generator) * torch.linspace(1, 2000, 8400)[:, None]) == []


def test_columns_of_the_dimension_along_which_magnitudes_differ_most():
    """Anchors near a corner have small boxes; that is no reason to leave scores next to boxes."""
    x = torch.rand(1, 84, 400, generator=torch.Generator().manual_seed(0))
    x[:, :4] *= 1900
    x[:, 4:] *= 0.9
    x[..., :20] /= 100
    assert apart(x) == [(1, list(range(4))), (1, list(range(4, 84)))]


def test_what_all_errors_share_is_told_from_scatter():
    t = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = torch.randn(1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / 100
    assert difference(t * 1.01, t, t).systematic == pytest.approx(0.01 * difference(t, t, t).scale)
    assert difference(t + 0.01, t, t).systematic == pytest.approx(0.01)
    assert difference(t + noise, t, t).systematic < 0.1 * difference(t + noise, t, t).rms
    assert difference(t * 0, t, t).systematic == pytest.approx(difference(t, t, t).scale)


def test_parts_together_are_the_whole():
    t = torch.randn(10, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    o = t + torch.randn(10, 6, generator=torch.Generator().manual_seed(1)) / 100
    whole, parts = (
        difference(o, t, t),
        together([difference(o[:, at], t[:, at], t[:, at]) for at in ([0, 1], [2, 3, 4, 5])]),
    )
    assert (parts.rmse, parts.max_abs) == (pytest.approx(whole.rmse), pytest.approx(whole.max_abs))
    o[0, 0] = math.nan
    assert together([difference(o, t, t), difference(t, t, t)]).rmse == math.inf


def test_large_numbers_are_no_mask():
    x = torch.ones(100)
    x[7] = 5e4
    assert sentinel_threshold(x) == math.inf
    assert threshold_of_large(x) == 5e4
    x[8:20] = -1e9
    assert sentinel_threshold(x) == 1e9
    assert threshold_of_large(x, 1e9) == 5e4
    assert between(5e4, 1e9, x.double(), x).nonzero().flatten().tolist() == [7]
    x[8:20] = torch.finfo(torch.float32).min
    x[9:20] = 1.0
    assert sentinel_threshold(x) == torch.finfo(torch.float32).max
    assert not bool(between(math.inf, math.inf, x.double(), x / 0).any())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scatter_of_many_roundings_in_16_bits_is_not_faithful(dtype):
    """What torch rounds once is off by half a rounding, and an engine that folds a scale into weights by some more."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(4096, dtype=torch.float64, generator=generator)
    noise = torch.randn(4096, dtype=torch.float64, generator=generator)
    eager, rounding = truth.to(dtype), torch.finfo(dtype).eps

    def off_by(roundings):
        return error_in_units((truth + roundings * rounding * noise).to(dtype), truth, eager)

    assert off_by(0.75) <= MAX_UNITS < off_by(2.5)
