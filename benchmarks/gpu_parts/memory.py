"""What is known to be held and to be worked in is what is measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import torch
from benchmarks.gpu_parts.row import MIB, Row, attempt

from togi.core.proven import MarkedPart
from togi.machine import nvml
from togi.measure import mark_memory, measure_footprint
from togi.subject.inputs import Inputs

SAMPLES = [Inputs((0,))]
BOUNDS = "idle 62 to 80 MiB beyond what was there; peak 60 to 100 MiB; torch's allocator 64 MiB to 0.1 %"
NEIGHBOUR = "import torch; held = torch.ones(1 << 28, device='cuda'); print('there', flush=True); input()"
"""Holds a context and 1 GiB until it is told to end."""


def rows(device: str) -> Iterator[Row]:
    """What is known to be held and to be worked in is what is measured."""
    yield attempt("64 MiB held, 64 MiB in a call", BOUNDS, known_memory, device, proves=(MarkedPart.PEAK_MEMORY,))
    yield attempt(
        "the same next to a process that came meanwhile",
        BOUNDS,
        beside_another,
        device,
        proves=(MarkedPart.PEAK_MEMORY,),
    )
    if device == "cuda":
        yield attempt("NVML knows this process", "at least what torch reserved", own_memory)


def beside_another(device: str) -> tuple[bool | None, str]:
    """As the reference is, or another trial, while this one is stopped."""
    if device == "cpu":
        return None, "a process of the CPU is measured by itself"
    return known_memory(device, another=True)


def known_memory(device: str, *, another: bool = False) -> tuple[bool, str]:
    warming = torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)  # cuBLAS takes its workspace
    mark = mark_memory(device)
    before = held_before(device)
    weights = torch.ones(64 * MIB // 4, device=device)
    neighbour = None
    if another:
        mark.stops()
        command = [sys.executable, "-c", NEIGHBOUR]
        neighbour = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "there\n"
        mark.goes_on()
    found = measure_footprint(lambda _: weights * 2, SAMPLES, mark, device=device)
    if neighbour is not None:
        neighbour.communicate("\n")
    del warming
    idle, exact = (found.idle_bytes - before) / MIB, (found.allocator_peak_bytes or 0) / MIB
    peak = found.peak_bytes / MIB
    # less than 64 where the system has taken pages away
    right = 62 <= idle <= 80 and 60 <= peak <= 100 and 64 <= exact <= 64.064
    there = f" beyond {before / MIB:.0f}" if before else ""
    return right, f"idle {idle:.0f}{there}, peak {peak:.0f}, allocator {exact:.4f} MiB"


def held_before(device: str) -> int:
    """Bytes of segments that torch's allocator has to keep: of cuBLAS (32 MiB on Hopper, less elsewhere) and of what
    is alive. A mark leaves only out what libraries took beside the allocator."""
    if device == "cpu":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_reserved())


def own_memory() -> tuple[bool | None, str]:
    gpu = nvml.read_gpu()
    if gpu is None or gpu.own_bytes is None:
        return None, nvml.why_not() or "process numbers are the host's here (a container): memory is the whole device's"
    reserved = torch.cuda.memory_reserved()
    return gpu.own_bytes >= reserved, f"{gpu.own_bytes / MIB:.0f} MiB, of which torch reserved {reserved / MIB:.0f}"
