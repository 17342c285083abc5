"""bench, report, explain and doctor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

import togi.doctor
from tests.render.made_up_study import machine, made_up_study
from togi import api
from togi.cli.app import run
from togi.core.errors import JournalError
from togi.core.records import Interval, Outcome, Study
from togi.decide.gate import Answer
from togi.doctor import Check, Level
from togi.journal import Journal
from togi.journal.store import StudyEntry
from togi.study.comparison import Comparison, Verification
from togi.study.contestants import BestSize, Contestant


def comparison(outcome: Outcome = Outcome.OK, speedup_x: float | None = 1.0) -> Comparison:
    ten = Interval(median=10, low=9.9, high=10.1)
    speed = speedup_x and Interval(median=speedup_x, low=speedup_x * 0.99, high=speedup_x * 1.01)
    second = Contestant(name="b", outcome=outcome, latency_ms=ten, speedup_x=speed)
    return Comparison(
        contestants=(Contestant(name="a", latency_ms=ten), second),
        verdict="no difference",
        machine=machine(),
    )


def junit(path: Path) -> list[tuple[str | None, str]]:
    """Name and verdict of each case."""
    return [(case.get("name"), case[0].tag) for case in ElementTree.parse(path).getroot()[0]]


@pytest.mark.parametrize(
    ("outcome", "speedup_x", "code"), [(Outcome.OK, 1.0, 0), (Outcome.FAILED, None, 1), (Outcome.OK, None, 1)]
)
def test_bench_passes_its_options_on_and_exits_by_the_outcome(
    outcome: Outcome,
    speedup_x: float | None,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    called: dict[str, Any] = {}

    def fake(*subjects: str, **settings: Any) -> Comparison:
        called.update(settings, subjects=subjects)
        return comparison(outcome, speedup_x)

    monkeypatch.setattr(api, "bench", fake, raising=False)
    assert run(["bench", "a", "b", "--seed", "3", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "comparison"
    assert [c["name"] for c in document["contestants"]] == ["a", "b"]
    assert (called["subjects"], called["seed"], called["device"]) == (("a", "b"), 3, None)
    assert run(["bench", "a", "b", "--junit", str(tmp_path / "junit.xml")]) == code
    assert "no difference" in capsys.readouterr().out
    assert junit(tmp_path / "junit.xml") == [("a", "system-out"), ("b", "error" if code else "system-out")]


@pytest.mark.parametrize(("median", "code"), [(0.5, 1), (1.0, 0)])
def test_bench_fails_where_one_is_slower_than_allowed(
    median: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(api, "bench", lambda *_, **__: comparison())
    assert run(["bench", "a", "b", "--json"]) == 0
    base = tmp_path / "base.json"
    base.write_text(capsys.readouterr().out, encoding="utf-8")
    monkeypatch.setattr(api, "bench", lambda *_, **__: comparison(speedup_x=median))
    for options in (["--fail-if-slower", "5%"], ["--fail-if-slower", "5%", "--against", str(base)]):
        assert run(["bench", "a", "b", *options, "--junit", str(tmp_path / "junit.xml")]) == code
        assert junit(tmp_path / "junit.xml") == [("a", "system-out"), ("b", "failure" if code else "system-out")]
        assert ("b is slower than" in capsys.readouterr().err) == bool(code)
    assert run(["bench", "a", "b"]) == 0
    assert run(["bench", "a", "b", "--against", str(base)]) == 2
    assert "--fail-if-slower" in capsys.readouterr().err


def test_what_was_measured_is_shown_also_where_the_earlier_one_is_of_something_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = comparison()
    monkeypatch.setattr(api, "bench", lambda *_, **__: made)
    assert run(["bench", "a", "b", "--json"]) == 0
    base = tmp_path / "base.json"
    base.write_text(capsys.readouterr().out, encoding="utf-8")
    options = ["--fail-if-slower", "5%", "--against", str(base)]
    elsewhere = made.machine.model_copy(update={"cpu_model": "another"})
    monkeypatch.setattr(api, "bench", lambda *_, **__: made.model_copy(update={"machine": elsewhere}))
    assert run(["bench", "a", "b", *options]) == 0
    said = capsys.readouterr().err
    assert "The earlier comparison was made under other conditions: cpu_model: 'another' here" in said
    monkeypatch.setattr(api, "bench", lambda *_, **__: made.model_copy(update={"callers": 4}))
    assert run(["bench", "a", "b", *options]) == 2
    shown = capsys.readouterr()
    assert "no difference" in shown.out
    assert "the earlier comparison is of calls, and this one of calls by 4 at once: compare the same" in shown.err


@pytest.mark.parametrize(("batch", "code"), [(8, 0), (None, 1)])
def test_bench_of_batch_sizes_fails_where_one_has_no_best(
    batch: int | None, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: dict[str, Any] = {}
    best = (BestSize(name="a", batch=8, verdict="so"), BestSize(name="b", batch=batch, verdict="or so"))

    def fake(*_: str, **settings: Any) -> Comparison:
        called.update(settings)
        return comparison(Outcome.REFUSED, None).model_copy(update={"best": best})

    monkeypatch.setattr(api, "bench", fake)
    options = ["--batch-sizes", "4,8", "--max-latency", "20ms", "--junit", str(tmp_path / "junit.xml")]
    assert run(["bench", "a", "b", *options]) == code
    assert (called["batch_sizes"], called["max_latency"]) == ((4, 8), 0.02)
    assert junit(tmp_path / "junit.xml") == [("a", "system-out"), ("b", "error" if code else "system-out")]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--batch-sizes", "4,x"], "'4,x' is not a list of whole numbers"),
        (["--batch-sizes", "4"], "at least two"),
        (["--batch-sizes", "4,8", "--fail-if-slower", "5%"], "leave out --batch-sizes"),
        (["--max-latency", "20ms"], "give several batch sizes too"),
    ],
)
def test_options_of_batch_sizes_that_ask_for_nothing(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "a.py:f", *options]) == 2
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize("answer", Answer)
def test_verify_passes_its_options_on_and_exits_by_the_answer(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    called: dict[str, Any] = {}

    def fake(artifact: Path, **settings: Any) -> Verification:
        called.update(settings, artifact=artifact)
        return Verification(
            artifact="b",
            subject="a",
            answer=answer,
            outcome=Outcome.OK,
            verdict="as it came out",
            comparison=comparison(),
        )

    monkeypatch.setattr(api, "verify", fake)
    command = ["verify", "b.togi", "--subject", "a", "--max-error", "1%", "--time-limit", "5s"]
    proven, undecided = answer is Answer.PASSED, answer is Answer.UNDECIDED
    assert run([*command, "--json"]) == (0 if proven else 1)
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["proven"], document["answer"]) == ("verification", proven, answer)
    assert document["exit_code"] == (0 if proven else 1)
    assert document["comparison"]["kind"] == "comparison"
    assert (called["artifact"], called["subject"]) == (Path("b.togi"), "a")
    assert (called["max_error"], called["max_drop"], called["time_limit_s"]) == (0.01, None, 5.0)
    assert run([*command, "--junit", str(tmp_path / "junit.xml")]) == (0 if proven else 1)
    assert "as it came out" in capsys.readouterr().out
    kind = {Answer.PASSED: "system-out", Answer.FAILED: "failure"}.get(answer, "error")
    assert junit(tmp_path / "junit.xml") == [("b", kind)]
    for code in (0, 77):
        asked = [*command, "--exit-undecided", str(code), "--junit", str(tmp_path / "junit.xml")]
        assert run(asked) == (0 if proven else code if undecided else 1)
        assert junit(tmp_path / "junit.xml") == [("b", "skipped" if undecided and code == 0 else kind)]


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Study:
    study = made_up_study()

    def fake(id: str | None, journal: Path | None) -> Study:
        assert journal is None
        if id not in (None, study.id):
            raise JournalError(f"there is no study '{id}'")
        return study

    monkeypatch.setattr(api, "read_study", fake)
    return study


def test_report_as_text_json_and_html(stored: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report"]) == 0
    assert "bf16 + no_grad" in capsys.readouterr().out
    assert run(["report", stored.id, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == stored.id
    assert run(["report", stored.id, "--html", str(tmp_path / "r.html")]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "r.html" in captured.err
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_a_script_of_a_study_without_a_choice_asks_for_the_recipe(
    stored: Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api, "read_study", lambda *_: stored.model_copy(update={"best": None}))
    assert run(["report", "--repro", str(tmp_path / "script")]) == 2
    assert "nothing was chosen in this study: give --recipe" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("stored")
def test_report_of_an_unknown_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "nope"]) == 2
    assert "there is no study 'nope'" in capsys.readouterr().err


def test_report_lists_the_studies_of_a_journal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = StudyEntry(id="5f2c", subject="m.py:f", started="2026-11-21T03:12:45Z", trials=18, verdict="3.1x the speed")
    held: list[StudyEntry] = [entry]

    @contextmanager
    def opened(*_: Any, **__: Any) -> Iterator[Any]:
        yield SimpleNamespace(studies=lambda: held)

    monkeypatch.setattr(Journal, "open", opened)
    assert run(["report", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(part in shown for part in ("5f2c", "2026-11-21 03:12", "m.py:f", "18 trials", "3.1x the speed"))
    assert run(["report", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["studies"][0]["id"] == "5f2c"
    long = "It is faster. " * 30
    held += [entry.model_copy(update={"verdict": long}), entry.model_copy(update={"id": "7a7a", "part": True})]
    assert run(["report", "--list"]) == 0
    shown = capsys.readouterr().out
    assert "7a7a" not in shown
    assert "and 1 more, of parts of programs" in shown
    assert "..." in shown
    assert len(shown.splitlines()) == 6, "two lines a study"
    held.clear()
    assert run(["report", "--list"]) == 1
    assert "no studies yet" in capsys.readouterr().out


@pytest.mark.usefixtures("stored")
def test_a_setting_without_effect_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    run(["report", "--seed", "3"])
    assert "--seed has no effect here" in capsys.readouterr().err


def test_explain_lists_every_technique_by_stage(capsys: pytest.CaptureFixture[str]) -> None:
    from togi.techniques import all_remedies

    assert run(["explain", "--json"]) == 0
    pages = json.loads(capsys.readouterr().out)["techniques"]
    assert [page["id"] for page in pages] == list(all_remedies())
    assert run(["explain"]) == 0
    shown = capsys.readouterr().out
    assert all(id in shown for id in all_remedies())


def test_explain_prints_the_page_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "no_grad"]) == 0
    shown = capsys.readouterr().out
    for heading in ("What it does", "When it applies", "When it refuses", "Claim", "Source", "Cost and risk"):
        assert f"\n{heading}\n" in shown
    assert "it can run" in shown
    assert "``" not in shown


def test_explain_says_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from togi.techniques import Package, technique

    absent = Package(distribution="no-such-distribution", extra="onnx")
    monkeypatch.setattr(type(technique("no_grad")), "packages", (absent,))
    assert run(["explain", "no_grad"]) == 0
    shown = capsys.readouterr().out
    assert "no-such-distribution is not installed" in shown
    assert "pip install 'togi[onnx]'" in shown
    assert run(["explain", "no_grad", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)["technique"]
    assert page["fixes"] == ["pip install 'togi[onnx]'"]


@pytest.mark.parametrize(
    ("level", "code"), [(Level.OK, 0), (Level.OPTIONAL, 0), (Level.WARNING, 0), (Level.MISSING, 1)]
)
def test_doctor_fails_only_when_something_needed_is_missing(
    level: Level, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check = Check(topic="compiler", name="C++", level=level, found="none", why="needed", fix="apt-get install g++")
    monkeypatch.setattr(togi.doctor, "examine", lambda _device: (check,))
    assert run(["doctor"]) == code
    assert "apt-get install g++" in capsys.readouterr().out
    assert run(["doctor", "--json"]) == code
    (found,) = json.loads(capsys.readouterr().out)["checks"]
    assert found["level"] == level.value
    assert found["fix"] == "apt-get install g++"
