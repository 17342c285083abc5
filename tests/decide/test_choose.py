"""The choice under limits: the fastest that fits, the original where nothing is faster, nothing where nothing fits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from togi.core.records import Choice, ErrorReport, Footprint, Interval, Outcome, Recipe, Stage, Timing, Trial
from togi.decide.budget import Budget
from togi.decide.choose import acceptable, choose, extends, front, rank, why_not
from togi.decide.faster import BETWEEN_PROCESSES, Criterion

TWICE = Criterion(margin=0.5, process_bias=0.5)
"""Speed-ups up to exactly 2 are no difference."""
NO_GRAD = Choice(stage=Stage.RUNTIME, technique="no_grad")
REFERENCE = Recipe(choices=(NO_GRAD,))


def recipe(name: str, *more: str) -> Recipe:
    choices = (Choice(stage=Stage.ENGINE, technique=t) for t in (name, *more))
    return Recipe(choices=(*choices, NO_GRAD))


def measured(
    recipe: Recipe,
    speedup: float,
    *,
    width: float = 0.02,
    total_bytes: int | None = 1000,
    faithful: bool = True,
    rmse: float = 1e-6,
) -> Trial:
    """A trial that ran; ``width`` is half of the interval, as a share."""
    low, high = (1.0, 1.0) if recipe == REFERENCE else (speedup * (1 - width), speedup * (1 + width))
    return Trial(
        recipe=recipe,
        outcome=Outcome.OK,
        error=ErrorReport(faithful=faithful, units=1.0 if faithful else 1e4, rmse=rmse, max_abs=rmse),
        timing=Timing(
            latency_ms=Interval(median=10 / speedup, low=9 / speedup, high=11 / speedup),
            speedup_x=Interval(median=speedup, low=low, high=high),
        ),
        footprint=None if total_bytes is None else Footprint(idle_bytes=total_bytes, peak_bytes=0),
    )


def labels(trials: tuple[Trial, ...]) -> list[str]:
    return [t.recipe.choices[0].technique for t in trials]


def test_front_holds_exactly_what_nothing_beats() -> None:
    points = list(itertools.product((1.0, 2.0, 3.0), (100, 200), (True, False)))
    trials = [
        measured(recipe(f"r{i}"), speed, total_bytes=size, faithful=faithful, rmse=1e-2)
        for i, (speed, size, faithful) in enumerate(points)
    ]
    assert [points[int(name[1:])] for name in labels(front(trials))] == [(3.0, 100, True)]
    trials = [measured(recipe("fast"), 3, total_bytes=300), measured(recipe("small"), 2, total_bytes=100)]
    trials += [measured(recipe("beaten"), 1.9, total_bytes=100)]
    trials += [measured(recipe("rough"), 4, total_bytes=300, faithful=False, rmse=1e-2)]
    assert labels(front(trials)) == ["rough", "fast", "small"]


def test_front_ignores_failures_and_takes_the_last_trial() -> None:
    bad = Trial(recipe=recipe("bad"), outcome=Outcome.WRONG)
    trials = [measured(recipe("a"), 9.0), bad, measured(recipe("b"), 2.0), measured(recipe("a"), 1.0)]
    assert labels(front(trials)) == ["b"]
    assert front([]) == ()


def within(max_memory_bytes: int | None) -> Budget:
    return Budget(max_memory_bytes=max_memory_bytes)


def fits(trial: Trial, max_memory_bytes: int | None) -> bool:
    return trial.measured is not None and within(max_memory_bytes).fits(trial.measured)


def test_unknown_footprint_never_meets_a_limit_nor_beats_a_known_one() -> None:
    unknown = measured(recipe("u"), 2.0, total_bytes=None)
    assert unknown.measured is not None
    assert not acceptable(unknown.measured, within(10**12))
    assert acceptable(unknown.measured)
    assert labels(front([unknown, measured(recipe("k"), 1.5)])) == ["u", "k"]


def test_fastest_within_limits_is_chosen() -> None:
    trials = [
        measured(REFERENCE, 1.0, total_bytes=100),
        measured(recipe("big"), 4.0, total_bytes=300),
        measured(recipe("rough"), 3.0, faithful=False, rmse=1e-1, total_bytes=100),
        measured(recipe("fine"), 2.0, total_bytes=100),
    ]
    assert choose(trials).trial == trials[1]
    chosen = choose(trials, within(200))
    assert chosen.trial == trials[2]
    assert "3.00x (2.94 to 3.06)" in chosen.reason
    assert "approximate" in chosen.reason
    chosen = choose(trials, within(200), unusable={trials[2].recipe})
    assert chosen.trial == trials[3]
    assert "faithful" in chosen.reason


def test_original_wins_unless_beaten_beyond_doubt() -> None:
    reference = measured(REFERENCE, 1.0)
    doubtful = measured(recipe("doubtful"), 1.05, width=0.06)
    chosen = choose([reference, doubtful])
    assert chosen.trial == reference
    assert "beyond doubt" in chosen.reason
    sure = measured(recipe("sure"), 1.06, width=0.01)
    assert choose([reference, doubtful, sure]).trial == sure


def test_among_equals_the_plainer_one() -> None:
    reference = measured(REFERENCE, 1.0)
    plain, laden = measured(recipe("a"), 2.0), measured(recipe("a", "b"), 2.015)
    rough = measured(recipe("r"), 2.01, faithful=False)
    assert choose([reference, laden, plain, rough]).trial == plain
    faster = measured(recipe("a", "c"), 2.2)
    assert choose([reference, plain, faster]).trial == faster


def on(engine: str, *before: str, grad_mode: str = "no_grad", **options: bool) -> Recipe:
    """An engine, with rewrites before it."""
    rewrites = (Choice(stage=Stage.REWRITE, technique=t) for t in before)
    runs = Choice(stage=Stage.ENGINE, technique=engine, options=options)
    return Recipe(choices=(*rewrites, runs, Choice(stage=Stage.RUNTIME, technique=grad_mode)))


def test_what_extends_a_recipe_makes_its_choices_and_more_on_the_same_engine() -> None:
    assert extends(on("vino", "pad"), on("vino"))
    assert extends(on("vino", grad_mode="inference_mode"), on("vino"))
    assert extends(on("vino", "pad", "fold"), on("vino", "fold"))
    assert not extends(on("vino"), on("vino"))
    assert not extends(on("vino"), on("vino", "pad"))
    assert not extends(on("vino", "pad"), on("vino", "fold"))
    assert not extends(on("onnx", "pad"), on("vino"))
    assert not extends(on("vino", "pad", streams=True), on("vino"))
    assert not extends(on("vino"), REFERENCE), "the original is another engine"


@pytest.mark.parametrize(("gain", "earned"), [(1.02, False), (1.04, False), (1.041, True)])
def test_extra_choices_must_earn_their_place(gain: float, earned: bool) -> None:
    """pad_channels and inference_mode round OpenVINO were chosen at 0.97 of OpenVINO's own speed."""
    reference, plain = measured(REFERENCE, 1.0), measured(on("vino"), 2.0)
    laden = measured(on("vino", "pad", grad_mode="inference_mode"), 2.0 * gain)
    expected = laden if earned else plain
    assert choose([reference, plain, laden]).trial == expected
    assert choose([reference, laden, plain]).trial == expected
    assert choose([reference, laden, plain], proven={laden.recipe}).trial == expected
    assert choose([reference, laden]).trial == laden, "nothing plainer was tried"
    assert choose([reference, laden, plain], unusable={plain.recipe}).trial == laden


