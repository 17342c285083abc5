"""The program as a whole: errors, exit codes, streams, and what it imports."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
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


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory. End what else takes memory, then"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files. Allow more open files (ulimit -n), then"),
        (OSError(errno.ENOENT, "No such file", "/a/b"), "No such file: /a/b. Create the folder, or name another place"),
        (TimeoutError("timed out"), "timed out. Mend what causes that, then"),
    ],
)
def test_what_the_system_lacks_is_not_called_a_missing_folder(
    error: OSError, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from togi import api

    monkeypatch.setattr(api, "tune", _raising(error))
    assert run(["tune", "a.py:f"]) == 2
    assert said in capsys.readouterr().err


SLOW = "import torch\n" + "torch.nn.init.xavier_uniform(w)\n" * 400
"""A file in which much is found: more than fits into the buffers of standard output."""


@pytest.mark.parametrize(
    ("closed", "coloured", "arguments", "code"),
    [
        ((1,), "", ["explain"], 0),
        ((1,), "1", ["explain"], 0),
        ((1,), "", ["explain", "--json"], 0),
        ((1,), "", ["check", "slow.py"], 1),
        ((1,), "1", ["check", "slow.py"], 1),
        ((1,), "", ["check", "slow.py", "--statistics"], 1),
        ((1,), "", ["check", "slow.py", "--json"], 1),
        ((1,), "", ["check", "fine.py"], 0),
        ((1, 2), "", ["check", "slow.py", "--fix", "--diff"], 1),
        ((1, 2), "", ["check", "missing.py"], 2),
        ((1, 2), "", ["explain", "no_grda"], 2),
    ],
)
def test_a_closed_pipe_changes_no_exit_code(
    closed: tuple[int, ...], coloured: str, arguments: list[str], code: int, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    (tmp_path / "fine.py").write_text("x = 1\n", encoding="utf-8")
    run_it = (
        f"import os, sys; read, write = os.pipe(); os.close(read); [os.dup2(write, fd) for fd in {closed}]; "
        f"from togi.cli import main; main({arguments!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", run_it],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "FORCE_COLOR": coloured},
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "BrokenPipe" not in done.stderr


def test_no_color_is_respected() -> None:
    plain = togi("explain", "no_grad", NO_COLOR="1", FORCE_COLOR="1")
    coloured = togi("explain", "no_grad", FORCE_COLOR="1", NO_COLOR="")
    assert "\x1b[36m" not in plain.stdout
    assert "\x1b[" in coloured.stdout
