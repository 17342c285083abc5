"""Reads NVIDIA's management library about the GPU: clocks, why they are low, power, memory by process, neighbours.

It is asked through the package nvidia-ml-py (``pip install 'togi[gpu]'``), starts no CUDA and needs no torch. Nothing
in here raises: what a driver, a container or a virtual GPU does not tell is None or empty, and ``why_not`` says why
nothing is known at all.

Process numbers are those of the host. In a container with numbers of its own a process cannot find itself among them,
so who is a neighbour is not known there, and nobody is called one.

Source: https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from togi.machine.limits import read_text

PARENT = "TOGI_PARENT"
"""The environment variable by which processes that one parent started know each other."""
_SLOWED = {
    0x04: "the power limit",
    0x08: "a hardware slowdown",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "the power brake",
}
"""Bits of nvmlClocksEventReasons that mean slower than asked. Idle, a user's own clocks and display settings do not."""
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
SHARE = "sudo nvidia-smi --compute-mode=DEFAULT"
"""The command that lets several processes use a GPU at once."""
DRIVER_OF_CUDA = {12: 525, 13: 580}
"""The oldest branch of the driver for Linux that serves any release of a major version of CUDA (2026-11-24).

Source: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
"""
_BUSY_PERCENT = 2
"""Of the multiprocessors' time, from which a process counts as a neighbour."""


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """``name`` is empty, and ``bytes`` None, where the driver does not tell."""

    pid: int
    name: str
    bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU now. None: not told."""

    name: str | None = None
    driver: str | None = None
    cuda: str | None = None
    """The latest CUDA that the driver serves, e.g. ``13.0``."""
    compute_mode: str | None = None
    clock_mhz: float | None = None
    clock_most_mhz: float | None = None
    slowed_by: tuple[str, ...] = ()
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    busy: tuple[int, ...] = ()
    """Processes that computed lately."""
    siblings: tuple[int, ...] = ()
    """Of them, those that were started by the parent of this one: the reference, other trials. They take turns with it,
    and are named because what NVML samples reaches back by up to a second, over many turns."""
    own_pid: int | None = None
    """This process's number among ``processes``; None where it has none, or cannot know it."""

    @property
    def own_bytes(self) -> int | None:
        """Device memory of this process: its context, torch's reserve and what libraries took besides it."""
        return next((process.bytes for process in self.processes if process.pid == self.own_pid), None)

    @property
    def busy_neighbours(self) -> tuple[str, ...]:
        """Processes of others that computed lately, by name and number."""
        if self.own_pid is None:
            return ()
        names, own = {process.pid: process.name for process in self.processes}, {self.own_pid, *self.siblings}
        return tuple(f"{names.get(pid) or 'process'} {pid}" for pid in self.busy if pid not in own)


def read_gpu(device: str = "cuda", *, busy_since_s: float = 1.0) -> Gpu | None:
    """The GPU that ``device`` (``cuda``, ``cuda:1``) means in this process; None: see ``why_not``.

    Args:
        busy_since_s: how far back ``busy`` looks.
    """
    nvml = _library()[0]
    handle = None if nvml is None else _handle(nvml, device)
    return None if nvml is None or handle is None else _read(nvml, handle, busy_since_s)


def energy_mj(device: str = "cuda") -> float | None:
    """Millijoules that the GPU has taken since its driver was loaded; None where it does not count them (before Volta,
    a part of a GPU)."""
    nvml = _library()[0]
    handle = None if nvml is None else _handle(nvml, device)
    return None if handle is None else _asked(lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)))


def why_not(device: str = "cuda") -> str:
    """The reason why nothing is known of the GPU, in a sentence with what to do; empty where something is."""
    nvml, problem = _library()
    if nvml is not None and _handle(nvml, device) is None:
        return f"NVML finds no GPU for {device} (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')})"
    return problem


def too_old(gpu: Gpu, built: str | None) -> bool:
    """True if the driver serves no CUDA of the major version that a torch was ``built`` for. A driver serves its own
    and older ones, so that such a torch finds no device."""
    return bool(gpu.cuda and built and int(built.partition(".")[0]) > int(gpu.cuda.partition(".")[0]))


def update_driver(gpu: Gpu, built: str | None) -> str:
    """The advice where it is ``too_old``."""
    wanted = DRIVER_OF_CUDA.get(int((built or "0").partition(".")[0]))
    newer = f" to {wanted} or newer" if wanted else ""
    older = f"install a torch for CUDA {gpu.cuda} (https://pytorch.org/get-started/locally/)"
    return f"update the driver{newer}, or {older}"