def test_another_engine_needs_only_the_margin_to_be_chosen() -> None:
    reference, plain = measured(REFERENCE, 1.0), measured(on("vino"), 2.0)
    for other in (on("onnx", "pad"), on("vino", streams=True), on("onnx")):
        faster = measured(other, 2.03)
        assert choose([reference, plain, faster]).trial == faster


def test_what_a_race_told_apart_is_not_alike_for_what_it_measured_elsewhere() -> None:
    """``drop_unused_rows`` was the fastest of a race beyond doubt, and OpenVINO alone was chosen: by figures
    of other moments two may be within 4 %."""
    reference, plain, laden = measured(REFERENCE, 1.0), measured(on("vino"), 2.0), measured(on("vino", "drop"), 2.03)
    also = measured(on("vino", "fold"), 2.05)
    apart = {(laden.recipe, plain.recipe)}
    for order in itertools.permutations([reference, plain, laden, also]):
        assert choose(order).trial == plain
        assert choose(order, told_apart=apart).trial == laden
        assert choose(order, told_apart=apart, proven={plain.recipe}).trial == laden
        assert choose(order, told_apart=apart, unusable={laden.recipe}).trial == plain
    assert rank([reference, plain, laden], told_apart=apart) == (laden.recipe, plain.recipe, REFERENCE)


