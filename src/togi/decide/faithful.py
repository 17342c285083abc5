"""The definition of "faithful": how large an error may be, in which unit, and what becomes of an approximate result.

The unit is plain eager's own distance from the truth in float64, with a floor of a few roundings. The numbers come from
``verify``, which holds the tensors; only this file decides whether an error is within the limit, and what that means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from togi.core.choices import Direction
from togi.core.judging import Judging
from togi.core.records import Accuracy, ErrorReport, LeafError, Outcome
from togi.decide import metric
from togi.decide.paired import Standing, said, standing

MAX_UNITS = 8.0
"""Largest error of a faithful result, in multiples of plain eager's own. ``benchmarks/verification.py`` measures both
sides: what is right stays below, planted faults lie above."""
MAX_UNITS_COMPILED = 2 * MAX_UNITS
"""The same for one compiled body alone. Inductor adds a row up one by one where torch adds pairwise: sums of 10,000
terms of both signs came out 9 units off at their worst, 4 in root mean square, and are right."""

FLOOR_ROUNDINGS = 4.0
"""Floor of the unit, in roundings (machine epsilon) of float32 and float64: relative to the truth's root mean square
for the root-mean-square error, to its largest magnitude for the largest error. Torch sums pairwise, other engines one
by one: a sum of a million numbers came out 20 roundings off, 14 times eager's own error, and is right."""
FLOOR_ROUNDINGS_16 = 0.5
"""The same for 16-bit floats and less, whose roundings are visible errors: only that of the output itself."""
MISMATCH_FLOOR = 1e-6
"""Floor of the unit for integers and bools: share of elements. A tie within rounding may fall either way about as
often."""
_SMALLEST_FLOAT32 = 2.0**-126
"""Below it float32 has fewer digits (subnormal numbers): the unit never falls below it, except in float64."""


STEP_SHARE = 1e-9
"""Largest error of a faithful training step in float64, of each gradient, update and buffer, relative to its size.
What is right stays below 1e-11, the mildest planted fault lies at 1e-3 (``tests/verify/planted_faults.py``)."""
STEP_NOISE = 1e3
"""A tensor that is zero in exact arithmetic (the gradient of a bias before batch normalisation) holds roundings alone.
It may differ by so many times what it differs by once all parameters are moved by one rounding ..."""
STEP_FLOOR = 1e-13
"""... and by this share of the size of all tensors of its kind, where it happens to be an exact zero."""


STEP_SPREAD = 4.0
"""Where float64 proves a step, it may differ in float32 by so many times the spread that a few of the original's runs
show. Without it a mean near zero, added up in another order, came out just above the limit. With it bf16 lies 80 times
above the limit and more (``benchmarks/train_proof.py``)."""


def unit_in_float64(size: float, noise: float, size_of_kind: float) -> float:
    """One unit of error of a training step in float64, absolute: ``MAX_UNITS`` of them are the limit above."""
    return max(STEP_SHARE * size, STEP_NOISE * noise, STEP_FLOOR * size_of_kind) / MAX_UNITS


def unit_of_error(own: float, size: float, epsilon: float) -> float:
    """One unit of error, absolute.

    Args:
        own: plain eager's own error.
        size: of the truth: its root mean square for a root-mean-square error, its largest magnitude for a largest one.
        epsilon: machine epsilon of the computation's type.
    """
    roundings = FLOOR_ROUNDINGS if epsilon < 1e-5 else FLOOR_ROUNDINGS_16
    return max(own, roundings * epsilon * size, _SMALLEST_FLOAT32 if epsilon > 1e-10 else 0.0)


BESIDE_LARGER = 0.5 * 2.0**-23 / MAX_UNITS
"""Floor of the unit of what stands next to larger numbers of its kind, relative to the largest: eight units are half a
rounding of it in float32. ONNX Runtime computes a sigmoid as a half and a rest, so a tiny score is off by as much as a
large one: without this floor it was 57 units off, and is right."""

_MANY = 256
"""From so many numbers on a root mean square is known to a few per cent, and no luck need be allowed for."""
_COARSE = 1e-4
"""Eager's own error, as a share of the output, from which it is that of 16 bits, or of a badly conditioned sum ..."""
NOTHING_SHOWN = 0.1
"""... and from which a comparison shows nothing. Ten times as large as the output, it is the error of a number that is
zero in exact arithmetic: of that every digit is rounding."""
SYSTEMATIC_TIMES = 4.0
"""How much more what all numbers share counts, which rounding does not do: a factor that was lost, a shift."""
_LARGE_ALLOWANCE = 0.05
"""Up to this share of the output eight units are allowed, beyond it but twice eager's own error."""
_LEAST_TIMES = 2.0
"""``benchmarks/verification.py`` measures it: what is right came out 1.3 times as far off as eager in bf16."""
_TIMES_16 = 4.0
"""So many times eager's own error many 16-bit numbers may have. Engines that are right came out at 1.6 units at most
(convolutions with their normalisations folded in; `torch.compile`, TorchScript and OpenVINO at one or less), and eight
units would be 3 % of the output in bfloat16."""


