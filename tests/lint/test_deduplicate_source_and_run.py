"""One line, one finding: what source and a run both say is merged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from togi.lint.finding import CheckResult, Cost, Finding, Note, Place, Problem
from togi.lint.rule import all_rules
from togi.lint.selection import SAME, deduplicate


def at(rule: str, line: int = 4, column: int = 5, **more: object) -> Finding:
    place = Place(path="a.py", line=line, column=column, end_line=line, end_column=column + 10)
    return Finding.model_validate({"rule": rule, "message": "m", "remedy": rule, "place": place, **more})


RUN = at("synchronization", column=7, count=16, evidence="Tensor.item, 16 times", cost=Cost(text="16", measured=False))


def test_the_source_finding_stays_with_the_count_and_evidence_of_the_run() -> None:
    (finding,) = deduplicate(CheckResult(findings=(at("scalar-from-tensor", evidence="loss is a tensor"), RUN)))
    assert (finding.rule, finding.remedy, finding.count) == ("scalar-from-tensor", "scalar-from-tensor", 16)
    assert finding.evidence == "loss is a tensor\nsynchronization: Tensor.item, 16 times"
    assert finding.cost == RUN.cost


def test_two_trace_rules_go_into_one_finding() -> None:
    size = at("data-dependent-op", cost=Cost(text="no graph", measured=False))
    (finding,) = deduplicate(CheckResult(findings=(at("data-dependent-shape"), RUN, size)))
    assert finding.cost is not None
    assert finding.cost.text == "16; no graph"


@pytest.mark.parametrize(
    "other",
    [
        at("scalar-from-tensor", line=5),
        at("scalar-from-tensor", column=17),
        at("unsafe-load"),
        at("scalar-from-tensor").model_copy(update={"place": None}),
    ],
)
def test_what_stands_elsewhere_or_means_something_else_stays_apart(other: Finding) -> None:
    assert set(deduplicate(CheckResult(findings=(other, RUN)))) == {other, RUN}


def test_a_comment_for_the_source_rule_also_silences_the_run() -> None:
    silenced = at("scalar-from-tensor", suppressed="ignore comment")
    result = deduplicate(CheckResult(findings=(RUN,), suppressed=(silenced,)))
    assert not result
    assert [finding.count for finding in result.suppressed] == [16]


def test_one_file_by_two_paths_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    absolute = Place(path=os.fspath(tmp_path / "a.py"), line=4)
    result = deduplicate(CheckResult(findings=(at("copy-to-host"), RUN.model_copy(update={"place": absolute}))))
    assert [finding.rule for finding in result] == ["copy-to-host"]


def test_equal_notes_and_problems_are_told_once() -> None:
    note, problem = Note(path="a.py", message="n"), Problem(path="a.py", message="p")
    result = deduplicate(CheckResult(notes=(note, note), problems=(problem, problem)))
    assert (result.notes, result.problems) == ((note,), (problem,))


def test_the_rules_named_exist() -> None:
    kinds = {id: rule.kind for id, rule in all_rules().items()}
    assert {kinds[id] for id in SAME} == {"trace"}
    assert {kinds[id] for ids in SAME.values() for id in ids} == {"source"}
