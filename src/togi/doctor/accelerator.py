"""The GPU, its driver, and whether the installed torch was built for it."""

from __future__ import annotations

import importlib.metadata
import shutil

from togi.core.quantities import size
from togi.core.records import Machine
from togi.doctor.check import Check, Level
from togi.techniques.proven import all_marks


def check(machine: Machine, device: str) -> list[Check]:
    wanted = device.startswith("cuda")
    if machine.gpu is None:
        return [_absent(wanted), _proven(wanted)]
    memory = f", {size(machine.gpu_memory_bytes)}" if machine.gpu_memory_bytes else ""
    gpu = Check(
        topic="GPU",
        name="device",
        level=Level.OK,
        found=f"{machine.gpu}{memory}, driver {machine.gpu_driver or 'unknown'}",
    )
    return [gpu, *_torch_build(wanted), _proven(wanted)]


def _proven(wanted: bool) -> Check:
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
        mend="python -m pytest -m gpu in a clone of togi runs their tests here" if wanted and left else "",
    )


def _absent(wanted: bool) -> Check:
    tool = "nvidia-smi finds none" if shutil.which("nvidia-smi") else "no NVIDIA driver (nvidia-smi) was found"
    why = "--device cuda needs one" if wanted else ""
    return Check(
        topic="GPU", name="device", level=Level.MISSING if wanted else Level.OK, found=f"none: {tool}", why=why
    )


def _torch_build(wanted: bool) -> list[Check]:
    """A torch for CPUs says so in its version: it cannot use a GPU that is there."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return []
    if not version.endswith("+cpu"):
        return []
    return [
        Check(
            topic="GPU",
            name="torch build",
            level=Level.MISSING if wanted else Level.WARNING,
            found=version,
            why="this torch was built without CUDA and cannot use the GPU",
            mend="see https://pytorch.org/get-started/locally/ for the command that installs a CUDA build",
        )
    ]
