"""The end of a study on one screen of 24 lines of 80 columns, and nothing lost behind -v."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.render.made_up_studies import studies
from tests.render.made_up_study import (
    BF16,
    NO_GRAD,
    ONNX,
    OPENVINO,
    THREADS,
    made_up_study,
    ran,
    recipe,
    right,
    timed,
)
from togi.core.choices import AccuracyMeasure
from togi.core.printable import printable
from togi.core.recipe import Choice, PartKey, ProgramRecipe, Stage
from togi.core.records import Accuracy, Outcome, Study, Trial, Untried, Unused
from togi.core.settings import Settings
from togi.decide.break_even import break_even
from togi.decide.paired import flips
from togi.render.json import study_json
from togi.render.next_steps import next_steps
from togi.render.not_used import not_used_by_kind
from togi.render.rows import rows
from togi.render.study_screen import LINES, study_screen, wrapped
from togi.render.study_text import study_text
from togi.render.terminal import SafeConsole, cut
from togi.techniques import all_techniques

BEHIND = 4
"""Lines that follow: where the artifact and the report are, why one was not written, the shell's next line."""
KEPT = recipe(NO_GRAD)


def drawn(study: Study, width: int = 80, *, whole: bool = False, **more: str) -> list[str]:
    console = SafeConsole(file=io.StringIO(), width=width)
    console.print((study_text if whole else study_screen)(study, width=width, **more))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def reference() -> Trial:
    return ran(KEPT, 41.8, 1.0, 1.0, (18.7, 22.4))


def of(*trials: Trial, **more: object) -> Study:
    return made_up_study().model_copy(update={"trials": (reference(), *trials), "best": KEPT, "notes": (), **more})


@given(
    studies(), st.sampled_from([12, 40, 72, 80, 80, 80, 132, 240]), st.sampled_from([None, "photos.togi", "x" * 200])
)
@settings(max_examples=60, deadline=None)
def test_any_study_fits_one_screen(study: Study, width: int, artifact: str | None) -> None:
    shown = drawn(study, width, **({"artifact": artifact} if artifact else {}))
    assert 0 < len(shown) <= LINES - BEHIND
    assert max(map(cell_len, shown)) <= min(width, 120)
    assert "\x1b" not in "\n".join(shown)


@given(studies(), st.sampled_from([80, 140]))
@settings(max_examples=40, deadline=None)
def test_no_reason_is_lost_in_the_whole_text(study: Study, width: int) -> None:
    whole = "".join("".join(drawn(study, width, whole=True)).split())
    for row in rows(study):
        if not row.trial.eligible:
            assert "".join(printable(row.explanation).split()) in whole
            assert "".join(printable(row.trial.fix).split()) in whole
    for untried in study.untried:
        assert "".join(printable(untried.reason).split()).rstrip(".") in whole
    document = study_json(study)
    assert [trial["reason"] for trial in document["trials"]] == [trial.reason for trial in study.trials]
    assert [trial["unused"] for trial in document["trials"]] == [trial.unused for trial in study.trials]


@given(studies())
@settings(max_examples=40, deadline=None)
def test_whatever_cannot_be_chosen_is_in_one_group(study: Study) -> None:
    found = rows(study)
    groups = not_used_by_kind(study, found)
    assert [group.kind for group in groups] == [kind for kind in Unused if kind in {group.kind for group in groups}]
    expected = {row.trial.unused for row in found if row.trial.unused and not row.chosen}
    assert {group.kind for group in groups} == expected | {untried.unused for untried in study.untried}


@given(st.text(), st.integers(-2, 30))
def test_what_is_cut_fits_and_begins_as_it_did(text: str, width: int) -> None:
    shown = cut(text, width)
    assert cell_len(shown) <= max(0, width)
    assert shown == text or shown.endswith("...") or width < 3
    assert text.startswith(shown.removesuffix("...")) or width < 3


def test_lines_that_are_too_many_end_in_dots() -> None:
    assert wrapped("one two three", 7, 3) == ["one two", "three"]
    assert wrapped("one two three four", 7, 2) == ["one two", "thre..."]


def test_the_screen_of_a_study_says_what_matters() -> None:
    study = made_up_study().model_copy(update={"took_s": 120.0})
    shown = "\n".join(drawn(study, artifact="photos.togi"))
    for needed in (
        "fold_batch_norm + openvino + inference_mode",
        "3.14x the speed of eager, 3.08-3.20: 13.3 ms, eager 4",
        "error 2.1 x eager's own; memory 58.9 MiB + 9.50 MiB in a call",
        "not installed    1: apt-get install libjemalloc2: faster_allocator",
        "tried in vain    4: 1 failed, 1 wrong output, 1 crashed, 1 unstable",
        "no time          1: torch_compile",
        "does not apply   1: ",
        "togi.load('photos.togi')  loads it",
        "this study pays for itself after",
        "and 5 more (-v)",
    ):
        assert needed in shown, needed
    assert shown.isascii()


