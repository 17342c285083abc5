"""The sweep of ``python -m benchmarks.gpu``: what becomes of parts that end, crash, hang or have no time; its table.

Its parts themselves run on the CPU, but for those that tell something on a quiet machine alone."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
import venv
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks import gpu, gpu_jobs, gpu_models, gpu_rows, gpu_wheels
from benchmarks.gpu_jobs import Job
from benchmarks.gpu_parts import budgets, claims, engines, graphs, memory, ops, row, seeds, tests, timer, tune
from packaging.requirements import Requirement

import togi
from togi.lint.roofline.devices import Bandwidth, Figures
from togi.render import proven_table
from togi.render.proven_table import BEGIN, BEGIN_SENTENCE, END, END_SENTENCE
from togi.techniques import all_techniques
from togi.techniques.registry import all_marks

ROOT = Path(__file__).parents[2]
ROW = {"row": "one", "result": "pass", "figure": "a | b", "bound": "", "seconds": 0.1}


def job(part: str, **more: Any) -> Job:
    return Job(part=part, **{"expected_s": 1, "limit_s": 20, **more})


def program(code: str) -> list[str]:
    return [sys.executable, "-c", f"import sys, time, os, json; row = {ROW!r}\n{code}"]


def test_rows_are_there_when_a_part_crashes_and_the_crash_is_one_more(tmp_path: Path) -> None:
    code = "print('noise'); print(json.dumps(row)); sys.stderr.write('first\\nthe last words\\n'); sys.exit(3)"
    rows = list(gpu.run_part(job("engines"), program(code), 20, tmp_path / "log"))
    assert [(row["part"], row["row"], row["result"]) for row in rows] == [
        ("engines", "one", "pass"),
        ("engines", "the process", "fail"),
    ]
    assert rows[1]["figure"] == "exit status 3: the last words"
    assert "first" in (tmp_path / "log").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_a_part_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    code = (
        "print(json.dumps(row), flush=True); pid = os.fork()\n"
        f"open({str(tmp_path / 'pid')!r} + str(pid > 0), 'w').write(str(os.getpid()))\n"
        "time.sleep(60)"
    )
    began = time.monotonic()
    rows = list(gpu.run_part(job("timer"), program(code), 5, tmp_path / "log"))
    assert time.monotonic() - began < 20
    assert [row["result"] for row in rows] == ["pass", "fail"]
    assert rows[1]["figure"] == "ended at its limit of 5 s"
    assert 'File "<string>", line 4 in <module>' in (tmp_path / "log").read_text(encoding="utf-8"), "where it hung"
    child = int((tmp_path / "pidFalse").read_text(encoding="utf-8"))
    while is_running(child):  # it lets go of its output a moment before it is gone
        assert time.monotonic() - began < 20
        time.sleep(0.05)


def swept(tmp_path: Path, jobs: list[Job], *, budget: float = 30, beside: int = 2, before: Any = ()) -> list[dict]:
    options = SimpleNamespace(
        out=tmp_path, budget=budget, device="cpu", beside=beside, models=None, commit="abc", resume=None
    )
    return list(gpu.Sweep(jobs, options, before).rows())


def python_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str) -> None:
    monkeypatch.setattr(gpu.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
    (tmp_path / "python").chmod(0o755)


def test_a_part_that_the_budget_cuts_off_is_skipped_and_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_that(monkeypatch, tmp_path, "exec sleep 60")
    kept = sum(gpu_jobs.KEPT_S.values())
    (row,) = swept(tmp_path, [job("timer")], budget=kept + 2)
    assert row["result"] == "skip"
    assert row["figure"] == f"the budget of {kept + 2:g} s was over after 2 s of it: --resume goes on"


def begins(name: str) -> str:
    return json.dumps({gpu_rows.BEGINS: {"row": name, "bound": "right", "proves": ["eager"]}})


@pytest.mark.parametrize(("status", "crashed"), [(3, [("one", "fail", "exit status 3: ")]), (gpu_rows.DEVICE_LOST, [])])
def test_a_row_that_ends_its_process_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, crashed: list[Any]
) -> None:
    """The others run in a fresh one. Of a device that was lost, the row that did it has told of itself."""
    before, after = (json.dumps({**ROW, "row": name, "figure": "ran"}) for name in ("zero", "two"))
    does = f"""
    case "$*" in
      *one*) echo '{begins("two")}'; echo '{after}';;
      *) echo '{before}'; echo '{{it is no row'; echo '{{"nor": 1}}'; echo '{begins("one")}'; exit {status};;
    esac"""
    if status == gpu_rows.DEVICE_LOST:
        does = does.replace(begins("one"), before.replace("zero", "one"))
        crashed = [("one", "pass", "ran")]
    python_that(monkeypatch, tmp_path, does)
    rows = swept(tmp_path, [job("engines", expected_s=0)])
    assert [(row["row"], row["result"], row["figure"]) for row in rows] == [
        ("zero", "pass", "ran"), *crashed, ("two", "pass", "ran")
    ]  # fmt: skip
    if status == 3:
        assert (rows[1]["bound"], rows[1]["proves"]) == ("right", ["eager"]), "its mark goes"


def test_a_row_that_ends_its_process_late_leaves_the_others_to_another_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_that(monkeypatch, tmp_path, f"echo '{begins('one')}'; exit 3")
    rows = swept(tmp_path, [job("engines", expected_s=5, limit_s=1)])
    assert names(rows) == [("one", "fail"), ("the process", "skip")]
    assert re.match(r"one ended the process, and [345] s were left for another", rows[1]["figure"])


def test_a_row_that_is_at_the_limit_is_named(tmp_path: Path) -> None:
    code = f"print({begins('one')!r}, flush=True); time.sleep(60)"
    rows = list(gpu.run_part(job("timer"), program(code), 2, tmp_path / "log"))
    assert names(rows) == [("one", "fail"), ("the process", "skip")]
    assert rows[0]["figure"] == "ended at its limit of 2 s"
    assert rows[1]["figure"] == "what comes after one was not run: --resume goes on"


def test_what_need_not_be_run_again_is_not_expected_to_take_its_time() -> None:
    before = [*rows_of("engines", "a one", "a two", seconds=40.0), *rows_of("engines", "b", seconds=70.0)]
    before += rows_of("engines", "a three", result="fail", seconds=30.0)
    every, some = job("engines", expected_s=200), job("engines", rows="a ", expected_s=100)
    assert gpu_jobs.left_of(every, []) == every
    assert gpu_jobs.left_of(every, before).expected_s == 50
    assert gpu_jobs.left_of(some, before).expected_s == 20
    assert gpu_jobs.left_of(job("engines", rows="b", expected_s=60), before).expected_s == gpu_jobs.START_S
    assert gpu_jobs.left_of(job("timer", expected_s=4), before).expected_s == 4


def test_jobs_next_to_each_other_overlap_and_the_others_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that may wait for each other before they end, at most 20 s; the others say how many run. Three files come
    out, with what each process said."""
    folder = tmp_path / "running"
    folder.mkdir()
    line = json.dumps(ROW).replace("a | b", "'\"$met\"'")
    does = f"""
    touch {folder}/$3; met=$(ls {folder} | wc -l)
    case $3 in engines|numerics)
      for n in $(seq 200); do [ -e {folder}/engines ] && [ -e {folder}/numerics ] && break; sleep 0.1; done
      met=$(ls {folder} | wc -l); sleep 1;;
    esac
    echo '{line}'; echo to the log >&2; rm {folder}/$3"""
    python_that(monkeypatch, tmp_path, does)
    jobs = [job("engines", beside=True), job("numerics", beside=True), job("timer"), job("memory")]
    rows = swept(tmp_path, jobs)
    told = {row["part"]: (row["figure"].strip(), row.get("beside", False)) for row in rows}
    assert told == {"engines": ("2", True), "numerics": ("2", True), "timer": ("1", False), "memory": ("1", False)}
    log = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert all(f"==== {each.name}\nto the log" in log for each in jobs)
    assert {row["commit"] for row in rows} == {"abc"}


