"""Files over processes: the same answers as one process gives, and a process that dies costs one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from togi.lint import pool
from togi.lint.pool import FileRequest, Task, check_all, processes

GOOD = "import torch\ntorch.nn.init.xavier_uniform(w)\n"


@pytest.fixture
def tasks(tmp_path: Path) -> list[Task]:
    files = []
    for number in range(12):
        path = tmp_path / f"f{number}.py"
        path.write_text(GOOD if number % 2 else "import torch\nx = (\n", encoding="utf-8")
        files.append(Task(FileRequest(str(path), path.name, path.name, ("step",)), path.read_bytes()))
    return files


@pytest.fixture(params=[True, False], ids=["forked", "started"])
def two_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "processes", lambda *_: 2)
    monkeypatch.setattr(pool, "may_fork", lambda: request.param)


def test_few_files_start_no_process() -> None:
    assert processes(pool.BYTES_PER_PROCESS, 100) < 2
    assert processes(10**9, 1) < 2
    assert processes(10**9, 100) <= pool.MAX_PROCESSES


@pytest.mark.usefixtures("two_processes")
def test_many_processes_answer_as_one_does(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    many = check_all(tasks)
    monkeypatch.setattr(pool, "processes", lambda *_: 1)
    assert check_all(tasks) == many
    assert [len(done.report.findings) for done in many] == [0, 1] * 6


@pytest.mark.usefixtures("two_processes")
def test_modules_of_the_user_do_not_hide_those_of_python(
    tasks: list[Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise ValueError", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert [len(done.report.findings) for done in check_all(tasks)] == [0, 1] * 6


@pytest.mark.usefixtures("two_processes")
def test_a_process_that_dies_costs_one_file(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    # The worker takes a request without a path for a defect of its own, and dies of it.
    real = pool.json.dumps

    def dumps(message: tuple[object, ...]) -> str:
        return "[]" if "f3.py" in message else real(message)

    monkeypatch.setattr(pool.json, "dumps", dumps)
    answers = check_all(tasks)
    assert "died (exit code 1)" in answers[3].report.problems[0].message
    assert answers[3].key is None
    assert [len(done.report.findings) for done in answers] == [0, 1, 0, 0] + [0, 1] * 4


@pytest.mark.usefixtures("two_processes")
def test_a_file_that_went_away(tasks: list[Task]) -> None:
    Path(tasks[1].request.path).unlink()
    assert "cannot be read" in check_all(tasks)[1].report.problems[0].message


@pytest.mark.usefixtures("two_processes")
def test_without_any_process_the_caller_does_the_work(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(pool.os, "fork", refuse)
    monkeypatch.setattr(pool.sys, "executable", "/nowhere/python")
    assert [len(done.report.findings) for done in check_all(tasks)] == [0, 1] * 6


def test_processes_with_threads_or_torch_are_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.sys, "platform", "linux")
    monkeypatch.setattr(pool.threading, "active_count", lambda: 1)
    monkeypatch.delitem(pool.sys.modules, "torch", raising=False)
    assert pool.may_fork()
    monkeypatch.setattr(pool.threading, "active_count", lambda: 2)
    assert not pool.may_fork()
    monkeypatch.setattr(pool.threading, "active_count", lambda: 1)
    monkeypatch.setitem(pool.sys.modules, "torch", pool)
    assert not pool.may_fork()
