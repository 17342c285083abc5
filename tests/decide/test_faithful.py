"""What is right, what is wrong, and what is wrong within what the user allowed."""

from __future__ import annotations

import math

import pytest

from togi.core.choices import AccuracyMeasure, Direction, ScoreForm
from togi.core.errors import TogiError
from togi.core.judging import Judging
from togi.core.records import Accuracy, ErrorReport, ForcedCalls, LeafError, Outcome
from togi.core.settings import Settings
from togi.decide.faithful import (
    MAX_UNITS,
    MAX_UNITS_COMPILED,
    MISMATCH_FLOOR,
    accept,
    counted,
    in_units,
    shows_nothing,
    unit_of_error,
    unit_of_far,
    unit_of_mismatches,
    within,
)
from togi.decide.paired import flips


def report(**fields: object) -> ErrorReport:
    return ErrorReport.model_validate({"faithful": False, "units": 5000.0, "rmse": 4e-3, "max_abs": 1e-2, **fields})


def test_faithful_is_right() -> None:
    assert accept(report(faithful=True, units=1.2), exact=True) == (Outcome.OK, "")


def test_a_problem_is_wrong_whatever_the_error() -> None:
    found = report(units=0.0, rmse=0.0, problems=("output is overwritten by a later call",))
    assert accept(found, exact=False, max_error=1.0) == (
        Outcome.WRONG,
        "output is overwritten by a later call",
    )


PROVEN = ForcedCalls(path="model", calls=31, units=1.25, faithful=True)
ELSEWHERE = "output differs in 3 of 32 places, first at [0, 71]"


def test_a_tie_is_accepted_if_every_part_is_right_with_the_originals_decisions() -> None:
    forced = (PROVEN, ForcedCalls(path="head", calls=2, units=0.5, faithful=True))
    found = report(problems=("output differs",), divergence=ELSEWHERE, forced=forced)
    assert accept(found, exact=True) == (
        Outcome.OK,
        f"a tie fell the other way ({ELSEWHERE}): with plain eager's decisions each of 33 calls of its parts is right, "
        "at most 1.2 x eager's own error",
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"divergence": "", "forced": (PROVEN,)},
        {"divergence": ELSEWHERE, "forced": ()},
        {"divergence": ELSEWHERE, "forced": (PROVEN, PROVEN.model_copy(update={"faithful": False}))},
    ],
    ids=["no decision differs", "no part was proven", "one part is wrong"],
)
def test_a_wrong_output_is_not_a_tie_without_proof(fields: dict[str, object]) -> None:
    assert accept(report(problems=("output differs",), **fields), exact=True) == (Outcome.WRONG, "output differs")


def test_a_right_result_of_a_wrong_part_is_wrong_unless_it_may_be_approximate() -> None:
    """The original may decide by roundings: then its results tell nothing."""
    wrong = ForcedCalls(path="head", calls=2, units=4000, faithful=False)
    found = report(faithful=True, forced=(PROVEN, wrong))
    reason = "with plain eager's decisions head is wrong: its error is 4,000 x eager's own"
    assert accept(found, exact=True) == accept(found, exact=False) == (Outcome.WRONG, reason)
    assert accept(found, exact=False, max_error=1e-2)[0] is Outcome.OK
    assert accept(found, exact=False, max_error=1e-3)[0] is Outcome.WRONG


@pytest.mark.parametrize("unproven", ["", "plain eager itself is off by 45 % in output"])
@pytest.mark.parametrize("losses", [0, 30])
def test_what_hides_in_the_originals_own_roundings_is_held_to_the_budget(unproven: str, losses: int) -> None:
    """A detector with a part in 8 bits: its boxes are as near as the original's own, which decides by roundings."""
    wrong = ForcedCalls(path="head", calls=2, units=4000, faithful=False)
    accuracy = Accuracy(measure=AccuracyMeasure.AGREEMENT, confirmation=True, drop=flips(losses, 300, 300))
    found = report(faithful=True, units=1.0, unproven=unproven, forced=(PROVEN, wrong))
    judged = found.model_copy(update={"accuracy": accuracy})
    assert accept(judged, exact=False, judging=AGREEMENT)[0] is (Outcome.WRONG if losses else Outcome.OK)
    outcome, reason = accept(found, exact=False, judging=AGREEMENT)
    assert (outcome, reason) == (Outcome.WRONG, "it is approximate, and was not judged on validation data")


def test_an_exact_technique_has_no_allowance() -> None:
    outcome, reason = accept(report(), exact=True, max_error=1.0)
    assert outcome is Outcome.WRONG
    assert "5,000 x eager's own" in reason


