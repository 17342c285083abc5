"""A program with its parts in place: what becomes of it when one is right alone and wrong in its place."""

from __future__ import annotations

from typing import Any

import pytest

from tests.study.parts.part_fakes import OPENVINO, Faster, NotYetFaster, Program, in_place, trial
from togi.core.records import ForcedCalls, Outcome, PartResult, Trial
from togi.study.parts.assembly import TunedPart
from togi.study.parts.program_trials import ProgramTrials
from togi.techniques import recipe

TORCHSCRIPT = recipe(torchscript={})


def results(programs: ProgramTrials, chosen: Trial | None, *places: Any) -> dict[str, PartResult]:
    """By label, what a report says of each part where that trial of the program is chosen."""
    parts = programs.chosen(chosen).parts
    found = [place.result(parts.get(place.key), programs.assemblies) for place in places]
    return {result.key.label: result for result in found if result is not None}


def trial_of(programs: ProgramTrials, number: int) -> Trial:
    trial = programs.assemblies[number].trial
    assert trial is not None
    return trial


def best_of(part: Faster) -> TunedPart:
    assert part.study.best is not None
    return part.study.best


def test_a_part_that_makes_the_program_wrong_is_left_out() -> None:
    program, parts = Program("b"), [Faster("a", 1.0), Faster("b", 5.0), Faster("c", 2.0)]
    program.trials_with(*parts).try_parts()
    assert program.tried == [{"a", "b", "c"}, {"a", "c"}]
    assert [part.study.best is not None for part in parts] == [True, False, True]
    assert "50 units" in parts[1].study.reason


def test_what_was_seen_on_the_original_calls_says_more_than_the_part_alone() -> None:
    forced = [
        ForcedCalls(path="a", calls=3, units=40.0, faithful=False),
        ForcedCalls(path="b", calls=3, units=2.0, faithful=True),
    ]
    program = Program("a", forced=forced)
    program.trials_with(Faster("a", 1.0), Faster("b", 5.0)).try_parts()
    assert program.tried == [{"a", "b"}, {"b"}]


def test_where_the_best_makes_the_program_wrong_the_second_best_stands() -> None:
    program, part = Program("openvino"), Faster("a", 1.0, TORCHSCRIPT)
    program.trials_with(part).try_parts()
    assert program.done == [{"openvino"}, {"torchscript"}]
    assert best_of(part).recipe == TORCHSCRIPT
    assert part.study.reason == ""


def test_when_the_time_is_over_no_more_is_tried() -> None:
    program = Program("a")
    program.left_s = 0.0
    program.trials_with(Faster("a", 1.0, TORCHSCRIPT)).try_parts()
    assert program.done == [{"openvino"}]


def test_nothing_is_left_where_every_part_is_guilty() -> None:
    program, parts = Program("a", "b"), [Faster("a", 1.0), Faster("b", 5.0, TORCHSCRIPT, recipe(aot_inductor={}))]
    programs = program.trials_with(*parts)
    programs.try_parts()
    assert program.tried == [{"a", "b"}, {"a", "b"}, {"a"}], "a second best has one chance, and no third"
    assert not any(part.study.best for part in parts)
    for part in parts:
        part.study.save()
        assert "50 units" in part.study.reason
    programs.try_parts()
    assert len(program.tried) == 3, "what was wrong is not tried again"


@pytest.mark.parametrize(("then", "goes_back"), [(1.3, True), (1.6, True), (2.2, False)])
def test_what_is_faster_alone_and_slower_in_the_program_goes(then: float, goes_back: bool) -> None:
    """1.5 times as fast with the first part; the second should save a tenth: 0.57 of the time, 1.76 x."""
    program, first, second = Program(), Faster("a", share=0.6), NotYetFaster("b", share=0.2)
    program.speeds = {1: 1.5, 2: then, 3: 1.7}
    programs = program.trials_with(first, second)
    programs.try_parts()
    before = first.study.best
    assert programs.untried_share == 0.0
    second.gain()
    assert programs.untried_share == pytest.approx(0.1)
    first.gain(3.0, torchscript={})
    assert programs.untried_share == pytest.approx(0.1 + 0.6 * (1 / 2 - 1 / 3))
    programs.try_parts()
    assert program.done == [{"openvino"}, {"torchscript", "openvino"}, *[{"openvino"}] * goes_back]
    assert (first.study.best is before) == goes_back
    assert second.study.best is not None
    programs.try_parts()
    assert len(program.done) == 2 + goes_back, "nothing is tried twice"


