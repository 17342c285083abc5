"""``togi run`` does without what takes long to import, and reads the plainest of its options by itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

import togi.cli.run
from tests.script.run_scripts import run_togi, written
from togi.cli import app, program, script_command

WATCHED = """
import atexit
import sys
import torch
model = torch.nn.Linear(2, 2).eval()
with torch.no_grad():
    model(torch.ones(1, 2))
heavy = {"typer", "pydantic", "rich", "togi.core.records"}
atexit.register(lambda: print(sorted(heavy & set(sys.modules))))
"""


def test_a_script_that_is_watched_waits_for_no_parser_records_or_tables(tmp_path: Path) -> None:
    done = run_togi(written(tmp_path, WATCHED))
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert re.search(r"^Linear  +\S+ ?%.* 1 .*  float32 1x2$", done.stderr, re.MULTILINE), done.stderr


@pytest.mark.parametrize(
    "given",
    [
        ["script.py"],
        ["--report", "--json", "script.py"],
        ["--again", "--out", "folder", "script.py"],
        ["--with", "folder", "script.py"],
    ],
)
def test_what_is_read_without_the_parser_is_what_the_parser_reads(
    given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []
    signature = inspect.signature(script_command.run_script)

    def note(*args: object, **kwargs: object) -> int:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        asked.append({**bound.arguments, "arguments": list(cast(Sequence[str], bound.arguments["arguments"]))})
        return 0

    monkeypatch.setattr(script_command, "run_script", note)
    monkeypatch.setattr(togi.cli.run, "run_script", note)
    assert script_command.plainly_given(given) is not None
    assert app.run(["run", *given, "--its", "own"]) == program.called(["run"], ["run", *given, "--its", "own"]) == 0
    assert asked[0] == asked[1]
    assert asked[0]["arguments"] == ["--its", "own"]


@pytest.mark.parametrize(
    "given", [[], ["--help"], ["-h", "x.py"], ["--with", "x.py"], ["--with", "--report", "x.py"], ["--seed", "1", "x"]]
)
def test_all_else_is_left_to_the_parser(given: list[str]) -> None:
    assert script_command.plainly_given(given) is None
