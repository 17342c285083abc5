"""What is right, what is wrong, and what is wrong within what the user allowed."""

from __future__ import annotations

import math

import pytest

from togi.core.errors import TogiError
from togi.core.records import ErrorReport, Outcome
from togi.study.judgement import judge
from togi.study.settings import Settings


def report(**fields: object) -> ErrorReport:
    return ErrorReport.model_validate({"faithful": False, "units": 5000.0, "rmse": 4e-3, "max_abs": 1e-2, **fields})


def test_faithful_is_right() -> None:
    assert judge(report(faithful=True, units=1.2), exact=True, settings=Settings()) == (Outcome.OK, "")


def test_a_problem_is_wrong_whatever_the_error() -> None:
    found = report(units=0.0, rmse=0.0, problems=("output is overwritten by a later call",))
    assert judge(found, exact=False, settings=Settings(max_error=1.0)) == (
        Outcome.WRONG,
        "output is overwritten by a later call",
    )


def test_an_exact_technique_has_no_allowance() -> None:
    outcome, reason = judge(report(), exact=True, settings=Settings(max_error=1.0))
    assert outcome is Outcome.WRONG
    assert "5,000 x eager's own" in reason


@pytest.mark.parametrize(
    ("rmse", "outcome"),
    [(4e-3, Outcome.OK), (2e-2, Outcome.WRONG), (math.nan, Outcome.WRONG), (math.inf, Outcome.WRONG)],
)
def test_an_approximate_one_has_the_bound(rmse: float, outcome: Outcome) -> None:
    assert judge(report(rmse=rmse), exact=False, settings=Settings(max_error=1e-2))[0] is outcome


@pytest.mark.parametrize(("metric", "outcome"), [(0.905, Outcome.OK), (0.85, Outcome.WRONG), (math.nan, Outcome.WRONG)])
def test_or_the_metric_and_its_drop(metric: float, outcome: Outcome) -> None:
    found = report(metric=metric, metric_original=0.91)
    assert judge(found, exact=False, settings=Settings(max_drop=0.01))[0] is outcome


def test_both_bounds_hold_where_both_are_given() -> None:
    found = report(rmse=0.5, metric=0.91, metric_original=0.91)
    assert judge(found, exact=False, settings=Settings(max_drop=0.01, max_error=1e-2))[0] is Outcome.WRONG


def test_a_drop_without_a_metric_is_not_met() -> None:
    outcome, reason = judge(report(), exact=False, settings=Settings(max_drop=0.01))
    assert outcome is Outcome.WRONG
    assert "without a metric" in reason


def test_no_bound_means_no_allowance() -> None:
    assert judge(report(), exact=False, settings=Settings())[0] is Outcome.WRONG


def test_allowing_without_a_bound_is_refused_at_once() -> None:
    with pytest.raises(TogiError, match="--max-error"):
        Settings(allow=("bf16",))
