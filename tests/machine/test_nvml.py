"""What NVML says, from answers as a device gives them, and what is left where there is no device, driver or package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from togi.machine import nvml
from togi.measure import memory

MIB = 2**20


class Recorded:
    """The functions of pynvml that are asked, with answers of one GPU with two processes on it."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self) -> None:
        self.opened: list[object] = []
        self.reasons = 0x04 | 0x01
        self.silent: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if name != "silent" and name in self.silent:
            raise RuntimeError("Not Supported")
        return super().__getattribute__(name)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:
        self.opened.append(index)
        return "handle"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:
        self.opened.append(uuid)
        return "handle"

    def nvmlDeviceGetName(self, handle: object) -> bytes:
        return b"NVIDIA H200"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> object:
        return SimpleNamespace(free=100 * MIB, total=1000 * MIB)

    def nvmlDeviceGetComputeMode(self, handle: object) -> int:
        return 3

    def nvmlDeviceGetClockInfo(self, handle: object, kind: int) -> int:
        return 1500 if kind == self.NVML_CLOCK_SM else 0

    def nvmlDeviceGetMaxClockInfo(self, handle: object, kind: int) -> int:
        return 1980

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: object) -> int:
        return self.reasons

    def nvmlDeviceGetPowerUsage(self, handle: object) -> int:
        return 690_500

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:
        return 123_456_789

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: object) -> int:
        return 700_000

    def nvmlDeviceGetTemperature(self, handle: object, sensor: int) -> int:
        return 71

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[object]:
        own = SimpleNamespace(pid=os.getpid(), usedGpuMemory=700 * MIB)
        return [own, SimpleNamespace(pid=1 << 30, usedGpuMemory=None)]

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        return "/usr/bin/python3" if pid == os.getpid() else "/opt/trainer"

    def nvmlDeviceGetProcessUtilization(self, handle: object, since_us: int) -> list[object]:
        now = int(time.time() * 1e6)
        sample = SimpleNamespace
        return [
            sample(pid=os.getpid(), smUtil=80, timeStamp=now),
            sample(pid=1 << 30, smUtil=30, timeStamp=now),
            sample(pid=7, smUtil=90, timeStamp=now - 10_000_000),
            sample(pid=8, smUtil=0, timeStamp=now),
        ]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    found = Recorded()
    monkeypatch.setattr(nvml, "_library", lambda: (found, ""))
    monkeypatch.setattr(nvml, "_own_numbers", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return found


def test_what_a_device_says(recorded: Recorded) -> None:
    gpu = nvml.read_gpu("cuda:1")
    assert gpu is not None
    assert recorded.opened == [1]
    assert (gpu.name, gpu.driver, gpu.cuda, gpu.compute_mode) == (
        "NVIDIA H200",
        "580.65.06",
        "13.0",
        "exclusive process",
    )
    assert (gpu.clock_mhz, gpu.clock_most_mhz, gpu.power_w, gpu.power_limit_w) == (1500, 1980, 690.5, 700)
    assert gpu.slowed_by == ("the power limit",), "an idle clock is no slowdown"
    assert nvml.energy_mj() == 123_456_789
    assert gpu.own_bytes == 700 * MIB
    assert gpu.busy_neighbours == ("trainer 1073741824",)


@pytest.mark.parametrize(
    ("device", "visible", "opened"),
    [("cuda", "3,1", [3]), ("cuda:1", "3,1", [1]), ("cuda", "GPU-8932f937", ["GPU-8932f937"]), ("cuda:2", "3,1", [])],
)
def test_the_environment_says_which_device_is_meant(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, device: str, visible: str, opened: list[object]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert (nvml.read_gpu(device) is None) is (not opened)
    assert recorded.opened == opened
    assert ("finds no GPU" in nvml.why_not(device)) is (not opened)


def test_what_a_device_does_not_say_is_unknown(recorded: Recorded) -> None:
    recorded.silent = {name for name in vars(Recorded) if name.startswith("nvml") and "Handle" not in name}
    assert nvml.read_gpu() == nvml.Gpu()
    assert nvml.energy_mj() is None


@pytest.mark.usefixtures("recorded")
def test_a_process_that_cannot_find_itself_calls_nobody_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_own_numbers", lambda: True)
    gpu = nvml.read_gpu()
    assert gpu is not None
    assert (gpu.own_bytes, gpu.busy_neighbours) == (None, ())


def test_trials_of_the_same_study_are_not_neighbours(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """What NVML samples reaches back over many turns, so the reference is seen in each turn of a candidate."""
    monkeypatch.setenv(nvml.PARENT, "1")
    started = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, nvml.PARENT: of})
        for of in ("1", "2", "11")
    ]
    reference, of_another, *_ = (process.pid for process in started)
    gone = 1 << 30
    pids = [os.getpid(), gone, *(process.pid for process in started)]
    sample = SimpleNamespace
    samples = [sample(pid=pid, smUtil=50, timeStamp=int(time.time() * 1e6) + 10**6) for pid in pids]
    recorded.nvmlDeviceGetProcessUtilization = lambda *_: samples  # type: ignore[method-assign]
    try:
        gpu = nvml.read_gpu()
        monkeypatch.delenv(nvml.PARENT)
        alone = nvml.read_gpu()
    finally:
        for process in started:
            process.communicate(b"\n")
    assert gpu is not None
    assert alone is not None
    assert reference in gpu.siblings
    assert gpu.busy_neighbours == (f"trainer {gone}", f"process {of_another}", f"process {pids[-1]}")
    assert len(alone.busy_neighbours) == 4, "a process that no study started knows none as its own"


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    library = nvml._library.__wrapped__
    monkeypatch.setattr(nvml, "_library", library)
    assert nvml.read_gpu() is None
    assert "pip install 'togi[gpu]'" in nvml.why_not()