@pytest.mark.parametrize(
    ("proof", "stays"),
    [
        (measured(on("vino", "drop"), 1.95), True),
        (measured(on("vino", "drop"), 1.92), False),
        (measured(on("vino", "drop"), 2.03, width=0.6), False),
        (measured(on("vino", "drop"), 2.03, total_bytes=2000), False),
    ],
    ids=["near", "much slower", "not beyond doubt", "too large"],
)
def test_who_won_a_race_gives_way_where_its_proof_does_not_bear_that_out(proof: Trial, stays: bool) -> None:
    reference, plain = measured(REFERENCE, 1.0), measured(on("vino"), 2.0)
    apart = {(proof.recipe, plain.recipe)}
    chosen = choose([reference, plain, proof], within(1500), proven={proof.recipe}, told_apart=apart).trial
    assert chosen == (proof if stays else plain)


def test_small_gains_add_up_whatever_the_order() -> None:
    steps = [("vino", 2.00), ("pad", 2.06), ("fold", 2.12)]
    names = [name for name, _ in steps]
    trials = [measured(on("vino", *names[1 : i + 1]), speed) for i, (_, speed) in enumerate(steps)]
    for order in itertools.permutations(trials):
        assert choose([measured(REFERENCE, 1.0), *order]).trial == trials[2]
        assert choose([measured(REFERENCE, 1.0), *order], unusable={trials[2].recipe}).trial == trials[0]


def test_a_faithful_one_does_not_give_way_to_a_rough_one_with_fewer_choices() -> None:
    rough, fine = measured(on("vino"), 2.0, faithful=False), measured(on("vino", "pad"), 2.03)
    assert choose([measured(REFERENCE, 1.0), rough, fine]).trial == fine


@pytest.mark.parametrize(("speedup", "earned"), [(2.03, False), (2.07, False), (2.1, True)])
@pytest.mark.parametrize("rough", [on("onnx"), on("onnx", "int8"), on("vino", "int8")])
def test_fewer_bits_must_be_faster_than_what_is_faithful_by_more_than_processes_differ(
    rough: Recipe, speedup: float, earned: bool
) -> None:
    """On another engine, too: else they may as well be slower."""
    reference, fine = measured(REFERENCE, 1.0), measured(on("vino", "pad"), 2.0)
    lowered = measured(rough, speedup, faithful=False, rmse=1e-2)
    for order in itertools.permutations([reference, fine, lowered]):
        assert choose(order).trial == (lowered if earned else fine)
        assert choose(order, told_apart={(lowered.recipe, fine.recipe)}).trial == lowered
    saved = measured(recipe("saved"), 1.5)
    trials = [reference, saved, fine, lowered]
    said = why_not(lowered, saved, trials=trials)
    assert said == (
        "" if earned else "it is approximate, and not faster than pad + vino + no_grad by the 4% that must earn"
    )


def test_nothing_within_limits_says_what_the_smallest_needs() -> None:
    trials = [measured(REFERENCE, 1.0, total_bytes=2000), measured(recipe("a"), 2.0, total_bytes=3000)]
    chosen = choose(trials, within(1000))
    assert chosen.trial is None
    assert "no_grad: 1.95 KiB (2,000 bytes)" in chosen.reason
    assert choose([]).trial is None


def test_slower_but_small_enough_is_chosen_when_the_original_is_too_large() -> None:
    trials = [measured(REFERENCE, 1.0, total_bytes=2000), measured(recipe("a"), 0.5, total_bytes=900)]
    chosen = choose(trials, within(1000))
    assert chosen.trial == trials[1]
    assert "plain eager itself does not fit" in chosen.reason


def test_noise_excludes_nothing_that_fits_where_memory_decides() -> None:
    large = measured(REFERENCE, 1.0, total_bytes=1000)
    noisy = measured(recipe("small"), 0.4, total_bytes=100).model_copy(update={"outcome": Outcome.UNSTABLE})
    wrong = measured(recipe("wrong"), 2.0, total_bytes=100, faithful=False)
    wrong = wrong.model_copy(update={"outcome": Outcome.UNSTABLE})
    assert choose([large, noisy, wrong], within(500)).trial == noisy
    calm = measured(recipe("calm"), 0.3, total_bytes=200)
    assert choose([large, noisy, calm], within(500)).trial == calm
    assert choose([large, noisy], within(2000)).trial == large
    assert "the smallest is small" in choose([large, noisy], within(50)).reason


