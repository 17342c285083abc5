"""togi memory from the command line: text, JSON, report, difference, gate, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from togi.cli.app import run
from togi.cli.memory import _gate
from togi.decide.gate import Case


@pytest.mark.usefixtures("in_this_process")
def test_text_json_and_report(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "memory.html"
    assert run(["memory", f"{file}:perceptron", "--train", "--optimizer", "adam", "--report", str(page)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Peak ")
    assert "optimizer state" in said
    assert "kept for backward" in said
    assert "data-timeline" in page.read_text(encoding="utf-8")
    assert run(["memory", f"{file}:perceptron", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "account"
    assert sum(holding["bytes"] for holding in document["holdings"]) == document["peak_bytes"]


@pytest.mark.usefixtures("in_this_process")
def test_difference_of_two_runs_and_the_gate(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", f"{file}:perceptron", "--json"]) == 0
    earlier = tmp_path / "earlier.json"
    earlier.write_text(capsys.readouterr().out, encoding="utf-8")
    command = ["memory", f"{file}:wider_perceptron", "--against", str(earlier), "--junit", str(tmp_path / "junit.xml")]
    assert run([*command, "--fail-over", "1KiB"]) == 1
    said = capsys.readouterr()
    (case,) = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert (case.get("name"), case[0].tag) == (f"{file}:wider_perceptron", "failure")
    assert "is above --fail-over 1.00 KiB" in str(case[0].text)
    assert "The peak grew by" in said.out
    assert "is above --fail-over 1.00 KiB" in said.err
    assert run([*command, "--json", "--fail-over", "1GiB"]) == 0
    assert ElementTree.parse(tmp_path / "junit.xml").getroot()[0][0][0].tag == "system-out"
    change = json.loads(capsys.readouterr().out)["change"]
    module = {entry["owner"]: entry for entry in change["by_module"]}
    weights = (512 - 256) * (64 + 1) * 4
    assert module["0"]["after_bytes"] - module["0"]["before_bytes"] >= weights


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("factory", "options", "said"),
    [
        ("frozen", ["--train"], "no parameter of the module takes a gradient"),
        ("perceptron", ["--optimizer", "adam"], "add --train"),
        ("perceptron", ["--train", "--optimizer", "adan"], "did you mean 'adam'"),
        ("perceptron", ["--dtype", "bf61"], "did you mean 'bf16'"),
        ("perceptron", ["--against", "nowhere.json"], "togi memory SUBJECT --json > FILE"),
        ("perceptron", ["--against", __file__], "is not an account of this version"),
    ],
    ids=["frozen", "no-train", "optimizer", "dtype", "no-file", "no-account"],
)
def test_bad_input_is_explained(
    file: str, factory: str, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["memory", f"{file}:{factory}", *options]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.thorough
def test_what_the_subject_raises_in_the_child_is_shown(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", f"{file}:broken"]) == 2
    assert "no forward today" in " ".join(capsys.readouterr().err.split())


@pytest.mark.thorough
def test_parent_imports_no_torch(file: str) -> None:
    code = (
        "import sys\nfrom togi.cli.app import run\n"
        f"assert run(['memory', {file + ':perceptron'!r}]) == 0\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_peak_just_above_the_limit_is_not_called_the_limit() -> None:
    cases: list[Case] = []
    assert _gate(cases, "a.py:f", (2**31 + 1, 2**31 + 1), 2**31) == 1
    assert cases[0].said == "the peak of 2,147,483,649 bytes is above --fail-over 2,147,483,648 bytes"
