from __future__ import annotations

import pytest

from tests.render.made_up_study import (
    BF16,
    CHANNELS_LAST,
    FOLD,
    INFERENCE,
    NO_GRAD,
    OPENVINO,
    made_up_study,
    ran,
    recipe,
    timed,
)
from togi.core.records import Decisions, ErrorReport, ForcedCalls, Interval, Noise, Outcome, Timing, Trial
from togi.render.attribution import effects
from togi.render.gains import gains, how_soon
from togi.render.next_steps import fixes
from togi.render.rows import (
    counts,
    decisions,
    looks_faster,
    pareto_front,
    rows,
    speed,
    warnings,
    what_to_know,
)


def test_measured_recipes_come_first_by_speed_up() -> None:
    found = rows(made_up_study())
    speedups = [row.speedup_x.median if row.speedup_x else 1.0 for row in found if row.trial.eligible]
    assert speedups == sorted(speedups, reverse=True)
    assert [row.trial.eligible for row in found] == [True] * 10 + [False] * 7


def test_where_the_time_of_a_step_goes_is_told() -> None:
    study = made_up_study()
    assert not any("A pass of the step" in said for said in what_to_know(study, rows(study)))
    phases = {"forward": 30.0, "backward": 60.0, "optimizer": 8.0, "the rest": 2.0}
    of_a_step = study.model_copy(update={"facts": study.facts.model_copy(update={"phases_ms": phases})})
    said = "A pass of the step as it is takes about 100 ms: forward 30%, backward 60%, optimizer 8%, the rest 2%."
    assert said in what_to_know(of_a_step, rows(of_a_step))


def test_trials_that_were_calibrated_on_other_data_are_counted() -> None:
    study = made_up_study()
    assert not any("other data" in said for said in what_to_know(study, rows(study)))
    some = study.model_copy(update={"left_out": 3})
    (said,) = (said for said in what_to_know(some, rows(some)) if "other data" in said)
    assert said.startswith("3 trials of recipes that were calibrated on other data")


def test_one_row_per_recipe_with_its_last_trial() -> None:
    study = made_up_study()
    found = rows(study)
    assert len(found) == len({trial.recipe for trial in study.trials}) == len(study.trials) - 1
    chosen = next(row for row in found if row.chosen)
    assert chosen.trial is study.trials[-1]
    assert chosen.earlier == (study.trials[5],)
    assert chosen.finalist


def test_every_row_is_explained() -> None:
    found = rows(made_up_study())
    assert all(row.explanation and row.verdict for row in found)
    bare = made_up_study().trials[10].model_copy(update={"reason": ""})
    study = made_up_study().model_copy(
        update={"trials": tuple(bare.model_copy(update={"outcome": outcome}) for outcome in Outcome)}
    )
    assert all(row.explanation for row in rows(study))


@pytest.mark.parametrize(
    ("speedup", "half", "said"),
    [(1.2, 0.02, "faster"), (0.8, 0.02, "slower"), (1.0, 0.005, "same speed"), (1.05, 0.08, "cannot tell")],
)
def test_words_follow_the_interval(speedup: float, half: float, said: str) -> None:
    assert speed(timed(10.0, speedup, half=half)) == said


def test_pareto_front_holds_what_nothing_beats() -> None:
    fast = ran(recipe(OPENVINO, NO_GRAD), 10.0, 4.0, 1.0, (50, 10))
    small = ran(recipe(NO_GRAD), 40.0, 1.0, 1.0, (10, 10))
    beaten = ran(recipe(CHANNELS_LAST, NO_GRAD), 45.0, 0.9, 1.0, (12, 10))
    wrong = ran(recipe(BF16, NO_GRAD), 5.0, 8.0, 9_000.0, (5, 5))
    assert pareto_front([fast, small, beaten, wrong]) == {fast.recipe, small.recipe}


def test_counts_warnings_and_fixes_are_gathered() -> None:
    study = made_up_study()
    assert counts(rows(study))[Outcome.OK] == 10
    assert Outcome.OUT_OF_MEMORY not in counts(rows(study))
    assert warnings(study) == ("other processes kept 1.1 cores busy while this was measured (the worst of 2 trials)",)
    assert fixes(study) == {"apt-get install libjemalloc2": ("libjemalloc is not installed",)}


def test_an_effect_compares_recipes_that_differ_in_one_technique() -> None:
    base = ran(recipe(INFERENCE), 40.0, 1.0, 1.0, (10, 10))
    folded = ran(recipe(FOLD, NO_GRAD), 36.0, 1.1, 3.0, (10, 10))
    both = ran(recipe(FOLD, OPENVINO, NO_GRAD), 12.0, 3.3, 5.0, (10, 10))
    by_id = {effect.technique: effect for effect in effects([base, folded, both])}
    assert (by_id["fold_batch_norm"].units_before, by_id["fold_batch_norm"].units) == (1.0, 3.0)
    assert (by_id["openvino"].units_before, by_id["openvino"].units) == (3.0, 5.0)
    alone = effects([both])
    assert {effect.units_before for effect in alone} == {None}


