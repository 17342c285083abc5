"""What others wrote steers neither a terminal nor the runner of a build, and one function sees to that."""

from __future__ import annotations

import ast
import io
import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from togi.core.errors import TogiError
from togi.core.printable import escaped, one_line, printable
from togi.render.terminal import SafeConsole

SOURCE = Path(__file__).parents[2] / "src" / "togi"
PIECES = st.sampled_from(
    [
        *("\x1b[2J", "\x1b]8;;http://x\x07", "\x9b31m", "\x85", "\u202e", "\u2066", "\u200d", "\u2028", "\r", "\n"),
        *("::error::", "::add-mask::x", "::set-output name=a::b", "##[error]", "##vso[task.x]", "##teamcity[x]"),
        *("\ud800", "\U000e0041", "[bold]", "[/x]", "[link=http://x]y[/link]", ":smile:", "x[::2]", "é", "研ぎ"),
        *("\x7f", "\x00", "\t", " "),
    ]
)
HOSTILE = st.lists(PIECES | st.text(max_size=3), max_size=12).map("".join)
COMMAND = re.compile(r"^\s*::[A-Za-z-]+( .*)?::|##(\[|vso\[|teamcity\[)", re.MULTILINE)


def steering(text: str) -> set[str]:
    return {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


@given(HOSTILE)
def test_control_characters_are_replaced(text: str) -> None:
    shown = printable(text)
    assert steering(shown) <= {"\n", "\t"}
    assert not COMMAND.search(shown)
    assert printable(shown) == shown
    assert "\n" not in one_line(text)
    assert steering(str(TogiError(text))) <= {"\n", "\t"}


@given(st.text(st.characters(categories=["L", "M", "N", "P", "S", "Zs"], exclude_characters="#:")))
def test_text_without_control_characters_stays(text: str) -> None:
    assert printable(text) == text


@given(HOSTILE)
def test_json_holds_the_text(text: str) -> None:
    document = escaped(json.dumps({"x": text, text: 1}))
    assert json.loads(document) == {"x": text, text: 1}
    assert not steering(document)
    assert not COMMAND.search(document)


@given(HOSTILE)
def test_renderables(text: str) -> None:
    made = Table(text)
    made.add_row(text)
    made.add_row(Text(text))
    out = io.StringIO()
    SafeConsole(file=out, width=200, color_system=None).print(text, made, Text(text))
    assert steering(out.getvalue()) <= {"\n"}


SINKS = {
    "cli/app.py": {"print"},  # errors, through printable
    "cli/findings.py": {"sys.stdout.write"},  # lines that passed already, and JSON
    "cli/program.py": {"print"},  # the version
    "trainers/memory_budget.py": {"print"},  # a message in a user's training, through printable
    "journal/__main__.py": {"print"},
    "lint/data/torch_names.py": {"print"},  # a generator of togi's own
    "render/display.py": {"Console"},  # for a notebook, as HTML and text
    "render/progress.py": {"Console"},  # the same
    "script/main_module.py": {"print"},  # the text that a script gives to sys.exit, as Python prints it
    "techniques/kinds.py": {"print"},  # JSON, from a child to its parent
}


def test_nothing_else_prints() -> None:
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name in ("print", "typer.echo", "click.echo", "Console", "sys.stdout.write", "sys.stderr.write"):
                found.setdefault(path.relative_to(SOURCE).as_posix(), set()).add(name)
    assert found == SINKS


@pytest.mark.parametrize(
    "arguments",
    [
        ["tune", "{}.py:f"],
        ["check", "{}"],
        ["verify", "{}.togi"],
        ["report", "--journal", "{}"],
        ["--{}"],
        ["{}"],
        ["explain", "{}"],
    ],
)
def test_errors_show_no_control_characters_of_their_arguments(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from togi.cli.app import run

    evil = "\x1b[2J\u202e\x9b\n::error::x"
    assert run([one.format(evil) for one in arguments]) == 2
    printed = capsys.readouterr().err
    assert steering(printed) <= {"\n", "\t"}
    assert not COMMAND.search(printed)
