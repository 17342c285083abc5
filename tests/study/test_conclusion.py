"""The verdict of a study in which nothing, or nothing faster, was tried."""

from __future__ import annotations

import pytest

from togi.core.records import Choice, Outcome, PartResult, ProgramTree, Recipe, Stage, Trial
from togi.decide.choose import Chosen
from togi.search.settings import Settings
from togi.study.conclusion import NOTHING_FASTER, _untried, _verdict
from togi.study.finals import Decision
from togi.study.runner import REFERENCE_RECIPE

REFERENCE = Trial(recipe=REFERENCE_RECIPE, outcome=Outcome.OK)
ORIGINAL = Trial(recipe=Recipe(), outcome=Outcome.OK)
ENGINE = Recipe(choices=(Choice(stage=Stage.ENGINE, technique="openvino"), *REFERENCE_RECIPE.choices))
LIMITED = Settings(time_limit_s=20.0)
KEPT = Decision(Chosen(trial=REFERENCE, reason=""), None, ())


def program(best: Recipe | None, reason: str = "") -> ProgramTree:
    part = PartResult(
        path="model", module="Model", copies=("model",), form=0, calls=1, share=0.9, recipe=best, reason=reason
    )
    return ProgramTree(calls=(), parts=(part,))


@pytest.mark.parametrize("trials", [[], [REFERENCE], [REFERENCE, ORIGINAL]])
def test_where_time_was_over_before_the_first_trial_nothing_is_said_of_speed(trials: list[Trial]) -> None:
    said = _verdict(KEPT, _untried(trials, program(None), LIMITED), LIMITED)
    assert said.startswith("Nothing was tried: the time limit of 20 s was over")
    assert "faster" not in said
    assert "Give a longer --time-limit" in said


def test_where_nothing_can_be_tried_no_time_would_help() -> None:
    said = _verdict(KEPT, _untried([REFERENCE], None, Settings(effort="thorough")), Settings())
    assert said.startswith("Nothing could be tried here: every technique is refused, left out or missing")


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.FAILED, Outcome.WRONG])
def test_where_something_was_tried_nothing_was_faster(outcome: Outcome) -> None:
    trials = [REFERENCE, Trial(recipe=ENGINE, outcome=outcome)]
    assert _verdict(KEPT, _untried(trials, None, LIMITED), LIMITED).startswith("Nothing was faster")
    assert _untried([REFERENCE], program(ENGINE), LIMITED) == ""
    assert _untried([REFERENCE], program(None, NOTHING_FASTER), LIMITED) == ""
