"""JUnit XML of gates: what CI hosts read of it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from togi.cli.output import junit_report
from togi.core.errors import OutputExistsError, SubjectError
from togi.decide.gate import Answer, Case
from togi.render.junit import junit_xml

CASES = (
    Case(name="a.togi", said="Proven: 2.00x the speed."),
    Case(name='b "<&>.togi', said="it is wrong:\x1b[31m \ufffd é 1 < 2", answer=Answer.FAILED),
    Case(name="c.togi", said="it could not be run", answer=Answer.ERROR),
)


def test_every_case_with_its_answer() -> None:
    suite = ElementTree.fromstring(junit_xml("togi verify", CASES, 6.0).encode())[0]
    assert suite.attrib.pop("timestamp").startswith("20")
    counts = {"tests": "3", "failures": "1", "errors": "1", "skipped": "0"}
    assert suite.attrib == {"name": "togi verify", "time": "6.000", **counts}
    passed, failed, ended = suite
    assert [case.attrib for case in suite] == [
        {"classname": "togi verify", "name": case.name, "time": "2.000"} for case in CASES
    ]
    assert (passed[0].tag, passed[0].text) == ("system-out", "Proven: 2.00x the speed.")
    said = "it is wrong:\ufffd[31m \ufffd é 1 < 2"  # some hosts show the message, some the text
    assert (failed[0].tag, failed[0].get("message"), failed[0].text) == ("failure", said, said)
    assert (ended[0].tag, ended[0].text) == ("error", "it could not be run")


def test_what_cannot_be_told_is_an_error_and_where_it_is_let_pass_skipped() -> None:
    case = Case(name="a", said="the figures do not decide", answer=Answer.UNDECIDED)
    for undecided, kind in ((1, "error"), (77, "error"), (0, "skipped")):
        suite = ElementTree.fromstring(junit_xml("togi bench", [case], 1.0, undecided).encode())[0]
        assert suite[0][0].tag == kind
        assert (suite.get("errors"), suite.get("skipped")) == ("01"[kind == "error"], "01"[kind == "skipped"])


def test_an_error_is_in_the_report_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    with pytest.raises(SubjectError), junit_report(path, "togi bench", "a / b"):
        raise SubjectError("there is no a")
    (case,) = ElementTree.parse(path).getroot()[0]
    assert case.get("name") == "a / b"
    assert case[0].get("message") == "there is no a"


def test_a_report_of_before_is_not_taken_for_one_of_this_run(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(junit_xml("togi verify", CASES[:1], 1.0), encoding="utf-8")
    with pytest.raises(KeyboardInterrupt), junit_report(path, "togi verify", "a.togi"):
        raise KeyboardInterrupt
    assert not path.exists()


def test_an_unwritable_junit_path_is_reported_before_anything_is_measured(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputExistsError, match="does not exist"),
        junit_report(tmp_path / "no" / "junit.xml", "togi verify", "a.togi"),
    ):
        pytest.fail("it was measured")
    with junit_report(None, "togi verify", "a.togi") as cases:
        cases.append(CASES[0])
    assert not list(tmp_path.iterdir())