def test_a_report_tells_what_is_in_the_chosen_program() -> None:
    program, first, second = Program(), Faster("a", share=0.6), NotYetFaster("b", share=0.2)
    programs = program.trials_with(first, second)
    places = first.study, second.study
    untried = results(programs, None, *places)
    assert [result.recipe for result in untried.values()] == [None, None]
    assert untried["a"].reason == "openvino is faster alone, and it was not tried in the program"
    programs.try_parts()
    assert [result.recipe for result in results(programs, None, *places).values()] == [None, None], "the original"
    second.gain()
    programs.try_parts()
    together = results(programs, trial_of(programs, 1), *places)
    assert [result.recipe for result in together.values()] == [OPENVINO] * 2
    alone = results(programs, trial_of(programs, 0), *places)
    assert [result.recipe for result in alone.values()] == [OPENVINO, None]
    assert alone["b"].reason == "openvino was set aside: the program was not faster with it"


@pytest.mark.parametrize(
    ("share", "in_program_x", "has_turn"), [(0.8, 0.9, True), (0.8, 1.1, False), (0.1, 0.9, False)]
)
def test_an_engine_that_makes_the_program_no_faster_gives_its_turn_to_another(
    share: float, in_program_x: float, has_turn: bool
) -> None:
    """Unless it promised so little that the program's noise may hide it."""
    program, part = Program(), NotYetFaster("a", share=share)
    program.speeds = {1: in_program_x, 2: 1.6}
    other = part.gain(1.8, torchscript={})
    part.gain(2.0, openvino={"streams": 2})
    part.gain(2.4)
    programs = program.trials_with(part)
    programs.try_parts()
    assert program.done == [{"openvino"}, *[{"torchscript"}] * has_turn], "other options of it have no turn"
    assert (part.study.best is not None and part.study.best.recipe == other) == has_turn
    assert (programs.fastest.speedup_x == 1.6) == has_turn


def test_where_two_parts_joined_none_is_to_blame_for_a_program_that_is_no_faster() -> None:
    program, first, second = Program(), Faster("a"), Faster("b")
    program.speeds = {1: 0.9}
    program.trials_with(first, second).try_parts()
    assert len(program.done) == 1
    assert first.study.best is not None
    assert second.study.best is not None


def test_what_a_part_had_stays_where_its_next_engine_is_no_faster_in_the_program() -> None:
    program, part = Program(), NotYetFaster("a", share=0.8)
    program.speeds = {1: 1.6, 2: 1.5}
    had = part.gain(1.8, torchscript={})
    programs = program.trials_with(part)
    programs.try_parts()
    part.gain(2.4)
    programs.try_parts()
    assert program.done == [{"torchscript"}, {"openvino"}]
    assert part.study.best is not None
    assert part.study.best.recipe == had


def test_what_joined_is_to_blame_before_what_was_right() -> None:
    """By itself the first errs more, and the program was right with it."""
    program, first, second = Program("b"), Faster("a", 5.0), NotYetFaster("b")
    programs = program.trials_with(first, second)
    programs.try_parts()
    second.gain()
    programs.try_parts()
    assert program.tried == [{"a"}, {"a", "b"}]
    assert first.study.best is not None
    assert second.study.best is None


@pytest.mark.parametrize("fault", [Outcome.FAILED, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY])
def test_a_program_that_ends_is_tried_without_the_part_it_ended_with(fault: Outcome) -> None:
    program, parts = Program("b"), [Faster("a", 1.0), Faster("b", 5.0)]
    program.fault = fault
    parts[0].trials.memory_to_free = fault is Outcome.OUT_OF_MEMORY
    program.trials_with(*parts).try_parts()
    again = [{"a", "b"}] * (fault is Outcome.OUT_OF_MEMORY)
    assert program.tried == [{"a", "b"}, *again, {"a"}], "once more where memory was freed"
    assert parts[1].study.reason.startswith("the program ended with it")


def test_a_program_that_could_not_be_judged_is_tried_once_more() -> None:
    program, part = Program("a"), Faster("a")
    program.fault = Outcome.UNSTABLE
    programs = program.trials_with(part)
    for _ in range(3):
        programs.try_parts()
    assert program.tried == [{"a"}] * 2
    assert "the program ended with it: 50 units" in results(programs, None, part.study)["a"].reason


