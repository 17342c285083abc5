from __future__ import annotations

import pytest

from tests.search.search_landscapes import CONVOLUTIONAL, Landscape, engine, family, measured_trial
from togi.core.choices import Effort
from togi.core.records import Choice, Outcome, Recipe, Stage, Trial
from togi.core.settings import ALL, Settings
from togi.search import Search


def search_for(*, seed: int = 0, clock=lambda: 0.0, trials=(), **settings) -> Search:
    """In a few hundred recipes, unless ``without`` says otherwise."""
    bound = {"max_error": 1.0} if "allow" in settings else {}  # within which landscapes' approximate recipes stay
    settings = {"without": () if "only" in settings else ("pad", "allocator"), **settings}
    return Search(CONVOLUTIONAL, Settings(seed=seed, **{**bound, **settings}), family(), trials, clock=clock)


def run(search: Search, landscape: Landscape, most: int = 60) -> list[Trial]:
    trials = []
    while len(trials) < most and (recipe := search.next()) is not None:
        trials.append(landscape.trial(recipe))
        search.tell(trials[-1])
    return trials


def speedup(trial: Trial) -> float:
    return trial.timing.speedup_x.median if trial.eligible else 0.0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2, 3))])
def test_finds_nearly_the_best_in_few_trials(seed: int) -> None:
    landscape = Landscape(seed)
    search = search_for(allow=(ALL,), without=("allocator",))
    best = max(speedup(landscape.trial(recipe)) for recipe in search.space.recipes())
    trials = run(search, landscape)
    assert max(map(speedup, trials)) >= 0.98 * best
    assert len(trials) < 60
    assert "1 %" in search.stopped


def test_the_order_is_reference_then_promising_engine_then_original_without_repetition() -> None:
    trials = run(search_for(), Landscape(1))
    assert trials[0].recipe.techniques == {"no_grad"}
    assert trials[1].recipe.at(Stage.ENGINE)
    gained = next(at for at, trial in enumerate(trials) if speedup(trial) > 1.04)
    assert trials[gained + 1].recipe == Recipe()
    assert len({t.recipe for t in trials}) == len(trials)


@pytest.mark.parametrize(
    ("effort", "left_s", "then"), [("normal", 60.0, True), ("normal", 1.5, False), ("quick", 60.0, False)]
)
def test_the_original_waits_where_time_is_short(effort: str, left_s: float, then: bool) -> None:
    """It takes about what the reference took, 2 s, and no choice depends on it."""
    search = search_for(effort=effort, only=("vino", "onnx"))
    search.tell(measured_trial(search.space.reference, 1.0))
    fast = next(recipe for recipe in search.space.recipes() if recipe.at(Stage.ENGINE))
    search.tell(measured_trial(fast, 3.0))
    search.allow(left_s)
    assert (search.next() == Recipe()) is then


def test_where_nothing_is_faster_the_original_comes_last() -> None:
    search, tried = search_for(only=("vino", "fold"), effort=Effort.THOROUGH), []
    while (recipe := search.next()) is not None:
        tried.append(recipe)
        search.tell(measured_trial(recipe, 1.0))
    assert tried[0] == search.space.reference
    assert tried[-1] == Recipe()
    assert len(tried) > 3


def test_the_original_is_among_the_trials_that_an_effort_allows() -> None:
    trials = run(search_for(effort=Effort.QUICK), Landscape(1))
    assert len(trials) == Effort.QUICK.max_trials
    assert Recipe() in [trial.recipe for trial in trials]


def test_deterministic_and_resumed_from_trials() -> None:
    landscape = Landscape(2)
    whole = run(search_for(), landscape, most=15)
    assert run(search_for(), landscape, most=15) == whole
    resumed = search_for(trials=whole[:7])
    assert whole[:7] + run(resumed, landscape, most=8) == whole


def test_what_is_dismissed_is_no_choice_and_no_bar_for_others() -> None:
    search = search_for(only=("vino", "onnx"))
    search.tell(measured_trial(search.space.reference, 1.0))
    fast = next(recipe for recipe in search.space.recipes() if recipe.engine == "vino")
    search.tell(measured_trial(fast, 5.0))
    assert search.gained()
    before = search.promises()
    search.dismiss(fast)
    assert not search.gained()
    assert search.finalists(3) == (search.space.reference,)
    assert search.promises() > before
    following = search.next()
    assert following is not None
    assert following.engine == "onnx"
    assert all(trial.recipe.engine != "vino" for trial in run(search, Landscape(0), most=20))