def test_a_proven_recipe_stays_until_another_is_faster_beyond_the_process_bias() -> None:
    reference, saved = measured(REFERENCE, 1.0), measured(recipe("saved"), 2.0)
    near, far = measured(recipe("near"), 2.07), measured(recipe("far"), 2.2)
    assert choose([reference, saved, near], proven={saved.recipe}).trial == saved
    assert "two processes" in why_not(near, saved)
    assert choose([reference, saved, near, far], proven={saved.recipe}).trial == far
    assert choose([reference, saved, far], proven={saved.recipe, far.recipe}).trial == far


def test_a_proven_one_that_is_not_faster_any_more_gives_way() -> None:
    reference, slow = measured(REFERENCE, 1.0), measured(recipe("slow"), 1.01)
    next_one = measured(recipe("next"), 1.5)
    assert choose([reference, slow, next_one], proven={slow.recipe}).trial == next_one
    assert choose([reference, slow], proven={slow.recipe}).trial == reference


def test_a_noisy_reference_is_still_the_reference() -> None:
    noisy = measured(REFERENCE, 1.0).model_copy(update={"outcome": Outcome.UNSTABLE})
    assert choose([noisy, measured(recipe("slow"), 0.5)]).trial == noisy


def test_rank_ends_with_the_reference() -> None:
    trials = [measured(REFERENCE, 1.0), measured(recipe("a"), 2.0), measured(recipe("slow"), 0.9)]
    assert rank([*trials, measured(recipe("b"), 3.0)]) == (recipe("b"), recipe("a"), REFERENCE)


def test_it_is_said_why_something_faster_was_not_chosen() -> None:
    chosen = measured(recipe("chosen"), 2.0)
    assert why_not(measured(recipe("big"), 3.0, total_bytes=5000), chosen, within(4000)) == (
        "it needs 4.88 KiB of memory, the limit is 3.91 KiB"
    )
    assert "beyond doubt" in why_not(measured(recipe("wide"), 3.0, width=0.5), chosen)
    assert why_not(measured(recipe("slower"), 1.9), chosen) == ""
    unsaved = measured(recipe("unsaved"), 3.0).model_copy(update={"reason": "it has no file form here"})
    assert why_not(unsaved, chosen) == "it has no file form here"
    assert why_not(chosen, chosen) == ""


def test_extra_choices_that_did_not_earn_their_place_are_named() -> None:
    """What is chosen was proven, and is within what may be chance of the plain one, which the laden one extends."""
    reference, saved = measured(REFERENCE, 1.0), measured(on("onnx"), 2.00)
    plain, laden = measured(on("vino"), 2.05), measured(on("vino", "pad"), 2.12)
    said = "it makes the choices of vino + no_grad and more, and is not faster by the 4% that extra choices must earn"
    for order in itertools.permutations([reference, saved, plain, laden]):
        assert choose(order, proven={saved.recipe}).trial == saved
        assert why_not(laden, saved, trials=order) == said
    rough = measured(on("vino", "round"), 2.12, faithful=False).model_copy(
        update={"reason": "approximate: within 1e-2"}
    )
    assert why_not(rough, saved, trials=[reference, saved, plain, rough]) == said
    assert why_not(laden, saved, within(900), trials=[plain]) != said, "no choice, and so no obstacle"


def test_what_was_set_aside_stands_in_nobodys_way() -> None:
    saved, plain, laden = measured(on("onnx"), 2.00), measured(on("vino"), 2.12), measured(on("vino", "pad"), 2.14)
    unsaved = [trial.model_copy(update={"reason": "it has no file form here"}) for trial in (plain, laden)]
    assert why_not(unsaved[1], saved, trials=[saved, *unsaved]) == "it has no file form here"
    assert why_not(laden, saved, trials=[saved, unsaved[0], laden]) == ""
    assert why_not(unsaved[1], saved, trials=[saved, plain, unsaved[1]]) == "it has no file form here"