def test_what_the_program_went_back_to_stays() -> None:
    """The fastest alone is saved again and again, and it is known: the program is slower with it."""
    program, first, second = Program(), Faster("a", share=0.6), NotYetFaster("b", share=0.2)
    program.speeds = {1: 1.5, 2: 1.3, 3: 1.7}
    programs = program.trials_with(first, second)
    programs.try_parts()
    before = best_of(first)
    first.gain(3.0, torchscript={})
    second.gain()
    programs.try_parts()
    assert first.study.best is before
    programs.try_parts()
    assert first.study.best is before


def test_it_does_not_go_back_to_what_was_wrong() -> None:
    program, first, second = Program(), Faster("a", share=0.6), NotYetFaster("b", share=0.2)
    program.speeds = {1: 1.5, 2: 1.3}
    programs = program.trials_with(first, second)
    programs.try_parts()
    first.study.leave_out("the program was not right with it")
    first.gain(3.0, torchscript={})
    second.gain()
    programs.try_parts()
    assert program.done == [{"openvino"}, {"torchscript", "openvino"}]
    assert best_of(first).recipe == TORCHSCRIPT


def test_options_tell_two_recipes_of_a_part_apart() -> None:
    """Also where the second was tried after the first was in the program."""
    program, part = Program(), NotYetFaster("a")
    programs = program.trials_with(part)
    for options in ({"stateful": True}, {}):
        part.gain(openvino=options)
        programs.try_parts()
    assert program.done == [{"openvino(stateful=True)"}, {"openvino"}]


def test_the_program_tells_which_of_two_engines_is_faster_in_it() -> None:
    """The first is faster alone by less than what a part's place in the program may do."""
    program, part = Program(), NotYetFaster("a")
    part.gain(1.5, aot_inductor={})
    other = part.gain(1.9, torchscript={})
    part.gain(1.95, openvino={"streams": 2})
    part.gain(2.0)
    program.speeds, program.cost_s = {1: 1.4, 2: 1.6}, 3.0
    programs = program.trials_with(part)
    programs.try_parts()
    program.left_s = 7.0
    programs.try_rivals()
    assert program.done == [{"openvino"}], "building it takes 5 s, and its trial in the program 3 s"
    program.left_s = 100.0
    programs.try_rivals()
    assert program.done == [{"openvino"}, {"torchscript"}]
    assert {key.label: tuned.recipe for key, tuned in programs.fastest.parts.items()} == {"a": other}
    programs.try_rivals()
    assert len(program.done) == 2


def test_a_part_that_gains_nothing_alone_is_tried_next_to_one_that_does() -> None:
    """The original of the second, between calls of an engine, is in its way."""
    program, first, second = Program(), Faster("a"), NotYetFaster("b")
    program.speeds = {1: 1.4, 2: 1.6}
    programs = program.trials_with(first, second)
    programs.try_parts()
    assert program.tried == [{"a"}]
    second.gain(0.8, onnxruntime={})
    near = second.gain(0.97, openvino={"streams": 2})
    program.left_s = 100.0
    programs.try_rivals()
    assert programs.fastest.parts[second.study.key].recipe == near
    assert len(program.done) == 2, "what is slower by a fifth is not tried"


def test_the_program_is_tried_again_as_soon_as_its_parts_should_save_a_tenth_more() -> None:
    program, part = Program(), Faster("a", share=0.8)
    programs = program.trials_with(part)
    programs.try_parts(0.1)
    for speedup_x, tries in ((2.2, 1), (3.0, 2)):
        part.gain(speedup_x, onnxruntime={"opset": round(10 * speedup_x)})
        programs.try_parts(0.1)
        assert len(program.tried) == tries