def test_a_later_call_runs_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [
        *rows_of("memory", "passed"),
        *rows_of("memory", "failed", result="fail"),
        *rows_of("memory", gpu_rows.PROCESS, result="skip"),
        *rows_of("timer", "other"),
    ]
    assert gpu_rows.done(before, "memory") == ["passed"]
    assert gpu_rows.done([*before, *rows_of("memory", "failed")], "memory") == ["passed", "failed"]
    line = json.dumps(ROW).replace("a | b", "'\"$*\"'").replace("one", "new")
    python_that(monkeypatch, tmp_path, f"printf '%s\\n' '{line}' | sed 's/\\[\"passed\"\\]/passed-is-known/'")
    (row,) = swept(tmp_path, [job("memory", rows="a.*")], before=before)
    assert "--rows a.* --known passed-is-known" in row["figure"]
    assert row["partial"]


def test_rows_that_were_not_asked_for_are_not_run() -> None:
    row.ask_for("o(?!h)", ["other"])
    try:
        found = [row.attempt(name, "", lambda: (True, "ran"), proves=("eager",)) for name in ("one", "oh", "other")]
    finally:
        row.ask_for("")
    assert [each["result"] for each in found] == ["pass", row.LEFT_OUT, row.LEFT_OUT]
    assert {tuple(each["proves"]) for each in found} == {("eager",)}


