"""SARIF: valid against the official schema, whatever is in it; and what code hosts need.

The schema is that of OASIS (2.1.0-rtm.5) as it is distributed with the npm package @microsoft/jest-sarif (MIT).
"""

from __future__ import annotations

import json
import os
from email.message import Message
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.lint.made_up_findings import made_up_result
from togi.lint.check_paths import check_paths
from togi.lint.finding import CheckResult, FileReport
from togi.lint.rule import all_rules
from togi.render.findings import lines
from togi.render.findings.sarif import FINGERPRINT, sarif

SCHEMA = json.loads((Path(__file__).parent / "data" / "sarif-2.1.0-rtm.5.json").read_text(encoding="utf-8"))


def valid(result: CheckResult) -> dict[str, Any]:
    lines.forget()
    document = json.loads(json.dumps(sarif(result)))
    jsonschema.Draft4Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(document)
    (run,) = document["runs"]
    return dict(run)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_nothing_found() -> None:
    run = valid(CheckResult())
    assert run["results"] == []
    assert run["invocations"][0]["executionSuccessful"]


def test_all_kinds_of_findings(folder: Path) -> None:
    run = valid(made_up_result(folder))
    results = run["results"]
    physical = results[0]["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"] == {"uri": "src%2C%20a/tr%C3%A4in%3A1.py", "uriBaseId": "%SRCROOT%"}
    assert physical["region"] == {"startLine": 3, "startColumn": 11, "endLine": 3, "endColumn": 22}
    (change,) = results[0]["fixes"][0]["artifactChanges"]
    assert change["replacements"][0]["insertedContent"] == {"text": "loss.detach()"}
    assert results[2]["locations"][0]["logicalLocations"][0]["name"] == "cell 4, line 2"
    assert "fixes" not in results[2]
    assert results[3]["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "file:///else%20where/b.py"}
    assert results[4]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "layer1.0.conv"
    assert results[5]["suppressions"][0]["kind"] == "inSource"
    assert not run["invocations"][0]["executionSuccessful"]
    assert len(run["invocations"][0]["toolExecutionNotifications"]) == 3
    rules = run["tool"]["driver"]["rules"]
    assert [rules[result["ruleIndex"]]["id"] for result in results] == [result["ruleId"] for result in results]


def test_every_rule_can_be_described(folder: Path) -> None:
    finding = made_up_result(folder).findings[0]
    run = valid(CheckResult(findings=tuple(finding.model_copy(update={"rule": id}) for id in all_rules())))
    for rule in run["tool"]["driver"]["rules"]:
        assert rule["help"]["markdown"].count("```") % 2 == 0
        assert rule["shortDescription"]["text"]


def test_rules_say_how_to_read_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (rule, *_) = valid(made_up_result(folder))["tool"]["driver"]["rules"]
    assert f"togi explain {rule['id']}" in rule["help"]["text"]
    assert f"`togi explain {rule['id']}`" in rule["help"]["markdown"]
    package = Message()
    package["Project-URL"] = "Homepage, https://example.org"
    monkeypatch.setattr("importlib.metadata.metadata", lambda _: package)
    assert "helpUri" not in valid(made_up_result(folder))["tool"]["driver"]["rules"][0]
    package["Project-URL"] = "Documentation, https://example.org/docs/"
    (rule, *_) = valid(made_up_result(folder))["tool"]["driver"]["rules"]
    assert rule["helpUri"] == f"https://example.org/docs/rules/{rule['id']}.md"


def test_names_that_are_not_utf8(folder: Path) -> None:
    (folder / os.fsdecode(b"caf\xe9.py")).write_text("import torch\ntorch.qr(x)\n", encoding="utf-8")
    (result,) = valid(check_paths(["."], cache=False))["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "caf%E9.py"


def test_names_that_are_not_text_are_kept_and_sent(folder: Path) -> None:
    (folder / os.fsdecode(b"caf\xe9.py")).write_text("import torch\ntorch.qr(x)\n", encoding="utf-8")
    report = FileReport(findings=check_paths(["."], cache=False).findings)
    assert report.findings
    assert FileReport.from_kept(report.kept()) == report


def test_fingerprints_follow_code_that_moves(folder: Path) -> None:
    def prints(text: str) -> list[str]:
        (folder / "a.py").write_text(text, encoding="utf-8")
        results = valid(check_paths(["a.py"], cache=False))["results"]
        return [result["partialFingerprints"][FINGERPRINT] for result in results]

    call = "torch.nn.init.xavier_uniform(w)\n"
    first = prints(f"import torch\n{call}{call}")
    assert len(set(first)) == 2
    assert prints(f"import torch\n\n\nx = 1\nif x:\n    {call}\n{call}") == first
