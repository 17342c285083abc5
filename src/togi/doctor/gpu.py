"""The GPU: its driver and libraries against what torch was built for, what its compilers need, its state, its other
users; and which parts of togi were proven on one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from togi.core.quantities import size
from togi.core.records import Machine
from togi.doctor.check import Check, Level
from togi.doctor.packages import Packages, applies, without_marker
from togi.doctor.software import compare_package, compile_and_run
from togi.doctor.updates import updates
from togi.machine import nvml
from togi.machine.describe import headers_of_pip, torch_build
from togi.machine.nvml import Gpu
from togi.techniques.registry import all_marks

LITTLE_FREE = 0.5
"""Share of the device's memory below which a trial may not fit next to the reference."""
C_PROBE = "#include <Python.h>\nint main(void) { return 0; }\n"
"""What Triton's launchers include."""


def check_gpu(machine: Machine, device: str, packages: Packages) -> list[Check]:
    wanted = device.startswith("cuda")
    proven = _proven_parts(wanted)
    if machine.gpu is None and not wanted:
        return [_no_gpu(wanted), proven]
    found = _no_gpu(wanted) if machine.gpu is None else _device(machine)
    installed = (*_torch_build(wanted, packages), *libraries(packages), *updates(packages))
    return [found, *installed, *_toolchain(machine), *_state(device), proven]


def _device(machine: Machine) -> Check:
    memory = f", {size(machine.gpu_memory_bytes)}" if machine.gpu_memory_bytes else ""
    found = f"{machine.gpu}{memory}, driver {machine.gpu_driver or 'unknown'}"
    return Check(topic="GPU", name="device", level=Level.OK, found=found)


def _proven_parts(wanted: bool) -> Check:
    """How much of togi has ever been run on a GPU: a warning for those who want to use one."""
    marks = [mark for mark in all_marks() if "cuda" in mark.days]
    proven = [mark for mark in marks if mark.days["cuda"] is not None]
    left = len(marks) - len(proven)
    return Check(
        topic="GPU",
        name="proven",
        level=Level.WARNING if wanted and left else Level.OK,
        found=f"{len(proven)} of {len(marks)} parts of togi for CUDA were proven on a device",
        why=f"{left} have never been run on one: docs/gpu.md lists them" if wanted and left else "",
        fix="in a clone of togi: python -m benchmarks.gpu --out sweep --docs docs/gpu.md" if wanted and left else "",
    )


def _no_gpu(wanted: bool) -> Check:
    tool = "nvidia-smi finds none" if shutil.which("nvidia-smi") else "no NVIDIA driver (nvidia-smi) was found"
    why = "--device cuda needs one" if wanted else ""
    return Check(
        topic="GPU", name="device", level=Level.MISSING if wanted else Level.OK, found=f"none: {tool}", why=why
    )


def _torch_build(wanted: bool, packages: Packages) -> list[Check]:
    """A torch for CPUs says so in its version: it cannot use a GPU that is there."""
    version = packages.version("torch")
    if version is None or not version.endswith("+cpu"):
        return []
    return [
        Check(
            topic="GPU",
            name="torch build",
            level=Level.MISSING if wanted else Level.WARNING,
            found=version,
            why="this torch was built without CUDA and cannot use the GPU",
            fix="see https://pytorch.org/get-started/locally/ for the command that installs a CUDA build",
        )
    ]


def libraries(packages: Packages) -> Iterator[Check]:
    """cuDNN, Triton and the rest of CUDA, as torch's own metadata asks for them; what was built for one torch."""
    asked = packages.requirements("torch")
    if asked is None:
        return
    for requirement in filter(applies, asked):
        if not requirement.name.startswith(("nvidia-", "cuda-", "triton")):
            continue
        fix = f"pip install '{without_marker(requirement)}'"
        check = compare_package(requirement, Level.WARNING, fix, packages)
        if check.level is not Level.OK or requirement.name.startswith(("nvidia-cudnn", "triton")):
            why = f"this torch was built for {requirement.name}{requirement.specifier}" if check.why else ""
            yield check.model_copy(update={"topic": "GPU", "why": why})
    yield from _built_for_another_torch("torch-tensorrt", packages)
    yield from tensorrt(packages)