@pytest.mark.parametrize(
    ("rmse", "outcome"),
    [(4e-3, Outcome.OK), (2e-2, Outcome.WRONG), (math.nan, Outcome.WRONG), (math.inf, Outcome.WRONG)],
)
def test_an_approximate_one_has_the_bound(rmse: float, outcome: Outcome) -> None:
    assert accept(report(rmse=rmse), exact=False, max_error=1e-2)[0] is outcome


@pytest.mark.parametrize(("metric", "outcome"), [(0.905, Outcome.OK), (0.85, Outcome.WRONG), (math.nan, Outcome.WRONG)])
def test_or_the_metric_and_its_drop(metric: float, outcome: Outcome) -> None:
    found = report(metric=metric, metric_original=0.91)
    assert accept(found, exact=False, max_drop=0.01)[0] is outcome


def test_both_bounds_hold_where_both_are_given() -> None:
    found = report(rmse=0.5, metric=0.91, metric_original=0.91)
    assert accept(found, exact=False, max_drop=0.01, max_error=1e-2)[0] is Outcome.WRONG


def test_a_drop_without_a_metric_is_not_met() -> None:
    outcome, reason = accept(report(), exact=False, max_drop=0.01)
    assert outcome is Outcome.WRONG
    assert "without a metric" in reason


def test_no_bound_means_no_allowance() -> None:
    assert accept(report(), exact=False)[0] is Outcome.WRONG


def test_allowing_without_a_bound_is_refused_at_once() -> None:
    with pytest.raises(TogiError, match="--max-error"):
        Settings(allow=("bf16",))


def test_the_unit_never_falls_below_a_few_roundings_of_the_type() -> None:
    float32, bfloat16, float64 = 2.0**-23, 2.0**-7, 2.0**-52
    assert unit_of_error(1e-3, size=1.0, epsilon=float32) == 1e-3
    assert unit_of_error(0.0, size=2.0, epsilon=float32) == 8 * float32
    assert unit_of_error(0.0, size=2.0, epsilon=bfloat16) == bfloat16
    assert unit_of_error(0.0, size=0.0, epsilon=float32) == 2.0**-126
    assert unit_of_error(0.0, size=0.0, epsilon=float64) == 0.0


def test_an_error_that_is_not_a_number_is_not_faithful() -> None:
    assert within(MAX_UNITS)
    assert not within(MAX_UNITS * 1.001)
    assert not within(math.nan)


@pytest.mark.parametrize(
    ("error", "unit", "units"),
    [
        (3.0, 2.0, 1.5),
        (1.0, 4.0, 0.25),
        (0.0, 2.0, 0.0),
        (0.0, 0.0, 0.0),
        (0.0, math.nan, 0.0),
        (1.0, 0.0, math.inf),
        (1.0, math.nan, math.inf),
        (math.nan, 1.0, math.inf),
        (math.inf, 1.0, math.inf),
        (math.inf, math.inf, math.inf),
    ],
)
def test_an_error_in_units(error: float, unit: float, units: float) -> None:
    assert in_units(error, unit) == units


def test_how_many_units_are_faithful() -> None:
    assert within(8.0)
    assert not within(8.01)
    assert within(16.0, MAX_UNITS_COMPILED)
    assert not within(16.01, MAX_UNITS_COMPILED)


def test_a_bound_is_met_by_what_equals_it() -> None:
    at, above = (
        report(rmse=0.25, metric=0.5, metric_original=0.75),
        report(rmse=0.26, metric=0.49, metric_original=0.75),
    )
    how_far = "its error is 5,000 x eager's own (relative RMS error 2.5e-01)"
    assert accept(at, exact=False, max_error=0.25) == (
        Outcome.OK,
        f"approximate: {how_far}, within the allowed 2.5e-01",
    )
    drop = "the metric goes from 0.75 to 0.5"
    said = f"approximate: {drop}, within the allowed drop of 0.25"
    assert accept(at, exact=False, max_drop=0.25) == (Outcome.OK, said)
    assert accept(at, exact=False, max_drop=0.25, max_error=0.25) == (Outcome.OK, said)
    outcome, reason = accept(above, exact=False, max_error=0.25)
    assert (outcome, reason[-27:]) == (Outcome.WRONG, ", above the allowed 2.5e-01")
    assert accept(above, exact=False, max_drop=0.25) == (
        Outcome.WRONG,
        "the metric goes from 0.75 to 0.49, a drop above the allowed 0.25",
    )
    assert accept(at, exact=True) == (Outcome.WRONG, f"{how_far}, beyond what rounding explains")
    assert accept(at, exact=False) == (
        Outcome.WRONG,
        f"{how_far}, and no --max-error, --min-agreement or --max-drop allows it",
    )


