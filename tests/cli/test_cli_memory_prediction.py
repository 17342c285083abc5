"""togi memory --predict from the command line."""

from __future__ import annotations

import json

import pytest

from togi.cli.app import run


@pytest.mark.usefixtures("in_this_process")
def test_prediction_equals_the_account(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = [f"{file}:perceptron", "--train", "--optimizer", "adam", "--json"]
    assert run(["memory", *options, "--predict"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert run(["memory", *options]) == 0
    assert predicted["kind"] == "prediction"
    assert predicted["peak_bytes"] == pytest.approx(json.loads(capsys.readouterr().out)["peak_bytes"], rel=0.01)


@pytest.mark.usefixtures("in_this_process")
def test_a_device_that_is_not_here_and_a_limit(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["memory", f"{file}:perceptron", "--train", "--device", "cuda", "--memory", "1GiB", "--fail-over", "1MiB"]
    assert run(command) == 1
    said = capsys.readouterr()
    assert "Predicted peak" in said.out
    assert "The largest batch that fits 1.00 GiB is" in said.out
    assert "is above --fail-over 1.00 MiB" in said.err


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("factory", "options", "said"),
    [
        ("of_values", [], "depends on values"),
        ("perceptron", ["--report", "page.html"], "--report: not for a prediction"),
        ("perceptron", ["--optimizer", "adam"], "add --train"),
    ],
)
def test_options_that_do_not_fit_a_prediction_are_refused(
    file: str, factory: str, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["memory", f"{file}:{factory}", "--predict", *options]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.thorough
def test_a_compiled_training_step_is_predicted(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", f"{file}:perceptron", "--train", "--compile", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "prediction"
    assert document["compiled"] is True


def test_compiled_for_another_device_is_refused(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", f"{file}:perceptron", "--compile", "--device", "cuda"]) != 0
    assert "for the CPU only" in capsys.readouterr().err
