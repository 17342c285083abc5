"""What people give as settings of a study: one definition, from which every other place is made."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.main import get_command

import togi
from togi.cli.program import app_of
from togi.core.choices import AccuracyMeasure, Direction, Effort, Objective
from togi.core.errors import SubjectError, TogiError
from togi.core.judging import Judging
from togi.core.settings import OPTIONS, Settings
from togi.techniques import all_techniques
from togi.techniques.build import classify

TUNE: Any = get_command(app_of(["tune"])).commands["tune"]  # type: ignore[attr-defined]
SHARES = st.floats(0.0, 1.0)
DURATIONS = st.floats(1e-9, 1e9)
SIZES = st.integers(1, 2**50)
NAMES = st.lists(st.sampled_from(sorted(all_techniques())), max_size=3).map(tuple)
"""Values for each parser; a new one needs its own here."""
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "train": st.just(value=False),
    "objective": st.just(Objective.THROUGHPUT),
    "callers": st.none() | st.integers(2, 99),
    "effort": st.sampled_from(Effort),
    "time_limit_s": st.none() | DURATIONS,
    "max_memory_bytes": st.none() | SIZES,
    "max_latency_s": st.none() | DURATIONS,
    "max_first_call_s": st.none() | DURATIONS,
    "max_error": SHARES,
    "max_drop": st.none() | st.floats(0.0, 1e12),
    "min_agreement": st.none(),
    "metric": st.none() | st.sampled_from([*AccuracyMeasure, "metric.py:score", "package.module:score"]),
    "better": st.none(),
    "data": st.none() | st.sampled_from(["data.py:validation", "package.module:validation"]),
    "calibration": st.none() | st.sampled_from(["data.py:calibration", "package.module:f", "pictures", "a folder"]),
    "allow": NAMES.map(lambda given: tuple(name for name in given if not all_techniques()[name].exact)),
    "only": NAMES,
    "without": NAMES,
    "trial_timeout_s": DURATIONS,
    "trial_memory_bytes": st.none() | SIZES,
    "device": st.sampled_from(["cpu", "cuda", "cuda:1"]),
    "seed": st.integers(-(2**40), 2**40),
}


def parsed(arguments: list[str]) -> dict[str, Any]:
    """What ``togi tune`` makes of a command line."""
    return dict(TUNE.make_context("tune", ["m.py:f", *arguments]).params)


def test_the_library_has_a_typed_parameter_with_the_same_default_for_each_setting() -> None:
    parameters = inspect.signature(togi.tune).parameters
    assert {option.name for option in OPTIONS} <= set(parameters)
    assert Settings.of({name: p.default for name, p in parameters.items()}, techniques=()) == Settings()
    assert all(parameters[option.name].annotation is not inspect.Parameter.empty for option in OPTIONS)


def test_every_field_is_an_option() -> None:
    assert [option.field for option in OPTIONS] == list(vars(Settings())) == list(VALUES)


def test_a_command_line_without_options_gives_the_defaults() -> None:
    assert Settings.of(parsed([]), techniques=()) == Settings()


@given(st.fixed_dictionaries(VALUES))
@settings(deadline=None)
def test_the_command_that_repeats_a_study_gives_the_same_settings(values: dict[str, Any]) -> None:
    chosen = Settings(**values)
    assert Settings.of(parsed(chosen.arguments()), techniques=all_techniques()) == chosen


def test_the_command_that_repeats_a_study_is_short() -> None:
    chosen = Settings(time_limit_s=40.0, max_memory_bytes=2**30, allow=("bf16", "int8"), max_error=1e-5)
    assert " ".join(chosen.arguments()) == (
        "--time-limit 40 --max-memory 1073741824 --max-error 0.00001 --allow bf16 --allow int8"
    )
    assert Settings().arguments() == []


def test_a_switch_is_given_by_its_name_alone() -> None:
    assert Settings(train=True).arguments() == ["--train"]
    assert Settings.of(parsed(["--train"]), techniques=()).train
    with pytest.raises(TogiError, match="neither True nor False"):
        Settings(train="yes")  # type: ignore[arg-type]


def test_a_study_goes_on_under_other_limits_but_not_with_other_errors() -> None:
    lasting = Settings().as_json(lasting=True)
    other = Settings(effort="thorough", time_limit_s=9, max_memory_bytes="1GiB", max_latency_s=1, only="no_grad")  # type: ignore[arg-type]
    assert other.as_json(lasting=True) == lasting
    for changed in ({"max_error": 0.1}, {"seed": 1}, {"device": "cuda"}, {"objective": "first-call"}, {"train": True}):
        assert Settings(**changed).as_json(lasting=True) != lasting  # type: ignore[arg-type]


def test_numbers_and_text_mean_the_same() -> None:
    numbers = {"time_limit_s": 300, "max_memory": 2 * 2**30, "trial_memory": 10**9, "max_error": 0.01, "max_drop": 0.5}
    text = {"time_limit_s": "5m", "max_memory": "2GiB", "trial_memory": "1GB", "max_error": "1%", "max_drop": "0.5"}
    both = [
        Settings.of({**given, "allow": allow}, techniques=("int8", "bf16"))
        for given, allow in ((numbers, ("int8", "bf16")), (text, "int8,bf16"))
    ]
    assert both[0] == both[1]
    assert Settings(effort="quick", device=torch.device("cpu")).effort is Effort.QUICK  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"effort": "insane"}, "quick, normal, thorough"),
        ({"time_limit_s": "5 parsecs"}, "no unit of time 'parsecs'"),
        ({"trial_timeout_s": 0}, "trial_timeout_s=0"),
        ({"trial_timeout_s": None}, "trial_timeout_s=None is not a duration"),
        ({"max_memory": "a lot"}, "max_memory='a lot' is not a size"),
        ({"max_error": "200%"}, "max_error='200%' is out of range"),
        ({"only": 3}, "only=3"),
        ({"allow": ("bf16",)}, "needs a bound"),
        ({"device": "toaster"}, "no device 'toaster'"),
        ({"device": "cuda:x"}, "no device 'cuda:x'"),
        ({"seed": "many"}, "seed='many' is not a whole number"),
        ({"seed": 1.5}, "seed=1.5 is not a whole number"),
        ({"objective": "throughput", "callers": 1}, "callers=1 is out of range: give 2 or more"),
        ({"callers": 2}, "callers=2 are those of the objective throughput"),
        ({"data": "data.py"}, "data='data.py' names no function: give data.py:validation"),
        ({"metric": "acuracy"}, "did you mean 'accuracy'?"),
        ({"metric": "metric.py:"}, "metric='metric.py:' names no function: give metric.py:score"),
        ({"calibration": ""}, "calibration='' is neither a folder nor a function"),
        ({"calibration": "data.py:"}, "names no function: give data.py:calibration"),
        ({"better": "more"}, "there is no direction 'more'"),
        ({"max_drop": 0.1, "metric": "kl", "better": "lower"}, "that of kl is known"),
        ({"max_drop": 0.1, "data": "d.py:f", "better": "lower"}, "that of agreement is known"),
        ({"min_agreement": 0.9, "metric": "kl"}, "metric=kl is another measure: limit it by max_drop"),
        ({"min_agreement": 0.9, "metric": "m.py:f"}, "metric=m.py:f is another measure"),
        ({"min_agreement": "99"}, "min_agreement='99' is out of range"),
        ({"min_agreement": 0.9, "max_drop": 0.1}, "min_agreement=0.9 and max_drop=0.1 are two budgets"),
    ],
)
def test_what_is_not_a_setting_is_refused_in_one_line(given: dict[str, object], said: str) -> None:
    with pytest.raises(TogiError) as caught:
        Settings.of(given, techniques=all_techniques())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_by_what_approximate_results_are_judged() -> None:
    assert Settings(max_error=0.1).judging is None
    own, named = Settings(max_drop=0.1).judging, Settings(max_drop=0.1, metric="kl").judging  # type: ignore[arg-type]
    assert own is not None
    assert named is not None
    assert own == Judging(max_drop=0.1, seed=0)
    assert named == Judging(measure=AccuracyMeasure.KL, max_drop=0.1, seed=0)
    assert Settings(max_drop=0.1, data="data.py:f").judging == Judging(
        measure=AccuracyMeasure.AGREEMENT, max_drop=0.1, seed=0
    )
    function = Settings(max_drop=0.1, metric="metric.py:score", better="lower")  # type: ignore[arg-type]
    assert function.judging == Judging(
        measure=AccuracyMeasure.OWN, metric="metric.py:score", better=Direction.LOWER, max_drop=0.1, seed=0
    )
    assert Settings.of(parsed(function.arguments()), techniques=()) == function
    assert own.by_own_metric
    assert function.judging.by_own_metric
    assert not named.by_own_metric
    agreement = Settings(min_agreement="99%")  # type: ignore[arg-type]
    assert agreement.judging == Judging(measure=AccuracyMeasure.AGREEMENT, max_drop=1 - 0.99, seed=0)
    assert agreement.allows("int8_openvino")
    both = Settings(min_agreement="99%", allow="openvino,approximate").judging  # type: ignore[arg-type]
    assert both is not None
    assert both.named == ("openvino",), "the exact one that may err"


def test_an_error_written_for_people_is_the_reason_itself() -> None:
    assert classify(SubjectError("it does not run on sample 1."), "survey").reason == "it does not run on sample 1"
    assert classify(RuntimeError("no"), "survey").reason == "survey raised RuntimeError: no"
