"""Variants of a choice wait for it: what errs less until it was wrong, what has fewer bits until it was right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.search.search_landscapes import CONVOLUTIONAL, MACHINE, Fake, engine, grad_mode, measured_trial
from togi.core.choices import Effort
from togi.core.records import Choice, Outcome, Recipe, Stage, Trial
from togi.core.settings import ALL, Settings
from togi.search import Search
from togi.techniques import all_techniques
from togi.techniques.base import Applies, Options, Technique

PLAIN: Options = {"how": "static"}
SMOOTH: Options = {"how": "static", "smooth": True}
CLIPPED: Options = {"how": "static", "clipped": True}


class Eight(Fake):
    def mends(self, _: Any, options: Options) -> Sequence[Choice]:
        others = [each for each in (PLAIN, SMOOTH, CLIPPED) if each != options]
        return () if options == PLAIN else [Choice(stage=self.stage, technique="eight", options=o) for o in others]


class Four(Fake):
    def coarsens(self, *_: Any) -> Sequence[Choice]:
        return [Choice(stage=self.stage, technique="eight", options=PLAIN)]


def family() -> dict[str, Technique]:
    def lowered(kind: type[Fake], id: str, options: Sequence[Options]) -> Fake:
        one = frozenset({"precision"})
        on_vino: dict[str, Any] = {"needs": frozenset({"engine:vino"}), "provides": one, "conflicts": one}
        return kind(id, Stage.PRECISION, options=options, exact=False, expected_speedup=1.8, **on_vino)

    found: list[Technique] = [
        engine("vino", expected_speedup=2.0),
        engine("onnx", expected_speedup=1.9),
        lowered(Eight, "eight", (PLAIN, SMOOTH, CLIPPED)),
        lowered(Four, "four", ({},)),
        grad_mode("no_grad"),
    ]
    return {each.id: each for each in found}


def tried(wrong: Sequence[Options], speed_x: float = 4.0, effort: Effort = Effort.THOROUGH) -> list[Recipe]:
    """What a whole study tries, if these options of ``eight`` are wrong and all else is right; in 8 bits it is so many
    times as fast as the reference, and as fast as float32 else."""
    settings = Settings(max_error=1.0, allow=(ALL,), effort=effort)
    search = Search(CONVOLUTIONAL, settings, family(), clock=lambda: 0.0)
    while (recipe := search.next()) is not None:
        eight = recipe.find("eight")
        if eight is not None and dict(eight.options) in wrong:
            search.tell(Trial(recipe=recipe, outcome=Outcome.WRONG, stage="verify", reason="above", cost_s=2.0))
        elif eight is not None:
            search.tell(measured_trial(recipe, speed_x))
        else:
            search.tell(measured_trial(recipe, 2.0 if recipe.engine else 1.0))
    return [trial.recipe for trial in search._trials.values()]


def options_of(recipes: Sequence[Recipe], id: str) -> list[Options]:
    return [dict(choice.options) for recipe in recipes if (choice := recipe.find(id)) is not None]


def test_what_errs_less_is_not_tried_where_the_plain_form_is_right() -> None:
    assert options_of(tried(wrong=()), "eight") == [PLAIN]


def test_it_is_tried_after_the_plain_form_was_wrong_until_one_is_right() -> None:
    found = options_of(tried(wrong=(PLAIN,)), "eight")
    assert found[0] == PLAIN
    assert found[1:] in ([SMOOTH], [CLIPPED])
    assert options_of(tried(wrong=(PLAIN, SMOOTH, CLIPPED)), "eight")[0] == PLAIN
    assert len(options_of(tried(wrong=(PLAIN, SMOOTH, CLIPPED)), "eight")) == 3


def test_fewer_bits_are_tried_after_more_were_right_and_fast_enough() -> None:
    recipes = tried(wrong=())
    names = ["four" if r.find("four") else "eight" if r.find("eight") else "" for r in recipes]
    assert [name for name in names if name] == ["eight", "four"]
    assert not options_of(tried(wrong=(PLAIN, SMOOTH, CLIPPED)), "four")
    assert not options_of(tried(wrong=(), speed_x=0.9), "four"), "half of the bytes cannot make it the fastest"
    assert options_of(tried(wrong=(), speed_x=1.1), "four")


def test_a_study_that_goes_on_knows_what_was_wrong() -> None:
    trials = [
        measured_trial(recipe, 1.0)
        if recipe.find("eight") is None
        else Trial(recipe=recipe, outcome=Outcome.WRONG, stage="verify", reason="above", cost_s=2.0)
        for recipe in tried(wrong=())[:4]
    ]
    search = Search(CONVOLUTIONAL, Settings(max_error=1.0, effort=Effort.THOROUGH), family(), trials)
    left = []
    while (recipe := search.next()) is not None:
        left.append(recipe)
        search.tell(measured_trial(recipe, 1.0))
    waited = any(t.outcome is Outcome.WRONG for t in trials)
    assert bool([o for o in options_of(left, "eight") if o != PLAIN]) is waited


@pytest.mark.parametrize("functions", [{"conv2d": 20, "linear": 1}, {"linear": 30, "softmax": 6}])
def test_each_choice_that_others_wait_for_is_offered(functions: dict[str, int]) -> None:
    """Else they would wait for ever."""
    here = MACHINE.model_copy(update={"cpu_flags": ("avx2", "avx512_vnni", "avx512_bf16"), "onednn_limit": ""})
    facts = CONVOLUTIONAL.model_copy(update={"functions": functions, "machine": here, "parameters": 10**9})
    lowered = {id: each for id, each in all_techniques().items() if each.stage is Stage.PRECISION}
    waiting = set()
    for each in lowered.values():
        for options in each.options(facts) if isinstance(each.applies(facts), Applies) else ():
            mended, finer = each.mends(facts, options), each.coarsens(facts, options)
            chosen = (*mended, *finer)
            first = [one for one in chosen if one.options in lowered[one.technique].options(facts)]
            assert first or not chosen
            waiting |= {each.id} if first else set()
    assert waiting


def test_what_is_approximate_is_left_when_the_program_says_so() -> None:
    search = Search(CONVOLUTIONAL, Settings(max_error=1.0, effort=Effort.THOROUGH), family(), clock=lambda: 0.0)
    found: list[Recipe] = []
    while (recipe := search.next()) is not None:
        search.tell(measured_trial(recipe, 4.0 if recipe.find("eight") else 2.0 if recipe.engine else 1.0))
        found.append(recipe)
        if recipe.find("eight") is not None:
            search.leave_approximate()
    assert options_of(found, "eight") == [PLAIN]
    assert options_of(found, "four") == []
    assert {recipe.engine for recipe in found} == {"", "vino", "onnx"}, "what is faithful is tried to the end"


@pytest.mark.parametrize(("wrong", "left"), [(True, [SMOOTH, CLIPPED]), (False, [])])
def test_what_errs_less_is_tried_where_the_plain_form_is_wrong_in_use(wrong: bool, left: list[Options]) -> None:
    """A part of a program is right alone, and the program is not right with it."""
    search = Search(CONVOLUTIONAL, Settings(max_error=1.0, allow=(ALL,), effort=Effort.THOROUGH), family())
    found: list[Recipe] = []
    while (recipe := search.next()) is not None:
        found.append(recipe)
        search.tell(measured_trial(recipe, 4.0 if recipe.find("eight") else 2.0 if recipe.engine else 1.0))
        if recipe.find("eight") is not None:
            search.set_aside(recipe, wrong=wrong)
    first, *others = options_of(found, "eight")
    assert first == PLAIN
    assert sorted(others, key=str) == sorted(left, key=str)
    assert not options_of(found, "four"), "fewer bits err more"


def test_what_cannot_be_chosen_is_no_gain_and_no_bar() -> None:
    search = Search(CONVOLUTIONAL, Settings(), family())
    recipes = [recipe for recipe in search.space.recipes() if recipe.engine][:2]
    for recipe, speedup_x in zip(recipes, (4.0, 1.5), strict=True):
        search.tell(measured_trial(recipe, speedup_x))
    search.set_aside(recipes[0], wrong=True)
    assert search.finalists(2) == (recipes[1],)
    assert search.gained()
    search.set_aside(recipes[1], wrong=False)
    assert not search.gained()
