from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from togi.torch_internals.compiled_headers import compiled_headers_folder
from togi.worker import inductor_cache
from togi.worker.inductor_cache import InductorCache, inductor_folder, temporary_folder


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


WHOLE, HALF = b"gpch+014", b"gpcWrite"
"""How a header that gcc compiled begins, and how it begins before it was written to its end."""


def headers(run: Path) -> Path:
    return compiled_headers_folder(temporary_folder(run))


def with_headers(tmp_path: Path, name: str, **contents: bytes) -> Path:
    """A run that compiled these headers."""
    cache = run(tmp_path, name)
    with cache.keeping():
        for header, content in contents.items():
            headers(tmp_path / name).mkdir(parents=True, exist_ok=True)
            (headers(tmp_path / name) / f"{header}.h.gch").write_bytes(content)
    return headers(tmp_path / name)


def found_headers(tmp_path: Path, name: str) -> dict[str, bytes]:
    run(tmp_path, name)
    return {path.name.removesuffix(".h.gch"): path.read_bytes() for path in headers(tmp_path / name).glob("*.gch")}


@pytest.fixture(params=["one disk", "two disks"])
def disks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    def refused(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    if request.param == "two disks":
        monkeypatch.setattr(os, "link", refused)
    return str(request.param)


def test_the_next_run_has_the_headers_and_cannot_take_them_away(tmp_path: Path, disks: str, kept: Path) -> None:
    first = with_headers(tmp_path, "first", a=WHOLE, b=WHOLE + b"2")
    shutil.rmtree(tmp_path / "first")
    assert found_headers(tmp_path, "second") == {"a": WHOLE, "b": WHOLE + b"2"}
    (header,) = kept.glob("headers/*/a.h.gch")
    assert header.stat().st_nlink == (2 if disks == "one disk" else 1)
    shutil.rmtree(tmp_path / "second")
    assert found_headers(tmp_path, "third") == {"a": WHOLE, "b": WHOLE + b"2"}
    assert not first.exists()
    assert not list(kept.glob("headers/*/.*")), "nothing half is left"


@pytest.mark.usefixtures("disks")
def test_a_header_is_kept_where_the_trial_was_not(tmp_path: Path) -> None:
    first = run(tmp_path, "first")

    def killed() -> None:
        with first.keeping():
            compiled(first, "kernel.so")
            for name, content in (("whole", WHOLE), ("half", HALF)):
                (headers(tmp_path / "first") / f"{name}.h.gch").write_bytes(content)
            raise TimeoutError

    with pytest.raises(TimeoutError):
        killed()
    assert found_headers(tmp_path, "second") == {"whole": WHOLE}


def test_a_header_that_gave_way_while_it_was_written_is_kept_once_it_is_whole(tmp_path: Path) -> None:
    with_headers(tmp_path, "first", slow=HALF)
    assert found_headers(tmp_path, "second") == {}
    with_headers(tmp_path, "third", slow=WHOLE)
    assert found_headers(tmp_path, "fourth") == {"slow": WHOLE}


@pytest.mark.usefixtures("disks")
def test_two_runs_that_compile_the_same_header(tmp_path: Path) -> None:
    one, two = run(tmp_path, "one"), run(tmp_path, "two")
    with one.keeping(), two.keeping():
        for name in ("one", "two"):
            (headers(tmp_path / name) / "a.h.gch").write_bytes(WHOLE)
    assert found_headers(tmp_path, "three") == {"a": WHOLE}


def test_headers_that_others_can_write_are_not_taken(tmp_path: Path, kept: Path) -> None:
    with_headers(tmp_path, "first", a=WHOLE)
    (folder,) = (kept / "headers").iterdir()
    folder.chmod(0o777)
    assert found_headers(tmp_path, "second") == {}
    with_headers(tmp_path, "third", b=WHOLE)
    assert {path.name for path in folder.iterdir()} == {"a.h.gch"}


def test_headers_behind_a_link_are_not_kept(tmp_path: Path) -> None:
    first = run(tmp_path, "first")
    (tmp_path / "elsewhere").write_bytes(WHOLE)
    with first.keeping():
        (headers(tmp_path / "first") / "a.h.gch").symlink_to(tmp_path / "elsewhere")
    assert found_headers(tmp_path, "second") == {}


def test_a_compiler_that_was_replaced_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n", encoding="ascii")
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    with_headers(tmp_path, "first", a=WHOLE)
    assert found_headers(tmp_path, "second") == {"a": WHOLE}
    os.utime(compiler, (1, 1))
    assert found_headers(tmp_path, "third") == {}


def test_of_too_many_headers_those_go_that_were_used_longest_ago(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor_cache, "_MOST_HEADER_BYTES", 3 * len(WHOLE))

    def of(version: str, **contents: bytes) -> Path:
        monkeypatch.setattr(inductor_cache, "processor", lambda: version)
        with_headers(tmp_path, f"{version} {len(contents)}", **contents)
        return inductor_cache._headers_of_this_machine()

    old, older, now = of("old", a=WHOLE), of("older", a=WHOLE), of("now", a=WHOLE)
    for days_ago, folder in ((0, now), (1, old), (2, older)):
        os.utime(folder, (time.time() - days_ago * 86400,) * 2)
    mine = kept / "headers" / "mine"
    mine.mkdir()
    of("now", a=WHOLE, b=WHOLE)
    assert [folder.exists() for folder in (now, old, older, mine)] == [True, True, False, True]
    of("now", a=WHOLE, b=WHOLE, c=WHOLE)
    assert not old.exists()
    os.utime(now / "a.h.gch", (1, 1))
    of("now", a=WHOLE, b=WHOLE, c=WHOLE, d=WHOLE)
    assert {path.name for path in now.iterdir()} == {"b.h.gch", "c.h.gch", "d.h.gch"}


@pytest.mark.usefixtures("disks")
def test_what_a_killed_run_copied_half_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_headers(tmp_path, "first", a=WHOLE)
    half = inductor_cache._headers_of_this_machine() / ".0f-b.h.gch"
    half.write_bytes(WHOLE)
    with_headers(tmp_path, "second", b=WHOLE)
    assert half.exists(), "another run may be at it"
    monkeypatch.setattr(inductor_cache, "_COPIED_WITHIN_S", -1.0)
    with_headers(tmp_path, "third", c=WHOLE)
    assert not half.exists()
    assert found_headers(tmp_path, "fourth") == {"a": WHOLE, "b": WHOLE, "c": WHOLE}


def test_to_another_disk_few_are_copied(tmp_path: Path, disks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor_cache, "_MOST_COPIED_BYTES", 2 * len(WHOLE))
    with_headers(tmp_path, "first", a=WHOLE, b=WHOLE, c=WHOLE)
    for age_s, name in enumerate("bca"):
        at_s = time.time() - age_s
        os.utime(inductor_cache._headers_of_this_machine() / f"{name}.h.gch", (at_s, at_s))
    assert set(found_headers(tmp_path, "second")) == ({"a", "b", "c"} if disks == "one disk" else {"b", "c"})


def test_gcc_takes_a_header_in_another_place_and_none_that_is_half(tmp_path: Path) -> None:
    """What the cache relies on: where it was compiled does not matter, and the first bytes say whether it is whole."""
    compiler = shutil.which("g++")
    if compiler is None or "Free Software Foundation" not in _output(compiler, "--version"):
        pytest.skip("needs gcc")
    first = run(tmp_path, "first")
    with first.keeping():
        source = headers(tmp_path / "first") / "a.h"
        source.write_text("#include <cstddef>\n", encoding="ascii")
        _output(compiler, "-x", "c++-header", str(source), "-o", f"{source}.gch")
    shutil.rmtree(tmp_path / "first")
    run(tmp_path, "second")
    taken = headers(tmp_path / "second") / "a.h"
    taken.write_text("#include <cstddef>\n", encoding="ascii")
    (tmp_path / "main.cpp").write_text("std::size_t f() { return 1; }\n", encoding="ascii")
    compiling = (compiler, "-H", "-include", str(taken), "-c", str(tmp_path / "main.cpp"), "-o", "/dev/null")
    assert f"! {taken}.gch" in _output(*compiling)
    half = HALF + Path(f"{taken}.gch").read_bytes()[len(HALF) :]
    Path(f"{taken}.gch").unlink()
    Path(f"{taken}.gch").write_bytes(half)
    assert f"! {taken}.gch" not in _output(*compiling), "it is passed over, and the source is read"


def _output(*command: str) -> str:
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return ended.stdout
