"""A program is linked with -lcuda where the driver has no file of that name: a library stands for the driver."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from togi.machine import cuda_driver
from togi.machine.cuda_driver import driver_to_link_with, loaded_driver
from togi.machine.describe import machine

COMPILER = (machine().compiler or "").partition(":")[0]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not COMPILER, reason="CUDA's programs are linked on Linux, with a C++ compiler"
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a driver is installed in a container: one file, whose name has a number."""
    file = tmp_path_factory.mktemp("drivers and spaces") / "libcuda.so.580.1"
    source = file.with_name("driver.cpp")
    source.write_text('extern "C" int cuTogi() { return 7; }\n', encoding="utf-8")
    command = [COMPILER, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source), "-o", str(file)]
    subprocess.run(command, check=True, timeout=60)
    return file


def linked(folder: Path) -> subprocess.CompletedProcess[str]:
    """A program that calls the driver, linked as Inductor does it."""
    source = folder / "program.cpp"
    source.write_text('extern "C" int cuTogi(); extern "C" int call() { return cuTogi(); }\n', encoding="utf-8")
    command = [COMPILER, "-shared", "-fPIC", "-Wl,--no-undefined", str(source), "-lcuda", "-o", str(folder / "it.so")]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_what_is_loaded_can_be_linked_with_and_the_environment_is_put_back(
    driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert linked(tmp_path).returncode != 0, "no driver with that function is where linkers look"
    ctypes.CDLL(str(driver))
    monkeypatch.setattr(cuda_driver, "read_text", lambda path: of_this_driver(path, driver))
    assert loaded_driver() == driver
    for before in (None, str(tmp_path)):
        if before is not None:
            monkeypatch.setenv("LIBRARY_PATH", before)
        with driver_to_link_with():
            done = linked(tmp_path)
            added = os.environ["LIBRARY_PATH"].split(os.pathsep)[-1]
        assert done.returncode == 0, done.stderr
        assert os.environ.get("LIBRARY_PATH") == before
        assert not Path(added).exists()
    assert ctypes.CDLL(str(tmp_path / "it.so")).call() == 7


def of_this_driver(path: Path, driver: Path) -> str:
    """What the kernel says of this process, without a real driver that it may have loaded."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if "libcuda" not in line or str(driver) in line)


def test_without_a_driver_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cuda_driver, "read_text", lambda _: "7f00-7f01 r--p 00000000 00:00 0 \n7f02-7f03 r-xp 0 0 0 [heap]"
    )
    monkeypatch.delenv("LIBRARY_PATH", raising=False)
    with driver_to_link_with():
        assert "LIBRARY_PATH" not in os.environ
    with pytest.raises(KeyError), driver_to_link_with():
        raise KeyError