def test_a_better_metric_is_not_a_drop() -> None:
    assert accept(report(metric=0.9, metric_original=0.5), exact=False, max_drop=0.0)[0] is Outcome.OK


@pytest.mark.parametrize("half", [{"metric": 0.5}, {"metric_original": 0.5}])
def test_a_metric_of_one_side_only_is_wrong(half: dict[str, float]) -> None:
    outcome, reason = accept(report(**half), exact=False, max_drop=1.0)
    assert outcome is Outcome.WRONG
    assert "without a metric" in reason


def test_a_metric_of_which_lower_is_better_must_not_rise() -> None:
    """An error rate from 0 to 0.875 was once "within the allowed drop of 0.005"."""
    risen = report(metric=0.875, metric_original=0.0, better=Direction.LOWER)
    outcome, reason = accept(risen, exact=False, max_drop=0.005)
    assert outcome is Outcome.WRONG
    assert reason == "the metric goes from 0 to 0.875, a rise above the allowed 0.005, and lower is better"
    fallen = report(metric=0.0, metric_original=0.5, better=Direction.LOWER)
    assert accept(fallen, exact=False, max_drop=0.005)[0] is Outcome.OK


def test_a_drop_is_what_it_says_and_says_what_it_is() -> None:
    assert accept(report(metric=0.95, metric_original=1.0), exact=False, max_drop=0.05)[0] is Outcome.OK
    outcome, reason = accept(report(metric=0.949996, metric_original=1.0), exact=False, max_drop=0.05)
    assert outcome is Outcome.WRONG
    assert "from 1 to 0.949996, a drop above the allowed 0.05" in reason


def test_a_metric_that_raises_is_told() -> None:
    raised = report(metric_original=0.9, metric_problem="it raises (ZeroDivisionError: division by zero)")
    outcome, reason = accept(raised, exact=False, max_drop=0.05)
    assert outcome is Outcome.WRONG
    assert reason == "the metric cannot judge it: it raises (ZeroDivisionError: division by zero)"
    assert accept(raised.model_copy(update={"faithful": True}), exact=True)[0] is Outcome.OK


AGREEMENT = Judging(measure=AccuracyMeasure.AGREEMENT, max_drop=0.01)


@pytest.mark.parametrize("confirmation", [False, True])
def test_validation_data_prove_each_half_by_itself(confirmation: bool) -> None:
    def judged(losses: int, seen: int, planned: int) -> tuple[Outcome, str]:
        accuracy = Accuracy(
            measure=AccuracyMeasure.AGREEMENT, confirmation=confirmation, drop=flips(losses, seen, planned)
        )
        return accept(report(accuracy=accuracy, rmse=0.5), exact=False, judging=AGREEMENT)

    proven = "300 samples without a loss prove a drop of at most 1 point, within the allowed 1 point"
    assert judged(0, 300, 300) == (Outcome.OK, f"approximate: agreement: {proven}")
    outcome, reason = judged(1, 300, 300)
    assert outcome is Outcome.WRONG
    assert "not the allowed 1 point: about" in reason
    assert judged(40, 50, 300)[0] is Outcome.WRONG
    assert judged(0, 150, 300)[0] is Outcome.WRONG, "half of it proves nothing"


def test_how_scores_were_read_is_told() -> None:
    accuracy = Accuracy(
        measure=AccuracyMeasure.AGREEMENT, confirmation=True, drop=flips(0, 300, 300), form=ScoreForm.PROBABILITIES
    )
    _, told = accept(report(accuracy=accuracy, rmse=0.5), exact=False, judging=AGREEMENT)
    assert told.startswith("approximate: agreement (scores read as probabilities): 300 samples without a loss")


def test_accuracy_is_told_with_what_it_was() -> None:
    accuracy = Accuracy(
        measure=AccuracyMeasure.ACCURACY,
        confirmation=True,
        drop=flips(0, 300, 300, gains=0),
        original=0.8123,
        candidate=0.809,
        form=ScoreForm.LOGITS,
    )
    _, told = accept(report(accuracy=accuracy, rmse=0.5), exact=False, judging=AGREEMENT)
    assert "accuracy (from 81.2 to 80.9 %, scores read as logits): 300 samples" in told