def every_row_on_cuda(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Those that a sweep of a device could run, by part, without running one."""
    of_cpu = engines.subject_of("perceptron", "cpu")
    on_cuda = of_cpu[0].with_(facts=of_cpu[0].facts.model_copy(update={"device": "cuda"})), of_cpu[1]
    monkeypatch.setattr(engines, "subject_of", lambda *_: on_cuda)
    row.ask_for("$^")
    try:
        found = []
        for part in gpu_jobs.PARTS:
            if part not in ("environment", "afterwards"):
                rows = importlib.import_module(f"benchmarks.gpu_parts.{part}").rows("cuda")
                found += [{**each, "part": part} for each in rows]
        return found
    finally:
        row.ask_for("")


def test_every_mark_of_cuda_has_a_row_that_can_prove_it_and_every_row_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = every_row_on_cuda(monkeypatch)
    assert {each["result"] for each in rows} == {row.LEFT_OUT}
    proven = {part for each in rows for part in each.get("proves", ())}
    assert {mark.part for mark in all_marks() if "cuda" in mark.days} == proven
    assert {part for each in rows for part in each.get("speed_of", ())} <= proven
    for each in rows:
        jobs = [one for one in gpu_jobs.JOBS if one.part == each["part"] and re.match(one.rows, each["row"])]
        assert len(jobs) == 1, (each["part"], each["row"], jobs)


def test_what_is_not_proven_names_the_command_that_proves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = every_row_on_cuda(monkeypatch)
    monkeypatch.setattr(proven_table, "proofs", dict)
    monkeypatch.setattr(gpu, "commit", lambda: "abc")
    lines = [line.split(" | ") for line in proven_table.table().splitlines()[2:]]
    cells = {part.strip("| `"): on_cuda for part, _, on_cuda in lines}
    commands = {mark.part: cells[mark.part].split("`")[1] for mark in all_marks() if "cuda" in mark.days}
    options = {}
    for command in set(commands.values()):
        monkeypatch.setattr(sys, "argv", shlex.split(command)[2:])
        options[command] = gpu.parsed()
        assert command.startswith("python -m benchmarks.gpu ")
        assert (ROOT / options[command].docs).is_file()
    for part, command in commands.items():
        proving = {each["part"] for each in rows if part in each.get("proves", ())}
        assert proving & {*options[command].parts}, (part, command, proving)


def test_what_measures_time_or_the_whole_device_runs_alone() -> None:
    alone = {"timer", "memory", "claims", "tune", "seeds"}
    assert not alone & {one.part for one in gpu_jobs.JOBS if one.beside}
    measured = {
        "ops": "match_boxes, time",
        "processes": "pause, resume, kill",
        "graphs": "against an exact graph per size",
        "budgets": "tune --max-memory",
        "tests": "tests of peak memory of a trial",
        "check": "products, time by data sheet",
    }
    for part, name in measured.items():
        assert not any(one.beside and one.part == part and re.match(one.rows, name) for one in gpu_jobs.JOBS), name


def test_what_is_expected_is_reported_with_what_will_not_fit() -> None:
    jobs = [
        job("engines", beside=True, expected_s=30),
        job("numerics", beside=True, expected_s=20),
        job("timer", expected_s=10),
        job("ops", expected_s=50),
        job("tune", expected_s=900, by_row=True),
    ]
    assert str(gpu_jobs.plan(jobs, 78, 8)) == (
        "Expected are 990 s (8 jobs at once where they may), there are 78 s. What will not fit: ops."
    )
    assert "will not fit" not in str(gpu_jobs.plan(jobs, 1000, 8))
    assert gpu_jobs.expected_s(jobs[:2], 1) == 50
    later = [*jobs, job("engines", beside=True, expected_s=100), job("numerics", beside=True, expected_s=20)]
    assert gpu_jobs.expected_s(later, 8) == 990 + 100
    assert str(gpu_jobs.plan([*jobs[:3], *later[-2:]], 98, 8)).endswith("What will not fit: engines.")
    queued = [job("engines", beside=True, expected_s=30) for _ in range(5)]
    assert gpu_jobs.expected_s(queued, 2) == 90
    assert len(gpu_jobs.plan(queued, 78, 2).begun) == 4, "the last would begin after a minute, and end too late"


def test_what_a_device_recorded_says_how_long_a_job_takes_and_when_it_is_ended() -> None:
    recorded = rows_of("engines", "a one", "a two", seconds=40.0)
    of_a = job("engines", rows="a ", expected_s=100, limit_s=150)
    known = gpu_jobs.by_record(of_a, recorded)
    assert known.expected_s == 80 + gpu_jobs.START_S
    assert known.limit_s == gpu_jobs.LIMIT_X * known.expected_s
    assert gpu_jobs.by_record(job("engines", rows="b ", expected_s=100), recorded).expected_s == 100
    assert gpu_jobs.by_record(job("engines", rows="a ", limit_s=900), recorded).limit_s == 900, "what is given is less"
    for more in (
        rows_of("engines", "a three", result="skip", seconds=0.0),
        rows_of("engines", gpu_rows.process_of("a "), result="fail", seconds=150.0),
    ):
        assert gpu_jobs.by_record(of_a, [*recorded, *more]).expected_s == 100, "rows are missing: the estimate"
    assert gpu_jobs.by_record(job("engines", rows="a ", expected_s=100, by_row=True), recorded).expected_s == 100
    untimed = rows_of("engines", "a one", seconds=0.0)
    assert gpu_jobs.by_record(of_a, untimed) == of_a


def recorded_plan(budget_s: float, at_once: int = 8) -> gpu_jobs.Plan:
    recorded = gpu_rows.read_rows(gpu.DATA / "sweep_cuda.jsonl")
    return gpu_jobs.plan([gpu_jobs.by_record(one, recorded) for one in gpu_jobs.JOBS], budget_s, at_once, recorded)


def test_nine_minutes_of_a_device_prove_most_parts_by_estimate() -> None:
    """On a machine like that of the record, with 16 cores."""
    plan = recorded_plan(540)
    assert len(plan.proven) >= 25
    assert plan.takes_s <= 540
    alone_s = sum(one.expected_s for one in plan.begun if not one.beside and not one.by_row)
    assert plan.takes_s >= max(alone_s, *(one.expected_s for one in plan.begun if one.beside))
    marks = {mark.part for mark in all_marks() if "cuda" in mark.days}
    assert plan.proven <= marks
    assert str(plan).endswith(
        f"By estimate {len(plan.proven)} of {len(marks)} parts are proven then, after {plan.takes_s:.0f} s: "
        "those whose rows passed when a device recorded them."
    )
    assert recorded_plan(60).proven < plan.proven, "less time, less proof"


def test_a_job_that_takes_as_long_as_it_was_recorded_is_not_ended() -> None:
    recorded = gpu_rows.read_rows(gpu.DATA / "sweep_cuda.jsonl")
    for one in (gpu_jobs.by_record(each, recorded) for each in gpu_jobs.JOBS):
        assert one.limit_s >= 2 * sum(row["seconds"] for row in gpu_jobs.rows_of(one, recorded)), one.name


def test_a_call_says_first_what_it_will_prove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu.resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(gpu.Sweep, "rows", lambda _: iter(()))
    for device in ("cuda", "cpu"):
        command = ["gpu", "--out", str(tmp_path), "--budget", "540", "--beside", "8", "--device", device]
        monkeypatch.setattr(sys, "argv", command)
        assert gpu.main() == 1, "nothing passed"
        said = capsys.readouterr().err
        assert (str(recorded_plan(540)) in said) is (device == "cuda")
        assert ("By estimate" in said) is (device == "cuda"), "what runs on the CPU proves nothing of CUDA"


def test_what_had_no_result_on_a_device_keeps_nothing_waiting() -> None:
    """A group that runs beside each other ends with its longest job."""
    places = {one.name: at for at, one in enumerate(gpu_jobs.JOBS)}
    late = [at for name, at in places.items() if "aot_inductor" in name or name == "techniques (parts)"]
    alone = [at for at, one in enumerate(gpu_jobs.JOBS) if not one.beside and one.part in ("memory", "seeds", "ops")]
    assert len(late) == 3
    assert min(late) > max(alone)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_the_budget_leaves_no_time_for_is_skipped(tmp_path: Path) -> None:
    rows = swept(tmp_path, [job("timer"), job("tune", rows="vit_b")], budget=0)
    why = "it takes about 1 s, and of the budget of 0 s 0 s were left: --resume goes on"
    assert [(row["row"], row["result"], row["figure"]) for row in rows] == [
        ("the process", "skip", why), ("the process of vit_b", "skip", why)
    ]  # fmt: skip


def rows_of(part: str, *names: str, result: str = "pass", day: str = "2026-12-01", **more: object) -> list[dict]:
    of_run = {"part": part, "device": "cuda", "machine": "Some GPU, driver 1", "date": day, "result": result}
    return [{**ROW, **of_run, "row": name, **more} for name in names]


MARKS = {device: f"<!-- sweep {device}: generated by python -m benchmarks.gpu -->" for device in ("cpu", "cuda")}
PAGE = "\n".join(f"{mark}\nold\n<!-- sweep {device}: end -->" for device, mark in MARKS.items())


def test_the_table_of_one_device_is_rewritten_and_no_other() -> None:
    text = gpu_rows.table(rows_of("timer", "one"), "cuda")
    assert text.splitlines()[0] == "2026-12-01, Some GPU, driver 1:"
    assert text.splitlines()[-1] == "| timer | one | pass | a \\| b |  | 0.1 |"
    written = gpu.with_table(PAGE, text, "cuda")
    assert written.count("old") == 1
    assert written.index("old") < written.index("Some GPU")
    with pytest.raises(ValueError, match="are not both in the page"):
        gpu.with_table("", text, "cuda")


def names(rows: list[dict]) -> list[tuple[str, str]]:
    return [(row["row"], row["result"]) for row in rows]


def test_rows_of_several_calls_are_merged_by_part() -> None:
    order = ("timer", "tune", "ops")
    known = [*rows_of("timer", "a", "gone"), *rows_of("tune", "resnet50", "vit_b"), *rows_of("ops", "nms")]
    again = gpu_rows.merged(known, rows_of("timer", "a", "new", result="fail"), order)
    assert names(again) == [
        ("a", "fail"), ("new", "fail"), ("resnet50", "pass"), ("vit_b", "pass"), ("nms", "pass")
    ]  # fmt: skip
    over = rows_of("ops", gpu_rows.PROCESS, result="skip")
    assert gpu_rows.merged(known, over, order) == known, "a part that had no time replaces nothing"
    assert gpu_rows.merged([], over, order) == over
    cut = [*rows_of("timer", "a", result="fail"), *rows_of("timer", gpu_rows.PROCESS, result="skip")]
    assert names(gpu_rows.merged(known, cut, order))[:3] == [("a", "fail"), ("gone", "pass"), ("the process", "skip")]
    piece = gpu_rows.merged(known, rows_of("tune", "vit_b", result="fail", partial=True), order)
    assert names(piece)[2:4] == [("resnet50", "pass"), ("vit_b", "fail")]
    healed = gpu_rows.merged(gpu_rows.merged(known, cut, order), rows_of("timer", "a", "gone"), order)
    assert healed == known


def test_rows_that_are_brought_back_in_pieces_make_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, found = tmp_path / "gpu.md", tmp_path / "proven.json"
    page.write_text(f"{PAGE}\n{BEGIN}\n{END}\n{BEGIN_SENTENCE}\n{END_SENTENCE}\n", encoding="utf-8")
    found.write_text("{}", encoding="utf-8")
    monkeypatch.setattr(gpu.publish, "__defaults__", (tmp_path, found))
    pieces = [
        rows_of("timer", "first", proves=["eager", "cuda_graph"]),
        [*rows_of("graphs", "second", day="2026-12-02", proves=["eager"]),
         *rows_of("graphs", "third", day="2026-12-02", result="fail", proves=["cuda_graph"])],
    ]  # fmt: skip
    for piece in pieces:
        gpu_rows.write_rows(tmp_path / "rows.jsonl", piece)
        monkeypatch.setattr(sys, "argv", ["gpu", "--rows", str(tmp_path / "rows.jsonl"), "--docs", str(page)])
        assert gpu.main() == 0
    text = page.read_text(encoding="utf-8")
    assert text.index("2026-12-01, Some GPU, driver 1:") < text.index("2026-12-02, Some GPU, driver 1:")
    assert all(f"| {row} |" in text for row in ("timer | first", "graphs | second", "graphs | third"))
    assert "old" in text.partition(MARKS["cuda"])[0], "the CPU's table is left alone"
    assert json.loads(found.read_text(encoding="utf-8")) == {
        "eager": {"cuda": {"date": "2026-12-02", "device": "Some GPU, driver 1", "figure": "second: a | b"}}
    }
    before = text, found.read_text(encoding="utf-8")
    gpu.publish(rows_of("timer", gpu_rows.NO_DEVICE, result="fail"), page)
    assert (page.read_text(encoding="utf-8"), found.read_text(encoding="utf-8")) == before


def test_what_rows_of_a_cpu_prove_is_named_as_the_marks_are() -> None:
    known = {mark.part for mark in all_marks()}
    row.ask_for("$^")
    try:
        for part in (memory, ops, graphs):
            assert {name for each in part.rows("cpu") for name in each["proves"]} <= known
    finally:
        row.ask_for("")


def test_the_last_slice_of_candidates_has_nothing_for_the_second_place() -> None:
    """So that the best k ask a slice that is used up."""
    kernels = pytest.importorskip("togi.ops.kernels.triton_boxes", reason="Triton is not installed")
    slices = min(kernels._PROGRAMS // math.ceil(8 / kernels.BEST_BLOCK[0]), math.ceil(ops.SLICED / kernels._SLICE))
    columns = kernels.BEST_BLOCK[1]
    per_slice = math.ceil(math.ceil(ops.SLICED / slices) / columns) * columns
    assert ops.SLICED % per_slice == 1


@pytest.mark.parametrize(("slow", "result"), [(1, True), (3, False)])
def test_match_boxes_is_timed_next_to_its_own_arithmetic(
    monkeypatch: pytest.MonkeyPatch, slow: int, result: bool
) -> None:
    anchors, boxes = ops.made_boxes(50, "cpu"), ops.made_boxes(7, "cpu")
    torch.testing.assert_close(ops.best_iou(anchors, boxes), togi.ops.match_boxes(anchors, boxes).iou)
    monkeypatch.setattr(ops, "PAIRS", (50, 7))
    monkeypatch.setattr(ops.torch, "compile", lambda call, **_: call)
    monkeypatch.setattr(ops, "made_boxes", lambda count, _: anchors if count == 50 else boxes)

    def turn(call: Any, given: Any, *_: Any, device: str) -> SimpleNamespace:
        assert device == "cuda"
        call(*given[0].args)
        return SimpleNamespace(pass_ms=1.0 if call is ops.best_iou else float(slow))

    monkeypatch.setattr(ops, "take_turn", turn)
    held, figure = ops.beside_its_arithmetic("cuda")
    assert (held, figure) == (result, f"{slow}.00 x, {slow}.00 ms for 50 anchors and 7 boxes")


@pytest.mark.thorough
def test_what_is_made_for_cuda_alone_has_tests_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for_cuda = {mark.part for mark in all_marks() if "cuda" in mark.days and "cpu" not in mark.days}
    assert for_cuda - {"torch_tensorrt"} == set(tests.WITHOUT_A_DEVICE)
    assert all((ROOT / "tests" / file).exists() for files in tests.WITHOUT_A_DEVICE.values() for file in files)
    one = {"tf32": tests.WITHOUT_A_DEVICE["tf32"]}
    monkeypatch.setattr(tests, "WITHOUT_A_DEVICE", one)
    (row,) = tests.rows("cpu")
    assert (row["result"], row["proves"]) == ("pass", ["tf32"]), row
    count, _, ran = row["figure"].removesuffix(" passed").partition(" of ")
    assert int(count) == int(ran) > 0
    case = tests.ElementTree.fromstring("<testcase name='a'><failure/></testcase>")
    assert tests.passed([case]) == (False, "0 of 1 passed; a failed")
    assert tests.passed([]) == (None, "0 of 0 passed"), "what was not collected proves nothing"


@pytest.mark.parametrize("crashes", [True, False])
def test_a_test_that_loses_the_device_fails_no_other_file(monkeypatch: pytest.MonkeyPatch, crashes: bool) -> None:
    """A sticky error fails all tests that come after it in the process; a crash leaves no result of any."""
    ran: list[list[str]] = []

    def tested(*given: str) -> None:
        files = [one for one in given if one.endswith(".py")]
        ran.append(files)
        if crashes and "tests/b.py" in files:
            return
        lost = files.index("tests/b.py") if "tests/b.py" in files else len(files)
        cases = [f"<testcase file='{file}'>{'<failure/>' * (at >= lost)}</testcase>" for at, file in enumerate(files)]
        (told,) = (one for one in given if one.startswith("--junit-xml="))
        Path(told.removeprefix("--junit-xml=")).write_text(f"<all>{''.join(cases)}</all>", encoding="utf-8")

    monkeypatch.setattr(tests, "tested", tested)
    monkeypatch.setattr(tests, "ON_A_DEVICE", {part: (f"{part}.py",) for part in "abcd"})
    assert [row["result"] for row in tests.rows("cuda")] == ["pass", "fail", "pass", "pass"]
    alone = "abcd" if crashes else "cd"
    assert ran[1:] == [[f"tests/{part}.py"] for part in alone]


def test_every_test_that_needs_a_device_is_run_on_one() -> None:
    asked = {file for files in tests.ON_A_DEVICE.values() for file in files}
    paths = (ROOT / "tests").rglob("test_*.py")
    marked = {path for path in paths if re.search(r"pytest\.mark\.gpu\b", path.read_text(encoding="utf-8"))}
    assert {path.relative_to(ROOT / "tests").as_posix() for path in marked} == asked


@pytest.mark.thorough
def test_an_unknown_part_is_named_and_a_missing_device_fails(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path), "--parts"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([*command, "tyme"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "there is no part 'tyme'" in done.stderr
    done = subprocess.run([*command, "memory"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Expected are " in done.stderr
    (row,) = gpu_rows.read_rows(tmp_path / "rows.jsonl")
    assert (row["result"], "sees no CUDA device" in row["figure"]) == ("fail", True)
    done = subprocess.run(
        [*command[:3], "--rows", "nowhere"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--rows needs a file that is there" in done.stderr


def test_what_a_bare_machine_needs_is_what_the_project_asks_for() -> None:
    names = {one.partition(">")[0] for one in gpu_wheels.needed()}
    assert {"pydantic", "safetensors", "typer"} <= names
    assert not names & {"torch", "numpy"}


@pytest.fixture(scope="module")
def bare_machine(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """A Python, and the environment in which it finds torch, what ``gpu_wheels`` packs, and togi's sources: no other
    package, and no metadata of togi."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "python", symlinks=True)
    site = folder / "site"
    site.mkdir()
    for distribution in with_what_they_need("torch", "numpy", *gpu_wheels.needed(), *gpu_wheels.TESTS):
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(str(distribution.locate_file(name)))
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return str(folder / "python" / "bin" / "python"), environment | {"PYTHONPATH": f"{site}:{ROOT / 'src'}"}


def with_what_they_need(*asked: str) -> list[metadata.Distribution]:
    """As pip would install them, but those that are not installed here."""
    found: dict[str, metadata.Distribution] = {}
    left = [Requirement(one) for one in asked]
    while left:
        wanted = left.pop()
        if wanted.name in found or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[wanted.name] = metadata.distribution(wanted.name)
            left += [Requirement(one) for one in found[wanted.name].requires or ()]
    return list(found.values())


@pytest.mark.thorough(30)
@pytest.mark.parametrize("part", ["environment", "tests"])
def test_a_part_runs_where_there_are_sources_torch_and_a_folder_of_wheels(
    part: str, bare_machine: tuple[str, dict[str, str]]
) -> None:
    python, environment = bare_machine
    rows = {"environment": "", "tests": "tests of tf32"}[part]
    command = [python, "-m", "benchmarks.gpu_parts", part, "--device", "cpu", "--rows", rows]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    told = {each["row"]: each for each in found if gpu_rows.BEGINS not in each}
    assert {each["result"] for each in told.values()} == {"pass"}, told
    if part == "environment":
        assert {*told} == {"device", "software", "surroundings", "doctor"}
        _, _, missing = told["software"]["figure"].partition("not installed: ")
        assert {"onnxruntime", "tensorrt"} <= {*missing.split(", ")}, "it finds what lies in the folder alone"
    else:
        assert re.fullmatch(r"([1-9]\d*) of \1 passed", told["tests of tf32"]["figure"])


@pytest.mark.thorough(20)
def test_the_tests_of_a_device_are_imported_where_nothing_else_is_installed(
    bare_machine: tuple[str, dict[str, str]],
) -> None:
    python, environment = bare_machine
    files = sorted({f"tests/{file}" for files in tests.ON_A_DEVICE.values() for file in files})
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "-m", "gpu", *files]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line} == {*files}