def test_a_missing_driver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("NVML Shared Library Not Found")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=fail))
    monkeypatch.setattr(nvml, "_library", nvml._library.__wrapped__)
    assert nvml.read_gpu() is None
    assert "NVML Shared Library Not Found" in nvml.why_not()


def test_memory_next_to_torchs_is_that_of_this_process(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour that allocates between the mark and the measurement is not the candidate's memory."""
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 500 * MIB)
    free = iter((300 * MIB, 100 * MIB))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (next(free), 1000 * MIB))

    def other() -> int:
        return memory._cuda_other_bytes(memory.own_cuda_bytes())

    assert [other(), other()] == [200 * MIB, 200 * MIB]
    recorded.silent = {"nvmlDeviceGetComputeRunningProcesses"}
    assert [other(), other()] == [200 * MIB, 400 * MIB]


def test_what_changes_while_a_process_is_stopped_is_not_its_memory(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without NVML all of the device is counted: the cache that the reference keeps after its turns, and the contexts
    and weights of what was started since."""
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 100 * MIB)
    monkeypatch.setattr(memory, "_release", lambda _: None)
    used, total = [400], 1000
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: ((total - used[0]) * MIB, total * MIB))
    recorded.silent = {"nvmlDeviceGetComputeRunningProcesses"}
    mark = memory.mark_memory("cuda")
    used[0] += 30  # its engine
    for others in (200, -50, 0):
        mark.stops()
        used[0] += others
        mark.goes_on()
        mark.goes_on()  # asked twice without having stopped
    used[0] += 5
    assert memory._cuda_other_bytes(None) - mark.device_other_bytes == 35 * MIB
    recorded.silent = set()
    told = memory.mark_memory("cuda")
    told.stops()
    used[0] += 200
    told.goes_on()
    assert told.device_other_bytes == memory._cuda_other_bytes(memory.own_cuda_bytes()), "NVML tells whose it is"


@pytest.mark.parametrize(
    ("known", "free_mib", "said"),
    [
        (True, 300, ""),  # 700 MiB are this process's own
        (True, 200, "Other processes hold 100 MiB of the device's "),
        (False, 200, ""),  # 500 reserved, and a context that may have 700
        (False, 0, ""),
    ],
)
def test_what_other_processes_hold_is_reported(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, known: bool, free_mib: int, said: str
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 500 * MIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (free_mib * MIB, 1000 * MIB))
    recorded.silent = set() if known else {"nvmlDeviceGetComputeRunningProcesses"}
    found = memory.held_by_others("cuda")
    assert found.startswith(said) if said else found == ""
    assert memory.held_by_others("cpu") == ""


def test_without_nvml_only_what_no_context_explains_is_called_others(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.silent = {"nvmlDeviceGetComputeRunningProcesses"}
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (5000 * MIB, 8000 * MIB))
    assert memory.held_by_others("cuda").startswith("Other processes hold about 2.25 GiB of the device's 7.81 GiB")


def test_every_question_is_one_that_the_package_can_be_asked() -> None:
    """The recorded answers stand for functions of nvidia-ml-py, and ``nvml`` asks no others."""
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    asked = set(re.findall(r"nvml\.(nvml\w+|NVML_\w+)", Path(nvml.__file__).read_text(encoding="utf-8")))
    assert {name for name in vars(Recorded) if name.lower().startswith("nvml")} <= asked
    assert [name for name in sorted(asked) if not hasattr(pynvml, name)] == []