def test_asking_changes_nothing_and_busy_recipes_are_passed_over() -> None:
    search = search_for(trials=run(search_for(), Landscape(0), most=4))
    first = search.next()
    assert search.next() == first
    other = search.next(busy={first.id})
    assert other is not None
    assert other != first


def test_quick_effort_tries_eight_recipes() -> None:
    search = search_for(effort=Effort.QUICK)
    assert search.planned == 8
    assert search.remaining() <= 8
    assert len(run(search, Landscape(0))) == 8
    assert "as many as effort 'quick' allows" in search.stopped
    assert search.remaining() == 0


def test_thorough_effort_tries_every_recipe() -> None:
    search = search_for(effort=Effort.THOROUGH, only=("vino", "threads", "inference_mode", "channels_last"))
    landscape = Landscape(0)
    landscape.broken = set()
    trials = run(search, landscape, most=1000)
    assert {t.recipe for t in trials} == {*search.space.recipes(), Recipe()}
    assert search.planned == len(trials)
    assert search.remaining() == 0
    assert search.stopped == "every recipe that can work has been tried"


def test_trials_end_with_the_time_limit() -> None:
    now = [0.0]
    landscape, search = Landscape(0), search_for(clock=lambda: now[0], time_limit_s=60)
    while (recipe := search.next()) is not None:
        trial = landscape.trial(recipe)
        now[0] += trial.cost_s
        search.tell(trial)
    assert 30 < now[0] < 75
    assert search.stopped == "the time for trials is over" or "s are left" in search.stopped


@pytest.mark.parametrize(("now_s", "over"), [(59.9, False), (60.0, True), (60.5, True)])
def test_the_time_is_over_at_the_limit(now_s: float, over: bool) -> None:
    now = [0.0]
    search = search_for(clock=lambda: now[0], time_limit_s=60)
    now[0] = now_s
    assert (search.next() is None) is over
    search.allow(10.0)
    assert search.next() is not None
    now[0] += 10.5
    assert search.next() is None
    assert search.stopped == "the time for trials is over"


def test_what_the_next_trial_promises() -> None:
    """Much while nothing is faster; nothing where the time is over, or another process tries all that is left."""
    trials = run(search_for(), Landscape(0), most=12)
    promised = [search_for(trials=trials[:count]).promises() for count in (1, len(trials) - 1)]
    assert promised[0] > 10 * promised[1] > 0
    search = search_for(trials=trials[:1])
    expected = search.next()
    assert search.next() == expected, "asking changes nothing"
    assert search.promises(busy={recipe.id for recipe in search.space.recipes()}) == 0.0
    search.allow(0.0)
    assert search.promises() == 0.0


def test_what_comes_first_is_as_like_as_can_be_here() -> None:
    elsewhere = with_option("stateful", "vino"), with_option("stateful", "stranger")
    search = Search(CONVOLUTIONAL, Settings(), family(), firsts=(*elsewhere, elsewhere[0]))
    first = search.next()
    assert first is not None
    assert first.techniques == {"vino", "no_grad"}
    search.tell(measured_trial(first, 2.0))
    assert search.next() != first


def test_what_comes_first_is_passed_over_where_it_is_known_to_fail() -> None:
    plain, folded = with_choices(search_for(), "vino", "no_grad"), with_choices(search_for(), "fold", "vino", "no_grad")
    search = Search(CONVOLUTIONAL, Settings(), family(), firsts=(plain, folded))
    assert search.next() == plain
    search.tell(failed(plain, "vino"))
    found = search.next()
    assert found is not None
    assert found != folded
    search = Search(CONVOLUTIONAL, Settings(), family(), firsts=(plain, folded))
    search.tell(measured_trial(plain, 2.0))
    assert search.next() == folded