def test_an_output_that_the_measure_does_not_judge_may_not_be_ruined() -> None:
    """A detector: its scores agree, and its boxes are anywhere."""
    names = ("output.scores", "output.boxes")
    leaves = tuple(
        LeafError(name=name, rmse=rmse, max_abs=rmse, units=1e4) for name, rmse in zip(names, (0.3, 0.2), strict=True)
    )
    proven = Accuracy(
        measure=AccuracyMeasure.AGREEMENT, confirmation=True, drop=flips(0, 300, 300), outputs=("output.scores",)
    )
    found = report(accuracy=proven, rmse=0.3).model_copy(update={"leaves": leaves})
    outcome, reason = accept(found, exact=False, judging=AGREEMENT)
    assert outcome is Outcome.WRONG
    assert "in output.boxes is 2.0e-01" in reason
    assert accept(found, exact=False, judging=AGREEMENT, max_error=0.4)[0] is Outcome.OK
    both = found.model_copy(update={"accuracy": proven.model_copy(update={"outputs": names})})
    outcome, reason = accept(both, exact=False, judging=AGREEMENT)
    assert outcome is Outcome.OK
    assert reason.startswith("approximate: agreement (of output.scores): 300 samples")


def test_what_was_not_judged_on_the_data_is_not_accepted() -> None:
    assert accept(report(metric=1.0, metric_original=1.0), exact=False, judging=AGREEMENT)[0] is Outcome.WRONG
    assert accept(report(faithful=True), exact=False, judging=AGREEMENT)[0] is Outcome.OK


@pytest.mark.parametrize(
    ("own", "times"), [(1e-7, 8), (5e-3, 8), (6.25e-3, 8), (1e-2, 5), (2.5e-2, 2), (0.1, 2), (0.5, 2), (20.0, 8)]
)
def test_the_less_exact_the_original_the_fewer_times_its_error_may_be_exceeded(own: float, times: float) -> None:
    assert counted(times * own, 0.0, own, 1000) == pytest.approx(MAX_UNITS * own)
    assert counted(times * own, 0.0, own, 10) == times * own, "of few numbers it may be luck"


def test_16_bit_numbers_may_err_by_fewer_times_the_originals_error() -> None:
    for own in (1e-3, 4e-3, 1e-2):
        assert counted(4 * own, 0.0, own, 1000, in_16_bits=True) == pytest.approx(MAX_UNITS * own)
    assert counted(0.04, 0.0, 0.01, 10, in_16_bits=True) == 0.04, "of few numbers it may be luck"
    assert counted(0.05, 0.0, 0.025, 1000, in_16_bits=True) == counted(0.05, 0.0, 0.025, 1000)


def test_what_all_numbers_share_counts_more_where_the_original_is_inexact() -> None:
    assert counted(5e-3, 5e-3, 2e-3, 1000) == 2e-2
    assert counted(5e-6, 5e-6, 2e-6, 1000) == counted(5e-3, 5e-3, 2e-3, 10) * 1e-3 == 5e-6


def test_integers_may_differ_more_often_than_the_originals_up_to_a_limit() -> None:
    assert unit_of_mismatches(0.0, 1000) == MISMATCH_FLOOR
    assert unit_of_mismatches(1e-4, 100_000) == 1e-4
    assert MAX_UNITS * unit_of_mismatches(0.1, 1_000_000) == pytest.approx(0.2, rel=1e-2)
    assert MAX_UNITS * unit_of_mismatches(1 / 8, 8) < 0.7


def test_few_integers_may_be_far_off() -> None:
    assert MAX_UNITS * unit_of_far(0, 0, 1_000_000) == pytest.approx(8)
    assert MAX_UNITS * unit_of_far(400, 50, 1000) == 50
    assert MAX_UNITS * unit_of_far(10, 4, 1000) == 4


def test_what_is_as_near_as_an_original_that_is_far_off_is_not_right() -> None:
    found = report(faithful=True, units=1.0, unproven="plain eager itself is off by 45 % in output")
    assert accept(found, exact=True) == accept(found, exact=False) == (Outcome.WRONG, found.unproven)
    assert accept(found, exact=False, max_error=1e-2)[0] is Outcome.OK
    proven = found.model_copy(update={"forced": (PROVEN,)})
    assert accept(proven, exact=True) == (Outcome.OK, "")
    assert not any(map(shows_nothing, [0.0, 1e-3, 0.1, 1e9]))
    assert shows_nothing(0.7)


def test_records_of_before_are_read() -> None:
    old = '{"name": "output", "rmse": 1e-7, "max_abs": 1e-6, "units": 1.5}'
    assert LeafError.model_validate_json(old).limit_units == MAX_UNITS
