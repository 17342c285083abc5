from __future__ import annotations

import os
from pathlib import Path

import pytest

from togi.worker import inductor_cache
from togi.worker.inductor_cache import InductorCache, inductor_folder


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kept"
    monkeypatch.setenv("TOGI_CACHE", str(folder))
    return folder


def run(tmp_path: Path, name: str) -> InductorCache:
    (tmp_path / name).mkdir()
    begun = InductorCache(tmp_path / name)
    with begun.keeping():
        pass
    return begun


def compiled(cache: InductorCache, name: str, data: bytes = b"code") -> None:
    file = cache.folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def found(cache: InductorCache) -> set[str]:
    return {str(path.relative_to(cache.folder)) for path in cache.folder.rglob("*") if path.is_file()}


def test_the_next_run_begins_with_what_a_trial_compiled(tmp_path: Path) -> None:
    first = run(tmp_path, "first")
    with first.keeping():
        compiled(first, "ab/kernel.so")
        compiled(first, "locks/kernel.lock")
    second = run(tmp_path, "second")
    assert second.folder == inductor_folder(tmp_path / "second")
    assert found(second) == {"ab/kernel.so"}
    assert (second.folder / "ab/kernel.so").read_bytes() == b"code"


def test_nothing_of_a_trial_that_ended_is_kept(tmp_path: Path) -> None:
    first = run(tmp_path, "first")

    def killed() -> None:
        with first.keeping():
            compiled(first, "ab/half.so", b"co")
            raise TimeoutError

    with pytest.raises(TimeoutError):
        killed()
    with first.keeping():
        compiled(first, "cd/whole.so")
    assert found(run(tmp_path, "second")) == {"cd/whole.so"}


def test_of_too_much_the_oldest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor_cache, "_MOST_BYTES", 10)
    monkeypatch.setattr(inductor_cache, "_LARGEST_FILE_BYTES", 8)
    first = run(tmp_path, "first")
    for at_s, name in enumerate(("one", "two", "three")):
        with first.keeping():
            compiled(first, name, b"four")
            os.utime(first.folder / name, (at_s, at_s))
    with first.keeping():
        compiled(first, "header.gch", b"nine byte")
    assert found(run(tmp_path, "second")) == {"two", "three"}


def test_code_that_others_can_write_is_not_taken(tmp_path: Path, kept: Path) -> None:
    first = run(tmp_path, "first")
    with first.keeping():
        compiled(first, "kernel.so")
    (folder,) = (kept / "inductor").iterdir()
    folder.chmod(0o777)
    second = run(tmp_path, "second")
    assert found(second) == set()
    with second.keeping():
        compiled(second, "other.so")
    assert {path.name for path in folder.iterdir()} == {"kernel.so"}


def test_another_processor_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(tmp_path, "first")
    with first.keeping():
        compiled(first, "kernel.so")
    monkeypatch.setattr(inductor_cache, "processor", lambda: "another")
    assert found(run(tmp_path, "second")) == set()


def test_nowhere_to_keep_it(tmp_path: Path, kept: Path) -> None:
    kept.write_text("a file, not a folder", encoding="utf-8")
    first = run(tmp_path, "first")
    with first.keeping():
        compiled(first, "kernel.so")
    assert found(run(tmp_path, "second")) == set()
