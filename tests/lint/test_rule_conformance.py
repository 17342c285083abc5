"""What every rule must keep: page, name, snippets, fixes; and that the published pages are up to date."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from tests.lint.rule_snippets import snippets
from togi.core.docstring import split_docstring
from togi.lint import pages
from togi.lint.finding import Finding
from togi.lint.fix import apply_fixes
from togi.lint.rule import HEADINGS, Rule, SourceRule, all_rules, rule_kinds
from togi.lint.source.model import Source
from togi.techniques import all_techniques

ROOT = Path(__file__).parents[2]
HERE = "# here"
RULES = tuple(all_rules().values())
SOURCE_RULES = tuple(rule for rule in RULES if isinstance(rule, SourceRule))
INVALID, VALID = (
    [
        pytest.param(rule, text, id=f"{rule.id}-{n}")
        for rule in SOURCE_RULES
        for n, text in enumerate(snippets(rule.id, sort))
    ]
    for sort in ("invalid", "valid")
)


def found(rule: SourceRule, text: str) -> list[Finding]:
    return list(rule.check(Source.parse(text, "snippet.py")))


def test_names_are_known_without_importing_any_rule() -> None:
    assert dict(rule_kinds()) == {rule.id: rule.kind for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_its_page_is_complete(rule: Rule) -> None:
    summary, sections = split_docstring(inspect.getdoc(type(rule)) or "", HEADINGS)
    assert summary.endswith(".")
    assert tuple(heading for heading in sections if heading) == HEADINGS
    assert all(sections.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_it_is_named_after_its_file(rule: Rule) -> None:
    kind, name = type(rule).__module__.split(".")[-2:]
    assert (rule.kind, rule.id) == (kind, name.replace("_", "-"))
    if rule.technique is not None:
        assert rule.technique in all_techniques()


@pytest.mark.parametrize("rule", SOURCE_RULES, ids=lambda rule: rule.id)
def test_it_has_snippets_of_both_sorts(rule: SourceRule) -> None:
    assert len(snippets(rule.id, "valid")) >= 2
    assert len(snippets(rule.id, "invalid")) >= 2
    assert all(HERE in text for text in snippets(rule.id, "invalid"))


@pytest.mark.parametrize(("rule", "text"), VALID)
def test_it_is_silent_on_valid_snippets(rule: SourceRule, text: str) -> None:
    assert found(rule, text) == []


@pytest.mark.parametrize(("rule", "text"), INVALID)
def test_it_finds_the_marked_lines_and_says_what_to_do(rule: SourceRule, text: str) -> None:
    findings = found(rule, text)
    marked = [number for number, line in enumerate(text.split("\n"), start=1) if line.rstrip().endswith(HERE)]
    assert sorted({f.place.line for f in findings if f.place}) == marked
    for finding in findings:
        assert finding.rule == rule.id
        assert finding.place is not None
        assert finding.place.path == "snippet.py"
        assert finding.message.strip()
        assert finding.remedy.strip()


@pytest.mark.parametrize(("rule", "text"), INVALID)
def test_its_fixes_remove_what_they_claim_to(rule: SourceRule, text: str) -> None:
    for finding in found(rule, text):
        if finding.fix is not None:
            fixed, count = apply_fixes(text, [finding.fix])
            assert count == 1
            assert fixed != text
            ast.parse(fixed)
            before, after = len(found(rule, text)), len(found(rule, fixed))
            assert after < before, f"{finding.fix.title!r} left the finding in:\n{fixed}"


def test_the_published_pages_are_up_to_date() -> None:
    folder = ROOT / "docs" / "rules"
    published = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    assert published == pages.files(), "run: python -m togi.lint.pages docs/rules"
