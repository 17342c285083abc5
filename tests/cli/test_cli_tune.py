from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.render.made_up_study import made_up_study
from togi import api
from togi.cli.app import run
from togi.core.records import Study
from togi.study.progress import Progress
from togi.study.result import StudyResult
from togi.techniques import recipe

REAL_TUNE = api.tune


class FakeTune:
    """Stands for ``api.tune``: remembers how it was called and tells the progress object of every trial."""

    def __init__(self, study: Study, interrupt_after: int | None = None) -> None:
        self.study = study
        self.interrupt_after = interrupt_after
        self.saves = True
        self.called: dict[str, Any] = {}

    def __call__(self, subject: str, *, progress: Progress, **settings: Any) -> Any:
        self.called = {"subject": subject, **settings}
        progress.surveyed(self.study.facts, len(self.study.trials), settings["time_limit_s"])
        for number, trial in enumerate(self.study.trials):
            if number == self.interrupt_after:
                raise KeyboardInterrupt
            progress.trial_started(trial.recipe, number)
            progress.trial_phase(trial.recipe, "build")
            progress.trial_ended(trial)
        progress.learned("openvino is the fastest engine")
        artifact = settings["out"] if self.saves else None
        return StudyResult(self.study, artifact)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTune:
    tune = FakeTune(made_up_study())
    monkeypatch.setattr(api, "tune", tune)
    return tune


def test_settings_arrive_in_the_api_with_their_units(fake: FakeTune, tmp_path: Path) -> None:
    options = "--effort quick --time-limit 4m --max-memory 2GiB --max-error 1e-2 --max-drop 1% --seed 7 --device cuda:1"
    options += " --objective throughput --callers 3 --max-latency 20ms --max-first-call 2s"
    options += " --trial-timeout 90s --trial-memory 1GB --metric kl --data data.py:validation"
    only = "--only no_grad --without no_grad --allow approximate --force"
    out = tmp_path / "a.togi"
    assert run(["tune", "m.py:f", *options.split(), *only.split(), "--out", str(out), "--journal", "j"]) == 0
    assert fake.called == {
        "subject": "m.py:f",
        "out": out,
        "force": True,
        "device": "cuda:1",
        "objective": "throughput",
        "callers": 3,
        "effort": "quick",
        "time_limit_s": 240.0,
        "max_memory": 2 * 1024**3,
        "max_latency": 0.02,
        "max_first_call": 2.0,
        "max_error": 0.01,
        "max_drop": 0.01,
        "min_agreement": None,
        "metric": "kl",
        "better": None,
        "calibration": None,
        "data": "data.py:validation",
        "allow": ["approximate"],
        "only": ["no_grad"],
        "without": ["no_grad"],
        "trial_timeout_s": 90.0,
        "trial_memory": 10**9,
        "seed": 7,
        "train": False,
        "journal": Path("j"),
    }


def test_every_setting_is_one_that_the_api_knows(fake: FakeTune) -> None:
    run(["tune", "m.py:f"])
    assert set(fake.called) <= set(inspect.signature(REAL_TUNE).parameters)


@pytest.mark.usefixtures("fake")
def test_the_table_goes_to_stdout_and_progress_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "m.py:f"]) == 0
    captured = capsys.readouterr()
    assert "result    fold_batch_norm + openvino + inference_mode" in captured.out
    assert "best so far" not in captured.out
    assert "3.12x the speed (best so far)" in captured.err
    assert "learned: openvino is the fastest engine" in captured.err


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("flag", ["-v", "--verbose"])
def test_all_of_it_is_shown_where_that_is_asked_for(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "m.py:f", flag]) == 0
    shown = capsys.readouterr().out
    assert "Not used, and why" in shown
    assert "it needs a CUDA device, and the subject is on the CPU" in " ".join(shown.split())


