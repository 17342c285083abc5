"""The labelled corpus is well formed, and the rules do not get worse on it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest

from togi.lint.rule import SourceRule, all_rules

SOURCE = Path(__file__).parents[2] / "benchmarks" / "check_quality.py"
RECALL = {"development": 0.99, "held out": 0.93}
"""What the rules reached when this was last measured; the target is 0.95. Raised with the rules, never lowered."""
PRECISION = {"development": 0.99, "held out": 0.99}


def _quality():
    spec = importlib.util.spec_from_file_location("check_quality", SOURCE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_quality"] = module
    spec.loader.exec_module(module)
    return module


quality = _quality()
HALVES = {name: quality.snippets(folder) for name, folder in quality.HALVES.items()}
ALL = [snippet for half in HALVES.values() for snippet in half]


def test_there_are_enough_snippets_and_half_are_negatives() -> None:
    negatives = sum(not snippet.positive for snippet in ALL)
    assert len(ALL) >= 320
    assert 0.45 <= negatives / len(ALL) <= 0.6
    assert all(len(half) >= 150 for half in HALVES.values())


@pytest.mark.parametrize("snippet", ALL, ids=lambda snippet: snippet.name)
def test_snippet_is_well_formed(snippet) -> None:
    ast.parse(snippet.text)
    assert snippet.text.startswith("# "), "the first line says why"
    assert snippet.path.stem.startswith(("pos_", "neg_"))
    required = [expected for expected in snippet.expected if expected.required]
    assert snippet.positive == any(snippet.rule in expected.rules for expected in required)
    assert all(expected.last <= len(snippet.text.splitlines()) for expected in snippet.expected)


def test_labels_name_rules_and_every_source_rule_has_both_kinds_in_both_halves() -> None:
    rules = {rule.id for rule in all_rules().values() if isinstance(rule, SourceRule)}
    named = {rule for snippet in ALL for expected in snippet.expected for rule in expected.rules}
    assert named <= rules
    for half in HALVES.values():
        kinds = Counter((snippet.rule, snippet.positive) for snippet in half)
        assert {(rule, positive) for rule in named for positive in (True, False)} <= set(kinds)


def test_no_snippet_stands_twice() -> None:
    bodies = Counter(snippet.text.split("\n", 1)[1] for snippet in ALL)
    assert bodies.most_common(1)[0][1] == 1


def test_the_score_counts_what_the_labels_say(monkeypatch) -> None:
    text = "# why\nx = 1  # expect: one\ny = 2  # expect: two|three+1, four\nz = 3\nw = 4  # allow: five\n"
    snippet = quality.Snippet(Path("one/pos_x.py"), "one", True, text, tuple(quality.labels(text)))
    report = _report([("one", 2), ("three", 4), ("five", 5), ("one", 5), ("one", 5)])
    monkeypatch.setattr(quality, "check_text", lambda *_: report)
    result = quality.score([snippet])
    assert dict(result.found) == {"one": 1, "two": 1}
    assert dict(result.missed) == {"four": 1}
    assert dict(result.wrong) == {"one": 1}, "two findings of a rule on a line count once"
    assert quality.ratio(0, 0) is None


def _report(found):
    from togi.lint.finding import FileReport, Finding, Place

    place = [Place(path="x.py", line=line) for _, line in found]
    findings = [Finding(rule=r, message="m", remedy="r", place=p) for (r, _), p in zip(found, place, strict=True)]
    return FileReport(findings=tuple(findings))


@pytest.mark.parametrize("half", HALVES)
def test_the_rules_are_as_good_as_they_were(half) -> None:
    figures = quality.as_dict(quality.score(HALVES[half]))
    assert not figures["problems"]
    assert figures["total"]["recall"] >= RECALL[half], figures["total"]
    assert figures["total"]["precision"] >= PRECISION[half], figures["total"]
