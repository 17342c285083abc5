"""Ignore comments: for which lines they speak, and what is said of those without effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from togi.lint.check_file import check_text
from togi.lint.finding import FileReport, Finding, Ignore, Place
from togi.lint.selection import Selected, ignore_comments, select
from togi.lint.settings import CheckSettings

RULE = "deprecated-function"
CALL = "torch.nn.init.xavier_uniform(w)"


def chosen(code: str, path: str = "a.py", **settings: object) -> Selected:
    report = check_text(f"import torch\n{code}\n", path)
    assert not report.problems
    check_settings = CheckSettings(select=(RULE,), folder=Path("/p"), **settings)  # type: ignore[arg-type]
    return select(report, Path("/p") / path, path, check_settings)


@pytest.mark.parametrize("named", ["scalar-from-tensor", "synchronization"])
@pytest.mark.parametrize("found", ["scalar-from-tensor", "synchronization"])
def test_a_comment_for_a_rule_also_silences_its_counterpart_on_source_or_run(found: str, named: str) -> None:
    ignore = Ignore(rules=(named,), line=2, first=2, last=2)
    finding = Finding(rule=found, message="m", remedy="r", place=Place(path="a.py", line=2, column=1))
    settings = CheckSettings(select=(found,), folder=Path("/p"))
    chosen_ = select(FileReport(findings=(finding,), ignores=(ignore,)), Path("/p/a.py"), "a.py", settings)
    assert not chosen_.findings
    assert len(chosen_.suppressed) == 1
    assert not chosen_.notes


def test_a_comment_for_another_wait_silences_nothing() -> None:
    ignore = Ignore(rules=("tensor-in-print",), line=2, first=2, last=2)
    finding = Finding(rule="scalar-from-tensor", message="m", remedy="r", place=Place(path="a.py", line=2, column=1))
    settings = CheckSettings(select=("scalar-from-tensor",), folder=Path("/p"))
    report = FileReport(findings=(finding,), ignores=(ignore,))
    assert select(report, Path("/p/a.py"), "a.py", settings).findings == [finding]


@pytest.mark.parametrize(
    "code",
    [
        f"{CALL}  # togi: ignore[{RULE}]",
        f"{CALL}  # TOGI:ignore[ {RULE.upper().replace('-', '_')} , torchscript]",
        f"{CALL}  # noqa  # togi: ignore[{RULE}]",
        f"x = (\n    {CALL},\n    3,\n)  # togi: ignore[{RULE}]",
        f"x = (  # togi: ignore[{RULE}]\n    {CALL},\n)",
        f"x = (\n    # togi: ignore[{RULE}]\n    {CALL},\n)",
        f"# togi: ignore[{RULE}]\n{CALL}",
        f"if x:\n    # togi: ignore[{RULE}]\n    # because\n    {CALL}",
        f"{CALL}\n# togi: ignore-file[{RULE}]",
        f"# togi: ignore-file\n{CALL}",
        f'x = """\n{{}}\n""".format({CALL})  # togi: ignore[{RULE}]',
    ],
)
def test_what_a_comment_silences(code: str) -> None:
    selected = chosen(code)
    assert selected.findings == []
    assert [finding.suppressed for finding in selected.suppressed] == ["ignore comment"]
    assert not [note for note in selected.notes if RULE in note.message]


@pytest.mark.parametrize(
    "code",
    [
        f"{CALL}\nx = 1  # togi: ignore[{RULE}]",
        f"x = 1  # togi: ignore[{RULE}]\n{CALL}",
        f's = "# togi: ignore[{RULE}]"; {CALL}',
        f"for x in y:  # togi: ignore[{RULE}]\n    {CALL}",
        f"{CALL}  # togi: ignore[torchscript]",
        f"{CALL}  # togi ignore",
    ],
)
def test_what_an_ignore_comment_does_not_cover(code: str) -> None:
    assert len(chosen(code).findings) == 1


def test_one_that_names_no_rule_is_told_which() -> None:
    (note,) = chosen(f"{CALL}  # togi: ignore").notes
    assert f"# togi: ignore[{RULE}]" in note.message
    assert note.line == 2


def test_one_without_effect_is_noted() -> None:
    (note,) = chosen(f"x = 1  # togi: ignore[{RULE}]").notes
    assert "finds nothing here" in note.message
    (note,) = chosen(f"{CALL}  # togi: ignore[{RULE}, deprecated-funktion]").notes
    assert "'deprecated-funktion', which is not a rule; did you mean 'deprecated-function'?" in note.message


def test_rules_that_did_not_run_are_not_said_to_find_nothing() -> None:
    assert chosen("x = 1  # togi: ignore[torchscript, training-mode]").notes == []


def test_per_file_ignores() -> None:
    options = {"per_file_ignores": {"tests/*": (RULE,)}}
    assert chosen(CALL, "tests/a.py", **options).suppressed[0].suppressed == "per-file-ignores"
    assert chosen(CALL, "tests/deep/a.py", **options).findings == []
    assert len(chosen(CALL, "src/a.py", **options).findings) == 1


def test_files_without_the_mark_are_not_tokenized() -> None:
    assert ignore_comments("'unterminated") == ()
