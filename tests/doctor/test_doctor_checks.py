from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.made_up_machine import machine
from togi.doctor import Level, hardware, processes, software
from togi.doctor.packages import Packages


@pytest.mark.parametrize(
    ("flags", "level", "said"),
    [
        (("avx2", "avx512_vnni", "sse"), Level.OK, "avx2, avx512_vnni"),
        (("avx2", "amx_bf16"), Level.OK, "amx_bf16"),
        (("sse2",), Level.WARNING, "none that matter"),
        ((), Level.WARNING, "cannot be read"),
    ],
)
def test_instructions_that_make_models_fast_are_named(flags: tuple[str, ...], level: Level, said: str) -> None:
    check = hardware.check_processor(machine(cpu_flags=flags))[1]
    assert (check.level, said in check.found) == (level, True)
    assert ("bf16" in check.why) == (level is Level.OK and "amx_bf16" not in flags)


@pytest.mark.parametrize(("threads", "level"), [(1, Level.OK), (4, Level.OK), (5, Level.WARNING)])
def test_more_threads_than_cores_are_warned_of_with_the_command(threads: int, level: Level) -> None:
    check = hardware.check_processor(machine(cpu_cores=4, threads=threads))[0]
    assert check.level is level
    assert ("OMP_NUM_THREADS=5 is more than the 4 cores" in check.why) == (level is Level.WARNING)
    assert ("export OMP_NUM_THREADS=4" in check.fix) == (level is Level.WARNING)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_a_working_compiler_works_and_a_broken_program_is_reported() -> None:
    gcc = shutil.which("g++")
    assert gcc is not None
    assert software.compile_and_run(gcc, "#include <vector>\nint main() { return 0; }\n") == ""
    assert "error" in software.compile_and_run(gcc, "#include <no_such_header>\n")
    assert software.compile_and_run(gcc, "int main() { return 3; }\n") == "exit code 3"


def test_no_compiler_is_missing_with_its_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    (check,) = software.check_compiler()
    assert check.level is Level.MISSING
    assert check.fix


def test_packages_are_compared_with_what_is_asked_for() -> None:
    pytest_version = pytest.__version__
    there = software.compare_package(Requirement("pytest>=1"), Level.MISSING, "fix", Packages())
    old = software.compare_package(Requirement("pytest>=9999"), Level.OPTIONAL, "fix", Packages())
    needed = software.compare_package(Requirement("pytest>=9999"), Level.MISSING, "fix", Packages())
    absent = software.compare_package(Requirement("no-such-distribution"), Level.OPTIONAL, "fix", Packages())
    assert [check.level for check in (there, old, needed, absent)] == [
        Level.OK,
        Level.WARNING,
        Level.MISSING,
        Level.OPTIONAL,
    ]
    assert there.found == old.found == pytest_version
    assert "9999" in old.why
    assert absent.fix == "fix"


@pytest.mark.parametrize(("version", "level"), [("3.13.0", Level.WARNING), ("3.13.1", Level.OK), ("3.11.7", Level.OK)])
def test_the_python_that_hides_changes_of_dicts_is_warned_of(version: str, level: Level) -> None:
    check = software.check_python(version)
    assert check.level is level
    assert bool(check.why) is bool(check.fix) is (level is Level.WARNING)


def test_the_metadata_of_togi_is_what_is_checked() -> None:
    names = {check.name for check in software.check_packages(Packages())}
    assert {"python", "torch", "pydantic", "onnxruntime", "openvino"} <= names


def test_allocators_tell_how_to_get_them() -> None:
    found = {
        check.name: check
        for check in software.check_allocators(machine(allocators={"jemalloc": "/lib/libjemalloc.so.2"}))
    }
    assert found["jemalloc"].level is Level.OK
    assert found["tcmalloc"].level is Level.OPTIONAL
    assert found["tcmalloc"].fix.startswith("sudo apt-get install")


def test_the_examination_does_not_import_torch() -> None:
    code = (
        "import sys, togi.doctor as d; checks = d.examine(); "
        "needed = {'processor', 'memory', 'packages', 'compiler', 'trials'}; "
        "print({c.topic for c in checks} >= needed, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "False"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="trials fork, and this system cannot")
def test_children_can_be_forked_killed_and_waited_for_here():
    (check,) = processes.check_children()
    assert check.level is Level.OK, check.found
    assert "fork, kill and wait work" in check.found


class SourcesAlone(Packages):
    """As in a tree of sources that runs without being installed."""

    def version(self, distribution: str) -> str | None:
        return None if distribution == "togi" else super().version(distribution)

    def requires(self, distribution: str) -> Sequence[str] | None:
        return None if distribution == "togi" else super().requires(distribution)


def test_a_tree_of_sources_says_what_it_needs(tmp_path: Path) -> None:
    asked = SourcesAlone().requirements()
    assert asked is not None
    assert {"pydantic", "rich"} <= {one.name for one in asked if one.marker is None}
    assert {"torch", "numpy"} <= {one.name for one in software.brought_by(software.TORCH, asked)}
    (tmp_path / "pyproject.toml").write_text(
        "[project]\ndependencies = ['pytest>=1']\n[project.optional-dependencies]\n"
        "onnx = ['no-such-distribution>=2', \"never; python_version < '3'\"]\n",
        encoding="utf-8",
    )
    checks = software.check_packages(SourcesAlone(tmp_path / "pyproject.toml"))[1:]
    found = {check.name: (check.level, check.found.partition(",")[0]) for check in checks}
    assert found.pop("pytest")[0] is Level.OK
    assert found == {"togi": (Level.OK, "not installed"), "no-such-distribution": (Level.OPTIONAL, "not installed")}


def test_it_is_reported_that_nothing_tells_what_is_needed(tmp_path: Path) -> None:
    python, told = software.check_packages(SourcesAlone(tmp_path / "pyproject.toml"))
    assert (python.name, told.name, told.level) == ("python", "togi", Level.WARNING)