def _built_for_another_torch(distribution: str, packages: Packages) -> Iterator[Check]:
    version, torch = packages.version(distribution), packages.version("torch")
    if version is None or torch is None:
        return
    asked = packages.requirements(distribution) or ()
    wanted = next((requirement for requirement in asked if requirement.name == "torch"), None)
    if wanted is None or wanted.specifier.contains(Version(torch).public, prereleases=True):
        yield Check(topic="GPU", name=distribution, level=Level.OK, found=version)
    else:
        why = f"it was built for torch {wanted.specifier}, and this is {torch}"
        fix = f"pip install --upgrade {distribution}"
        yield Check(topic="GPU", name=distribution, level=Level.WARNING, found=version, why=why, fix=fix)


_TENSORRT = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")
TENSORRT_OF_ONNXRUNTIME = {"1.20": "10.4", "1.21": "10.8", "1.22": "10.9"}
"""What ``onnxruntime-gpu`` was built for: its own metadata does not say.

Source: https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html#requirements
"""


def tensorrt(packages: Packages) -> Iterator[Check]:
    """TensorRT itself, where it is installed, against what torch-tensorrt and ONNX Runtime were built for."""
    version = next((found for name in _TENSORRT if (found := packages.version(name))), None)
    if version is None:
        return
    asked = [one for one in packages.requirements("torch-tensorrt") or () if one.name in _TENSORRT and applies(one)]
    wanted = [("torch-tensorrt", requirement.specifier) for requirement in asked]
    runtime = packages.version("onnxruntime-gpu")
    if runtime is not None and (built := TENSORRT_OF_ONNXRUNTIME.get(".".join(runtime.split(".")[:2]))):
        wanted.append((f"onnxruntime-gpu {runtime}", SpecifierSet(f"~={built}")))
    unmet = [f"{name} was built for TensorRT {spec}" for name, spec in wanted if not spec.contains(version, True)]
    if not unmet:
        yield Check(topic="GPU", name="TensorRT", level=Level.OK, found=version)
        return
    fix = f"pip install '{without_marker(asked[0])}'" if asked else ""
    why = "; ".join(unmet)
    yield Check(topic="GPU", name="TensorRT", level=Level.WARNING, found=version, why=why, fix=fix)


def _toolchain(machine: Machine) -> list[Check]:
    return [_c_compiler(machine), _headers(machine)]


def _c_compiler(machine: Machine) -> Check:
    fix = "sudo apt-get install gcc python3-dev"
    if machine.c_compiler is None:
        why = "Triton compiles its launchers with one: without it torch.compile and AOTInductor cannot work on a GPU"
        return Check(topic="GPU", name="C", level=Level.MISSING, found="no C compiler", why=why, fix=fix)
    path = machine.c_compiler.partition(":")[0]
    if problem := compile_and_run(path, C_PROBE, "probe.c"):
        why = "Triton compiles its launchers with it"
        return Check(topic="GPU", name="C", level=Level.MISSING, found=f"{path}: {problem}", why=why, fix=fix)
    return Check(topic="GPU", name="C", level=Level.OK, found=f"{path} compiles with Python's headers")


def _headers(machine: Machine) -> Check:
    if machine.cuda_headers is not None:
        return Check(topic="GPU", name="CUDA headers", level=Level.OK, found=machine.cuda_headers)
    brought = headers_of_pip()
    return Check(
        topic="GPU",
        name="CUDA headers",
        level=Level.OPTIONAL,
        found="none" if brought is None else f"in {brought}, where torch does not look",
        why="AOTInductor includes cuda.h and cuda_runtime.h, and is refused without them",
        fix="install the CUDA toolkit, or set CUDA_HOME to it" if brought is None else f"export CUDA_HOME={brought}",
    )


