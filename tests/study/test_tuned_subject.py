"""What a verification means under the settings of a study: what ``--allow`` names may err beyond rounding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.study.stand_ins import open_study
from togi.core.records import ErrorReport, Outcome, Recipe
from togi.techniques import recipe

ENGINE, LOWERED = recipe(openvino={}, no_grad={}), recipe(bf16={}, openvino={}, no_grad={})


@dataclass
class Verified:
    """A process whose recipe is a little wrong."""

    recipe: Recipe
    error: ErrorReport


@pytest.mark.parametrize(
    ("tried", "settings", "outcome"),
    [
        (ENGINE, {}, Outcome.WRONG),
        (ENGINE, {"max_error": 2e-5}, Outcome.WRONG),
        (ENGINE, {"max_error": 2e-5, "allow": "approximate"}, Outcome.WRONG),
        (ENGINE, {"max_error": 2e-5, "allow": "bf16"}, Outcome.WRONG),
        (ENGINE, {"max_error": 2e-5, "allow": "openvino"}, Outcome.OK),
        (ENGINE, {"max_error": 1e-5, "allow": "openvino"}, Outcome.WRONG),
        (LOWERED, {"max_error": 2e-5}, Outcome.OK),
        (LOWERED, {"max_error": 1e-5}, Outcome.WRONG),
    ],
)
def test_an_exact_engine_may_err_only_where_it_is_named(
    tried: Recipe, settings: dict[str, object], outcome: Outcome, tmp_path: Path
) -> None:
    error = ErrorReport(faithful=False, units=20.0, rmse=1.3e-5, max_abs=1e-4)
    assert open_study(tmp_path, **settings).subject.accepted(Verified(tried, error))[0] is outcome