def test_what_comes_first_is_what_the_next_trial_promises() -> None:
    """Not the most worthwhile of all, which would be another."""
    plain = Search(CONVOLUTIONAL, Settings(), family(), trials=[measured_trial(search_for().space.reference, 1.0)])
    poor = min(plain._ranked(), key=lambda each: each.improvement / each.cost_s)
    search = Search(CONVOLUTIONAL, Settings(), family(), plain._trials.values(), firsts=(poor.recipe,))
    assert search.next() == poor.recipe
    assert search.promises() == pytest.approx(poor.improvement / poor.cost_s)
    assert search.promises() < plain.promises()


def with_option(option: str, engine: str) -> Recipe:
    choice = Choice(stage=Stage.ENGINE, technique=engine, options={option: True})
    return Recipe(choices=(choice, Choice(stage=Stage.RUNTIME, technique="no_grad")))


def with_choices(search: Search, *techniques: str) -> Recipe:
    found = (r for r in search.space.recipes() if r.techniques == {*techniques})
    return next(found)


def failed(recipe: Recipe, stage: str, outcome: Outcome = Outcome.FAILED, reason: str = "no") -> Trial:
    return Trial(recipe=recipe, outcome=outcome, stage=stage, reason=reason, cost_s=1.0)


def test_refused_rewrite_is_dropped_everywhere() -> None:
    search = search_for()
    recipe = with_choices(search, "fold", "vino", "no_grad")
    lesson = search.tell(failed(recipe, "fold", Outcome.REFUSED, "no conv is followed by a batch norm"))
    assert lesson == "fold is not tried again: refused (no conv is followed by a batch norm)"
    assert not any(t.recipe.find("fold") for t in run(search, Landscape(1)))


def test_failed_engine_is_dropped_with_its_options_and_then_whole() -> None:
    search = search_for(effort=Effort.THOROUGH, only=("script", "channels_last"))
    landscape = Landscape(1)
    landscape.broken = {"script"}
    trials = run(search, landscape, most=500)
    assert 1 <= sum(t.recipe.find("script") is not None for t in trials) <= 3


def test_wrong_exact_choice_is_dropped_where_it_was_wrong() -> None:
    search = search_for()
    search.tell(failed(with_choices(search, "channels_last", "no_grad"), "verify", Outcome.WRONG, "off by 1"))
    assert not any(t.recipe.find("channels_last") for t in run(search, Landscape(1)))


def test_failure_of_a_pair_leaves_each_alone() -> None:
    search = search_for(effort=Effort.THOROUGH, only=("channels_last", "fold", "onnx"))
    search.tell(failed(with_choices(search, "channels_last", "onnx", "no_grad"), "verify", Outcome.WRONG))
    landscape = Landscape(1)
    landscape.broken = set()
    tried = {t.recipe.techniques for t in run(search, landscape, most=100)}
    assert {"channels_last", "no_grad"} in tried
    assert {"onnx", "no_grad"} in tried
    assert {"fold", "channels_last", "onnx", "no_grad"} not in tried


def test_missing_package_found_in_a_trial_drops_the_technique() -> None:
    search = search_for()
    recipe = with_choices(search, "compile", "no_grad")
    lesson = search.tell(failed(recipe, "compile", Outcome.MISSING, "no C++ compiler"))
    assert lesson == "compile is not tried again: missing (no C++ compiler)"
    assert not any(t.recipe.find("compile") for t in run(search, Landscape(1)))


def test_unstable_blames_nobody() -> None:
    search = search_for()
    assert search.tell(failed(with_choices(search, "vino", "no_grad"), "measure", Outcome.UNSTABLE)) == ""
    assert any(t.recipe.find("vino") for t in run(search, Landscape(1)))


def test_trials_of_unknown_choices_are_kept_and_do_no_harm() -> None:
    search = search_for()
    gone = Recipe(choices=(Choice(stage=Stage.ENGINE, technique="uninstalled"), search.space.reference.choices[0]))
    assert search.tell(measured_trial(gone, 9.0)) == ""
    assert search.next() == search.space.reference
    assert run(search, Landscape(0))


def test_memory_limit_steers_finalists() -> None:
    search = search_for(max_memory_bytes=500)
    big, small = with_choices(search, "vino", "no_grad"), with_choices(search, "onnx", "no_grad")
    search.tell(measured_trial(search.space.reference, 1.0, total_bytes=100))
    search.tell(measured_trial(big, 5.0, total_bytes=501))
    search.tell(measured_trial(small, 3.0, total_bytes=499))
    assert search.finalists(4) == (small,)