@pytest.mark.parametrize(
    ("engine", "at_once"),
    [({"torchscript": {}}, True), ({"aot_inductor": {}}, True), ({"openvino": {}}, False), ({}, True)],
    ids=["torchscript", "aot_inductor", "openvino", "none"],
)
def test_what_is_not_captured_is_compiled_at_once_where_torchs_own_engines_are_fastest(
    engine: dict[str, Any], at_once: bool
) -> None:
    """Instead of the parts inside of it, and next to those outside of it."""
    program, inside, outside = Program(), NotYetFaster("net.layers.0"), Faster("network")
    inside.gain(0.5, ncnn={})
    if engine:
        inside.gain(**engine)
    else:
        inside.trials.unusable[recipe(ncnn={})] = "it is slower"
    program.speeds = {1: 1.5, 2: 1.8}
    net = in_place("net", recipe(torch_compile={"freezing": True}))
    programs = program.trials_with(inside, outside, in_place=[net])
    programs.try_parts()
    both = {"network", "net.layers.0"} if engine else {"network"}
    programs.try_in_place(first=True)
    assert program.tried == [both, *[{"network", "net"}] * at_once]
    programs.try_in_place()
    assert program.tried == [both, {"network", "net"}]
    assert program.done[1] == {"openvino", "torch_compile(freezing=True)"}
    places = inside.study, outside.study, net
    compiled = results(programs, trial_of(programs, 1), *places)
    assert {label for label, result in compiled.items() if result.recipe is not None} == {"network", "net"}
    if engine:
        assert compiled["net.layers.0"].reason.endswith("is faster alone, and the program is faster without it")
    before = results(programs, trial_of(programs, 0), *places)
    assert before["net"].recipe is None
    assert before["net"].reason == "compiled where it stands: the program is faster without it"


def test_blocks_that_repeat_come_before_what_they_are_in() -> None:
    """And instead of it; at once until one is faster."""
    program, block, head = Program(), Faster("net.layers.0"), Faster("head")
    program.speeds = {1: 1.5, 2: 1.8}
    block.gain(torchscript={})
    compiled = [recipe(torch_compile={"freezing": freezing}) for freezing in (False, True)]
    layers = in_place("net.layers.0", compiled[0], alike=("net.layers.1",))
    programs = program.trials_with(block, head, in_place=[layers, in_place("", compiled[1])])
    programs.try_parts()
    programs.try_in_place(first=True)
    programs.try_in_place()
    both, repeated = {"net.layers.0", "head"}, {"net.layers.0 and 1 alike", "head"}
    assert program.tried == [both, repeated, {"program"}]
    found = results(programs, trial_of(programs, 1), block.study, head.study, layers)
    assert found["net.layers.0 and 1 alike"].copies == ("net.layers.0", "net.layers.1")
    assert {label for label, result in found.items() if result.recipe} == repeated


def test_a_part_and_its_module_compiled_where_it_stands_are_told_apart() -> None:
    """A module may be captured in some forms of its calls alone."""
    program, part = Program(), Faster("net")
    program.speeds = {1: 1.5, 2: 1.8}
    net = in_place("net", recipe(torch_compile={"freezing": True}))
    programs = program.trials_with(part, in_place=[net])
    programs.try_parts()
    programs.try_in_place()
    chosen = programs.chosen(trial_of(programs, 1)).parts
    assert (part.study.key in chosen, net.key in chosen) == (False, True)
    assert part.study.result(None, programs.assemblies).reason.endswith("the program is faster without it")


def test_settings_alone_are_tried_round_the_calls_once() -> None:
    program = Program()
    places = [in_place("a", alike=("b",)), in_place("net"), in_place("other")]
    programs = program.trials_with(in_place=places)
    for _ in range(2):
        programs.try_settings(recipe(inference_mode={}))
    assert program.tried == [{"net", "other"}]
    assert program.done == [{"inference_mode"}]
    program.trials_with().try_settings(recipe(inference_mode={}))
    assert len(program.tried) == 1, "where all is captured, there is no such place"


INT8 = recipe(openvino={}, int8_openvino={"preset": "performance"})


class Lowered(NotYetFaster):
    """A part that is faster in 8 bits than in float32."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.trials.found = [trial(INT8, 3.0, 1e4, rmse=0.1), trial(OPENVINO)]


def test_a_part_that_breaks_the_budget_of_its_program_goes_back_to_what_is_faithful() -> None:
    program, lowered = Program(INT8.short_label), Lowered("a")
    program.trials_with(lowered).try_parts()
    assert program.done == [{INT8.short_label}, {"openvino"}]
    assert best_of(lowered).recipe == OPENVINO


def test_what_is_approximate_is_to_blame_before_what_is_new() -> None:
    """With 8 bits alone the program was within its budget, and with another part it is not any more."""
    program, lowered, new = Program(), Lowered("a"), NotYetFaster("b")
    programs = program.trials_with(lowered, new)
    programs.try_parts()
    assert program.done == [{INT8.short_label}]
    program.guilty = {INT8.short_label}
    new.gain(units=5.0)
    programs.try_parts()
    assert program.tried[1:] == [{"a", "b"}, {"a", "b"}]
    assert [best_of(part).recipe for part in (lowered, new)] == [OPENVINO, OPENVINO]
