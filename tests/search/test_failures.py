"""What a failure rules out, and what it says of the chances of others."""

from __future__ import annotations

import pytest

from tests.search.search_landscapes import CONVOLUTIONAL, family, measured_trial
from togi.core.records import Outcome, Trial
from togi.core.settings import ALL, Settings
from togi.search import Space
from togi.search.failures import FailureModel
from togi.search.features import RecipeFeatures


@pytest.fixture(scope="module")
def space() -> Space:
    return Space.of(CONVOLUTIONAL, Settings(allow=(ALL,), max_error=1.0, without=("pad", "allocator")), family())


def made_of(space: Space, *techniques: str, place: int = 0) -> RecipeFeatures:
    """The ``place``-th recipe of exactly these techniques: another one has other options."""
    return space.features([r for r in space.recipes() if r.techniques == {*techniques}][place])


def failed(features: RecipeFeatures, stage: str, outcome: Outcome = Outcome.FAILED, reason: str = "no") -> Trial:
    return Trial(recipe=features.recipe, outcome=outcome, stage=stage, reason=reason)


def test_a_grad_mode_is_blamed_until_it_has_worked(space: Space) -> None:
    alone, with_onnx = made_of(space, "inference_mode"), made_of(space, "onnx", "inference_mode")
    model = FailureModel()
    assert model.learn(alone, failed(alone, "verify")) == "inference_mode is not tried again: failed (no)"
    assert model.ruled_out(with_onnx.atoms)
    model = FailureModel()
    model.learn(alone, measured_trial(alone.recipe, 1.0))
    assert model.learn(with_onnx, failed(with_onnx, "verify")) == "onnx is not tried again: failed (no)"
    assert model.learn(alone, failed(alone, "verify")) == ""


def test_what_has_worked_elsewhere_is_blamed_with_what_it_failed_with(space: Space) -> None:
    model = FailureModel()
    layout, both = made_of(space, "channels_last", "no_grad"), made_of(space, "channels_last", "onnx", "no_grad")
    model.learn(layout, measured_trial(layout.recipe, 1.2))
    lesson = model.learn(both, failed(both, "verify", Outcome.WRONG, "off by 1."))
    assert lesson == "channels_last with onnx is not tried again: wrong output (off by 1)"
    assert model.ruled_out(both.atoms)
    assert not model.ruled_out(layout.atoms)
    assert not model.ruled_out(made_of(space, "onnx", "no_grad").atoms)
    assert model.learn(both, failed(both, "verify", Outcome.WRONG, "off by 1")) == ""  # nothing new


def test_two_that_raised_the_same_twice_are_not_tried_together_with_other_options() -> None:
    space = Space.of(CONVOLUTIONAL, Settings(without=("allocator",)), family())
    together = [recipe for recipe in space.recipes() if recipe.techniques == {"pad", "script", "no_grad"}]
    first, second, *rest = map(space.features, together)
    assert rest
    reasons = ("script raised NotImplemented: Add(14)", "script raised NotImplemented: MatMul(13)")

    def learned(*, second_reason: str = reasons[1], outcome: Outcome = Outcome.FAILED, worked: bool = False) -> str:
        model = FailureModel()
        alone = made_of(space, "script", "no_grad")
        model.learn(alone, measured_trial(alone.recipe, 2.0))
        if worked:
            model.learn(rest[0], measured_trial(rest[0].recipe, 2.0))
        model.learn(first, failed(first, "script", outcome, reasons[0]))
        assert not model.ruled_out(second.atoms)
        model.learn(second, failed(second, "script", outcome, second_reason))
        assert not model.ruled_out(alone.atoms)
        return "all" if all(model.ruled_out(other.atoms) for other in rest) else "these"

    assert learned() == "all"
    assert learned(second_reason="script raised OutOfMemory: 3 MiB") == "these"
    assert learned(outcome=Outcome.REFUSED) == "these"
    assert learned(worked=True) == "these"