def test_of_equal_warnings_the_worst_is_reported() -> None:
    def noisy(cores: str) -> Trial:
        noise = Noise(warnings=(f"other processes kept {cores} cores busy",))
        return ran(recipe(NO_GRAD), 1.0, 1.0, 1.0, (1, 1), timing=timed(1.0, 1.0, noise=noise))

    study = made_up_study().model_copy(update={"trials": (noisy("0.4"), noisy("10.5"), noisy("2"))})
    assert warnings(study) == ("other processes kept 10.5 cores busy (the worst of 3 trials)",)


def test_the_reference_relates_to_nothing() -> None:
    study = made_up_study()
    kept = study.model_copy(update={"best": recipe(NO_GRAD)})
    reference = next(row for row in rows(kept) if row.reference)
    assert reference.speedup_x is None
    assert reference.verdict == "chosen (as it was)"


def test_what_was_chosen_on_a_noisy_machine_says_both() -> None:
    """Chosen for what it needs of memory, say; its time could not be judged."""
    study = made_up_study()
    noisy = study.trials[-1].model_copy(update={"outcome": Outcome.UNSTABLE, "reason": "other programs ran"})
    chosen = next(row for row in rows(study.model_copy(update={"trials": (study.trials[0], noisy)})) if row.chosen)
    assert (chosen.verdict, chosen.explanation) == ("chosen (unstable)", "other programs ran")


def test_the_time_of_eager_is_that_of_the_same_rounds() -> None:
    """On a machine that slowed down by half between two trials, each row's ratio is still that of its own times."""
    drifted = timed(20.0, 3.0, half=0.01)
    study = made_up_study()
    trials = (study.trials[0], study.trials[5].model_copy(update={"timing": drifted}))
    chosen = next(row for row in rows(study.model_copy(update={"trials": trials})) if row.chosen)
    assert chosen.eager_ms == pytest.approx(60.0, rel=0.02)
    assert chosen.trial.timing is not None
    assert chosen.eager_ms / chosen.trial.timing.latency_ms.median == pytest.approx(3.0, rel=0.03)


def test_why_a_recipe_that_looks_faster_was_not_chosen() -> None:
    study = made_up_study()
    assert looks_faster(study, rows(study)) == ()
    narrowly = ran(recipe(FOLD, CHANNELS_LAST, OPENVINO, INFERENCE), 13.1, 3.19, 2.0, (58.0, 9.5))
    unsure = ran(recipe(CHANNELS_LAST, OPENVINO, NO_GRAD), 12.0, 3.4, 2.0, (58, 9), timing=unmeasured(3.4))
    beside = study.model_copy(update={"trials": (*study.trials, narrowly, unsure)})
    said = looks_faster(beside, rows(beside))
    assert len(said) == 2
    assert "fold_batch_norm + channels_last + openvino + inference_mode (3.19x, 3.13-3.25)" in said[1]
    assert "two processes of one recipe may differ" in said[1]
    assert "channels_last + openvino + no_grad (3.40x, too few rounds)" in said[0]
    assert "not beyond doubt" in said[0]


def test_extra_choices_that_did_not_earn_their_place_are_explained() -> None:
    """They were said to be explained by a verdict that knew nothing of them."""
    study = made_up_study()
    plain = ran(recipe(OPENVINO, NO_GRAD), 13.0, 3.22, 2.0, (58.0, 9.5))
    laden = ran(recipe(CHANNELS_LAST, OPENVINO, NO_GRAD), 12.7, 3.34, 2.0, (58.0, 9.5))
    original = ran(recipe(), 12.0, 3.6, 2.0, (58.0, 9.5))
    beside = study.model_copy(update={"trials": (*study.trials, plain, laden, original)})
    assert [why for why in looks_faster(beside, rows(beside)) if "channels_last" in why] == [
        "Not chosen though it looks faster: channels_last + openvino + no_grad (3.34x, 3.27-3.41): it makes the "
        "choices of openvino + no_grad and more, and is not faster by the 4% that extra choices must earn."
    ]
    assert not any("verdict" in why or original.recipe.label in why for why in looks_faster(beside, rows(beside)))


def test_too_few_rounds_are_reported_in_words() -> None:
    study = made_up_study()
    trial = ran(recipe(CHANNELS_LAST, OPENVINO, NO_GRAD), 12.0, 3.4, 2.0, (58, 9), timing=unmeasured(3.4))
    row = next(row for row in rows(study.model_copy(update={"trials": (trial,)})))
    assert row.verdict == "not measured well enough"
    assert row.explanation.startswith("about 3.40x the speed, from too few rounds to conclude anything")