def test_a_study_pays_for_itself_by_what_is_beyond_doubt() -> None:
    gained = ran(recipe(OPENVINO, NO_GRAD), 10.0, 2.0, 1.0, (9, 1), timing=timed(10.0, 2.0, half=0.1))
    even = break_even(of(gained, best=gained.recipe, took_s=90.0))
    assert even is not None
    assert gained.timing is not None
    saved_ms = gained.timing.reference_ms * (1 - 1 / 1.8)
    assert even.saved_ms == pytest.approx(saved_ms), "by the low end, 1.8, not by the median"
    assert (even.calls - 1) * saved_ms < 90_000 <= even.calls * saved_ms


def test_where_only_its_trials_say_what_a_study_took_each_counts_once() -> None:
    """A finalist has a record of its race and one of its proof too."""
    gained = ran(recipe(OPENVINO, NO_GRAD), 10.0, 2.0, 1.0, (9, 1), timing=timed(10.0, 2.0, half=0.1))
    even = break_even(of(gained, gained, gained, best=gained.recipe, took_s=None))
    assert even is not None
    assert even.study_s == sum(trial.cost_s for trial in of(gained).trials)


@pytest.mark.parametrize("best", [KEPT, None, recipe(ONNX, NO_GRAD)])
def test_a_study_that_saves_no_time_does_not_pay(best: object) -> None:
    slower = ran(recipe(ONNX, NO_GRAD), 20.0, 1.01, 1.0, (9, 1))
    assert break_even(of(slower, best=best, took_s=90.0)) is None


@pytest.mark.parametrize(
    ("tried", "line"),
    [
        ((1.02, OPENVINO), "result    nothing is faster here; keep your model (nearest: 1.02x openvino)"),
        ((0.41, ONNX), "result    nothing is faster here; keep your model (nearest: 0.410x onnxruntime)"),
    ],
)
def test_where_nothing_was_gained_one_line_says_so(tried: tuple[float, object], line: str) -> None:
    speedup, engine = tried
    study = of(ran(recipe(engine, NO_GRAD), 41.0, speedup, 1.0, (9, 1)), verdict="It could not be saved.")  # type: ignore[arg-type]
    shown = drawn(study)
    assert line in shown
    assert "could not be saved" not in "\n".join(shown)
    assert "hosen" not in "\n".join(shown)


def test_what_may_be_faster_and_is_not_beyond_doubt_is_called_that() -> None:
    unclear = ran(recipe(OPENVINO, NO_GRAD), 30.0, 1.3, 1.0, (9, 1), timing=timed(30.0, 1.3, half=0.6))
    shown = "\n".join(drawn(of(unclear)))
    assert "result    nothing is faster beyond doubt; keep your model (nearest: 1.30x ope" in shown


def test_what_was_faster_and_set_aside_is_not_called_slower() -> None:
    set_aside = ran(recipe(OPENVINO, NO_GRAD), 10.0, 4.0, 1.0, (9, 1), reason="it has no file form here")
    said = "Keep your model. What was faster could not be used (openvino + no_grad, 4.00x): it has no file form here."
    shown = "\n".join(drawn(of(set_aside, verdict=said)))
    assert "nothing is faster" not in shown
    assert "Keep your model. What was faster could not be used" in shown


def wrong(*choices: object, rmse: float = 1.3e-5) -> Trial:
    return Trial(recipe=recipe(*choices), outcome=Outcome.WRONG, reason="beyond rounding", error=right(20.0, rmse))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trial", "option"),
    [
        (wrong(OPENVINO, NO_GRAD), "--allow openvino --max-error 2e-05"),
        (wrong(BF16, OPENVINO, NO_GRAD, rmse=4.0e-3), "--allow bf16 --max-error 5e-03"),
        (wrong(THREADS, NO_GRAD, rmse=9.99e-5), "--allow threads --max-error 2e-04"),
    ],
)
def test_what_would_be_right_within_a_bound_is_shown_with_the_option(trial: Trial, option: str) -> None:
    study = of(trial, settings={}, command="togi tune m.py:f")
    assert f"next      {option}  accepts" in "\n".join(drawn(study))
    step = next(step for step in next_steps(study, "m.togi"))
    assert (step.type, step.command) == (option, f"togi tune m.py:f {option}")


def test_what_was_accepted_and_found_wrong_when_it_was_saved_is_not_offered() -> None:
    """No larger bound makes it right."""
    timed = ran(recipe(BF16, OPENVINO, NO_GRAD), 10.0, 4.0, 1.0, (9, 1), reason="it is wrong beyond the samples: ...")
    beyond = timed.model_copy(update={"outcome": Outcome.WRONG, "error": right(20.0, 4.0e-3)})
    assert not any("--max-error" in str(step) for step in next_steps(of(beyond, settings={})))


