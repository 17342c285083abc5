"""The verdict of a study in which nothing, or nothing faster, was tried."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.study.stand_ins import MACHINE, open_study
from togi.core.errors import JournalError, TogiError
from togi.core.recipe import PartKey, ProgramRecipe
from togi.core.records import (
    REFERENCE_RECIPE,
    Choice,
    ErrorReport,
    Facts,
    Interval,
    Noise,
    Outcome,
    PartResult,
    ProgramTree,
    Recipe,
    Stage,
    Timing,
    Trial,
    Unused,
)
from togi.core.settings import Settings
from togi.decide.budget import Budget
from togi.decide.choose import Chosen
from togi.journal import Journal
from togi.study.conclusion import NOTHING_FASTER, conclude
from togi.study.finals import Decision
from togi.study.result import Best
from togi.techniques import recipe

REFERENCE = Trial(recipe=REFERENCE_RECIPE, outcome=Outcome.OK)
ORIGINAL = Trial(recipe=Recipe(), outcome=Outcome.OK)
ENGINE = Recipe(choices=(Choice(stage=Stage.ENGINE, technique="openvino"), *REFERENCE_RECIPE.choices))
PROGRAM = ProgramRecipe.of({PartKey(path="model"): ENGINE})
KEPT = Decision(Chosen(trial=REFERENCE, reason=""), None, ())
JOURNAL_LOCKED = "journal.sqlite has been locked by another process for 30 s"


def program(reason: str = "", *, tried: int = 0, speedup_x: Interval | None = None) -> ProgramTree:
    """Of one part, which the original runs."""
    part = PartResult(
        key=PartKey(path="model"),
        module="Model",
        copies=("model",),
        calls=1,
        share=0.9,
        reason=reason,
        tried=tried,
        speedup_x=speedup_x,
    )
    return ProgramTree(calls=(), parts=(part,))


def verdict(
    folder: Path,
    decision: Decision,
    *trials: Trial,
    parts: ProgramTree | None = None,
    callers: int = 1,
    **settings: Any,
) -> str:
    """Of a study with these trials."""
    facts = Facts(machine=MACHINE, module_class="M", callers=callers)
    return conclude(open_study(folder, *trials, facts=facts, **settings), decision, parts).verdict


@pytest.mark.parametrize("trials", [[], [REFERENCE], [REFERENCE, ORIGINAL]])
def test_where_time_was_over_before_the_first_trial_nothing_is_said_of_speed(
    trials: list[Trial], tmp_path: Path
) -> None:
    said = verdict(tmp_path, KEPT, *trials, parts=program(), time_limit_s=20.0)
    assert said.startswith("Nothing was tried: the time limit of 20 s was over")
    assert "faster" not in said
    assert "Give a longer --time-limit" in said


def test_where_nothing_can_be_tried_no_time_would_help(tmp_path: Path) -> None:
    said = verdict(tmp_path, KEPT, REFERENCE)
    assert said.startswith("Nothing could be tried here: every technique is refused, left out or missing")


def test_a_limit_is_blamed_only_where_it_was_the_cause(tmp_path: Path) -> None:
    """With a limit of time, which every effort but one has, more of it would not help where there is nothing to try."""
    for name in "ab":
        (tmp_path / name).mkdir()
    alone = open_study(tmp_path / "a", REFERENCE, only=("no_grad",), time_limit_s=20.0)
    said = conclude(alone, KEPT).verdict
    assert said.startswith("Nothing could be tried here: every technique is refused, left out or missing. The original")
    hopeless = open_study(tmp_path / "b", REFERENCE, time_limit_s=20.0)
    hopeless.search.stopped = "no recipe left is expected to be 1 % faster than the best so far"
    assert conclude(hopeless, KEPT).verdict.startswith("Nothing was tried: no recipe left is expected to be")
    hopeless.search.out_of_time = True
    assert conclude(hopeless, KEPT).verdict.startswith("Nothing was tried: the time limit of 20 s was over")


def test_what_the_limit_cut_off_does_not_count_as_tried(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, time_limit_s=20.0)
    study.given_up.append(Trial(recipe=ENGINE, outcome=Outcome.TIMED_OUT, stage="build"))
    said = conclude(study, KEPT).verdict
    assert said.startswith("Nothing was tried to its end: the time limit of 20 s cut off openvino + no_grad. Give")
    assert "faster" not in said


def test_a_journal_that_is_locked_at_the_end_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(_: object) -> None:
        raise JournalError(JOURNAL_LOCKED)

    study = open_study(tmp_path, REFERENCE, trial := timed(ENGINE, 2.0))
    monkeypatch.setattr(study.log, "decide", locked)
    record = conclude(study, Decision(Chosen(trial=trial, reason=""), tmp_path, ()))
    assert record.best == ENGINE
    assert record.verdict.endswith(f"as right as plain eager. {record.notes[-1]}")
    assert record.notes[-1] == f"The journal does not hold this conclusion: {JOURNAL_LOCKED}"


def chosen(of: Recipe, reason: str = "it has no file form here: generate is Python code round its modules.") -> Best:
    one = Interval(median=1.2, low=1.1, high=1.3)
    trial = Trial(recipe=of, outcome=Outcome.OK, reason=reason, timing=Timing(latency_ms=one, speedup_x=one))
    return Best(of, trial, artifact=None)


def test_a_setting_that_could_not_be_saved_is_said_in_python() -> None:
    """Of a program whose modules are captured, but none of them faster: it has no place for a setting of the whole."""
    with pytest.raises(TogiError) as raised:
        chosen(recipe(flush_denormal={}, threads={"count": 2}, inference_mode={})).apply(print)
    assert str(raised.value) == (
        "there is nothing to load, to copy or to put into a program: 'flush_denormal + inference_mode + "
        "threads(count=2)' could not be saved: it has no file form here: generate is Python code round its modules. "
        "Its choices can be made by hand, before anything is called: torch.set_flush_denormal(True); with "
        "torch.inference_mode() round the calls; torch.set_num_threads(2)"
    )


@pytest.mark.parametrize(
    ("best", "said"),
    [
        (chosen(recipe(allocator={"name": "tcmalloc"}, no_grad={})), "called: run it with LD_PRELOAD set to tcmalloc;"),
        (chosen(recipe(torchscript={})), "called: torchscript, as 'togi explain torchscript' says"),
        (chosen(REFERENCE_RECIPE), "the original, which needs no files: keep your model, called under torch.no_grad()"),
        (chosen(ENGINE, reason=""), "could not be saved: the study's verdict says why. Its choices"),
        (Best(REFERENCE_RECIPE, REFERENCE, None), "'no_grad' was not run, since the time limit was over before that."),
    ],
)
def test_what_was_not_saved_says_what_to_do_instead(best: Best, said: str, tmp_path: Path) -> None:
    for use in (best.load, lambda: best.save(tmp_path / "x.togi")):
        with pytest.raises(TogiError) as raised:
            use()
        assert said in str(raised.value)


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.FAILED, Outcome.WRONG])
def test_where_something_was_tried_nothing_was_faster(outcome: Outcome, tmp_path: Path) -> None:
    tried = Trial(recipe=ENGINE, outcome=outcome)
    assert verdict(tmp_path, KEPT, REFERENCE, tried, time_limit_s=20.0).startswith(
        "Nothing is faster here; keep your model"
    )


def timed(of: Recipe, speedup_x: float, **more: Any) -> Trial:
    interval = Interval(median=speedup_x, low=speedup_x * 0.99, high=speedup_x * 1.01)
    return Trial(recipe=of, outcome=Outcome.OK, timing=Timing(latency_ms=interval, speedup_x=interval), **more)


def test_the_nearest_that_was_tried_is_named(tmp_path: Path) -> None:
    said = verdict(tmp_path, KEPT, timed(REFERENCE_RECIPE, 1.0), timed(ENGINE, 1.02))
    assert said == (
        "Nothing is faster here; keep your model, under torch.no_grad (nearest: openvino + no_grad, 1.02x the speed, "
        "1.01-1.03)."
    )


def test_what_was_faster_and_could_not_be_used_is_named_with_the_reason(tmp_path: Path) -> None:
    right = ErrorReport(faithful=True, units=1.0, rmse=1e-7, max_abs=1e-7)
    unsaved = timed(ENGINE, 2.0, error=right, reason="it has no file form here.")
    said = verdict(tmp_path, KEPT, timed(REFERENCE_RECIPE, 1.0), unsaved)
    assert said == (
        "Keep your model, under torch.no_grad. What was faster could not be used (openvino + no_grad, 2.00x the speed, "
        "1.98-2.02): it has no file form here."
    )


def test_the_record_says_how_long_it_took_and_what_had_no_turn(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, loading_s=7.0)
    study = dataclasses.replace(study, earlier_s=30.0, notes=["The race was short."])
    record = conclude(study, KEPT)
    assert record.took_s == 37.0
    assert record.notes == ("The race was short.",)
    assert {untried.technique for untried in record.untried} >= {"torchscript", "inference_mode"}
    assert {untried.unused for untried in record.untried} == {Unused.NO_TIME}
    assert not {untried.technique for untried in record.untried} & {trial.stage for trial in record.excluded}
    tree = program(NOTHING_FASTER, tried=2)
    assert conclude(study, KEPT, tree).untried == (), "its parts may have tried them"


def test_where_nothing_was_faster_for_any_part_that_is_said(tmp_path: Path) -> None:
    said = verdict(tmp_path, KEPT, REFERENCE, parts=program(NOTHING_FASTER, tried=2), time_limit_s=20.0)
    assert said.startswith("Nothing is faster here; keep your model")


def test_it_is_said_where_parts_were_not_tried(tmp_path: Path) -> None:
    said = verdict(tmp_path, KEPT, REFERENCE, parts=program("its truth cannot be made"), time_limit_s=20.0)
    assert said.startswith("Nothing could be tried on its parts (model: its truth cannot be made). Give a longer")


@pytest.mark.parametrize(
    ("composed", "begins"),
    [
        ([], "1 part became faster, and no time was left to try the program with it. Give a longer"),
        ([Trial(recipe=PROGRAM, outcome=Outcome.UNSTABLE)], "Nothing is faster here"),
    ],
)
def test_it_is_said_where_the_program_was_not_tried_with_its_parts(
    composed: list[Trial], begins: str, tmp_path: Path
) -> None:
    faster = program("openvino is faster alone", tried=1, speedup_x=Interval(median=2.0, low=1.9, high=2.1))
    assert verdict(tmp_path, KEPT, REFERENCE, *composed, parts=faster, time_limit_s=20.0).startswith(begins)


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ("latency", "is 2.00 x as fast as the original (between 1.90 and 2.10 x)"),
        ("end-to-end", "is 2.00 x as fast as the original with the copies to the device and back, 5.00 ms (between"),
        ("throughput", "is 2.00 x as fast as the original with 4 callers at once, 200 requests per second (between"),
        (
            "first-call",
            "is 2.00 x as fast as the original from loading its files to the first answer, 5.00 ms (between",
        ),
    ],
)
def test_it_is_said_what_was_raced(objective: str, said: str, tmp_path: Path) -> None:
    one = Interval(median=5.0, low=4.9, high=5.1)
    timing = Timing(latency_ms=one, speedup_x=Interval(median=2.0, low=1.9, high=2.1))
    chosen = Trial(recipe=ENGINE, outcome=Outcome.OK, timing=timing)
    decision = Decision(Chosen(trial=chosen, reason=""), None, ())
    assert said in verdict(tmp_path, decision, chosen, callers=4, objective=objective)


@pytest.mark.parametrize(("waiting", "told"), [(0.05, False), (0.35, True)])
def test_a_factor_of_a_crowded_machine_is_called_that(waiting: float, told: bool, tmp_path: Path) -> None:
    timing = Timing(
        latency_ms=Interval(median=7.0, low=6.0, high=8.0),
        speedup_x=Interval(median=230.0, low=140.0, high=260.0),
        noise=Noise(waiting=waiting),
    )
    chosen = Trial(recipe=ENGINE, outcome=Outcome.OK, timing=timing)
    said = verdict(tmp_path, Decision(Chosen(trial=chosen, reason=""), None, ()), chosen)
    assert ("waited for a core 35% of the time: with fewer neighbours the factor will be another" in said) is told


def test_a_study_that_goes_on_under_other_settings_is_explained_by_these(tmp_path: Path) -> None:
    study = open_study(tmp_path, REFERENCE, effort="normal", max_memory_bytes="1GiB", trial_timeout_s=9.0)
    began = study.log.header.model_copy(update={"settings": Settings().as_json()})
    with Journal.open(tmp_path / "another.sqlite") as journal:
        log = journal.study("key", began)
        record = conclude(dataclasses.replace(study, log=log), KEPT)
        assert journal.read() == record
    assert Budget.of(record.settings) == Budget(max_memory_bytes=2**30)
    assert record.command == "togi tune net.py:make --max-memory 1073741824 --trial-timeout 9"