def _state(device: str) -> list[Check]:
    gpu = nvml.read_gpu(device)
    return [without_nvml(nvml.why_not(device))] if gpu is None else state_of(gpu, torch_build("cuda"))


def without_nvml(problem: str) -> Check:
    why = "clocks, throttling, power and neighbours stay unknown, and memory is that of the whole device"
    found, _, fix = problem.partition(": ")
    return Check(topic="GPU", name="NVML", level=Level.OPTIONAL, found=found, why=why, fix=fix)


def state_of(gpu: Gpu, built: str | None) -> list[Check]:
    """``built``: the CUDA that torch was built for."""
    return [_driver(gpu, built), _compute_mode(gpu), _clocks(gpu), _memory(gpu), _others(gpu)]


def _driver(gpu: Gpu, built: str | None) -> Check:
    found = (
        f"driver {gpu.driver or 'unknown'} serves CUDA {gpu.cuda or 'unknown'}; torch was built for {built or 'none'}"
    )
    if nvml.too_old(gpu, built):
        why = "a driver serves its own CUDA's major version and older ones: this torch will find no device"
        fix = nvml.update_driver(gpu, built)
        return Check(topic="GPU", name="CUDA", level=Level.MISSING, found=found, why=why, fix=fix)
    return Check(topic="GPU", name="CUDA", level=Level.OK, found=found)


def _compute_mode(gpu: Gpu) -> Check:
    mode = gpu.compute_mode or "unknown"
    if mode in ("default", "unknown"):
        return Check(topic="GPU", name="compute mode", level=Level.OK, found=mode)
    why = "a study holds several processes on the device: the reference, the trial, finalists"
    return Check(topic="GPU", name="compute mode", level=Level.MISSING, found=mode, why=why, fix=nvml.SHARE)


def _clocks(gpu: Gpu) -> Check:
    clock = f"{gpu.clock_mhz:.0f} MHz" if gpu.clock_mhz is not None else "unknown"
    most = f" of {gpu.clock_most_mhz:.0f}" if gpu.clock_most_mhz is not None else ""
    power = f", {gpu.power_w:.0f} W" if gpu.power_w is not None else ""
    limit = f" of {gpu.power_limit_w:.0f}" if power and gpu.power_limit_w is not None else ""
    heat = f", {gpu.temperature_c} °C" if gpu.temperature_c is not None else ""
    found = f"{clock}{most}{power}{limit}{heat}"
    if not gpu.slowed_by:
        return Check(topic="GPU", name="clocks", level=Level.OK, found=found)
    why = f"slowed down by {', '.join(gpu.slowed_by)}: times taken now are not those of a cool, idle device"
    return Check(topic="GPU", name="clocks", level=Level.WARNING, found=found, why=why)


def _memory(gpu: Gpu) -> Check:
    if gpu.free_bytes is None or not gpu.total_bytes:
        return Check(topic="GPU", name="memory", level=Level.OK, found="unknown")
    found = f"{size(gpu.free_bytes)} of {size(gpu.total_bytes)} free"
    if gpu.free_bytes >= LITTLE_FREE * gpu.total_bytes:
        return Check(topic="GPU", name="memory", level=Level.OK, found=found)
    why = "trials may end as out of memory that would fit on an empty device"
    return Check(topic="GPU", name="memory", level=Level.WARNING, found=found, why=why)


def _others(gpu: Gpu) -> Check:
    names = ", ".join(
        f"{process.name or 'process'} {process.pid}" + ("" if process.bytes is None else f" ({size(process.bytes)})")
        for process in gpu.processes
    )
    if not names:
        return Check(topic="GPU", name="other processes", level=Level.OK, found="none")
    why = "what they compute is part of every time that is measured: end them, or measure when they rest"
    level = Level.WARNING if gpu.busy else Level.OK
    return Check(topic="GPU", name="other processes", level=level, found=names, why=why if gpu.busy else "")
