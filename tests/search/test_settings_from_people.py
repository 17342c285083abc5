"""What people give as settings of a study: one definition that the library and the command line share."""

from __future__ import annotations

import inspect

import pytest
import torch

import togi
from togi.cli.tune import tune as tune_command
from togi.core.choices import Effort
from togi.core.errors import SubjectError, TogiError
from togi.search.settings import Settings
from togi.study.conclusion import _command, flag
from togi.techniques.build import classify

NOT_A_SETTING = {
    "subject", "inputs", "out", "force", "report", "json", "journal", "resume", "progress", "metric", "calibration",
    "dynamic", "mode",
}  # fmt: skip
LIBRARY_ONLY = {"trial_timeout", "trial_memory"}


def option(name: str) -> str:
    return flag(name).removeprefix("--").replace("-", "_")


def test_the_library_and_the_command_line_have_an_option_for_each_setting() -> None:
    settings = {option(name) for name in Settings.model_fields}
    library = {option(name) for name in inspect.signature(togi.tune).parameters} - NOT_A_SETTING
    command = set(inspect.signature(tune_command).parameters) - NOT_A_SETTING
    assert library == settings
    assert command == settings - LIBRARY_ONLY


def test_the_defaults_of_the_library_and_of_the_command_line_are_those_of_the_settings() -> None:
    for function in (togi.tune, tune_command):
        parameters = inspect.signature(function).parameters.values()
        given = {p.name: p.default for p in parameters if p.name not in NOT_A_SETTING}
        if function is tune_command:
            given["time_limit_s"] = given.pop("time_limit")
            given |= {name: given[name] or () for name in ("allow", "only", "without")}
        assert Settings(**given) == Settings()


def test_numbers_and_text_mean_the_same() -> None:
    numbers = Settings(
        time_limit_s=300,
        max_memory=2 * 2**30,
        trial_memory_bytes=10**9,
        max_error=0.01,
        max_drop=0.5,
        allow=("int8", "bf16"),
    )
    text = Settings(
        time_limit_s="5m", max_memory="2GiB", trial_memory="1GB", max_error="1%", max_drop="0.5", allow="int8,bf16"
    )
    assert numbers == text
    assert Settings.from_json(text.to_json()) == text
    assert Settings(effort="quick", device=torch.device("cpu")).effort is Effort.QUICK


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"effort": "insane"}, "quick, normal, thorough"),
        ({"time_limit_s": "5 parsecs"}, "no unit of time 'parsecs'"),
        ({"trial_timeout_s": 0}, "trial_timeout_s=0 is too short"),
        ({"max_memory": "a lot"}, "max_memory='a lot' is not a size"),
        ({"max_error": "200%"}, "max_error='200%' is out of range"),
        ({"only": 3}, "only=3"),
        ({"allow": ("bf16",)}, "needs a bound"),
        ({"device": "toaster"}, "no device 'toaster'"),
        ({"device": "cuda:x"}, "no device 'cuda:x'"),
        ({"seed": "many"}, "seed='many' cannot be used: input should be a valid integer"),
    ],
)
def test_what_is_no_setting_is_refused_in_one_line(given: dict[str, object], said: str) -> None:
    with pytest.raises(TogiError) as caught:
        Settings(**given)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_a_study_names_the_command_that_repeats_it() -> None:
    given = Settings(time_limit_s=40.0, max_memory=2**30, allow=("bf16", "int8"), max_error=0.01, trial_timeout_s=9.0)
    assert _command("a b.py:f", given) == (
        "togi tune 'a b.py:f' --allow bf16 --allow int8 --time-limit 40 --max-memory 1073741824 --max-error 0.01"
    )
    assert _command("timm:resnet18", Settings()) == "togi tune timm:resnet18"


def test_an_error_written_for_people_is_the_reason_itself() -> None:
    assert classify(SubjectError("it does not run on sample 1."), "survey").reason == "it does not run on sample 1"
    assert classify(RuntimeError("no"), "survey").reason == "survey raised RuntimeError: no"
