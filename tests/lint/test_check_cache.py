"""The cache: hits, what makes it miss, damage, and several runs at once."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from togi.lint import cache
from togi.lint.check_paths import check_paths, check_stdin
from togi.lint.finding import CheckResult, FileReport, Note
from togi.lint.settings import overrides

GOOD = "import torch\ntorch.nn.init.xavier_uniform(w)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(f"{GOOD}# {name}\n", encoding="utf-8")
    return tmp_path


def without_count(result: CheckResult) -> CheckResult:
    return result.model_copy(update={"cached": 0})


@pytest.mark.usefixtures("folder")
def test_the_second_run_knows_and_says_the_same() -> None:
    first, second = check_paths(["."]), check_paths(["."])
    assert (first.cached, second.cached) == (0, 2)
    assert without_count(first) == without_count(second)
    assert check_paths(["."], cache=False).cached == 0


def test_paths_are_those_of_this_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_paths(["."])
    monkeypatch.chdir(folder.parent)
    result = check_paths([folder])
    assert result.cached == 2
    assert [f.place.path for f in result if f.place] == [f"{folder.name}/a.py", f"{folder.name}/b.py"]


def test_content_settings_and_rules_make_it_miss(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_paths(["."])
    (folder / "a.py").write_text(GOOD, encoding="utf-8")
    assert check_paths(["."]).cached == 1
    (folder / "pyproject.toml").write_text('[tool.togi.check]\nhot = ["step"]\n', encoding="utf-8")
    assert check_paths(["."]).cached == 0
    monkeypatch.setattr(cache, "rules_version", lambda: b"other rules")
    assert check_paths(["."]).cached == 0


def test_a_selection_of_rules_does_not_check_again(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.togi.check]\n", encoding="utf-8")
    check_paths(["."])
    (folder / "pyproject.toml").write_text('[tool.togi.check]\nselect = ["torchscript"]\n', encoding="utf-8")
    result = check_paths(["."])
    assert (result.cached, len(result)) == (2, 0)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "data", [b"", b"rubbish" * 1000, b"SQLite format 3\0" + b"\xff" * 5000], ids=["empty", "text", "torn"]
)
def test_a_damaged_cache_is_replaced(data: bytes, own_cache: Path) -> None:
    check_paths(["."])
    (own_cache / "check.sqlite").write_bytes(data)
    result = check_paths(["."])
    assert (result.cached, len(result)) == (0, 2)
    assert check_paths(["."]).cached == 2


@pytest.mark.usefixtures("folder")
def test_entries_that_cannot_be_read_are_misses(own_cache: Path) -> None:
    check_paths(["."])
    with sqlite3.connect(own_cache / "check.sqlite") as database:
        database.execute("UPDATE reports SET report = '{\"findings\": 3}'")
    assert check_paths(["."]).cached == 0


@pytest.mark.usefixtures("folder")
def test_a_cache_of_another_schema_is_replaced(own_cache: Path) -> None:
    with sqlite3.connect(own_cache / "check.sqlite") as database:
        database.execute("CREATE TABLE reports (something TEXT)")
    check_paths(["."])
    check_paths(["."])
    assert check_paths(["."]).cached == 2


def test_a_cache_that_cannot_be_written_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("TOGI_CACHE", str(folder / "file" / "below"))
    result = check_paths(["a.py"])
    assert len(result) == 1
    assert "could not be used" in result.notes[0].message
    assert result.exit_code == 1


def _report(message: str) -> FileReport:
    return FileReport(notes=(Note(path="a.py", message=message),))


def test_old_entries_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = cache.Cache(tmp_path / "c.sqlite")
    store.write({b"old": _report("1")})
    now = cache.time.time()
    monkeypatch.setattr(cache.time, "time", lambda: now + 86400 * (cache.KEPT_DAYS + 1))
    store.write({b"new": _report("2")})
    assert store.read([b"old", b"new"]) == {b"new": _report("2")}


def test_thousands_of_keys(tmp_path: Path) -> None:
    store = cache.Cache(tmp_path / "c.sqlite")
    reports = {str(number).encode(): _report(str(number)) for number in range(2500)}
    store.write(reports)
    assert store.read(list(reports)) == reports


def test_several_runs_at_once(folder: Path) -> None:
    for number in range(40):
        (folder / f"n{number}.py").write_text(f"{GOOD}# {number}\n", encoding="utf-8")
    code = "from togi.lint.check_paths import check_paths; r = check_paths(['.']); print(len(r), *r.notes, *r.problems)"
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [run.communicate(timeout=60)[0].strip() for run in runs] == ["42"] * 4
    assert check_paths(["."]).cached == 42


def test_a_cache_that_another_run_removes_meanwhile_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plain_open, opened = tmp_path / "own" / "check.sqlite", cache.Cache._open, list[int]()

    def open_and_lose(self: cache.Cache) -> sqlite3.Connection:
        database = plain_open(self)
        if not opened:
            database.execute("SELECT 1 FROM sqlite_master").fetchall()  # a file is noticed once it was read
            path.unlink()
        opened.append(1)
        return database

    reports = cache.Cache(path)
    reports.write({b"before": FileReport()})
    monkeypatch.setattr(cache.Cache, "_open", open_and_lose)
    reports.write({b"key": FileReport()})
    assert (len(opened), reports.problem) == (2, "")
    assert reports.read([b"key"]) == {b"key": FileReport()}


VIEW = "CREATE VIEW reports AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS key FROM n"
REPORTS = ["{}", '{"findings": [{"rule": "none", "message": "", "remedy": ""}]}', "[" * 100_000, '{"x": 1}', "\x1b[2J"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("report", REPORTS)
def test_reports_that_somebody_planted_are_not_believed(report: str, own_cache: Path) -> None:
    """Neither where the folder is open to others, nor, where they are no reports, in a private one."""
    check_paths(["."])
    with sqlite3.connect(own_cache / "check.sqlite") as database:
        database.execute("UPDATE reports SET report = ?", (report,))
    own_cache.chmod(0o777)
    opened = check_paths(["."])
    own_cache.chmod(0o700)
    assert len(opened) == 2
    assert "can be written by others" in opened.notes[0].message
    if report != "{}":
        assert len(check_paths(["."])) == 2


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("kind", ["view", "pipe", "link", "folder"])
def test_what_is_not_a_cache_is_not_used(kind: str, own_cache: Path, tmp_path: Path) -> None:
    own_cache.mkdir(exist_ok=True)
    file = own_cache / "check.sqlite"
    match kind:
        case "view":
            with sqlite3.connect(file) as database:
                database.execute(VIEW)
        case "pipe":
            os.mkfifo(file)
        case "link":
            file.symlink_to(tmp_path / "elsewhere")
        case _:
            file.mkdir()
    assert len(check_paths(["."])) == 2
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.usefixtures("folder")
def test_a_cache_of_another_user_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    check_paths(["."])
    monkeypatch.setattr(os, "getuid", lambda: 12_345)
    result = check_paths(["."])
    assert (result.cached, len(result)) == (0, 2)
    assert "belongs to another user" in result.notes[0].message


NET = """import torch
class Net(torch.nn.Module):
    def forward(self, x):
        body = torch.compile(self.body)
        return body(x)
