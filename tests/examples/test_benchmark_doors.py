"""The benchmarks of doors, of embeddings and of ``togi run``: what they run, and their tables."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from benchmarks import doors, embeddings, run_overhead

from togi.core.records import Interval
from togi.script.records import INDEX, ModuleIdentity, ScriptIndex, TunedModule


def test_a_missing_package_is_a_skipped_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doors.DOORS, "timm", doors.Door("togi tune", ("-c", "1 / 0"), ("no_such_package",)))
    row = doors.opened("timm", 10)
    assert row.said == "skipped: no_such_package is not installed"
    assert "| timm | togi tune | 0 | skipped: no_such_package is not installed |" in doors.table([asdict(row)])


def test_a_door_that_fails_is_a_row_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doors.DOORS, "timm", doors.Door("togi tune", ("-c", "print('{limit}'); 1 / 0")))
    row = doors.opened("timm", 10)
    assert row.said == "exit 1: ZeroDivisionError: division by zero"
    assert row.whole_s > 0
    assert "within 90 s of the command on 0 of 1." in doors.table([asdict(row)])


def test_a_door_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "_BEYOND_S", 0.0)
    monkeypatch.setitem(doors.DOORS, "timm", doors.Door("togi tune", ("-c", "import time; time.sleep(60)")))
    row = doors.opened("timm", 1)
    assert "not over" in row.said
    assert row.whole_s < 30


def test_the_table_of_doors_counts_what_gained_in_time() -> None:
    quick = asdict(doors.Row("a", "togi tune", 60.0, [1.5, 2.0, 2.5], measured="here"))
    late = asdict(doors.Row("b", "togi tune", 99.0, [1.5, 2.0, 2.5], measured="here"))
    same = asdict(doors.Row("c", "togi tune", 50.0, measured="here"))
    table = doors.table([quick, late, same])
    assert "| a | togi tune | 60 | 2.00 x (1.50 to 2.50) |" in table
    assert "| c | togi tune | 50 | nothing faster |" in table
    assert "on 1 of 3, 2.00 x in the geometric mean" in table


def test_the_table_of_embeddings() -> None:
    togi = embeddings.Row("togi", 5000, 50.0, [1.9, 2.0, 2.1], 0.9999999, 91.0, [159, 160], measured="here")
    lacking = embeddings.Row("onnx", 5000, ready_s=3.0, failed="no optimum", measured="here")
    table = embeddings.table([asdict(togi), asdict(lacking)])
    assert "| togi | 100 | 2.00 x (1.90 to 2.10) | 0.9999999 | 91 |" in table
    assert "| onnx | - | skipped: no optimum | | 3 |" in table
    assert "Engines served 159 of 160 calls." in table


def test_artifacts_are_put_into_the_guides_script_by_hand(tmp_path: Path) -> None:
    (tmp_path / "classify.py").write_text(doors.script(), encoding="utf-8")
    tuned = tmp_path / "classify.py.togi"
    tuned.mkdir()
    (tuned / INDEX).write_text(index("Encoder", "Head").model_dump_json(), encoding="utf-8")
    text = (tmp_path / run_overhead._by_hand("classify.py", tuned, tmp_path)).read_text(encoding="utf-8")
    compile(text, "by_hand.py", "exec")
    assert "    togi.optimize(encoder, using='classify.py.togi/Encoder.togi')\n" in text
    assert "    togi.optimize(head, using='classify.py.togi/Head.togi')\n" in text


def test_where_nothing_was_faster_there_is_nothing_to_serve(tmp_path: Path) -> None:
    tuned = tmp_path / "classify.py.togi"
    tuned.mkdir()
    (tuned / INDEX).write_text(index().model_dump_json(), encoding="utf-8")
    with pytest.raises(run_overhead.Failed, match="nothing was faster"):
        run_overhead._by_hand("classify.py", tuned, tmp_path)


def index(*modules: str) -> ScriptIndex:
    tuned = [
        TunedModule(
            identity=ModuleIdentity(module=name, settings="", code="", weights=""),
            share=0.5,
            artifact=f"{name}.togi",
            speedup_x=Interval(median=2.0, low=1.9, high=2.1),
        )
        for name in modules
    ]
    return ScriptIndex(togi_version="0", created="2026-11-27", script="classify.py", modules=tuple(tuned))


def test_ways_take_turns_and_the_first_round_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("open('times', 'a').write('x')", encoding="utf-8")
    way = (["x.py"], run_overhead.SOURCE)
    times = run_overhead.raced({"without": way, "togi": way}, tmp_path, 2)
    assert [len(each) for each in times.values()] == [2, 2]
    assert (tmp_path / "times").read_text(encoding="utf-8") == "x" * 6


def test_the_table_of_overhead() -> None:
    watched = run_overhead.Row(
        "short", "watched", "20 calls", 2.0, 0.06, [1.02, 1.03, 1.04], [1.1, 1.2, 1.3], measured="here"
    )
    failed = run_overhead.Row("served", "served", "60 batches", said="nothing was faster", measured="here")
    table = run_overhead.table([asdict(watched), asdict(failed)])
    assert "| 20 calls | watched | 2.00 | 0.06 | 1.030 x (1.020 to 1.040) | 1.200 x (1.100 to 1.300) |" in table
    assert "| 60 batches | served | 0.00 | 0.00 | nothing was faster | - |" in table
    assert "watched: at most 5% over the plain script on 1 of 1." in table