@cache
def _library() -> tuple[Any, str]:
    try:
        import pynvml
    except ImportError:
        return None, "the package nvidia-ml-py is not installed: pip install 'togi[gpu]'"
    try:
        pynvml.nvmlInit()
    except Exception as error:  # foreign code: NVMLError, a driver of another version than its library
        return None, f"NVML does not start ({error}): there is no NVIDIA driver, or it does not fit its library"
    return pynvml, ""


def _handle(nvml: Any, device: str) -> Any:
    """``CUDA_VISIBLE_DEVICES`` names devices by UUID, or by a number, which is NVML's where the devices are alike or
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` is set."""
    number = int(device.partition(":")[2] or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(number)] if visible is None else [name.strip() for name in visible.split(",")]
    chosen = names[0] if visible is None else names[number] if number < len(names) else ""
    if chosen.isdigit():
        return _asked(lambda: nvml.nvmlDeviceGetHandleByIndex(int(chosen)))
    return _asked(lambda: nvml.nvmlDeviceGetHandleByUUID(chosen)) if chosen else None


def _asked(question: Callable[[], Any]) -> Any:
    """The answer, or None: drivers, virtual GPUs and old releases of the package lack this or that."""
    try:
        return question()
    except Exception:  # foreign code: NVMLError (not supported, no permission), AttributeError
        return None


def _read(nvml: Any, handle: Any, busy_since_s: float) -> Gpu:
    memory = _asked(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    reasons = _asked(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
    cuda = _asked(lambda: nvml.nvmlSystemGetCudaDriverVersion())
    running = _asked(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
    processes = tuple(_process(nvml, entry.pid, entry.usedGpuMemory) for entry in running)
    pids, busy = [process.pid for process in processes], _busy(nvml, handle, busy_since_s)
    return Gpu(
        name=_text(_asked(lambda: nvml.nvmlDeviceGetName(handle))) or None,
        driver=_text(_asked(lambda: nvml.nvmlSystemGetDriverVersion())) or None,
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        compute_mode=_COMPUTE_MODES.get(_asked(lambda: nvml.nvmlDeviceGetComputeMode(handle))),
        clock_mhz=_asked(lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
        clock_most_mhz=_asked(lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
        slowed_by=tuple(text for bit, text in _SLOWED.items() if reasons & bit),
        power_w=_asked(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        power_limit_w=_asked(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
        temperature_c=_asked(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        free_bytes=None if memory is None else memory.free,
        total_bytes=None if memory is None else memory.total,
        processes=processes,
        busy=busy,
        siblings=tuple(filter(_is_sibling, busy)),
        own_pid=os.getpid() if os.getpid() in pids and not _own_numbers() else None,
    )


def _process(nvml: Any, pid: int, used_bytes: int | None) -> GpuProcess:
    path = _text(_asked(lambda: nvml.nvmlSystemGetProcessName(pid)))
    return GpuProcess(pid=pid, name=path.rpartition("/")[2], bytes=used_bytes)


def _busy(nvml: Any, handle: Any, since_s: float) -> tuple[int, ...]:
    since_us = int((time.time() - since_s) * 1e6)
    samples = _asked(lambda: nvml.nvmlDeviceGetProcessUtilization(handle, since_us)) or ()
    return tuple(dict.fromkeys(s.pid for s in samples if s.smUtil >= _BUSY_PERCENT and s.timeStamp >= since_us))


def _is_sibling(pid: int) -> bool:
    """True if a process was started with the same ``PARENT`` as this one (proc(5), ``/proc/pid/environ``)."""
    mark = f"{PARENT}={os.environ[PARENT]}" if PARENT in os.environ else None
    return mark in read_text(Path(f"/proc/{pid}/environ")).split("\0")


def _own_numbers() -> bool:
    """True if this process lives in a namespace with process numbers of its own (pid_namespaces(7)), as in most
    containers: all but the first have another inode than the kernel's PROC_PID_INIT_INO."""
    try:
        return os.readlink("/proc/self/ns/pid") != "pid:[4026531836]"
    except OSError:  # not offered (a sandbox, another system): it cannot be told
        return True


def _text(answer: Any) -> str:
    return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer or "")
