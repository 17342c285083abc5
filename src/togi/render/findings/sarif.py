"""SARIF 2.1.0 (OASIS), the form in which code hosts show findings.

Columns count characters (``unicodeCodePoints``), paths are relative URIs where they lie below the working folder. A
notebook's findings name their cell as a logical location, because lines of a cell are not lines of the file.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from togi.core.version import version
from togi.lint.finding import CheckResult, Edit, Finding, Note, Place, Problem
from togi.lint.pages import page_address, rule_page
from togi.lint.rule import Rule, all_rules, rule_kinds
from togi.render.findings.lines import read_more, sentence, source_lines

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT = "togiFinding/v1"
_ROOT = "%SRCROOT%"
_LEVELS = {"problem": "error", "note": "note"}


def sarif(result: CheckResult) -> dict[str, Any]:
    """The whole log. All rules that found something are described in it."""
    findings = [*result.findings, *result.suppressed]
    ids = [id for id in rule_kinds() if any(finding.rule == id for finding in findings)]
    known = all_rules()
    prints = _fingerprints(findings)
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "togi",
                        "semanticVersion": version(),
                        "rules": [_rule(known[id]) for id in ids],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [_invocation(result)],
                "results": [_result(f, ids, mark) for f, mark in zip(findings, prints, strict=True)],
            }
        ],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    page, address = rule_page(rule), page_address(rule.id)
    return {
        "id": rule.id,
        "name": "".join(part.capitalize() for part in rule.id.split("-")),
        "shortDescription": {"text": page.summary},
        "fullDescription": {"text": _plain(page.sections.get("What it reports") or page.summary)},
        "help": {
            "text": f"{_plain(inspect.getdoc(type(rule)) or page.summary)}\n\nMore: {read_more(rule.id)}",
            "markdown": f"{page.markdown}\n\nMore: `{read_more(rule.id)}`",
        },
        **({"helpUri": address} if address else {}),
        "defaultConfiguration": {"enabled": rule.default, "level": "warning"},
        "properties": {"tags": ["performance", "pytorch", rule.kind]},
    }


def _plain(text: str) -> str:
    return text.replace("``", "")


def _result(finding: Finding, ids: Sequence[str], fingerprint: str) -> dict[str, Any]:
    parts = [sentence(finding.message), f"Instead: {finding.remedy}", finding.evidence and f"Seen: {finding.evidence}"]
    if finding.cost is not None:
        parts.append(f"Cost: {finding.cost.text}")
    document: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": "warning",
        "message": {"text": "\n".join(part for part in parts if part)},
        "locations": [_location(finding)],
        "partialFingerprints": {FINGERPRINT: fingerprint},
        "occurrenceCount": finding.count,
    }
    if finding.rule in ids:
        document["ruleIndex"] = ids.index(finding.rule)
    if finding.fix is not None and finding.place is not None and finding.place.cell is None:
        document["fixes"] = [_fix(finding, finding.place)]
    if finding.suppressed:
        kind = "inSource" if finding.suppressed == "ignore comment" else "external"
        document["suppressions"] = [{"kind": kind, "justification": finding.suppressed}]
    return document


def _location(finding: Finding) -> dict[str, Any]:
    place = finding.place
    logical = [{"fullyQualifiedName": finding.layer, "kind": "module"}] if finding.layer else []
    if place is None:
        return {"logicalLocations": logical or [{"name": "subject", "kind": "module"}]}
    physical: dict[str, Any] = {"artifactLocation": _artifact(place.path)}
    if place.cell is None:
        physical["region"] = _region(place)
    else:
        logical.append({"name": f"cell {place.cell}, line {place.line}", "kind": "notebook cell"})
    return {"physicalLocation": physical, **({"logicalLocations": logical} if logical else {})}


def _region(place: Place) -> dict[str, int]:
    region = {"startLine": place.line, "startColumn": place.column}
    if place.end_line is not None:
        region["endLine"] = place.end_line
    if place.end_column is not None:
        region["endColumn"] = place.end_column
    return region


def _artifact(path: str) -> dict[str, str]:
    if Path(path).is_absolute():
        return {"uri": Path(path).as_uri()}
    return {"uri": quote(path, errors="surrogateescape"), "uriBaseId": _ROOT}


def _fix(finding: Finding, place: Place) -> dict[str, Any]:
    assert finding.fix is not None
    return {
        "description": {"text": finding.fix.title},
        "artifactChanges": [
            {
                "artifactLocation": _artifact(place.path),
                "replacements": [_replacement(edit) for edit in finding.fix.edits],
            }
        ],
    }


def _replacement(edit: Edit) -> dict[str, Any]:
    deleted = {"startLine": edit.line, "startColumn": edit.column}
    deleted |= {"endLine": edit.end_line, "endColumn": edit.end_column}
    return {"deletedRegion": deleted, "insertedContent": {"text": edit.text}}


def _fingerprints(findings: Sequence[Finding]) -> list[str]:
    """Hash rule, file and the text of the line rather than its number: code that moves keeps its history."""
    seen: Counter[str] = Counter()
    marks: list[str] = []
    for finding in findings:
        place = finding.place
        line = ""
        if place is not None:
            lines = source_lines(place.path, place.cell)
            line = lines[place.line - 1].strip() if place.line <= len(lines) else ""
        text = "\0".join((finding.rule, place.path if place else "", finding.layer, line))
        digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]
        seen[digest] += 1
        marks.append(f"{digest}:{seen[digest]}")
    return marks


def _invocation(result: CheckResult) -> dict[str, Any]:
    notifications = [_notification(problem, "problem") for problem in result.problems]
    notifications += [_notification(note, "note") for note in result.notes]
    return {"executionSuccessful": not result.problems, "toolExecutionNotifications": notifications}


def _notification(said: Problem | Note, kind: str) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": _artifact(said.path)}
    if said.line is not None and said.cell is None:
        physical["region"] = {"startLine": said.line}
    text = said.message if said.cell is None else f"cell {said.cell}: {said.message}"
    return {"level": _LEVELS[kind], "message": {"text": text}, "locations": [{"physicalLocation": physical}]}