def counted(rms: float, systematic: float, own: float, count: int, *, in_16_bits: bool = False) -> float:
    """A root-mean-square error as it counts against the limit.

    Eight times eager's own error is for luck with small errors and few numbers. Where eager itself is off by much, a
    right answer is about as far from the truth as eager, and shares no error of its own.

    Args:
        systematic: the part of it that all numbers share.
        own: the unit, as a share of the output.
        count: of numbers.
        in_16_bits: eager returns 16-bit numbers.
    """
    if count < _MANY or not _COARSE < own < 1 / NOTHING_SHOWN:
        return rms
    allowed = min((_TIMES_16 if in_16_bits else MAX_UNITS) * own, max(_LEAST_TIMES * own, _LARGE_ALLOWANCE))
    return max(rms * MAX_UNITS * own / allowed, SYSTEMATIC_TIMES * systematic)


_SMALL_SHARE = 1e-2
"""Share of integers up to which eight times as many as eager's may fall the other way."""


def unit_of_mismatches(own: float, count: int) -> float:
    """One unit of error of integers and bools: a share of elements. Eight are eight times as many as eager's own; of
    more than a hundredth of all they are twice as many, and what chance adds.

    Args:
        own: the largest share that eager and its nudged runs show.
        count: of elements.
    """
    allowed = max(_LEAST_TIMES * own + 3 * math.sqrt(own / max(count, 1)), _SMALL_SHARE)
    return min(max(own, MISMATCH_FLOOR), allowed / MAX_UNITS)


FEWEST_FLIPS = 4
"""So many elements that fell the other way tell how far such a fall goes, in multiples ..."""
_FARTHER_TIMES = 2.0
_FAR_SHARE, _MOST_FAR = 1 / 8, 8
"""... of which few go farther: of a label map an eighth, or up to eight where eager shows as many."""


def far(distance: float) -> float:
    """From which distance an integer cannot be a tie. ``distance``: the largest that eager shows."""
    return _FARTHER_TIMES * distance


def unit_of_far(found: int, own: int, count: int) -> float:
    """One unit of integers that are too far off: a number of elements.

    Args:
        found: elements that fell the other way.
        own: the same in all runs of eager.
        count: of elements.
    """
    return max(MISMATCH_FLOOR * count, _FAR_SHARE * found / MAX_UNITS, min(own, _MOST_FAR) / MAX_UNITS)


def shows_nothing(own: float) -> bool:
    """Whether eager itself is so far off that nothing is shown by what is as near. ``own``: the unit, as a share of the
    output."""
    return NOTHING_SHOWN < own < 1 / NOTHING_SHOWN


def in_units(error: float, unit: float) -> float:
    """``error / unit``, where no error is 0 and an error without a unit, or none at all (NaN), is infinite."""
    if error == 0:
        return 0.0
    if math.isnan(error) or math.isnan(unit) or unit == 0 or math.isinf(error):
        return math.inf
    return error / unit


TF32_SHARE = 2.0
"""Where plain eager itself rounds factors to TensorFloat-32, an exact recipe may err by so many times eager's error."""


def limit_units(*, exact: bool, tf32_units: float) -> float:
    """Largest error of a faithful result, in units of plain eager's error in IEEE float32.

    Args:
        exact: no technique of the recipe is approximate. One that is must be as exact as IEEE float32 to pass without
            being allowed: 16-bit types round as TensorFloat-32 does, and would pass wherever eager uses that.
        tf32_units: plain eager's error as torch's flags have it, 0 where these say IEEE float32.
    """
    return max(MAX_UNITS, TF32_SHARE * tf32_units) if exact else MAX_UNITS


def within(units: float, limit: float = MAX_UNITS) -> bool:
    """An error of so many units is faithful. NaN is not."""
    return units <= limit


_LARGEST_APPROXIMATION = 0.1
"""Relative error from which nobody would call a result approximate: it is wrong."""


def may_be_approximate(error: ErrorReport) -> bool:
    """Whether a user might accept what was not: its error is not too large, and nothing else is wrong."""
    return not error.problems and error.rmse <= _LARGEST_APPROXIMATION


def accept(
    error: ErrorReport,
    *,
    exact: bool,
    max_error: float | None = None,
    max_drop: float | None = None,
    judging: Judging | None = None,
) -> tuple[Outcome, str]:
    """``(OK, "")``, ``(OK, how approximate)`` or ``(WRONG, why)``: an error report becomes an outcome here alone.

    Args:
        exact: no technique of the recipe is approximate, so nothing beyond rounding is accepted.
        max_error: largest relative root-mean-square error of an approximate result that the user accepts.
        max_drop: largest drop of the subject's metric that the user accepts. Where both are given, both hold.
        judging: on validation data, in place of ``max_drop``.
    """
    if is_tie(error):
        return Outcome.OK, f"a tie fell the other way ({error.divergence}): {of_the_parts(error)}"
    if error.problems:
        return Outcome.WRONG, error.problems[0]
    if exact and not all(part.faithful for part in error.forced):
        return Outcome.WRONG, of_the_parts(error)
    if error.shown_right:
        return Outcome.OK, ""
    if error.faithful and (exact or (max_error is None and max_drop is None and judging is None)):
        return Outcome.WRONG, of_the_parts(error) or error.unproven
    how_far = f"its error is {error.units:,.0f} x eager's own (relative RMS error {error.rmse:.1e})"
    if exact:
        return Outcome.WRONG, f"{how_far}, beyond what rounding explains"
    if max_error is not None and not error.rmse <= max_error:
        return Outcome.WRONG, f"{how_far}, above the allowed {max_error:.1e}"
    if judging is not None and judging.on_data:
        return _accept_accuracy(error, judging.max_drop, others_limited=max_error is not None)
    if max_drop is not None:
        return _accept_metric(error, max_drop)
    if max_error is None:
        return Outcome.WRONG, f"{how_far}, and no --max-error, --min-agreement or --max-drop allows it"
    return Outcome.OK, f"approximate: {how_far}, within the allowed {max_error:.1e}"