def test_a_rewrite_with_nothing_to_do_after_another_is_still_tried_alone() -> None:
    """One that never finds anything is known before any trial (``Facts.idle_rewrites``)."""
    space = Space.of(CONVOLUTIONAL, Settings(without=("allocator",)), family())
    model, after_another = FailureModel(), made_of(space, "fold", "pad", "no_grad")
    padded = next(c.label for c in after_another.configurations if c.technique.id == "pad")
    lesson = model.learn(after_another, failed(after_another, "pad", Outcome.REFUSED, "nothing to pad"))
    assert lesson == f"fold with {padded} is not tried again: refused (nothing to pad)"
    assert model.ruled_out(made_of(space, "fold", "pad", "onnx", "no_grad").atoms)
    alone = made_of(space, "pad", "onnx", "no_grad")
    assert any(c.label == padded for c in alone.configurations)
    assert not model.ruled_out(alone.atoms)


def test_what_is_approximate_and_wrong_on_eager_may_be_right_on_an_engine(space: Space) -> None:
    model, eager = FailureModel(), made_of(space, "bf16", "no_grad")
    assert "bf16 with eager" in model.learn(eager, failed(eager, "verify", Outcome.WRONG))
    assert not model.ruled_out(made_of(space, "bf16", "onnx", "no_grad").atoms)
    exact, model = made_of(space, "channels_last", "no_grad"), FailureModel()
    assert "eager" not in model.learn(exact, failed(exact, "verify", Outcome.WRONG))


@pytest.mark.parametrize(
    ("outcome", "reasons", "whole"),
    [
        (Outcome.FAILED, ("no", "no"), True),
        (Outcome.FAILED, ("no", "other"), False),
        (Outcome.FAILED, ("", ""), False),
        (Outcome.TIMED_OUT, ("no", "no"), False),
        (Outcome.WRONG, ("no", "no"), False),
    ],
)
def test_a_technique_that_fails_twice_for_one_reason_is_dropped_whole(
    space: Space, outcome: Outcome, reasons: tuple[str, str], whole: bool
) -> None:
    one, two, three = (made_of(space, "script", "no_grad", place=k) for k in range(3))
    model = FailureModel()
    for features, reason in zip((one, two), reasons, strict=True):
        model.learn(features, failed(features, "script", outcome, reason))
    assert model.ruled_out(three.atoms) is whole
    model = FailureModel()
    model.learn(three, measured_trial(three.recipe, 2.0))  # it has worked
    for features, reason in zip((one, two), reasons, strict=True):
        model.learn(features, failed(features, "script", outcome, reason))
    assert not model.ruled_out(three.atoms)


def test_where_building_failed_without_a_name_it_was_the_engine(space: Space) -> None:
    both = made_of(space, "fold", "onnx", "no_grad")
    assert FailureModel().learn(both, failed(both, "build")) == "fold with onnx is not tried again: failed (no)"
    assert FailureModel().learn(both, failed(both, "fold")) == "fold is not tried again: failed (no)"
    assert FailureModel().learn(both, failed(both, "fold", Outcome.MISSING, "")) == "fold is not tried again: missing"


def test_the_chance_is_how_often_the_least_sure_part_has_worked(space: Space) -> None:
    grad, layout = made_of(space, "no_grad"), made_of(space, "channels_last", "no_grad")
    rough = made_of(space, "bf16", "no_grad")
    model = FailureModel()
    assert model.chance(grad) == pytest.approx(0.95)
    assert model.chance(layout) == pytest.approx(0.95**2)
    assert model.chance(rough) == pytest.approx(0.85 * 0.95)
    model.learn(grad, measured_trial(grad.recipe, 1.0))
    assert model.chance(grad) == pytest.approx((1 + 2 * 0.95) / 3)
    model.doubt(layout)  # counts as a failure of its parts, but for the mode that worked, and rules nothing out
    assert model.chance(layout) == pytest.approx((2 * 0.95) / 3 * (1 + 2 * 0.95) / 3)
    assert not model.ruled_out(layout.atoms)
