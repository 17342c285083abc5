"""Describes the machine: processor, memory, versions, compiler, GPU. No torch, so that the parent can ask.

Limits of the container count: a process that may use 2 of 64 cores, or 8 of 512 GiB, has 2 cores and 8 GiB. Where a
fact cannot be read (macOS, a locked-down container) it is left empty; nothing in here raises.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.metadata
import importlib.util
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from togi.core.records import Machine
from togi.machine import limits
from togi.machine.limits import read_text, usable_bytes

BACKENDS = (
    "torch",
    "triton",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxscript",
    "openvino",
    "nncf",
    "ncnn",
    "pnnx",
    "torch-tensorrt",
    "tensorrt",
    "torchao",
)
"""Distributions whose version changes what a technique does or how fast it is."""
_CPUINFO = Path("/proc/cpuinfo")


def machine(device: str = "cpu") -> Machine:
    """This machine as this process may use it. ``device`` (``cuda:1``) chooses which GPU is described."""
    return Machine(
        **_running(),
        **_gpu(device),
        compiler=_compiler("CXX", "g++", "clang++", "c++"),
        c_compiler=_compiler("CC", "clang", "gcc", "cc"),
        cuda_headers=_cuda_headers(),
        allocators=installed_allocators(),
    )


def differences(there: Machine, device: str) -> list[str]:
    """The differences of this machine from ``there`` for what runs on ``device``, as sentences.

    Loading an artifact asks: no process is started (compilers are described by starting them, libraries are found so),
    but for the driver's tool where ``device`` is a GPU.
    """
    now = _running() | ({} if device == "cpu" else _gpu(device))
    return there.model_copy(update=now).differences(there)


def _running() -> dict[str, Any]:
    """The properties that running on the CPU depends on."""
    cores = usable_cores()
    return {
        "cpu_model": _cpu_model(),
        "cpu_flags": cpu_flags(),
        "onednn_limit": onednn_limit(),
        "cpu_cores": cores,
        "memory_bytes": usable_bytes(),
        "threads": _threads(cores),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": _versions(),
    }


def usable_cores() -> int:
    """Cores this process may keep busy: its affinity, which a container's set of cores cuts, cut to the quota of
    processor time."""
    allowed = len(_affinity()) or os.cpu_count() or 1
    quota = limits.cpu_quota()
    return max(1, min(allowed, math.ceil(quota)) if quota else allowed)


def physical_cores() -> int:
    """Cores, not hyper-threads, on which this process may run, whatever its quota; 0 where it cannot be known."""
    allowed = _affinity()
    return len(
        {
            (block.get("physical id", ""), block.get("core id", block["processor"]))
            for block in _cpuinfo()
            if "processor" in block and int(block["processor"]) in allowed
        }
    )


def _affinity() -> frozenset[int]:
    if sys.platform != "linux":
        return frozenset()
    return frozenset(os.sched_getaffinity(0))


def _threads(cores: int) -> int:
    """Threads that torch would use here: ``OMP_NUM_THREADS``, else one per physical core."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return max(1, min(cores, physical_cores() or cores))


def _cpuinfo() -> list[dict[str, str]]:
    """One dict per processor; empty where there is no /proc."""
    blocks = []
    for block in read_text(_CPUINFO).split("\n\n"):
        entries = (line.partition(":") for line in block.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in entries}
        if fields:
            blocks.append(fields)
    return blocks


def _cpu_model() -> str:
    for block in _cpuinfo():
        for key in ("model name", "Processor", "Hardware", "cpu model", "cpu"):
            if block.get(key):
                return " ".join(block[key].split())
        if "CPU part" in block:
            return f"{platform.machine()} implementer {block.get('CPU implementer', '?')} part {block['CPU part']}"
    return (
        _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or platform.machine() or "unknown"
    )


def cpu_flags() -> tuple[str, ...]:
    """Instruction sets and other features of the processor, in order."""
    for block in _cpuinfo():
        if flags := block.get("flags") or block.get("Features") or block.get("isa"):
            return tuple(sorted(set(flags.split())))
    return tuple(sorted(_output("sysctl", "-n", "machdep.cpu.features").lower().split()))


def onednn_limit() -> str:
    """``ONEDNN_MAX_CPU_ISA`` where it rules instructions out, else empty."""
    asked = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA", "")
    return "" if asked.upper() in ("ALL", "DEFAULT") else asked.upper()


