"""The program as a whole: errors, exit codes, streams, and what it imports."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from togi.cli.app import run

COMMANDS = "tune precision run check memory fit bench verify sign export fleet explain doctor report clean demo".split()
HEAVY = ("torch", "ray", "pydantic", "numpy", "onnxruntime", "openvino", "rich.live", "togi.core.records")


def togi(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from togi.cli import main; main(sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from togi.cli.app import run; assert run(['--help']) == 0; "
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "[]"
    for command in COMMANDS:
        assert command in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_the_common_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    for option in ("--json", "--device", "--seed"):
        assert option in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_flags_without_a_value(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--json" in shown
    assert "bool" not in shown.lower()


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    import togi

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"togi {togi.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tuen", "x"], "'tune'"),
        (["tune", "x", "--allw", "bf16"], "--allow"),
        (["tune"], "SUBJECT"),
        (["tune", "x", "--device", "cdua"], "did you mean 'cuda'"),
        (["tune", "x", "--time-limit", "5q"], "no unit of time 'q'"),
        (["tune", "x", "--max-memory", "8Gub"], "no known unit of size"),
        (["tune", "x", "--only", "no_grda"], "did you mean 'no_grad'"),
        (["tune", "x", "--effort", "hard"], "normal"),
        (["explain", "no_grda"], "did you mean 'no_grad'"),
        (["bench", "a"], "at least two"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_meant(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def _raising(error: BaseException) -> Any:
    def raises(*_: object, **__: object) -> None:
        raise error

    return raises


@pytest.mark.parametrize("debug", [False, True])
def test_a_togi_error_is_a_message_and_its_exit_code(
    debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from togi import api
    from togi.core.errors import SubjectError

    monkeypatch.setattr(api, "tune", _raising(SubjectError("the factory raised ValueError: no weights")))
    assert run(["tune", "a.py:f", *(["--debug"] if debug else [])]) == 2
    shown = capsys.readouterr().err
    assert "togi: the factory raised ValueError: no weights" in shown
    assert ("Traceback" in shown) is debug


def test_a_defect_is_distinguished_from_an_error_of_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from togi import api

    monkeypatch.setattr(api, "tune", _raising(ZeroDivisionError("division by zero")))
    assert run(["tune", "a.py:f"]) == 3
    shown = capsys.readouterr().err
    assert "ZeroDivisionError" in shown
    assert "defect of togi" in shown
    assert "Traceback" not in shown


def test_a_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from togi import api

    monkeypatch.setattr(api, "tune", _raising(OSError(28, "No space left on device", "/data/journal")))
    assert run(["tune", "a.py:f"]) == 2
    assert "No space left on device: /data/journal" in capsys.readouterr().err


def test_a_closed_pipe_is_not_an_error() -> None:
    code = (
        "import os, sys; read, write = os.pipe(); os.close(read); os.dup2(write, 1); "
        "from togi.cli import main; main(['explain'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_no_color_is_respected() -> None:
    plain = togi("explain", "no_grad", NO_COLOR="1", FORCE_COLOR="1")
    coloured = togi("explain", "no_grad", FORCE_COLOR="1", NO_COLOR="")
    assert "\x1b[36m" not in plain.stdout
    assert "\x1b[" in coloured.stdout
