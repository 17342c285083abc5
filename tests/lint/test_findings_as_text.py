"""Text, GitHub annotations, statistics, JSON and tables."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.lint.made_up_findings import LETTER, SHOWN, made_up_result
from togi.lint.finding import CheckResult, Finding, Fix, Place
from togi.render.findings import lines
from togi.render.findings.github import workflow_commands
from togi.render.findings.lines import excerpt, plain, plain_text, print_lines
from togi.render.findings.text import concise, counts, full, statistics, summary, tables
from togi.render.json import findings_json


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckResult:
    monkeypatch.chdir(tmp_path)
    lines.forget()
    return made_up_result(tmp_path)


def shown(code: str, place: Place, width: int, folder: Path) -> str:
    lines.forget()
    (folder / place.path).write_text(code, encoding="utf-8")
    return plain_text(excerpt(place, width))


def test_the_full_text_shows_source_cost_and_advice(result: CheckResult) -> None:
    text = plain_text(full(result, 80))
    assert text.startswith(
        f"src, a/tr{SHOWN}in:1.py:3:11: torchscript [*] 100% of steps wait: here\n"
        "  |\n"
        "2 | for x in loader:\n"
        "3 |     total += loss.item()  # \N{REPLACEMENT CHARACTER}[2J\n"
        "  |              ^^^^^^^^^^^\n"
        "  = seen: loss comes from \N{REPLACEMENT CHARACTER}[31mmodel(x)\n"
        "  = cost: 1.3 x slower (measured)\n"
        "  = instead: write total += loss.detach()\n"
        "             and read it once\n"
        "  = fix: Keep it on the device (--fix)\n"
        "  = more: togi explain torchscript\n\n"
    )
    assert "n.ipynb:cell 4:2:1: unsafe-load" in text
    assert "layer1.0.conv: bias-before-norm has a bias. (8 times)\n" in text
    assert "bad.py:3: not checked: is no Python: x\nn.ipynb:cell 2: not checked: m\n" in text
    assert f"src, a/tr{SHOWN}in:1.py:1: note: unused\n" in text
    assert "\x1b" not in text


def test_the_summary_counts_findings_fixes_and_problems(result: CheckResult) -> None:
    assert plain(summary(result)) == (
        "5 findings in 3 files; 3 can be fixed with --fix; 1 ignored; 2 problems: not everything was checked."
    )
    assert plain(summary(CheckResult(files=1))) == "Nothing found in 1 file."


def test_concise_is_one_line_each(result: CheckResult) -> None:
    assert len(list(concise(result))) == 5 + 2 + 1 + 1


def test_colours_are_for_terminals(result: CheckResult) -> None:
    from rich.console import Console

    file = io.StringIO()
    print_lines(Console(file=file, force_terminal=True, color_system="standard", width=40), full(result, 40))
    assert "\x1b[1;31mtorchscript\x1b[0m" in file.getvalue()
    assert "\x1b[2J" not in file.getvalue()


def test_wide_and_long_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = Place(path="w.py", line=1, column=6, end_line=1, end_column=7)
    assert shown("'研ぎ' x\n", place, 80, tmp_path).split("\n")[1:3] == ["1 | '研ぎ' x", "  |        ^"]
    far = Place(path="w.py", line=1, column=501, end_line=1, end_column=505)
    lines = shown("a" * 500 + "mark" + "b" * 500 + "\n", far, 60, tmp_path).split("\n")
    start = lines[2].index("^")
    assert lines[1][start : start + 4] == "mark"
    assert all(len(line) <= 60 for line in lines)
    assert lines[1].startswith("1 | ...a")
    assert lines[1].endswith("b...")


def test_a_finding_over_many_lines_is_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = shown("f(\n" + "  1,\n" * 20 + ")\n", Place(path="w.py", line=1, end_line=22, end_column=2), 80, tmp_path)
    assert "... 16 more lines" in text


@pytest.mark.parametrize("place", [Place(path="gone.py", line=1), Place(path=f"src, a/tr{LETTER}in:1.py", line=99)])
def test_no_excerpt_of_what_is_not_there(place: Place, result: CheckResult) -> None:
    assert result
    assert excerpt(place, 80) == []


def test_github_gets_one_escaped_command_for_each_finding(result: CheckResult) -> None:
    lines = list(workflow_commands(result))
    assert lines[0] == (
        f"::warning file=src%2C a/tr{LETTER}in%3A1.py,line=3,endLine=3,col=11,endColumn=22,title=togi%3A torchscript::"
        "100%25 of%0Asteps wait: here. Instead: write total += loss.detach()%0Aand read it once"
        "%0AMore: togi explain torchscript"
    )
    assert "col=" not in lines[1]
    cell = "::warning file=n.ipynb,title=togi%3A unsafe-load::cell 4, line 2: m. Instead: r"
    assert lines[2] == f"{cell}%0AMore: togi explain unsafe-load"
    assert lines[4].startswith("::warning title=togi%3A bias-before-norm::layer1.0.conv: has a bias. Instead:")
    assert lines[5].startswith("::error file=bad.py,line=3,")
    assert lines[-1].startswith("::notice ")
    assert all("\n" not in line for line in lines)


def test_statistics_are_ordered_by_count(result: CheckResult) -> None:
    assert counts(result) == {"torchscript": 2, "unsafe-load": 2, "bias-before-norm": 1}
    lines = plain_text(statistics(result)).split("\n")
    assert lines[0] == "     2 [*] torchscript  in 1 file"
    assert lines[1] == "     2 [-] unsafe-load  in 2 files"


def test_json_comes_back(result: CheckResult) -> None:
    document = json.loads(json.dumps(findings_json(result)))
    assert (document["kind"], document["exit_code"]) == ("findings", 2)
    assert tuple(Finding.model_validate(entry) for entry in document["findings"]) == result.findings


def test_tables_are_aligned(result: CheckResult) -> None:
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, width=60).print(tables(result))
    assert [line.rstrip() for line in file.getvalue().split("\n")][1:5] == [
        "Cost",
        "layer     ms",
        "a      1.235",
        "b          -",
    ]


def test_summary_says_how_unsafe_fixes_are_applied() -> None:
    fix = Fix(title="t", edits=(), safe=False)
    finding = Finding(rule="unsafe-load", message="m", remedy="r", fix=fix)
    text = plain(summary(CheckResult(findings=(finding,), files=1, fixed=2)))
    assert text == "1 finding in 1 file; 2 fixed; 1 can be fixed with --fix --unsafe-fixes."
