"""What every rule must keep: page, name, snippets, fixes; and that the published pages are up to date."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from tests.lint.rule_snippets import Snippet, snippets
from togi.core.docstring import split_docstring
from togi.lint import pages
from togi.lint.finding import Finding
from togi.lint.fix import apply_fixes
from togi.lint.rule import FIX_SAFETY, HEADINGS, Rule, SourceRule, all_rules, rule_kinds
from togi.lint.source.model import Source
from togi.techniques import all_techniques

ROOT = Path(__file__).parents[2]
RULES = all_rules()
SOURCE_RULES = tuple(rule for rule in RULES.values() if isinstance(rule, SourceRule))
SNIPPETS = [
    pytest.param(snippet, id=f"{rule.id}-{number}")
    for rule in SOURCE_RULES
    for number, snippet in enumerate(snippets(rule.id))
]


def findings(rule: str, text: str) -> list[Finding]:
    checker = RULES[rule]
    assert isinstance(checker, SourceRule)
    return list(checker.check(Source.parse(text, "snippet.py")))


def test_names_are_known_without_importing_any_rule() -> None:
    assert dict(rule_kinds()) == {rule.id: rule.kind for rule in RULES.values()}


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_its_page_is_complete(rule: Rule) -> None:
    summary, sections = split_docstring(inspect.getdoc(type(rule)) or "", HEADINGS)
    assert summary.endswith(".")
    assert tuple(sections) == tuple(heading for heading in HEADINGS if heading != FIX_SAFETY or _offers_fixes(rule))
    assert all(sections.values())


def _offers_fixes(rule: Rule) -> bool:
    texts = (snippet.text for snippet in snippets(rule.id)) if isinstance(rule, SourceRule) else ()
    return any(finding.fix is not None for text in texts for finding in findings(rule.id, text))


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_it_is_named_after_its_file(rule: Rule) -> None:
    kind, name = type(rule).__module__.split(".")[-2:]
    assert (rule.kind, rule.id) == (kind, name.replace("_", "-"))
    if rule.technique is not None:
        assert rule.technique in all_techniques()


@pytest.mark.parametrize("rule", SOURCE_RULES, ids=lambda rule: rule.id)
def test_it_has_snippets_of_both_sorts(rule: SourceRule) -> None:
    expected = [bool(snippet.lines) for snippet in snippets(rule.id)]
    assert expected.count(True) >= 2
    assert expected.count(False) >= 2


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_it_finds_the_marked_lines_of_its_snippets_and_says_what_to_do(snippet: Snippet) -> None:
    reported = findings(snippet.rule, snippet.text)
    assert sorted({finding.place.line for finding in reported if finding.place}) == snippet.lines
    for finding in reported:
        assert finding.rule == snippet.rule
        assert finding.place is not None
        assert finding.place.path == "snippet.py"
        assert finding.message.strip()
        assert finding.remedy.strip()


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_its_fixes_remove_what_they_claim_to(snippet: Snippet) -> None:
    before = findings(snippet.rule, snippet.text)
    for fix in (finding.fix for finding in before if finding.fix is not None):
        fixed, count = apply_fixes(snippet.text, [fix])
        assert count == 1
        assert fixed != snippet.text
        ast.parse(fixed)
        assert len(findings(snippet.rule, fixed)) < len(before), f"{fix.title!r} left the finding in:\n{fixed}"


def test_the_published_pages_are_up_to_date() -> None:
    folder = ROOT / "docs" / "rules"
    published = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    assert published == pages.files(), "run: python -m togi.lint.pages docs/rules"
