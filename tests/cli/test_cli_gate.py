"""``togi bench`` as a gate: every form of the answer says the same."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.render.made_up_intervals import intervals, shares
from togi import api
from togi.cli.app import run
from togi.core.records import Interval, Outcome
from togi.decide.faster import BETWEEN_PROCESSES
from togi.decide.gate import Answer, Case, exit_code
from togi.machine.describe import machine
from togi.render.json import comparison_json, dumps
from togi.study.comparison import Comparison
from togi.study.contestants import Contestant

JUNIT = {Answer.PASSED: "system-out", Answer.FAILED: "failure", Answer.ERROR: "error"}


@st.composite
def comparisons(draw: st.DrawFn) -> Comparison:
    one = Interval(median=1, low=1, high=1)
    made = [Contestant(name="a", latency_ms=one)]
    for name in "bcd"[: draw(st.integers(1, 3))]:
        outcome = draw(st.sampled_from([Outcome.OK] * 5 + [Outcome.CRASHED]))
        measured = outcome is Outcome.OK and draw(st.integers(0, 5)) > 0
        speedup_x = draw(intervals()) if measured else None
        latency_ms = one if measured else None
        made.append(Contestant(name=name, outcome=outcome, latency_ms=latency_ms, speedup_x=speedup_x))
    return Comparison(contestants=tuple(made), verdict="as it came out", machine=machine())


def shown(found: Comparison, *options: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``togi bench``."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(api, "bench", return_value=found),
        mock.patch.dict("os.environ", {"COLUMNS": "200"}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run(["bench", *(each.name for each in found.contestants), *options])
    return code, out.getvalue(), err.getvalue()


@pytest.mark.thorough
@settings(max_examples=30, deadline=None)
@given(comparisons(), shares | st.none(), st.sampled_from([0, 1, 77]), st.booleans())
def test_table_text_exit_code_junit_and_json_say_the_same(
    found: Comparison, share: float | None, undecided: int, against: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        xml, base = Path(folder) / "junit.xml", Path(folder) / "base.json"
        options = ["--exit-undecided", str(undecided), "--junit", str(xml)]
        if share is not None:
            options += ["--fail-if-slower", repr(share)]
        measured = all(each.speedup_x is not None for each in found.contestants[1:])
        if share is not None and against and measured:
            base.write_text(dumps(comparison_json(found)), encoding="utf-8")
            options += ["--against", str(base)]
        code, table, said = shown(found, *options)
        (suite,) = ElementTree.parse(xml).getroot()
        json_code, text, _ = shown(found, *options, "--json")
    document: dict[str, Any] = json.loads(text)
    gate = [Case.model_validate(each) for each in document["gate"]]
    assert code == json_code == document["exit_code"] == exit_code(gate, undecided)
    assert [case.name for case in gate] == [each.name for each in found.contestants]
    kinds = JUNIT | {Answer.UNDECIDED: "error" if undecided else "skipped"}
    assert [(each.get("name"), each[0].tag, each[0].text) for each in suite] == [
        (case.name, kinds[case.answer], case.said) for case in gate
    ]
    for each, case, written in zip(found.contestants[1:], gate[1:], document["contestants"][1:], strict=True):
        assert (case.answer is Answer.ERROR) == (each.speedup_x is None)
        assert (case.answer in (Answer.FAILED, Answer.UNDECIDED)) == (case.said in said)
        if each.speedup_x is not None:
            assert written["speed"] == BETWEEN_PROCESSES.speed(each.speedup_x)
            assert written["speed"] in table
        if share is None:
            assert case.answer in (Answer.PASSED, Answer.ERROR)
    assert (code == 0) == (suite.get("errors") == suite.get("failures") == "0")