def _versions() -> dict[str, str]:
    versions = {}
    for name in BACKENDS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    # ``2.9.0+cu128``: the package's metadata often lacks the part that says what torch was built for
    built = torch_build("__version__")
    return versions | ({"torch": built} if built else {})


def torch_build(name: str) -> str | None:
    """The facts that the installed torch gives of its build (``__version__``, ``cuda``); importing it takes seconds."""
    spec = importlib.util.find_spec("torch")
    source = read_text(Path(spec.origin).with_name("version.py")) if spec is not None and spec.origin else ""
    match = re.search(rf"^{name}\b.*?= ['\"](.+?)['\"]", source, re.MULTILINE)
    return match[1] if match else None


def _compiler(variable: str, *names: str) -> str | None:
    """The compiler that an environment variable names, else the first of ``names``; with its version."""
    for name in (os.environ.get(variable, ""), *names):
        path = shutil.which(name) if name else None
        if path:
            first = _output(path, "--version").partition("\n")[0]
            return f"{path}: {first}" if first else path
    return None


def _cuda_headers() -> str | None:
    """The folders where torch looks for them (torch.utils.cpp_extension): ``CUDA_HOME``, the folder of nvcc,
    /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if not home and (nvcc := shutil.which("nvcc")):
        home = str(Path(nvcc).parents[1])
    folder = Path(home or "/usr/local/cuda") / "include"
    return str(folder) if has_cuda_headers(folder) else None


def has_cuda_headers(folder: Path) -> bool:
    """Those that a compiled model includes."""
    return all((folder / name).is_file() for name in ("cuda.h", "cuda_runtime.h"))


def headers_of_pip() -> Path | None:
    """CUDA's headers as packages that torch asks for bring them; torch finds them by ``CUDA_HOME`` alone."""
    for place in sys.path:
        for folder in [*sorted(Path(place).glob("nvidia/cu[0-9]*")), Path(place) / "nvidia/cuda_runtime"]:
            if has_cuda_headers(folder / "include"):
                return folder
    return None


def _gpu(device: str) -> dict[str, Any]:
    """Name, memory and driver of the GPU that ``device`` means, by the driver's own tool."""
    none = dict.fromkeys(("gpu", "gpu_memory_bytes", "gpu_driver"))
    fields = "--query-gpu=name,memory.total,driver_version"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "" or visible == "-1":
        return none
    select = [f"--id={visible}"] if visible else []
    rows = _output("nvidia-smi", *select, fields, "--format=csv,noheader,nounits").splitlines()
    index = device.partition(":")[2]
    row = rows[int(index)] if index.isdigit() and int(index) < len(rows) else (rows[0] if rows else "")
    parts = [part.strip() for part in row.rsplit(",", 2)]
    if len(parts) != 3:
        return none
    name, mebibytes, driver = parts
    memory = int(mebibytes) * 2**20 if mebibytes.isdigit() else None
    return {"gpu": name, "gpu_memory_bytes": memory, "gpu_driver": driver}


def _output(*command: str) -> str:
    """Standard output of a short command; empty when it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout.strip()


ALLOCATORS = {
    "tcmalloc": ("tcmalloc_minimal", "tcmalloc"),
    "jemalloc": ("jemalloc",),
    "mimalloc": ("mimalloc",),
}
"""Allocator -> names of its library, the leanest first."""
DEBIAN_PACKAGES = {"tcmalloc": "libtcmalloc-minimal4", "jemalloc": "libjemalloc2", "mimalloc": "libmimalloc2.0"}
"""Allocator -> Debian's package of it."""

_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/opt/homebrew/lib",
)


def installed_allocators() -> dict[str, str]:
    """Allocator name -> absolute path of its library (or the name under which the linker finds it)."""
    located = {name: _located_library(libraries) for name, libraries in ALLOCATORS.items()}
    return {name: path for name, path in located.items() if path}


def _located_library(libraries: tuple[str, ...]) -> str | None:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    folders = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *_LIBRARY_FOLDERS]
    for library in libraries:
        for folder in folders:
            # Packages without the -dev part install only "libtcmalloc_minimal.so.4".
            matches = [*Path(folder).glob(f"lib{library}.{suffix}"), *Path(folder).glob(f"lib{library}.{suffix}.*")]
            if matches:
                return str(min(matches))
        if known := ctypes.util.find_library(library):
            return known
    return None