def test_what_may_differ_is_reported_in_percent() -> None:
    chosen = measured(recipe("chosen"), 2.0)
    assert why_not(measured(recipe("near"), 2.05), chosen) == (
        "faster than the chosen one by less than 4%, by which two processes of one recipe may differ or which does not "
        "matter"
    )
    said = (
        "faster than the chosen one by less than 100%, by which two processes of one recipe may differ or which does "
        "not matter"
    )
    assert why_not(measured(recipe("twice"), 4.0), chosen, criterion=TWICE) == said
    assert why_not(measured(recipe("more"), 4.01), chosen, criterion=TWICE) == ""
    assert why_not(measured(recipe("doubtful"), 2.03), chosen, criterion=TWICE) == "its speed-up is not beyond doubt"


def test_nothing_needs_to_be_said_of_what_was_not_faster() -> None:
    chosen = measured(recipe("chosen"), 2.0).model_copy(update={"reason": "set aside"})
    other = chosen.model_copy(update={"cost_s": 1.0})
    for trial in (
        other,  # another trial of the chosen recipe
        measured(recipe("equal"), 2.0).model_copy(update={"reason": "set aside"}),
        measured(Recipe(), 3.0).model_copy(update={"reason": "set aside"}),
        Trial(recipe=recipe("wrong"), outcome=Outcome.WRONG, reason="set aside"),
    ):
        assert why_not(trial, chosen) == ""
    assert why_not(measured(recipe("a"), 3.0).model_copy(update={"reason": "set aside"}), None) == ""
    unknown = measured(recipe("unknown"), 3.0, total_bytes=None)
    assert why_not(unknown, chosen, within(2048)) == "it needs an unknown amount of memory, the limit is 2.00 KiB"
    assert why_not(unknown, None, within(2048)) == "it needs an unknown amount of memory, the limit is 2.00 KiB"


def test_a_limit_is_met_to_the_byte() -> None:
    trial = measured(recipe("a"), 2.0, total_bytes=1000)
    assert fits(trial, 1000)
    assert not fits(trial, 999)
    assert fits(trial, None)
    reference = measured(REFERENCE, 1.0, total_bytes=1000)
    assert choose([reference], within(1000)).trial == reference
    assert choose([reference], within(999)).trial is None


def timed(trial: Trial, call_ms: float | None = None, start_ms: float | None = None) -> Trial:
    assert trial.timing is not None
    return trial.model_copy(
        update={"timing": trial.timing.model_copy(update={"call_ms": call_ms, "start_ms": start_ms})}
    )


def test_a_call_can_be_limited_whatever_was_raced() -> None:
    """The reference takes 10 ms; what was raced with several callers is not what one of them waits for."""
    reference, quick = measured(REFERENCE, 1.0), measured(recipe("quick"), 2.0)
    most, enough = timed(measured(recipe("most"), 5.0), call_ms=30.0), timed(measured(recipe("enough"), 3.0), 19.0)
    limit = Budget(max_latency_s=0.02)
    assert choose([reference, quick, most, enough]).trial == most
    assert choose([reference, quick, most, enough], limit).trial == enough
    assert why_not(most, enough, limit) == "a call takes 30.0 ms, the limit is 20.0 ms"
    above = timed(measured(recipe("above"), 5.0), call_ms=20.004).measured
    assert above is not None
    assert limit.exceeded(above) == "a call takes 20.004 ms, the limit is 20 ms", "rounded, it would keep it"
    assert choose([reference, most, quick], Budget(max_latency_s=0.006)).trial == quick
    assert choose([reference, most, quick], Budget(max_latency_s=0.001)).reason == (
        "no recipe that was tried answers a call within 1.00 ms; the quickest is quick + no_grad: 5.00 ms"
    )


def test_a_start_from_files_can_be_limited_once_it_is_known() -> None:
    reference, fast = measured(REFERENCE, 1.0), measured(recipe("fast"), 2.0)
    limit = Budget(max_first_call_s=1.0)
    assert choose([reference, fast], limit).trial == fast, "it was not loaded from files yet"
    late = timed(fast, start_ms=1500.0)
    assert choose([reference, late], limit).trial == reference
    assert "first answer 1,500 ms after" in why_not(late, None, limit) or "1500" in why_not(late, None, limit)
    small = Budget(max_first_call_s=1.0, max_memory_bytes=500)
    neat = measured(recipe("neat"), 2.0, total_bytes=400)
    assert choose([timed(neat, start_ms=2000.0), timed(reference, start_ms=10.0)], small).reason == (
        "no recipe that was tried keeps all limits at once"
    )