"""


@pytest.mark.parametrize("mark", [".git", "pyproject.toml"])
def test_findings_are_the_same_wherever_the_user_stands(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What prepares data is judged by the folders of the project, not by those above it, nor from where the user is."""
    project = tmp_path / "datasets" / "project"
    transforms = project / "transforms"
    transforms.mkdir(parents=True)
    for path in (project / "net.py", transforms / "net.py"):
        path.write_text(NET, encoding="utf-8")
    if mark == ".git":
        (project / mark).mkdir()
    else:
        (project / mark).write_text("[tool.togi.check]\n", encoding="utf-8")
    rule = overrides(["compile-per-call"])
    for here in (tmp_path, project.parent, project, transforms):
        monkeypatch.chdir(here)
        for cached in (True, True, False):
            found = [f.place.path for f in check_paths([project], rule, cache=cached) if f.place]
            assert [Path(path).resolve() for path in found] == [project / "net.py"]
        for parent, count in ((project, 1), (transforms, 0)):
            assert len(check_stdin(NET.encode(), str(parent / "new.py"), rule)) == count


def test_the_same_file_of_two_projects_is_checked_once(folder: Path) -> None:
    other = folder / "other"
    for project in (folder, other):
        (project / ".git").mkdir(parents=True)
    (other / "a.py").write_bytes((folder / "a.py").read_bytes())
    check_paths(["a.py"])
    result = check_paths([other])
    assert result.cached == 1
    assert [f.place.path for f in result if f.place] == ["other/a.py"]
