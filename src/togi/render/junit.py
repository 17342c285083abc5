"""JUnit XML, the form in which CI hosts show the tests of a run: what a gate let pass, and what it did not.

Nobody has specified it. This holds what Jenkins and GitLab read of it; GitLab shows the text of a failure and not its
``message``, others only that, so it stands in both. Source: https://docs.gitlab.com/ci/testing/unit_test_reports
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal
from xml.etree import ElementTree

from typing_extensions import assert_never

from togi.core.records import now
from togi.decide.gate import FINDING, Answer, Case

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot say, such as the colours of a terminal in a traceback."""


_Kind = Literal["passed", "failure", "error", "skipped"]


def junit_xml(gate: str, cases: Sequence[Case], seconds: float, undecided: int = FINDING) -> str:
    """One test for each case.

    Args:
        seconds: of all cases together; each has its share, since they took turns.
        undecided: the exit code if the figures do not decide: an error, or at 0, where it is let pass, skipped.
    """
    kinds = [_kind(case.answer, undecided) for case in cases]
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=gate,
        tests=str(len(cases)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        skipped=str(kinds.count("skipped")),
        time=f"{seconds:.3f}",
        timestamp=now(),
    )
    for case, kind in zip(cases, kinds, strict=True):
        share = f"{seconds / len(cases):.3f}"
        element = ElementTree.SubElement(suite, "testcase", classname=gate, name=_clean(case.name), time=share)
        said = _clean(case.said)
        if kind == "passed":
            ElementTree.SubElement(element, "system-out").text = said
        else:
            ElementTree.SubElement(element, kind, message=said).text = said
    ElementTree.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ElementTree.tostring(root, encoding='unicode')}\n"


def _kind(answer: Answer, undecided: int) -> _Kind:
    match answer:
        case Answer.PASSED:
            return "passed"
        case Answer.FAILED:
            return "failure"
        case Answer.ERROR:
            return "error"
        case Answer.UNDECIDED:
            return "error" if undecided else "skipped"
        case _:
            assert_never(answer)


def _clean(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