def test_the_front_of_several_callers_knows_what_each_waits_for() -> None:
    most, soon = timed(measured(recipe("most"), 5.0), call_ms=30.0), timed(measured(recipe("soon"), 3.0), call_ms=9.0)
    worse = timed(measured(recipe("worse"), 2.9), call_ms=10.0)
    assert labels(front([soon, worse, most])) == ["most", "soon"]


def test_the_original_as_it_is_called_today_is_not_a_candidate() -> None:
    reference, today = measured(REFERENCE, 1.0, total_bytes=2000), measured(Recipe(), 1.5, total_bytes=500)
    assert choose([reference, today]).trial == reference
    small = measured(recipe("small"), 0.5, total_bytes=900)
    assert choose([reference, today, small], within(1000)).trial == small
    chosen = choose([reference, today], within(1000))  # but better than nothing
    assert chosen.trial == today
    assert chosen.reason.endswith("; plain eager itself does not fit")


def test_a_reference_that_did_not_run_is_neither_chosen_nor_too_large() -> None:
    broken = Trial(recipe=REFERENCE, outcome=Outcome.FAILED)
    assert choose([broken]).trial is None
    slow, fast = measured(recipe("slow"), 0.5), measured(recipe("fast"), 2.0)
    assert choose([broken, slow], within(10_000)).trial is None
    assert choose([broken, slow, fast], within(10_000)).trial == fast
    unmeasured = measured(REFERENCE, 1.0).model_copy(update={"timing": None})
    assert choose([unmeasured, slow], within(10)).trial is None
    wrong = measured(REFERENCE, 1.0).model_copy(update={"outcome": Outcome.WRONG})
    assert choose([wrong, slow]).trial is None


def test_a_reference_that_cannot_be_had_still_says_what_does_not_fit() -> None:
    reference, slow = measured(REFERENCE, 1.0, total_bytes=2000), measured(recipe("slow"), 0.5, total_bytes=500)
    assert choose([reference, slow], within(1000), unusable={REFERENCE}).trial == slow
    assert choose([reference, slow], unusable={REFERENCE}).trial is None


@pytest.mark.parametrize(("other", "stays"), [(3.0, True), (4.0, True), (4.01, False)])
def test_how_much_faster_than_a_proven_one_another_must_be(other: float, stays: bool) -> None:
    """A band of exactly 2: what is up to twice as fast leaves a proven one of speed-up 2 the choice."""
    speed = Interval(median=2.0, low=2.001, high=2.1)  # beyond doubt
    saved = measured(recipe("saved"), 2.0)
    saved = saved.model_copy(update={"timing": Timing(latency_ms=speed, speedup_x=speed)})
    fast = measured(recipe("fast"), other)
    found = choose([measured(REFERENCE, 1.0), saved, fast], proven={saved.recipe}, criterion=TWICE).trial
    assert found == (saved if stays else fast)


def test_of_two_that_are_proven_the_faster_one() -> None:
    trials = [measured(REFERENCE, 1.0), measured(recipe("one"), 2.0), measured(recipe("two"), 2.05)]
    fast = measured(recipe("three"), 2.06)
    assert choose([*trials, fast], proven={trials[1].recipe, trials[2].recipe}).trial == trials[2]


@pytest.mark.parametrize(("speed", "plain"), [(1.98, True), (1.97, False)])
def test_one_percent_is_given_for_fewer_choices(speed: float, plain: bool) -> None:
    laden = measured(recipe("a", "b"), 2.0)
    simple = measured(recipe("c"), speed)
    assert choose([measured(REFERENCE, 1.0), laden, simple]).trial == (simple if plain else laden)


def test_equal_choices_are_told_apart_by_error_count_memory_speed_and_name() -> None:
    reference = measured(REFERENCE, 1.0)

    def best(*trials: Trial) -> str:
        (found,) = {choose([reference, *order]).trial.recipe for order in itertools.permutations(trials)}  # type: ignore[union-attr]
        return found.choices[0].technique

    rough = measured(recipe("rough"), 2.0, faithful=False, total_bytes=1)
    laden, plain = measured(recipe("laden", "x"), 2.0, total_bytes=10), measured(recipe("plain"), 2.0, total_bytes=20)
    assert best(rough, laden) == "laden"
    assert best(laden, plain) == "plain"
    assert best(plain, measured(recipe("small"), 1.99, total_bytes=19)) == "small"
    assert best(plain, measured(recipe("unknown"), 2.01, total_bytes=None)) == "plain"
    assert best(plain, measured(recipe("quick"), 2.01, total_bytes=20)) == "quick"
    assert best(plain, measured(recipe("a"), 2.0, total_bytes=20)) == "a"


