"""How busy others keep the machine: of planted processes, and of a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.made_up_machine import machine
from togi.machine import load
from togi.machine.load import crowded, watch_neighbours

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class PlantedProcesses:
    """A folder like /proc, whose processes compute while somebody sleeps; ``cores``: how much each, by its id."""

    def __init__(self, folder: Path, cores: dict[int, float], running: str) -> None:
        self.folder, self.cores, self.now_s = folder, cores, 100.0
        for pid in (*cores, os.getpid()):
            (folder / str(pid)).mkdir()
        (folder / "self").mkdir()
        (folder / "self" / "stat").write_text("1 (x) R", encoding="utf-8")
        (folder / "loadavg").write_text(f"8.40 2.00 1.00 {running} 4242\n", encoding="utf-8")
        self.sleep(0.0)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for pid, cores in {**self.cores, os.getpid(): 50.0}.items():
            ticks = int(1000 + cores * TICKS_PER_S * (self.now_s - 100.0))
            line = f"{pid} (a (strange) name) R {' '.join(['0'] * 10)} {ticks - 500} 500 0 0"
            (self.folder / str(pid) / "stat").write_text(line, encoding="utf-8")

    def monotonic(self) -> float:
        return self.now_s


def plant(monkeypatch: pytest.MonkeyPatch, folder: Path, cores: dict[int, float], running: str) -> PlantedProcesses:
    planted = PlantedProcesses(folder, cores, running)
    monkeypatch.setattr(load, "PROC", folder)
    monkeypatch.setattr(load, "time", SimpleNamespace(sleep=planted.sleep, monotonic=planted.monotonic))
    return planted


def test_many_small_processes_count_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant(monkeypatch, tmp_path, {10**7 + number: 0.1 for number in range(20)}, "21/300")
    found = watch_neighbours(1.0)
    assert found.cores == pytest.approx(2.0, abs=0.05)
    assert found.busiest == (), "none can be named"
    assert "little can be proven" in crowded(machine(cpu_cores=2))


def test_the_busiest_are_named_first_and_this_process_is_none_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch, tmp_path, {10**7: 0.5, 10**7 + 1: 0.9, 10**7 + 2: 0.01}, "3/300")
    found = watch_neighbours(1.0)
    assert [name for _, name in found.busiest] == ["a (strange) name pid 10000001", "a (strange) name pid 10000000"]
    said = crowded(machine(cpu_cores=2, threads=2))
    assert said.startswith("little can be proven now, and all takes longer: of 2 cores others keep 1.")
    assert "pid 10000001 (0.9 cores)" in said
    assert "OMP_NUM_THREADS=1" in said
    assert "OMP_NUM_THREADS" not in crowded(machine(cpu_cores=2, threads=1))


@pytest.mark.parametrize(
    ("cores", "running", "machine_cores"),
    [({10**7: 0.2}, "9/300", 2), ({10**7: 1.0}, "9/300", 64), ({10**7: 1.0}, "1/300", 2)],
    ids=["little is kept busy", "many cores", "nothing else is ready to run"],
)
def test_a_quiet_machine_is_not_spoken_of(
    cores: dict[int, float], running: str, machine_cores: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planted = plant(monkeypatch, tmp_path, cores, running)
    assert crowded(machine(cpu_cores=machine_cores)) == ""
    if running == "1/300":
        assert planted.now_s == 100.0, "nobody waited"


@pytest.mark.parametrize("running", ["", "0/0", "strange"])
def test_where_nobody_says_what_is_ready_to_run_processes_are_watched(
    running: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch, tmp_path, {10**7: 1.9}, running)
    assert "little can be proven" in crowded(machine(cpu_cores=2))


def test_where_there_is_no_proc_nothing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(load, "PROC", tmp_path)
    assert crowded(machine(cpu_cores=2)) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_busy_process_is_named() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        found = watch_neighbours(0.6)
        for _ in range(20):  # beside many neighbours it gets little at times
            if any(f"pid {busy.pid}" in name for _, name in found.busiest):
                break
            found = watch_neighbours(0.6)
    finally:
        busy.kill()
        busy.wait()
    assert any(f"pid {busy.pid}" in name for _, name in found.busiest)
    assert not any(f"pid {os.getpid()}" in name for _, name in found.busiest)
