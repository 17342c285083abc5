"""Whether a verified candidate may be chosen: the one place that turns an error report into an outcome."""

from __future__ import annotations

from togi.core.records import ErrorReport, Outcome
from togi.study.settings import Settings


def judge(error: ErrorReport, *, exact: bool, settings: Settings) -> tuple[Outcome, str]:
    """``(OK, "")`` or ``(WRONG, why)``. ``exact``: no technique of the recipe is approximate."""
    if error.problems:
        return Outcome.WRONG, error.problems[0]
    if error.faithful:
        return Outcome.OK, ""
    how_far = f"its error is {error.units:,.0f} x eager's own (relative RMS error {error.rmse:.1e})"
    if exact:
        return Outcome.WRONG, f"{how_far}, beyond what rounding explains"
    if settings.max_error is not None and not error.rmse <= settings.max_error:
        return Outcome.WRONG, f"{how_far}, above the allowed {settings.max_error:.1e}"
    if settings.max_drop is not None:
        return _judge_metric(error, settings.max_drop)
    if settings.max_error is None:
        return Outcome.WRONG, f"{how_far}, and no --max-error or --max-drop allows it"
    return Outcome.OK, f"approximate: {how_far}, within the allowed {settings.max_error:.1e}"


def _judge_metric(error: ErrorReport, max_drop: float) -> tuple[Outcome, str]:
    if error.metric is None or error.metric_original is None:
        return Outcome.WRONG, "it is approximate, and --max-drop was given for a subject without a metric"
    drop = error.metric_original - error.metric
    measured = f"the metric goes from {error.metric_original:.4g} to {error.metric:.4g}"
    if not drop <= max_drop:
        return Outcome.WRONG, f"{measured}, a drop above the allowed {max_drop:g}"
    return Outcome.OK, f"approximate: {measured}, within the allowed drop of {max_drop:g}"