def test_the_reason_holds_what_was_measured() -> None:
    trials = [measured(REFERENCE, 1.0), measured(recipe("a"), 2.0)]
    assert choose(trials).reason == "a + no_grad: 2.00x (1.96 to 2.04) the speed of plain eager, faithful"
    rough = measured(recipe("r"), 2.0, faithful=False, rmse=3e-2)
    assert choose([trials[0], rough]).reason.endswith("the speed of plain eager, approximate, relative error 3.0e-02")
    unverified = trials[1].model_copy(update={"error": None})
    assert choose([trials[0], unverified]).reason.endswith(") the speed of plain eager")
    assert choose(trials[:1]).reason == "nothing is faster than plain eager beyond doubt, so it stays"


def test_what_is_reported_where_nothing_can_be_chosen() -> None:
    nothing = "no recipe ran, was measured and gave the right output"
    failed = Trial(recipe=recipe("failed"), outcome=Outcome.FAILED)
    assert choose([]).reason == choose([failed], within(1000)).reason == nothing
    unknown = measured(recipe("unknown"), 2.0, total_bytes=None)
    assert choose([unknown], within(1000)).reason == nothing
    assert choose([measured(recipe("slow"), 0.5)]).reason == nothing
    large = [measured(recipe(name), 2.0, total_bytes=size) for name, size in (("c", 4096), ("b", 2048), ("a", 2048))]
    assert choose([unknown, failed, *large], within(1024)).reason == (
        "no recipe that was tried fits into 1.00 KiB (1,024 bytes); the smallest is a + no_grad: 2.00 KiB (2,048 "
        "bytes), at 2.00x the speed of plain eager"
    )


def test_front_keeps_equals_in_the_order_of_their_names() -> None:
    trials = [measured(recipe(name), 2.0) for name in "cab"]
    assert labels(front(trials)) == ["a", "b", "c"]
    unknown = measured(recipe("u"), 2.0).model_copy(update={"error": None})
    assert labels(front([*trials, unknown])) == ["a", "b", "c"]
    rough, rougher = (measured(recipe(f"r{e}"), 3.0, faithful=False, rmse=e) for e in (0.1, 0.2))
    assert labels(front([rough, rougher])) == ["r0.1"]


EXTENDED = [on("vino", *before) for count in range(4) for before in itertools.combinations("xyz", count)]
RECIPES = st.sampled_from([REFERENCE, Recipe(), *(recipe(f"r{i}", *"xyz"[: i % 3]) for i in range(3)), *EXTENDED])
TRIALS = st.lists(
    st.builds(
        measured,
        RECIPES,
        st.floats(0.2, 5.0),
        width=st.floats(0.0, 0.4),
        total_bytes=st.none() | st.integers(1, 2000),
        faithful=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda trial: trial.recipe,
)


@given(
    trials=TRIALS,
    limit=st.none() | st.integers(0, 2500),
    apart=st.sets(st.tuples(RECIPES, RECIPES), max_size=6),
    order=st.randoms(),
)
@settings(max_examples=300, deadline=None)
def test_whatever_was_measured(
    trials: list[Trial], limit: int | None, apart: set[tuple[Recipe, Recipe]], order: object
) -> None:
    chosen = choose(trials, within(limit), told_apart=apart).trial
    shuffled = list(trials)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose(shuffled, within(limit), told_apart=apart).trial == chosen
    reference = next((t for t in trials if t.recipe == REFERENCE), None)
    if chosen is None:
        assert reference is None or not fits(reference, limit)
        return
    assert fits(chosen, limit)
    forced = reference is not None and not fits(reference, limit)
    assert chosen is reference or forced or BETWEEN_PROCESSES.faster(chosen.timing.speedup_x)  # type: ignore[union-attr]
    assert chosen is reference or why_not(chosen, chosen, within(limit)) == ""
    ranked = rank(trials, within(limit), apart)
    assert ranked[0] == chosen.recipe
    assert len(set(ranked)) == len(ranked)
