"""The C++ compiler that torch.compile and AOTInductor call: found, and really able to compile, link and run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from togi.doctor.check import Check, Level

PROGRAM = "#include <vector>\n#include <Python.h>\nint main() { return std::vector<int>(3, 14).size() == 3 ? 0 : 1; }\n"
"""Uses the C++ library and Python's headers, because generated code does."""
TIMEOUT_S = 60
MEND = "sudo apt-get install g++ python3-dev"


def check() -> list[Check]:
    path = next((found for name in _candidates() if (found := shutil.which(name))), None)
    if path is None:
        why = "torch.compile and AOTInductor generate C++ and cannot work without one"
        return [_check(Level.MISSING, "no C++ compiler", why)]
    problem = compile_and_run(path)
    if problem:
        return [_check(Level.MISSING, f"{path} does not work: {problem}", "torch.compile and AOTInductor need it")]
    return [Check(topic="compiler", name="C++", level=Level.OK, found=f"{path} compiles, links and runs")]


def compile_and_run(compiler: str, program: str = PROGRAM) -> str:
    """What goes wrong with a three-line program; empty when nothing does."""
    import sysconfig

    with tempfile.TemporaryDirectory(prefix="togi-doctor-") as folder:
        source, binary = Path(folder) / "probe.cpp", Path(folder) / "probe"
        source.write_text(program, encoding="ascii")
        include = f"-I{sysconfig.get_paths()['include']}"
        return _run(compiler, str(source), include, "-o", str(binary)) or _run(str(binary))


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, errors="replace", check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
    return lines[0] if lines else f"exit code {done.returncode}"


def _candidates() -> tuple[str, ...]:
    named = os.environ.get("CXX", "")
    return tuple(name for name in (named, "g++", "clang++", "c++") if name)


def _check(level: Level, found: str, why: str) -> Check:
    mend = "xcode-select --install" if sys.platform == "darwin" else MEND
    return Check(topic="compiler", name="C++", level=level, found=found, why=why, mend=mend)
