"""What malloc does under ``returned_memory`` and after it, in a process of its own: one that has run for long has holes
in its heap, which are filled first."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

import pytest
import torch
from torch import nn

from togi.core.errors import Refused
from togi.subject.inputs import Subject
from togi.subject.training import TrainingStep
from togi.techniques import technique

MB = 2**20


def step_of() -> TrainingStep:
    return TrainingStep.of(Subject(nn.Linear(4, 4), torch.randn(2, 4)))


def faults() -> float:
    """Page faults each time 8 MiB are taken and freed, 2,048 pages."""
    counts = list[int]()
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(8 * MB // 4)
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return statistics.median(counts)  # a busy system takes pages away now and then


def told() -> str:
    """The faults after malloc has learned, with freed memory returned, and after that was undone."""
    torch.set_num_threads(1)
    faults()  # malloc learns
    learned = faults()
    try:
        built = technique("returned_memory").apply_step(step_of(), {})
    except Refused:
        return "refused"
    returned = faults()
    built.undo()
    return f"{learned} {returned} {faults()}"


def test_freed_memory_goes_back_until_it_is_undone() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    if done.stdout.strip() == "refused":
        pytest.skip("this C library has no mallopt, or the environment sets its thresholds")
    learned, returned, undone = map(float, done.stdout.split())
    assert learned < 20
    assert returned >= 2000
    assert undone < 20


def test_settings_of_the_environment_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    with pytest.raises(Refused, match="the environment has its settings"):
        technique("returned_memory").apply_step(step_of(), {})


if __name__ == "__main__":
    print(told())