@given(st.floats(1e-9, 0.1), st.sampled_from([OPENVINO, BF16, ONNX]))
@settings(max_examples=60, deadline=None)
def test_the_option_allows_that_very_recipe(error: float, choice: object) -> None:
    """It is parsed by the settings, keeps a tenth to spare, and is about twice what is needed at most."""
    trial = wrong(choice, NO_GRAD, rmse=error)
    step = next(step for step in next_steps(of(trial, settings={}), "m.togi"))
    _, allowed, _, bound = step.type.split()
    chosen = Settings(allow=(allowed,), max_error=float(bound))
    chosen.check(all_techniques())
    assert chosen.named(allowed)
    assert chosen.max_error is not None
    assert 1.1 * error * (1 - 1e-9) <= chosen.max_error <= 2.3 * error


def held_back(losses: int, seen: int, *choices: object) -> Trial:
    """By a budget of accuracy on validation data."""
    trial = wrong(*choices, NO_GRAD, rmse=4e-3)
    accuracy = Accuracy(measure=AccuracyMeasure.AGREEMENT, confirmation=False, drop=flips(losses, seen, seen))
    assert trial.error is not None
    return trial.model_copy(update={"error": trial.error.model_copy(update={"accuracy": accuracy})})


@pytest.mark.parametrize("budget", [{"min_agreement": 0.99}, {"max_drop": 0.01}])
def test_a_budget_of_accuracy_is_not_kept_by_a_bound_on_the_error(budget: dict[str, float]) -> None:
    """Both have to hold. What would help are more data, where what was lost is not too much."""
    few, more, outside = held_back(0, 100, BF16, OPENVINO), held_back(1, 406, BF16, ONNX), held_back(40, 300, ONNX)
    steps = list(next_steps(of(few, more, outside, settings=budget), "m.togi"))
    assert not any("--max-error" in str(step) for step in steps)
    (step,) = [step for step in steps if "validation data" in step.type]
    assert step.type == "1.9 x the validation data"
    assert step.brings == f"would likely prove {more.recipe.label}, which these do not"
    for hopeless in (outside, held_back(4, 300, BF16, ONNX)):
        assert not any("validation data" in str(step) for step in next_steps(of(hopeless, settings=budget)))


@pytest.mark.parametrize("error", [0.3, 0.11])
def test_what_is_too_wrong_is_not_offered(error: float) -> None:
    assert not any(
        "--max-error" in str(step) for step in next_steps(of(wrong(OPENVINO, NO_GRAD, rmse=error), settings={}))
    )


def test_a_study_that_ran_out_of_time_says_how_to_go_on() -> None:
    waiting = tuple(
        Untried(technique=name, reason="the time is over", unused=Unused.NO_TIME) for name in ("ncnn", "threads")
    )
    study = of(untried=waiting, took_s=100.0, command="togi tune m.py:f")
    assert "--time-limit 4m  goes on where this stopped: 2 techniques had no turn" in "\n".join(drawn(study))
    assert "no time          2: ncnn, threads (the time is over)" in "\n".join(drawn(study))


def test_reasons_that_are_too_many_share_the_last_line() -> None:
    study = made_up_study().model_copy(
        update={
            "trials": (
                *made_up_study().trials,
                Trial(
                    recipe=recipe(BF16, NO_GRAD), outcome=Outcome.REFUSED, stage="bf16", refused_for=Unused.NOT_ALLOWED
                ),
                Trial(
                    recipe=recipe(ONNX, NO_GRAD), outcome=Outcome.REFUSED, stage="x", refused_for=Unused.ANOTHER_DEVICE
                ),
            )
        }
    )
    shown = drawn(study)
    first = next(number for number, line in enumerate(shown) if line.startswith("not used"))
    assert shown[first + 5].startswith("know"), "five lines"
    assert "another device 1: x; does not apply 1: " in shown[first + 4]


def test_a_program_with_many_parts_has_one_line() -> None:
    parts = {PartKey(path=f"layers.{number}.attention"): recipe(OPENVINO, NO_GRAD) for number in range(48)}
    best = ProgramRecipe.of(parts)
    shown = drawn(of(ran(best, 10.0, 2.0, 1.0, (9, 1)), best=best))
    assert len(shown) <= LINES - BEHIND
    assert sum("layers.0.attention" in line for line in shown) == 1


@pytest.mark.parametrize("own_loop", [False, True])
def test_a_record_is_applied_with_a_loss_unless_it_is_of_a_loop_of_ones_own(own_loop: bool) -> None:
    """Of such a loop there is none to give, and what it clips and schedules stays with it."""
    best = recipe(Choice(technique="plain_step", stage=Stage.RUNTIME))
    facts = made_up_study().facts.model_copy(update={"train": True, "own_loop": own_loop})
    study = of(ran(best, 10.0, 1.0, 1.0, (9, 1)), best=best, facts=facts)
    applied = f"apply(model, optimizer{'' if own_loop else ', step=loss'})"
    for whole in (False, True):
        said = "\n".join(drawn(study, 132, whole=whole, artifact="step.togi"))
        assert f"togi.TrainingRecipe.read('step.togi').{applied}" in said
        assert ("applied.step(sample)" in said) is (whole and not own_loop)
