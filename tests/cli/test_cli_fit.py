"""togi fit from the command line and from Python: plan, JSON, exit codes, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import togi
from tests.cli import small_subjects
from togi.cli.app import run


@pytest.mark.usefixtures("in_this_process")
def test_plan_is_written_and_applies_to_a_live_model(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    assert run(["fit", f"{file}:blocks", "--memory", "1500KiB", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Fits 1.46 MiB: peak ")
    assert "to the bit" in said
    plan = togi.Plan.load(out)
    assert plan.exact
    assert plan.peak_bytes is not None
    assert plan.peak_bytes <= 1500 * 1024
    module, sample = small_subjects.blocks()
    plan.apply(module)
    module(sample).sum().backward()
    plan.remove()
    assert run(["fit", f"{file}:blocks", "--memory", "1GiB", "--out", str(out)]) == 2
    assert "--force" in capsys.readouterr().err


@pytest.mark.usefixtures("in_this_process")
def test_json_and_exit_code_when_nothing_fits(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fit", f"{file}:blocks", "--memory", "1KiB", "--optimizer", "adam", "--json", "--time-limit", "4s"]
    assert run(command) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "fit"
    assert document["fits"] is False
    assert document["static_bytes"] > 1024


@pytest.mark.usefixtures("in_this_process")
def test_nothing_is_written_when_nothing_fits_and_one_floor_is_named(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    assert run(["fit", f"{file}:blocks", "--memory", "1KiB", "--time-limit", "4s", "--out", str(out)]) == 1
    said, told = (" ".join(text.split()) for text in capsys.readouterr())
    assert not out.exists()
    assert "was not written, as no plan fits" in told
    assert said.count("No plan goes below") == 1
    assert "lowers" not in said  # a second floor, by another count
    assert re.search(r"a step takes \S+ ms instead of \S+ ms \([^)]*(longer|shorter)[^)]*\)", said)
    assert "the first run of the step" in told
    assert "timing steps in turns" in told


@pytest.mark.usefixtures("in_this_process")
def test_from_python_with_a_live_module_and_its_own_step() -> None:
    module, sample = small_subjects.blocks()
    found = togi.fit(module, sample, memory="1500KiB", step=lambda module, sample: module(sample).square().mean())
    assert found.fits
    assert found.proof.exact
    found.plan.apply(module)
    assert any("forward" in vars(part) for part in module.modules())
    found.plan.remove()
    assert not any("forward" in vars(part) for part in module.modules())


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("factory", "options", "said"),
    [
        ("frozen", ["--memory", "1MiB"], "set requires_grad on what is to be trained, or ask for inference."),
        ("blocks", ["--memory", "1MiB", "--optimizer", "adan"], "did you mean 'adam'"),
        ("blocks", ["--memory", "1MiB", "--allow", "approximat"], "did you mean 'approximate'"),
        ("blocks", ["--memory", "lots"], "not a size"),
        ("blocks", ["--memory", "1MiB", "--out", "nowhere/plan.json"], "does not exist"),
    ],
    ids=["frozen", "optimizer", "allow", "size", "folder"],
)
def test_bad_input_is_explained(
    file: str, factory: str, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fit", f"{file}:{factory}", *options]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.thorough
def test_parent_imports_no_torch(file: str) -> None:
    code = (
        "import sys\nfrom togi.cli.app import run\n"
        f"assert run(['fit', {file + ':blocks'!r}, '--memory', '1GiB']) == 0\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