def test_finalists_are_those_that_may_win() -> None:
    search = search_for()
    recipes = [r for r in search.space.recipes() if r.find("vino")][:4]
    for recipe, speed in zip(recipes, (3.0, 2.95, 1.5, 3.1), strict=True):
        search.tell(measured_trial(recipe, speed))
    assert search.finalists(4) == (recipes[3], recipes[0], recipes[1])
    assert search.finalists(1) == (recipes[3],)
    search.tell(measured_trial(recipes[3], 1.0))  # measured again: the last counts
    assert search.finalists(4) == (recipes[0], recipes[1])


def test_why_says_what_is_new_and_what_is_expected() -> None:
    search = search_for()
    assert "speed-up relates to" in search.why(search.space.reference)
    assert "original" in search.why(Recipe())
    recipe = with_choices(search, "vino", "no_grad")
    assert search.why(recipe).startswith("first trial of vino: ")
    assert "x expected (" in search.why(recipe)
    search.tell(measured_trial(search.space.reference, 1.0))
    search.tell(measured_trial(recipe, 2.4))
    search.tell(measured_trial(with_choices(search, "channels_last", "no_grad"), 1.2))
    both = with_choices(search, "channels_last", "vino", "no_grad")
    assert search.why(both).startswith("the best so far with channels_last: ")


def with_dear_compiler(expected_x: float = 9.0, left_s: float = 60.0, *trials: Trial) -> Search:
    """Most is expected of a compiler that takes half a minute."""
    dear = {**family(), "compile": engine("compile", expected_speedup=expected_x, cost_s=30)}
    settings = Settings(only=("compile", "vino", "onnx"), time_limit_s=left_s)
    reference = measured_trial(search_for().space.reference, 1.0)
    return Search(CONVOLUTIONAL, settings, dear, (reference, *trials), clock=lambda: 0.0)


@pytest.mark.parametrize(
    ("expected_x", "left_s", "first"),
    [(9.0, 45.0, "vino"), (9.0, 600.0, "compile"), (9.0, 10.0, "vino")],
)
def test_no_trial_may_take_more_than_a_third_while_a_much_cheaper_engine_is_untried(
    expected_x: float, left_s: float, first: str
) -> None:
    found = with_dear_compiler(expected_x, left_s).next()
    assert found is not None
    assert found.find(first)


def test_where_every_cheaper_engine_was_tried_the_dear_one_has_its_turn() -> None:
    tried = (measured_trial(with_choices(with_dear_compiler(), name, "no_grad"), 0.9) for name in ("vino", "onnx"))
    search = with_dear_compiler(9.0, 60.0, *tried)
    found = search.next()
    assert found is not None
    assert found.find("compile")
    assert not search.has_cheaper(found)
    assert with_dear_compiler().has_cheaper(found)


def test_what_gave_way_goes_on_when_there_is_as_much_time_as_it_had() -> None:
    search = with_dear_compiler(9.0, 600.0)
    dear = search.next()
    assert dear is not None
    before_s = search.cost_s(dear)
    late = failed(dear, "build", Outcome.TIMED_OUT).model_copy(update={"cost_s": 100.0})
    assert search.gave_way(late)
    assert search.cost_s(dear) >= 100.0 > before_s
    assert search.spent_s(dear) == 100.0
    assert search.next() != dear
    for name in ("vino", "onnx"):
        search.tell(measured_trial(with_choices(search, name, "no_grad"), 0.9))
    assert search.next() == dear
    search.allow(50.0)
    assert search.next() != dear
    assert not search.gave_way(late), "it had its second turn"
    search.tell(late)
    search.allow(600.0)
    assert search.next() != dear


def test_a_gain_is_one_though_another_may_be_faster_still() -> None:
    """Of that nothing is known beyond doubt."""
    search = search_for(only=("vino", "onnx"))
    search.tell(measured_trial(search.space.reference, 1.0))
    first, second = (next(r for r in search.space.recipes() if r.engine == engine) for engine in ("vino", "onnx"))
    search.tell(measured_trial(first, 1.8, width=0.3))
    assert search.points_to_gain()
    assert not search.gained()
    search.tell(measured_trial(second, 1.6))
    assert search.gained()