def test_the_reference_is_one_whatever_its_saved_form_took() -> None:
    """The proof of a kept original measures its saved form, which may be slower; it stays the first of the two."""
    reference = ran(recipe(NO_GRAD), 80.0, 0.5, 1.0, (18, 22))
    slower = ran(recipe(CHANNELS_LAST, NO_GRAD), 50.0, 0.86, 1.0, (17, 22))
    found = rows(made_up_study().model_copy(update={"trials": (reference, slower), "best": recipe(NO_GRAD)}))
    assert [row.trial for row in found] == [reference, slower]
    assert [row.front for row in found] == [True, True]


def unmeasured(speedup_x: float) -> Timing:
    """Too few rounds: the intervals have no ends."""
    timing = timed(10.0, speedup_x)
    endless = Interval(median=speedup_x, low=0.0, high=float("inf"))
    return timing.model_copy(update={"speedup_x": endless, "latency_ms": endless})


def test_the_best_so_far_grows_with_time() -> None:
    found = gains(made_up_study())
    assert [(gain.ended_s, gain.speedup_x) for gain in found] == [(20.0, 1.353), (44.0, 2.805), (52.0, 3.119)]
    assert how_soon(found) == (
        "the first gain was measured 20 s after the start (channels_last + no_grad, 1.35x), 90 % of the final one "
        "after 52 s"
    )


def test_what_is_not_faster_beyond_doubt_or_from_an_older_journal_is_no_gain() -> None:
    study = made_up_study()
    barely = ran(recipe(FOLD, NO_GRAD), 41.0, 1.03, 1.2, (18, 20), ended_s=20.0)
    older = ran(recipe(OPENVINO, NO_GRAD), 14.0, 3.0, 1.2, (18, 20))
    assert gains(study.model_copy(update={"trials": (study.trials[0], barely, older)})) == ()
    assert how_soon(()) == ""
    resumed = [trial.model_copy(update={"ended_s": 10.0}) for trial in study.trials[5:]]  # by another command
    assert gains(study.model_copy(update={"trials": (*study.trials[:5], *resumed)})) == ()


def test_a_gain_that_a_second_measurement_showed_is_one_then() -> None:
    """The first was disturbed."""
    chosen = recipe(OPENVINO, NO_GRAD)
    again = ran(chosen, 20.0, 2.0, 0.5, (100, 10), ended_s=14.0)
    disturbed = again.model_copy(update={"outcome": Outcome.UNSTABLE, "ended_s": 10.0})
    study = made_up_study().model_copy(update={"trials": (disturbed, again, again)})
    assert [(gain.trial.recipe, gain.ended_s) for gain in gains(study)] == [(chosen, 14.0)]


def test_what_does_not_fit_is_no_gain() -> None:
    study = made_up_study()
    small = study.model_copy(update={"settings": {**study.settings, "max_memory_bytes": 50 << 20}})
    assert [gain.speedup_x for gain in gains(small)] == [1.353, 1.833]


AGREE = Decisions(agree=416, total=416)
DIFFER = Decisions(agree=1412, total=1416, sample=2, output="output", position=(17,))
RIGHT = ForcedCalls(path="model", calls=31, units=1.25, faithful=True)
FAULTY = ForcedCalls(path="head", calls=2, units=4000, faithful=False)


def of(found: Decisions | None, divergence: str = "", *forced: ForcedCalls) -> str:
    report = ErrorReport(faithful=found == AGREE, units=1, rmse=0, max_abs=0, divergence=divergence, forced=forced)
    return decisions(report.model_copy(update={"decisions": found}))


def test_decisions_that_agree_are_told_too() -> None:
    assert of(AGREE) == "decisions: 416 of 416 agree with the original's"
    assert of(None) == decisions(None) == ""


def test_the_first_decision_that_differs_is_a_tie_or_a_fault() -> None:
    text = "decisions: 1,412 of 1,416 agree with the original's; first difference in sample 2 at position 17"
    assert of(DIFFER) == text, "no call of a part was made"
    tie = "with plain eager's decisions each of 31 calls of its parts is right, at most 1.2 x eager's own error"
    assert of(DIFFER, "output differs", RIGHT) == f"{text} (a tie: {tie})"
    fault = "with plain eager's decisions head is wrong: its error is 4,000 x eager's own"
    assert of(DIFFER, "output differs", RIGHT, FAULTY) == f"{text} (a fault: {fault})"


def test_a_decision_that_differs_is_named_by_where_it_is_returned() -> None:
    inside = DIFFER.model_copy(update={"output": "output[0]['labels']", "position": (0, 3)})
    assert of(inside).endswith("first difference in sample 2 at position [0, 3] of output[0]['labels']")
    assert of(inside.model_copy(update={"position": ()})).endswith("in sample 2 of output[0]['labels']")
