"""What togi keeps: found by its own names alone, removed only where nothing is lost."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from togi.cli.app import run
from togi.core.caches import RUN_MARK, Keeping, run_folder
from togi.core.errors import BudgetError
from togi.doctor import storage
from togi.doctor.storage import beyond, cache_limit_bytes, remove, trim_caches, what_is_kept

DAY_S = 24 * 3600
NO_PROCESS = 2**22 + 7
CACHES = {
    "check.sqlite": 300,
    f"figures-{'0a' * 8}.json": 10,
    f"kernels/boxes-{'0a' * 10}.so": 200,
    f"inductor/{'ab' * 8}/fx/code.py": 50,
    f"headers/{'0a' * 8}/c12.h.gch": 30,
    f"tensorrt/{'ab' * 16}/engine": 70,
    f"engines/openvino-{'ab' * 8}.json": 20,
}
OTHERS = ["notes.txt", "kernels/mine.so", "inductor/mine/code.py", "tensorrt/README", "figures-mine.json"]


def write(path: Path, count: int = 10, *, age_s: float = 2 * DAY_S) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * count)
    for each in (path, path.parent):
        os.utime(each, (time.time() - age_s,) * 2)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With caches, a home and a folder for temporary files, in which other things lie too."""
    for name, folder in (("TOGI_CACHE", "cache"), ("TOGI_HOME", "home")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv("TOGI_CACHE_LIMIT", raising=False)
    for name, count in CACHES.items():
        write(tmp_path / "cache" / name, count)
    for name in OTHERS:
        write(tmp_path / "cache" / name)
    write(tmp_path / "home" / "journal.sqlite")
    write(tmp_path / "home" / "thesis.txt")
    return tmp_path


def kinds(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in what_is_kept():
        found.setdefault(entry.kind.value, []).append(str(Path(entry.path).relative_to(folder)))
    return found


def test_all_that_togi_keeps_is_found_and_nothing_else(machine: Path) -> None:
    artifact = f"{'0a' * 6}-{'1b' * 6}-77.togi"
    write(machine / "home" / "artifacts" / artifact / "manifest.json", age_s=0)
    write(machine / "tmp" / "togi-analysis" / "thesis.txt")
    found = kinds(machine)
    assert sorted(found["caches"]) == sorted({f"cache/{'/'.join(name.split('/')[:2])}" for name in CACHES}), (
        "a folder of Inductor's or TensorRT's is one entry"
    )
    assert found["journals"] == ["home/journal.sqlite"]
    assert found["artifacts"] == [f"home/artifacts/{artifact}"]
    assert "leftovers" not in found, "somebody else may call a folder so"
    sizes = {Path(entry.path).name: entry.size_bytes for entry in what_is_kept()}
    assert sizes["check.sqlite"] == 300
    assert sizes["ab" * 8] >= 50


def test_without_yes_nothing_is_removed(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(machine.rglob("*"))
    assert run(["clean"]) == 0
    assert run(["clean", "artifacts", "caches", "--limit", "1KiB"]) == 0
    assert sorted(machine.rglob("*")) == before
    assert "Nothing was removed. 'togi clean --yes' removes" in capsys.readouterr().out


def test_caches_go_and_whatever_else_is_there_stays(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["clean", "--yes"]) == 0
    assert "caches" not in kinds(machine)
    assert all((machine / "cache" / name).exists() for name in OTHERS)
    assert (machine / "home" / "journal.sqlite").exists()
    assert (machine / "home" / "thesis.txt").exists()
    assert "Removed: " in capsys.readouterr().out


def test_journals_stay_though_they_are_named(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["clean", "journals", "--yes"]) == 0
    assert (machine / "home" / "journal.sqlite").exists()
    assert "it holds what was measured" in capsys.readouterr().out


@pytest.mark.parametrize(("age_s", "goes"), [(60, False), (2 * DAY_S, True)])
def test_artifacts_go_where_they_are_named_and_no_run_may_use_them(age_s: float, goes: bool, machine: Path) -> None:
    artifact = machine / "home" / "artifacts" / f"{'0a' * 6}-{'1b' * 6}-77.togi"
    write(artifact / "manifest.json", age_s=age_s)
    assert run(["clean", "--yes"]) == 0
    assert artifact.exists(), "not named"
    assert run(["clean", "artifacts", "--yes"]) == 0
    assert artifact.exists() is not goes


@pytest.mark.parametrize(
    ("pid", "age_s", "goes"),
    [(os.getpid(), 2 * DAY_S, False), (NO_PROCESS, 2 * DAY_S, True), (NO_PROCESS, 60, False)],
    ids=["it runs", "it was killed", "of another container, perhaps"],
)
def test_the_folder_of_a_killed_run_is_a_leftover(pid: int, age_s: float, goes: bool, machine: Path) -> None:
    folder = run_folder()
    assert folder.parent == machine / "tmp"
    assert (folder / RUN_MARK).read_text(encoding="ascii") == str(os.getpid())
    (folder / RUN_MARK).write_text(str(pid), encoding="ascii")
    write(folder / "0-openvino.log", age_s=age_s)
    os.utime(folder / RUN_MARK, (time.time() - age_s,) * 2)
    os.utime(folder, (time.time() - age_s,) * 2)
    assert kinds(machine)["leftovers"] == [f"tmp/{folder.name}"]
    assert run(["clean", "leftovers", "--yes"]) == 0
    assert folder.exists() is not goes


def test_links_are_not_followed(machine: Path) -> None:
    elsewhere = write(machine / "elsewhere" / "code.py")
    (machine / "cache" / "inductor" / ("cd" * 8)).symlink_to(elsewhere.parent)
    (machine / "cache" / "inductor" / ("ab" * 8) / "link").symlink_to(elsewhere.parent)
    assert run(["clean", "--yes"]) == 0
    assert elsewhere.exists()
    assert (machine / "cache" / "inductor" / ("cd" * 8)).is_symlink()


def test_what_belongs_to_somebody_else_is_not_looked_at(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_is_own", lambda _status: False)
    assert kinds(machine) == {}


def test_beyond_a_limit_the_oldest_caches_go(machine: Path) -> None:
    for days, name in enumerate(CACHES):
        path = machine / "cache" / "/".join(name.split("/")[:2])
        for each in (path, *(path.rglob("*") if path.is_dir() else ())):
            os.utime(each, (time.time() - (3 + days) * DAY_S,) * 2)
    caches = [entry for entry in what_is_kept() if entry.kind is Keeping.CACHES]
    newest_first = sorted(caches, key=lambda entry: entry.changed, reverse=True)
    assert newest_first[0].path.endswith("check.sqlite")
    assert beyond(caches, sum(entry.size_bytes for entry in caches)) == []
    assert beyond(caches, newest_first[0].size_bytes) == newest_first[1:]
    trim_caches(newest_first[0].size_bytes, time.time() - 10 * DAY_S)
    assert len(kinds(machine)["caches"]) == len(caches), "nothing of that day goes"
    trim_caches(newest_first[0].size_bytes)
    assert kinds(machine)["caches"] == ["cache/check.sqlite"]


def test_the_limit_is_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOGI_CACHE_LIMIT", "300MB")
    assert cache_limit_bytes() == 300_000_000
    monkeypatch.setenv("TOGI_CACHE_LIMIT", "much")
    with pytest.raises(BudgetError, match="TOGI_CACHE_LIMIT='much' is not a size"):
        cache_limit_bytes()


@pytest.mark.usefixtures("machine")
def test_what_cannot_be_removed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "unlink", refuses)
    left = remove(entry for entry in what_is_kept() if entry.path.endswith("check.sqlite"))
    assert [Path(entry.path).name for entry in left] == ["check.sqlite"]


@pytest.mark.usefixtures("machine")
def test_json_tells_every_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["clean", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "storage"
    assert document["removed"] is False
    assert document["bytes"] == sum(entry["size_bytes"] for entry in document["entries"] if entry["goes"])
    assert {entry["kind"] for entry in document["entries"] if entry["goes"]} == {"caches"}