@pytest.mark.usefixtures("fake")
def test_the_end_fits_one_screen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With the lines that say where the files are, and one for the shell."""
    assert run(["tune", "m.py:f", "--out", str(tmp_path / "a.togi"), "--report", str(tmp_path / "r.html")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) < 24
    assert max(map(len, (line for line in shown if str(tmp_path) not in line))) <= 80
    assert shown[-2:] == [f"artifact: {tmp_path / 'a.togi'}", f"report: {tmp_path / 'r.html'}"]


def test_json_is_one_document_on_stdout(fake: FakeTune, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "m.py:f", "--json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["trials"]) == len(fake.study.trials)
    assert "up to 18 recipes" in captured.err


@pytest.mark.usefixtures("fake")
def test_the_report_is_written_whole(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert run(["tune", "m.py:f", "--report", str(report)]) == 0
    first = report.read_bytes()
    assert first.startswith(b"<!doctype html>")
    assert run(["tune", "m.py:f", "--report", str(report)]) == 0, "an earlier report may be replaced"
    assert report.read_bytes() == first
    assert list(tmp_path.iterdir()) == [report]


def test_a_report_replaces_no_other_file_and_says_so_first(
    fake: FakeTune, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = tmp_path / "thesis.html"
    precious.write_text("years of work", encoding="utf-8")
    assert run(["tune", "m.py:f", "--report", str(precious)]) == 2
    assert run(["tune", "m.py:f", "--report", str(tmp_path / "no" / "r.html")]) == 2
    assert run(["tune", "m.py:f", "--report", str(tmp_path)]) == 2
    assert fake.called == {}
    assert precious.read_text(encoding="utf-8") == "years of work"
    assert "--force" in capsys.readouterr().err
    assert run(["tune", "m.py:f", "--report", str(precious), "--force"]) == 0
    assert precious.read_bytes().startswith(b"<!doctype html>")


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api, "tune", FakeTune(made_up_study(), interrupt_after=3))
    monkeypatch.setattr("sys.argv", ["togi", "tune", "my model.py:f"])
    assert run(["tune", "my model.py:f"]) == 130
    shown = capsys.readouterr().err
    assert "3 finished trials are kept" in shown
    assert "togi tune 'my model.py:f'" in shown
    assert "Traceback" not in shown


ENDED = """
import os, signal, sys, time
from togi import api
from togi.cli.app import run

def ended(_subject, **_):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)

before = signal.getsignal(signal.SIGTERM)
api.tune = ended
sys.argv = ["togi", "tune", "m.py:f"]
code = run(["tune", "m.py:f"])
assert signal.getsignal(signal.SIGTERM) is before
sys.exit(code)
"""


def test_being_ended_is_taken_as_an_interruption() -> None:
    """As a scheduler ends a job; the handler of before is there again afterwards."""
    ended = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 130, ended.stderr
    assert "Start again with: togi tune m.py:f" in ended.stderr


@pytest.mark.usefixtures("fake")
def test_a_report_that_cannot_be_written_hides_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr("togi.cli.output.write_report", full)
    out = tmp_path / "x.togi"
    assert run(["tune", "m.py:f", "--out", str(out), "--report", str(tmp_path / "report.html")]) == 2
    captured = capsys.readouterr()
    assert f"artifact: {out}" in captured.out
    assert "No space left on device: report.html. Free space" in captured.err


def test_nothing_chosen_is_exit_code_1(fake: FakeTune, capsys: pytest.CaptureFixture[str]) -> None:
    fake.study = fake.study.model_copy(update={"best": None, "verdict": "no recipe could be verified"})
    assert run(["tune", "m.py:f"]) == 1
    assert "no recipe could be verified" in capsys.readouterr().out


def test_the_original_that_was_not_even_run_is_a_choice(
    fake: FakeTune, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the time limit is too short for anything. There is nothing to save, and no command to keep it by."""
    fake.study = fake.study.model_copy(
        update={"best": recipe(no_grad={}), "trials": (), "finalists": (), "verdict": "Nothing could be tried"}
    )
    fake.saves = False
    assert run(["tune", "m.py:f"]) == 0
    assert run(["tune", "m.py:f", "--out", str(tmp_path / "x.togi")]) == 1
    captured = capsys.readouterr()
    assert "Nothing could be tried" in captured.out
    assert "--out NAME.togi" not in captured.out
    assert "x.togi was not written: 'no_grad' was not run, since the time limit was over" in captured.err


def test_exit_code_1_without_an_artifact_even_if_an_earlier_one_exists(
    fake: FakeTune, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.saves, out = False, tmp_path / "x.togi"
    assert run(["tune", "m.py:f", "--out", str(out)]) == 1
    captured = capsys.readouterr()
    assert "x.togi was not written: 'fold_batch_norm + openvino + inference_mode' could not be saved" in captured.err
    assert "togi.load" not in captured.out
    out.mkdir()
    assert run(["tune", "m.py:f", "--out", str(out), "--force"]) == 1
    captured = capsys.readouterr()
    assert "What lies there is of an earlier study." in captured.err
    assert "togi.load" not in captured.out
    assert "artifact:" not in captured.out + captured.err
    fake.saves = True
    assert run(["tune", "m.py:f", "--out", str(out), "--force"]) == 0
