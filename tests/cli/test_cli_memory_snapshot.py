"""togi memory FILE.pickle from the command line."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from togi.cli.app import run

FRAME = {"filename": "/home/a/train.py", "line": 3, "name": "step"}
ENTRY = {"action": "alloc", "addr": 0, "size": 2**20, "stream": 0, "time_us": 5, "pool_id": (0, 0), "frames": [FRAME]}
BLOCK = {"size": 2**20, "requested_size": 2**20, "state": "active_allocated", "frames": [FRAME]}
SEGMENT = {"device": 0, "address": 0, "total_size": 2**20, "stream": 0, "segment_type": "small", "blocks": [BLOCK]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [SEGMENT], "device_traces": [[ENTRY]], "allocator_settings": {}}))
    return path


def test_text_json_report_and_gate(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "snapshot.html"
    assert run(["memory", str(file), "--report", str(page)]) == 0
    assert "peak 1.00 MiB allocated" in capsys.readouterr().out
    assert "data-timeline" in page.read_text(encoding="utf-8")
    assert run(["memory", str(file), "--json", "--fail-over", "1KiB"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "snapshot"
    assert document["devices"][0]["history"]["peak_allocated_bytes"] == 2**20


def test_a_snapshot_under_any_name(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", str(file.rename(file.with_name("dump")))]) == 0
    assert "train.py:3 in step" in capsys.readouterr().out


def test_options_of_a_run_are_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", str(file), "--train", "--batch", "4"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--train, --batch would have no effect" in said


def test_a_file_that_is_none_is_an_error_without_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", str(tmp_path / "missing.pickle")]) == 2
    assert "cannot be read" in " ".join(capsys.readouterr().err.split())


def test_reading_imports_no_torch(file: Path) -> None:
    code = (
        f"import sys; from togi.cli.app import run; run(['memory', {str(file)!r}]); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
