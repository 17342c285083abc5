"""Trials of subjects whose files do with the device what people's files do; pausing and killing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from benchmarks.gpu_parts.row import LIMITS, MIB, Row, attempt, ignore

from togi.decide.faithful import MAX_UNITS
from togi.machine.describe import machine
from togi.techniques import recipe
from togi.worker.child_process import Child
from togi.worker.hand_over import handed_over
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef

SUBJECT = """
import torch
{before}

def subject():
    torch.manual_seed(0)
    layers = [torch.nn.Linear({width}, {width}) for _ in range(4)]
    return torch.nn.Sequential(*layers){after}, torch.randn(8, {width})
"""
HELD_WIDTH = 2048
HELD_BYTES = 4 * 4 * HELD_WIDTH * HELD_WIDTH
"""What the weights of that width take."""


def rows(device: str) -> Iterator[Row]:
    """Each trial is right; a process that is stopped keeps its memory and goes on; a killed one gives it back."""
    kinds = {
        "a plain file": ("", ""),
        "a file that asks is_available()": ("AVAILABLE = torch.cuda.is_available()", ""),
        f"a file that moves to {device}": ("", f".to({device!r})"),
    }
    right = f"error at most {MAX_UNITS:g} units"
    with tempfile.TemporaryDirectory() as folder:

        def written(name: str, before: str, after: str, width: int) -> SubjectRef:
            path = Path(folder) / f"{name}.py"
            path.write_text(SUBJECT.format(before=before, after=after, width=width), encoding="utf-8")
            return SubjectRef.here("locator", f"{path}:subject")

        for number, (name, (before, after)) in enumerate(kinds.items()):
            yield attempt(f"a trial of {name}", right, trial, written(f"kind{number}", before, after, 256), device)
        first = "cuda:0" if device == "cuda" else device
        yield attempt(f"a trial of a live module on {first}", right, live, first)
        held = f"stopped it holds its {HELD_BYTES >> 20} MiB and goes on, killed it is gone with them"
        yield attempt("pause, resume, kill", held, standing, written("held", "", "", HELD_WIDTH), device)


def trial(ref: SubjectRef, device: str) -> tuple[bool, str]:
    with WorkerPool(ref, machine(device), device=device, seed=0) as pool:
        facts = pool.make_truth(pool.survey(LIMITS, ignore)[0].facts, LIMITS, ignore)
        with pool.start(recipe(inference_mode={}), facts, LIMITS, ignore) as running:
            warmed, footprint = running.warm(), running.footprint()
            assert running.error is not None
            forked = "forked" if pool.server({}).fork_safe else "a process of its own"
            measured = f"{warmed.pass_ms:.3f} ms, {footprint.peak_bytes / MIB:.1f} MiB"
            return (
                running.error.faithful and warmed.pass_ms > 0,
                f"{running.error.units:.2g} units, {measured}, {forked}",
            )


def live(device: str) -> tuple[bool, str]:
    """What lives on the device in this process, which has CUDA running then, is tried in others."""
    module = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()).to(device)
    with handed_over(module, torch.randn(8, 256, device=device), {}) as (ref, _):
        return trial(ref, device)


def standing(ref: SubjectRef, device: str) -> tuple[bool, str]:
    """One process is stopped (SIGSTOP) while another is measured, and measured again afterwards; then ended."""
    free = free_bytes(device)
    with WorkerPool(ref, machine(device), device=device, seed=0) as pool:
        facts = pool.make_truth(pool.survey(LIMITS, ignore)[0].facts, LIMITS, ignore)
        one = pool.start(recipe(no_grad={}), facts, LIMITS, ignore)
        one.warm()
        first = one.turn(one.passes)
        with pool.start(recipe(inference_mode={}), facts, LIMITS, ignore) as other:
            other.warm()
            between = other.turn(other.passes)
            stopped = state_of(one.child) == "T"
        held = free - free_bytes(device) if device == "cuda" else resident_bytes(one.child)
        second = one.turn(one.passes)
        one.close()
        gone = state_of(one.child) == "" and (device == "cpu" or free_bytes(device) >= free - held + HELD_BYTES)
        times = (first.pass_ms, between.pass_ms, second.pass_ms)
        told = ("" if stopped else ", not stopped") + ("" if gone else ", not gone")
        figure = ", ".join(f"{ms:.3f}" for ms in times) + f" ms, {held / MIB:.0f} MiB held while stopped{told}"
        return all(ms > 0 for ms in times) and stopped and gone and held >= HELD_BYTES, figure


def free_bytes(device: str) -> int:
    return int(torch.cuda.mem_get_info()[0]) if device == "cuda" else 0


def state_of(child: Child) -> str:
    """``T`` where it is stopped; empty where there is no such process."""
    try:
        return Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def resident_bytes(child: Child) -> int:
    status = Path(f"/proc/{child.pid}/status").read_text(encoding="utf-8")
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])