def test_what_is_missing_is_named(bare_machine: tuple[str, dict[str, str]]) -> None:
    python, environment = bare_machine
    only_sources = environment | {"PYTHONPATH": str(ROOT / "src")}
    command = [python, "-m", "benchmarks.gpu", "--parts", "environment"]
    done = subprocess.run(command, cwd=ROOT, env=only_sources, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.match(r"No module named '\w+': python -m benchmarks.gpu_wheels DIR packs", done.stderr), done.stderr
    why = "E   ModuleNotFoundError: No module named 'hypothesis'"
    case = tests.ElementTree.fromstring(f"<testcase name='tests.a'><error>{why}</error></testcase>")
    assert tests.passed([case]) == (False, "0 of 1 passed; tests.a failed (No module named 'hypothesis')")


@pytest.mark.thorough(70)
@pytest.mark.timeout(420)
def test_the_parts_pass_on_the_cpu(tmp_path: Path) -> None:
    parts = "environment,processes,memory,numerics,ops,graphs"  # the suite runs what the part "tests" runs
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--out", str(tmp_path), "--parts", parts]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_timer_passes_by_a_clock_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading of the clock takes 2 us: nothing depends on how fast or how quiet the machine is."""
    readings = itertools.count(step=2_000)
    monkeypatch.setattr(timer, "CLOCK", lambda: next(readings))
    rows = list(timer.rows("cpu"))
    assert [row["result"] for row in rows if row["row"] != "a call of 1 ms, by do_bench"] == ["pass"] * 7, rows
    assert {row["row"] for row in rows[-2:]} == {"the same against itself", "5 % planted"}


def with_errors(name: str, bound: str, check: Any, *given: Any, proves: Any = (), speed_of: Any = ()) -> dict[str, Any]:
    """As the parts' ``attempt``, but an error is one of the test."""
    ok, figure = check(*given)
    return {**row.row(name, ok, figure, bound), "proves": list(proves), "speed_of": list(speed_of)}


def test_what_is_claimed_of_cuda_alone_is_skipped_on_the_cpu_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for_cuda = tuple(id for id, one in all_techniques().items() if "cuda" in one.devices and "cpu" not in one.devices)
    assert set(for_cuda) > {"cuda_graph", "tf32"}
    monkeypatch.setattr(claims, "ON_CPU", for_cuda)
    monkeypatch.setattr(claims, "attempt", with_errors)
    rows = list(claims.rows("cpu"))
    both = [(f"{id}, its {what}", "skip") for id in for_cuda for what in ("result", "claim")]
    assert [(row["row"], row["result"]) for row in rows] == both
    assert all("CUDA" in row["figure"] for row in rows), rows


@pytest.mark.thorough
def test_a_predicted_peak_is_the_measured_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes do not depend on the machine's quiet. The rows after it (a fit, a study) take half a minute and more."""
    monkeypatch.setattr(budgets, "attempt", with_errors)
    predicted = next(budgets.rows("cpu"))
    assert (predicted["row"], predicted["result"]) == ("prediction for a pass of resnet50", "pass"), predicted


@pytest.mark.thorough(100)
def test_every_option_of_every_engine_passes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one of the four modules: compilers take seconds for each."""
    monkeypatch.setattr(engines, "MODULES", {engines.ALL_OPTIONS_ON: engines.MODULES[engines.ALL_OPTIONS_ON]})
    rows = list(engines.rows("cpu"))
    assert "fail" not in {row["result"] for row in rows}, rows
    tried = {row["row"].partition(" ")[0] for row in rows}
    assert {"aot_inductor", "onnxruntime", "openvino", "torch_compile"} <= tried
    assert sum(row["row"].startswith("torch_compile") for row in rows) == 4


def test_every_part_has_a_module_and_a_limit() -> None:
    folder = ROOT / "benchmarks" / "gpu_parts"
    found = {path.stem for path in folder.glob("*.py") if "\ndef rows(" in path.read_text(encoding="utf-8")}
    assert found == set(gpu_jobs.PARTS)


def test_the_clocks_have_risen_before_a_known_delay_is_made_of_products() -> None:
    """Twice as slow at first; the clock goes on by what was asked."""
    now = itertools.count(step=0.1)
    told = itertools.chain([2.0] * 5, itertools.repeat(1.0))
    assert timer.steady(lambda: next(told), lambda: next(now)) == 1.0
    never = itertools.cycle([1.0, 2.0])
    assert timer.steady(lambda: next(never), lambda: next(now)) in (1.0, 2.0), "it ends all the same"


@pytest.mark.parametrize("workspace", [32 << 20, 8320 << 10])
def test_the_bound_of_held_memory_leaves_out_what_the_allocator_held_before(
    workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the rules of torch's allocator: cuBLAS's workspace and the small tensors that took it, then 64 MiB."""
    from togi.footprint.prediction.caching_allocator import CachingAllocator

    allocator = CachingAllocator()
    allocator.allocate("workspace", workspace)
    allocator.allocate("warming", 256)
    before = allocator.reserved_bytes
    allocator.allocate("weights", 64 << 20)
    monkeypatch.setattr(memory, "held_before", lambda _: before)
    monkeypatch.setattr(memory.torch, "ones", lambda *_, **__: torch.zeros(8, 8))
    found = SimpleNamespace(idle_bytes=allocator.reserved_bytes, peak_bytes=64 << 20, allocator_peak_bytes=64 << 20)
    monkeypatch.setattr(memory, "mark_memory", lambda _: None)
    monkeypatch.setattr(memory, "measure_footprint", lambda *_, **__: found)
    right, figure = memory.known_memory("cuda")
    assert right, figure
    assert figure.startswith(f"idle 64 beyond {before / 2**20:.0f}")


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        *(("resnet50", 25.6), ("mobilenetv3", 5.5), ("vit_b", 86.6), ("gpt2_step", 124.4), ("bert_base", 108.9)),
        ("retinanet", 23.5 + 8.0 + 6.5),  # ResNet-50 without its last layer, the pyramid, the heads
    ],
)
def test_models_have_as_many_parameters_as_the_published_ones(name: str, millions: float) -> None:
    with torch.device("meta"):
        module, _ = getattr(gpu_models, name)()
    assert sum(parameter.numel() for parameter in module.parameters()) / 1e6 == pytest.approx(millions, abs=0.06)


