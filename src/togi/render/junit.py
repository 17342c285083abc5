"""JUnit XML, the form in which CI hosts show the tests of a run: what a gate let pass, and what it did not.

Nobody has specified it. This holds what Jenkins and GitLab read of it; GitLab shows the text of a failure and not its
``message``, others only that, so it stands in both. Source: https://docs.gitlab.com/ci/testing/unit_test_reports
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final
from xml.etree import ElementTree

from togi.core.records import now

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot say, such as the colours of a terminal in a traceback."""


@final
@dataclass(frozen=True)
class Case:
    """One question that a gate asks."""

    name: str
    said: str
    """The answer, in a sentence."""
    verdict: Literal["passed", "failure", "error"] = "passed"
    """``error``: there is no answer."""


def junit_xml(gate: str, cases: Sequence[Case], seconds: float) -> str:
    """``seconds`` of all cases together; each has its share, since they took turns."""
    counts = {kind: str(sum(case.verdict == kind for case in cases)) for kind in ("failure", "error")}
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=gate,
        tests=str(len(cases)),
        failures=counts["failure"],
        errors=counts["error"],
        skipped="0",
        time=f"{seconds:.3f}",
        timestamp=now(),
    )
    for case in cases:
        share = f"{seconds / len(cases):.3f}"
        element = ElementTree.SubElement(suite, "testcase", classname=gate, name=_clean(case.name), time=share)
        said = _clean(case.said)
        if case.verdict == "passed":
            ElementTree.SubElement(element, "system-out").text = said
        else:
            ElementTree.SubElement(element, case.verdict, message=said).text = said
    ElementTree.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ElementTree.tostring(root, encoding='unicode')}\n"


def _clean(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