def is_tie(error: ErrorReport) -> bool:
    """A program that decides by values, where rounding decides: told from a fault by calls with eager's decisions."""
    return bool(error.divergence and error.forced) and all(part.faithful for part in error.forced)


def of_the_parts(error: ErrorReport) -> str:
    """What such calls showed: a part that is wrong, or that all are right. Empty where none were made."""
    for part in error.forced:
        if not part.faithful:
            how = part.problem or f"its error is {part.units:,.0f} x eager's own"
            return f"with plain eager's decisions {part.path or 'the program'} is wrong: {how}"
    if not error.forced:
        return ""
    calls, units = sum(part.calls for part in error.forced), max(part.units for part in error.forced)
    return (
        f"with plain eager's decisions each of {calls} calls of its parts is right, at most {units:.1f} x eager's own "
        "error"
    )


def _accept_metric(error: ErrorReport, max_drop: float) -> tuple[Outcome, str]:
    if error.metric_problem:
        return Outcome.WRONG, f"the metric cannot judge it: {error.metric_problem}"
    if error.metric is None or error.metric_original is None:
        return Outcome.WRONG, "it is approximate, and --max-drop was given for a subject without a metric"
    compared = (error.metric_original, error.metric, error.better, max_drop)
    before, now = metric.shown(*compared)
    measured = f"the metric goes from {before} to {now}"
    change, lower = ("rise", ", and lower is better") if error.better is Direction.LOWER else ("drop", "")
    if not metric.within(*compared):
        return Outcome.WRONG, f"{measured}, a {change} above the allowed {max_drop:g}{lower}"
    return Outcome.OK, f"approximate: {measured}, within the allowed {change} of {max_drop:g}{lower}"


def _what_is_said(accuracy: Accuracy) -> str:
    """``agreement``, from what it went to what where that is known, and how its scores were read."""
    own, told = accuracy.metric, list[str]()
    if own is not None:
        return f"{own.name} (from {own.original:.4g} to {own.candidate:.4g}, {own.better} is better)"
    if accuracy.original is not None and accuracy.candidate is not None:
        told.append(f"from {100 * accuracy.original:.1f} to {100 * accuracy.candidate:.1f} %")
    if len(accuracy.outputs) > 1:
        told.append(f"of {accuracy.outputs[0]}")
    if accuracy.form is not None:
        told.append(f"scores read as {accuracy.form}")
    return f"{accuracy.measure} ({', '.join(told)})" if told else accuracy.measure


def _accept_accuracy(error: ErrorReport, max_drop: float, *, others_limited: bool) -> tuple[Outcome, str]:
    """``others_limited``: the user limits the error of all outputs, and so of those that the measure does not see.

    Proven on one half of the validation data where it is tried, and on the other where it was saved. What is outside
    passes one half at most once in 20 times, and both once in 400: of 20 such recipes all fail, 19 times in 20."""
    accuracy = error.accuracy
    if accuracy is None and error.metric_problem:
        return Outcome.WRONG, f"the metric cannot judge it: {error.metric_problem}"
    if accuracy is None:
        return Outcome.WRONG, "it is approximate, and was not judged on validation data"
    measured = f"{_what_is_said(accuracy)}: {said(accuracy.drop, max_drop, points=accuracy.measure.of_answers)}"
    if standing(accuracy.drop, max_drop) is not Standing.PROVEN:
        return Outcome.WRONG, measured
    if accuracy.outputs and not others_limited and (ruined := _ruined(error.leaves, accuracy.outputs)):
        return Outcome.WRONG, ruined
    return Outcome.OK, f"approximate: {measured}"


def _ruined(leaves: Sequence[LeafError], judged: Sequence[str]) -> str:
    """What is wrong with an output that was not ``judged`` on the data; empty if none is far off."""
    others = [leaf for leaf in leaves if leaf.name not in judged and not leaf.rmse <= _LARGEST_APPROXIMATION]
    if not others:
        return ""
    worst = max(others, key=lambda leaf: leaf.rmse)
    return (
        f"its relative RMS error in {worst.name} is {worst.rmse:.1e}, above {_LARGEST_APPROXIMATION:g}, and the measure"
        " does not judge that output: allow it (--max-error), or judge by a metric of your own"
    )