def test_a_detector_gives_a_box_and_scores_for_each_anchor() -> None:
    module, x = gpu_models.small_retinanet()
    with torch.no_grad():
        boxes, scores = module(x)
    anchors = 9 * (8 * 8 + 4 * 4 + 2 * 2 + 1 + 1)
    assert (tuple(boxes.shape), tuple(scores.shape)) == ((1, anchors, 4), (1, anchors, 4))
    assert ((boxes[..., 2:] - boxes[..., :2]) > 0).all()
    assert ((scores > 0) & (scores < 1)).all()
    assert module.anchors[0, :2].tolist() == [4.0, 4.0]
    torch.testing.assert_close(module.anchors[:9, 2:].prod(1), 32.0**2 * 4 ** (torch.arange(9) // 3 / 3))


def test_peers_on_a_device_are_what_a_user_would_pick_and_all_are_in_one_race() -> None:
    found = tune.peers("retinanet", "cuda")
    modes = {each.choices[0].options.get("mode") for each in found.values()}
    assert modes == {None, "default", "reduce-overhead", "max-autotune"}
    assert len(found) + 1 == tune.MOST_RACED, "ROUNDS gives each of their intervals ends"
    assert {*gpu_jobs.MODELS} >= {*tune.HALF_X["cuda"]} > {"vit_b", "bert_base", "resnet50_batch64"}


@pytest.mark.thorough(60)
def test_a_detector_is_tuned_and_raced_against_its_peer_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is faster depends on the machine's quiet, as does how long it takes."""
    monkeypatch.setattr(tune, "attempt", with_errors)
    monkeypatch.setitem(tune.TUNED_S, "cpu", 150)
    (found,) = tune.rows("cpu", ["retinanet"])
    match = re.fullmatch(rf"[\d.]+ x over eager: .*; ONNX Runtime .*; ([\d.]+){gpu_rows.OVER_BEST}", found["figure"])
    assert match is not None, found
    assert float(match[1]) > 0.3


@pytest.mark.parametrize(("times", "holds"), [(2.4, False), (2.6, True)])
def test_16_bits_of_dense_nets_are_two_and_a_half_times_as_fast_as_eager(
    times: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    speedup = SimpleNamespace(median=times, low=times, high=times)
    best = SimpleNamespace(
        recipe=SimpleNamespace(label="fp16"), trial=SimpleNamespace(timing=SimpleNamespace(speedup_x=speedup))
    )
    monkeypatch.setattr(tune, "study", lambda *_, **_asked: SimpleNamespace(best=best))
    monkeypatch.setattr(tune, "beside_peers", lambda *_: (True, ""))
    monkeypatch.setattr(tune, "attempt", with_errors)
    rows = {each["row"]: each for each in tune.rows("cuda", ["vit_b"])}
    assert rows["vit_b within 16 bits"]["bound"].startswith("at least 2.5 x over eager")
    assert (rows["vit_b within 16 bits"]["result"] == "pass") is holds


def test_the_mean_over_the_best_peers_is_that_of_all_models_of_one_or_several_calls() -> None:
    def raced(*names: str, times: float, **more: Any) -> list[dict]:
        return rows_of(
            "tune", *names, figure=f"3 x over eager: a; b 0.9 x (0.8 to 1.0); {times}{gpu_rows.OVER_BEST}", **more
        )

    *first, last = gpu_jobs.MODELS
    before = [*raced(*first, times=1.0), *raced(last, times=9.0, device="cpu")]
    assert list(gpu.with_mean(iter(rows_of("timer", "one")), before)) == rows_of("timer", "one")
    assert gpu_rows.mean_over_best(before[:-1], gpu_jobs.MODELS) is None, "one is missing"
    now = raced(last, times=2.56, result="fail", day="2026-12-02", partial=True)
    found = list(gpu.with_mean(iter(now), before))
    assert found[:1] == now
    mean = found[1]
    assert (mean["result"], mean["date"], mean["partial"]) == ("pass", "2026-12-02", True)
    assert mean["figure"] == f"{2.56 ** (1 / 8):.2f} x over 8 models, the least 1.00 x of resnet50"
    slower = list(gpu.with_mean(iter(raced(last, times=1.0)), before))[1]
    assert slower["result"] == "fail"
    assert list(gpu.with_mean(iter(raced(*gpu_jobs.MODELS, times=1.0, device="cpu")), []))[-1]["result"] == "skip"


@pytest.mark.parametrize(("device", "slow", "result"), [("cuda", 1.9, True), ("cuda", 2.1, False), ("cpu", 1.9, None)])
def test_iou_is_timed_next_to_its_bytes_and_arithmetic(
    device: str, slow: float, result: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = Figures(
        name="a device",
        source="",
        flops_per_s={"float32": 2e9},
        bandwidths=(Bandwidth(working_set_bytes=1, bytes_per_s=1e8),),
    )
    pairs = 2_000 * seeds.BOXES
    matrix_ms = (4 * pairs + 16 * (2_000 + seeds.BOXES)) / 1e8 * 1e3
    best_ms = 13 * pairs / 1e9 * 1e3
    boxes = [ops.made_boxes(count, "cpu") for count in (2_000, seeds.BOXES)]
    monkeypatch.setattr(seeds, "_boxes", lambda _: boxes)
    monkeypatch.setattr(seeds, "by_sheet", lambda _: figures if device == "cuda" else None)
    monkeypatch.setattr(seeds, "by_measured", lambda _: figures)

    def compared(ways: Any, _: str) -> Any:
        matrix, best = (way() for way in ways.values())
        assert (tuple(matrix.shape), tuple(best.iou.shape)) == ((2_000, seeds.BOXES), (2_000,))
        return {}, {"the matrix": slow * matrix_ms, "the best box": best_ms}, {}

    monkeypatch.setattr(seeds, "compared", compared)
    held, figure = seeds.iou_times(device)
    assert held is result
    assert f"{slow:.2f} x its bytes" in figure
    assert "1.00 x its arithmetic; by a device" in figure
