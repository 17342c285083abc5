"""Recipes of modules and of programs: how they are read, named, kept and compared."""

from __future__ import annotations

from togi.core.recipe import REFERENCE_RECIPE, PartKey, ProgramRecipe, Recipe
from togi.core.records import Outcome, Trial
from togi.decide.choose import extends
from togi.techniques import is_exact, recipe
from togi.worker.messages import TryRecipe

ENCODER, STEP = PartKey(path="encoder"), PartKey(path="model", form=1)
OPENVINO = recipe(fold_batch_norm={}, openvino={}, no_grad={})
SPINNING = recipe(onnxruntime={"spinning": True}, no_grad={})
PROGRAM = ProgramRecipe.of({STEP: SPINNING, ENCODER: OPENVINO})


def test_people_read_what_was_done_to_each_part() -> None:
    assert PROGRAM.label == "parts(encoder=fold_batch_norm+openvino, model#1=onnxruntime(spinning=True)) + no_grad"
    blocks = PartKey(path="blocks.0", form=None, alike=2)
    compiled = ProgramRecipe.of({blocks: recipe(torch_compile={"freezing": False}, no_grad={})})
    assert compiled.label == "parts(blocks.0 and 2 alike=torch_compile(freezing=False)) + no_grad"
    assert PartKey(path="", form=None).label == "program"


def test_it_is_exact_where_every_part_is() -> None:
    assert is_exact(PROGRAM)
    assert not is_exact(ProgramRecipe.of({ENCODER: OPENVINO, STEP: recipe(bf16={}, openvino={}, no_grad={})}))


def test_it_is_neither_the_reference_nor_more_than_another() -> None:
    assert not PROGRAM.is_reference
    assert PROGRAM.techniques == {"parts", "no_grad"}
    assert not extends(PROGRAM, REFERENCE_RECIPE)
    assert not extends(recipe(channels_last={}, no_grad={}), PROGRAM)


def test_parts_have_no_order() -> None:
    same = ProgramRecipe.of({ENCODER: OPENVINO, STEP: SPINNING})
    assert (same, same.id, hash(same)) == (PROGRAM, PROGRAM.id, hash(PROGRAM))
    other = ProgramRecipe.of({ENCODER: SPINNING, STEP: OPENVINO})
    assert other not in {PROGRAM}
    assert other.id != PROGRAM.id


def test_records_keep_both_kinds_as_what_they_are() -> None:
    for kept in (PROGRAM, OPENVINO, Recipe()):
        trial = Trial.from_json(Trial(recipe=kept, outcome=Outcome.OK).to_json())
        assert trial.recipe == kept
        assert type(trial.recipe) is type(kept)
        assert TryRecipe.from_json(TryRecipe(log="", recipe=kept).to_json()).recipe == kept
