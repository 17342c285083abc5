"""What there is; nothing that a device needs may be missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from benchmarks.gpu_parts.row import Row, row

from togi.doctor import Level, examine
from togi.machine import nvml
from togi.machine.describe import machine

PACKAGES = ("triton", "onnxruntime", "onnxruntime-gpu", "torch-tensorrt", "tensorrt", "torchao", "nvidia-ml-py")
"""Beside torch, those on which rows depend."""


def name_of(device: str) -> str:
    """What is swept, and by what."""
    here = machine(device)
    name = f"{here.gpu}, driver {here.gpu_driver}" if device == "cuda" else here.cpu_model
    return f"{name}, torch {here.versions.get('torch')}, Python {here.python}"


def rows(device: str) -> Iterator[Row]:
    """What there is; nothing that a device needs may be missing."""
    yield row("device", True, name_of(device))
    yield row("software", True, software())
    yield row("surroundings", True, surroundings())
    if device == "cuda":
        yield row("the device at the start", True, state())
        yield row("NVML", None if (why := nvml.why_not()) else True, why or "answers")
    began = time.monotonic()
    missing = [
        f"{check.topic} {check.name}: {check.found}" for check in examine(device) if check.level is Level.MISSING
    ]
    yield row("doctor", not missing, "; ".join(missing) or "nothing is missing", "0 missing", time.monotonic() - began)


def software() -> str:
    """Versions, and which packages are not there."""
    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None
    of_torch = f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn}"
    found = {name: _version(name) for name in PACKAGES}
    there = [f"{name} {version}" for name, version in found.items() if version]
    missing = [name for name, version in found.items() if not version]
    offered = ""
    if find_spec("onnxruntime"):
        import onnxruntime

        offered = f" (providers: {', '.join(onnxruntime.get_available_providers())})"
    return f"{', '.join([of_torch, *there])}{offered}; not installed: {', '.join(missing) or 'nothing'}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def surroundings() -> str:
    """Kernel, cores, memory, and the container or virtual machine, as far as it shows itself."""
    here = machine("cpu")
    marks = {"docker": Path("/.dockerenv"), "podman": Path("/run/.containerenv")}
    container = [name for name, path in marks.items() if path.exists()]
    flags = Path("/proc/cpuinfo")
    virtual = flags.is_file() and " hypervisor" in flags.read_text(encoding="utf-8", errors="replace")
    told = [*container, *(["a virtual machine"] if virtual else [])]
    kernel = f"{platform.system()} {platform.release()}"
    return (
        f"{kernel}, {os.cpu_count()} cores ({here.cpu_model}), {here.memory_bytes >> 30} GiB, "
        f"{' in '.join(told) or 'no container or virtual machine seen'}"
    )


def state() -> str:
    """Capability, clocks, power, ECC and MIG of the device now."""
    properties = torch.cuda.get_device_properties(0)
    told = [f"sm_{properties.major}{properties.minor}, {properties.multi_processor_count} multiprocessors"]
    gpu = nvml.read_gpu()
    if gpu is None:
        return f"{told[0]}; no more is known: {nvml.why_not()}"
    told.append(f"{gpu.clock_mhz or 0:.0f} of {gpu.clock_most_mhz or 0:.0f} MHz")
    told.append(f"{gpu.power_w or 0:.0f} of {gpu.power_limit_w or 0:.0f} W, {gpu.temperature_c} C")
    told.append(f"slowed by {', '.join(gpu.slowed_by)}" if gpu.slowed_by else "not slowed")
    told += [f"{name} {_mode(ask)}" for name, ask in (("ECC", "nvmlDeviceGetEccMode"), ("MIG", "nvmlDeviceGetMigMode"))]
    own = "told" if gpu.own_bytes is not None else "not told"
    return ", ".join([*told, f"{len(gpu.processes)} processes on it, this one's memory {own}"])


def _mode(ask: str) -> str:
    """On or off, by NVML; ``unknown`` where the driver does not tell."""
    try:
        import pynvml

        current, _ = getattr(pynvml, ask)(pynvml.nvmlDeviceGetHandleByIndex(0))
    except Exception:  # foreign code: NVMLError, an older NVML
        return "unknown"
    return "on" if current else "off"
