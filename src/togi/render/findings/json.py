"""The JSON form of a check (``docs/commands.md``): ``"kind": "findings"``."""

from __future__ import annotations

from typing import Any

from togi.core.records import SCHEMA_VERSION
from togi.lint.finding import CheckResult
from togi.render.findings.text import counts


def findings_json(result: CheckResult) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "findings",
        "findings": [finding.model_dump() for finding in result.findings],
        "suppressed": [finding.model_dump() for finding in result.suppressed],
        "problems": [problem.model_dump() for problem in result.problems],
        "notes": [note.model_dump() for note in result.notes],
        "statistics": counts(result),
        "tables": [table.model_dump() for table in result.tables],
        "files": result.files,
        "cached": result.cached,
        "fixed": result.fixed,
        "ignores_added": result.ignores_added,
        "exit_code": result.exit_code,
    }
