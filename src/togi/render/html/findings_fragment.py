"""The findings of ``togi.check``, for a notebook."""

from __future__ import annotations

from togi.lint.finding import CheckResult
from togi.render.findings.lines import plain
from togi.render.findings.text import located, summary
from togi.render.html.document import fragment

SHOWN = 40


def check_fragment(result: CheckResult) -> str:
    """A row for each finding: where, what, and what to write instead."""
    said = plain(summary(result))
    return fragment("notebook_check.html", result=result, summary=said, located=located, shown=SHOWN)
