"""One part of a program: what is saved of it, what it should save, and why the original stays."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.study.parts.part_fakes import OPENVINO, Faster, NotYetFaster, Trials, part, study_of, trial
from togi.core.errors import SubjectError
from togi.core.recipe import REFERENCE_RECIPE, ProgramRecipe, Recipe
from togi.core.records import Outcome, Trial
from togi.program.parts import Part
from togi.study.conclusion import NOTHING_FASTER
from togi.study.parts.assembly import fastest_before
from togi.study.parts.part_study import PartStudy
from togi.techniques import recipe

TORCHSCRIPT = recipe(torchscript={})


def test_a_part_that_cannot_be_opened_is_not_tried_again() -> None:
    opened: list[Part] = []

    def fail(of: Part, _firsts: Iterable[Recipe], _limit_s: float) -> Trials:
        opened.append(of)
        raise SubjectError("its reference ran out of memory")

    study = PartStudy(part("a", share=1.0), fail)
    assert study.promises(60.0) > 0
    study.explore(60.0)
    assert (study.reason, study.had_turn) == ("its reference ran out of memory", True)
    assert study.promises(60.0) == 0.0
    assert len(opened) == 1


def test_opening_a_part_takes_of_its_time() -> None:
    seconds, trials, limits = [0.0], Trials(), list[float]()

    def opened(_part: Part, _firsts: Iterable[Recipe], limit_s: float) -> Trials:
        seconds[0] += 7.0
        limits.append(limit_s)
        return trials

    study = PartStudy(part("a"), opened, clock=lambda: seconds[0])
    study.explore(10.0)
    study.explore(5.0)
    assert trials.explored == [3.0, 5.0]
    assert limits == [30.0], "and three times its time at most"


def test_what_won_elsewhere_is_tried_first() -> None:
    told: list[Recipe] = []

    def opened(_part: Part, firsts: Iterable[Recipe], _limit_s: float) -> Trials:
        told.extend(firsts)
        return Trials()

    PartStudy(part("a"), opened).explore(1.0, (TORCHSCRIPT,))
    assert told == [TORCHSCRIPT]


def test_copies_that_could_not_be_made_save_nothing() -> None:
    trials = Trials(trial(OPENVINO))
    trials.not_built = {"l.2"}
    layers = part("l.0", "l.1", "l.2", "l.3", share=0.8)
    study = study_of(layers, trials)
    assert study.saves(study.best) == pytest.approx(0.4 * 3 / 4)
    assert "in 3 of 4 alike" in study.result(study.best, []).reason
    trials.not_built = {"l.1", "l.2", "l.3"}
    assert (alone := study_of(layers, trials)).saves(alone.best) == pytest.approx(0.4 / 4)


def test_it_is_told_why_a_part_stays_as_it_is() -> None:
    slower = NotYetFaster("a")
    slower.trials.found = [trial(REFERENCE_RECIPE, 1.0)]
    slower.study.save()
    assert slower.study.reason == "nothing was tried on it: the time is over"
    slower.trials.found += [trial(OPENVINO)]
    slower.trials.unusable = {OPENVINO: "it has no file form here"}
    slower.study.save()
    assert slower.study.reason == "openvino was set aside: it has no file form here"
    slower.trials.unusable.clear()
    slower.study.save()
    assert slower.study.reason == NOTHING_FASTER


def test_what_was_wrong_twice_is_given_up() -> None:
    faster = Faster("a", 1.0, TORCHSCRIPT, share=0.8)
    assert faster.study.should_save == pytest.approx(0.4)
    for _ in range(2):
        faster.study.leave_out("the program was not right with it")
        faster.study.save()
    faster.gain(3.0, onnxruntime={})
    assert faster.study.should_save == 0.0
    assert faster.study.promises(60.0) == 0.0
    assert faster.study.rivals(None) == []


def test_what_an_earlier_study_chose_for_it_comes_first() -> None:
    """Not what is fastest alone, with which the program was slower."""
    study = study_of(part("a"), Trials(trial(OPENVINO, 3.0), trial(TORCHSCRIPT, 2.0)), before=TORCHSCRIPT)
    study.save()
    assert study.best is not None
    assert study.best.recipe == TORCHSCRIPT
    study.save()
    assert study.best.recipe == OPENVINO


def test_the_fastest_program_of_earlier_studies() -> None:
    key = part("a").key

    def program(of: Recipe, speedup_x: float, outcome: Outcome = Outcome.OK) -> Trial:
        return trial(ProgramRecipe.of({key: of}), speedup_x).model_copy(update={"outcome": outcome})

    wrong = program(recipe(aot_inductor={}), 3.0, Outcome.WRONG)
    earlier = [trial(REFERENCE_RECIPE, 1.0), program(TORCHSCRIPT, 1.5), program(OPENVINO, 1.2), wrong]
    assert fastest_before(earlier) == {key: TORCHSCRIPT}
    assert fastest_before([wrong]) == {}
    assert fastest_before([]) == {}


BF16 = recipe(openvino={}, bf16_openvino={})
STATIC = recipe(openvino={}, int8_openvino={"preset": "performance"})
MIXED = recipe(openvino={}, int8_openvino={"preset": "mixed"})
DYNAMIC = recipe(openvino={}, int8_openvino={"how": "dynamic"})


def approximate(of: Recipe, speedup_x: float, rmse: float) -> Trial:
    return trial(of, speedup_x, 1e5 * rmse, rmse)


def test_what_errs_as_much_as_what_made_the_program_wrong_has_no_turn() -> None:
    found = approximate(STATIC, 4.0, 0.2), approximate(MIXED, 3.5, 0.25), approximate(BF16, 2.5, 0.01), trial(OPENVINO)
    trials = Trials(*found)
    study = study_of(part("a"), trials)
    study.leave_out("above the allowed")
    study.save()
    assert study.best is not None
    assert study.best.recipe == BF16
    trials.later = [approximate(DYNAMIC, 5.0, 0.3)]
    study.explore(1.0)
    study.save()
    assert study.best.recipe == BF16
    assert set(trials.unusable) == trials.wrong == {STATIC, MIXED, DYNAMIC}
    assert not trials.faithful_alone


def test_after_three_approximate_recipes_the_faithful_have_their_turn() -> None:
    """A budget that nothing meets costs a part none of its gain without one."""
    found = [approximate(each, 4.0 - rmse, rmse) for each, rmse in ((STATIC, 0.2), (MIXED, 0.1), (DYNAMIC, 0.05))]
    trials = Trials(*found, approximate(BF16, 2.5, 0.01), trial(OPENVINO))
    study = study_of(part("a"), trials)
    for recipe_left in (STATIC, MIXED, DYNAMIC):
        assert study.best is not None
        assert study.best.recipe == recipe_left
        study.leave_out("above the allowed")
        study.save()
    assert study.best is not None
    assert study.best.recipe == OPENVINO
    assert trials.faithful_alone
    assert study.promises(60.0) == 0.0
    trials.promised = [0.1]
    assert study.promises(60.0) > 0, "it is not given up"


def test_a_part_that_ends_its_program_says_nothing_of_errors() -> None:
    trials = Trials(approximate(STATIC, 4.0, 0.2), approximate(MIXED, 3.5, 0.25), trial(OPENVINO))
    study = study_of(part("a"), trials)
    study.leave_out("the program ended", errs=False)
    study.save()
    assert trials.wrong == set()
    assert study.best is not None
    assert study.best.recipe == MIXED
