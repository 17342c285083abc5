"""The packages that togi asks for, the C++ compiler of torch's engines, allocators to preload."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from togi.core.needs_torch import COMMAND, OLDEST_PYTHON
from togi.core.records import Machine
from togi.doctor.check import Check, Level
from togi.doctor.packages import Packages, applies, without_marker
from togi.machine.describe import DEBIAN_PACKAGES

TORCH = "torch"
"""The extra without which no model can be run."""
EXTRAS = ("onnx", "openvino", "ncnn", "nncf")
"""Extras that make more techniques possible."""


def check_packages(packages: Packages) -> list[Check]:
    """If nothing says what togi needs, the check says so: it works with what it finds."""
    python, asked = check_python(platform.python_version()), packages.requirements()
    if asked is None:
        why = "neither its metadata nor a pyproject.toml next to its sources says which packages it needs"
        fix = "install it from its clone: pip install ."
        return [python, Check(topic="packages", name="togi", level=Level.WARNING, found="unknown", why=why, fix=fix)]
    return [
        python,
        *_togi(packages),
        *_required(asked, packages),
        *_torch(asked, packages),
        *_optional(asked, packages),
    ]


def _togi(packages: Packages) -> Iterator[Check]:
    if packages.version("togi") is None:
        found = f"not installed, from {packages.project.parent}"
        yield Check(topic="packages", name="togi", level=Level.OK, found=found)


def check_python(version: str) -> Check:
    python = Check(topic="packages", name="python", level=Level.OK, found=f"{version} ({sys.executable})")
    if Version(version) < Version(OLDEST_PYTHON):
        why = f"togi runs models on Python {OLDEST_PYTHON} and newer; check, explain, report and doctor work here"
        return python.model_copy(update={"level": Level.OPTIONAL, "why": why})
    if version != "3.13.0":
        return python
    why = (
        "torch.compile does not see there that an attribute of a module has changed (a counter, a flag) and goes on "
        "with the old one, unless torch._dynamo.config.use_recursive_dict_tags_for_guards is False"
    )
    return python.model_copy(update={"level": Level.WARNING, "why": why, "fix": "install Python 3.13.1 or newer"})


def _required(asked: Sequence[Requirement], packages: Packages) -> Iterator[Check]:
    for requirement in filter(applies, asked):
        fix = f"pip install --upgrade '{without_marker(requirement)}'"
        yield compare_package(requirement, Level.MISSING, fix, packages)


def _torch(asked: Sequence[Requirement], packages: Packages) -> Iterator[Check]:
    """Its absence may be wanted: for a linter, a report. Where it is installed, all that it is used with is needed."""
    level = Level.OPTIONAL if packages.version(TORCH) is None else Level.MISSING
    for requirement in brought_by(TORCH, asked):
        check = compare_package(requirement, level, COMMAND, packages)
        if check.level is Level.OPTIONAL:
            check = check.model_copy(update={"why": "whatever runs a model needs it: tune, fit, bench, ..."})
        yield check


def _optional(asked: Sequence[Requirement], packages: Packages) -> Iterator[Check]:
    seen = {requirement.name for requirement in brought_by(TORCH, asked)}
    for extra in EXTRAS:
        for requirement in brought_by(extra, asked):
            if requirement.name not in seen:
                fix = f"pip install --upgrade '{without_marker(requirement)}'"
                yield compare_package(requirement, Level.OPTIONAL, fix, packages)
            seen.add(requirement.name)


def brought_by(extra: str, asked: Sequence[Requirement]) -> list[Requirement]:
    """What is required only with an extra of togi; not the extras that it names in turn."""
    return [
        requirement
        for requirement in asked
        if requirement.name != "togi" and applies(requirement, extra) and not applies(requirement)
    ]


def compare_package(requirement: Requirement, level: Level, fix: str, packages: Packages) -> Check:
    """``level`` is what it is when the package is not there, or older than needed."""
    common, version = {"topic": "packages", "name": requirement.name}, packages.version(requirement.name)
    if version is None:
        why = "needed" if level is Level.MISSING else "its techniques are left out"
        return Check(**common, level=level, found="not installed", why=why, fix=fix)
    if requirement.specifier.contains(version, prereleases=True):
        return Check(**common, level=Level.OK, found=version)
    worse = Level.MISSING if level is Level.MISSING else Level.WARNING
    return Check(**common, level=worse, found=version, why=f"outdated: {requirement.specifier} is needed", fix=fix)


PROBE = "#include <vector>\n#include <Python.h>\nint main() { return std::vector<int>(3, 14).size() == 3 ? 0 : 1; }\n"
"""Uses the C++ library and Python's headers, because generated code does."""
COMPILE_TIMEOUT_S = 60
INSTALL = "sudo apt-get install g++ python3-dev"


def check_compiler() -> list[Check]:
    path = next((found for name in _compilers() if (found := shutil.which(name))), None)
    if path is None:
        why = "torch.compile and AOTInductor generate C++ and cannot work without one"
        return [_compiler(Level.MISSING, "no C++ compiler", why)]
    problem = compile_and_run(path)
    if problem:
        return [_compiler(Level.MISSING, f"{path} does not work: {problem}", "torch.compile and AOTInductor need it")]
    return [Check(topic="compiler", name="C++", level=Level.OK, found=f"{path} compiles, links and runs")]


def compile_and_run(compiler: str, program: str = PROBE, name: str = "probe.cpp") -> str:
    """What goes wrong with a three-line program; empty when nothing does. The language is that of the file's name."""
    import sysconfig

    with tempfile.TemporaryDirectory(prefix="togi-doctor-") as folder:
        source, binary = Path(folder) / name, Path(folder) / "probe"
        source.write_text(program, encoding="ascii")
        include = f"-I{sysconfig.get_paths()['include']}"
        return _run(compiler, str(source), include, "-o", str(binary)) or _run(str(binary))


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, errors="replace", check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
    return lines[0] if lines else f"exit code {done.returncode}"


def _compilers() -> tuple[str, ...]:
    named = os.environ.get("CXX", "")
    return tuple(name for name in (named, "g++", "clang++", "c++") if name)


def _compiler(level: Level, found: str, why: str) -> Check:
    fix = "xcode-select --install" if sys.platform == "darwin" else INSTALL
    return Check(topic="compiler", name="C++", level=level, found=found, why=why, fix=fix)


def check_allocators(machine: Machine) -> list[Check]:
    return [_allocator(name, machine.allocators.get(name)) for name in DEBIAN_PACKAGES]


def _allocator(name: str, path: str | None) -> Check:
    if path is not None:
        return Check(topic="allocators", name=name, level=Level.OK, found=path)
    fix = f"sudo apt-get install {DEBIAN_PACKAGES[name]}"
    return Check(
        topic="allocators", name=name, level=Level.OPTIONAL, found="not installed", why="one more to try", fix=fix
    )
