"""What malloc does under ``returned_memory`` and after it, each in a forked child of its own."""

from __future__ import annotations

import os
import resource
import statistics

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


def test_freed_memory_goes_back_until_it_is_undone() -> None:
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            torch.set_num_threads(1)
            faults()  # malloc learns
            learned = faults()
            built = technique("returned_memory").apply_step(step_of(), {})
            returned = faults()
            built.undo()
            os.write(write, f"{learned} {returned} {faults()}".encode())
        except Refused:
            os.write(write, b"refused")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as answer:
        found = answer.read()
    os.wait()
    if found == "refused":
        pytest.skip("this C library has no mallopt, or the environment sets its thresholds")
    learned, returned, undone = map(float, found.split())
    assert learned < 20
    assert returned >= 2000
    assert undone < 20


def test_settings_of_the_environment_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    with pytest.raises(Refused, match="the environment has its settings"):
        technique("returned_memory").apply_step(step_of(), {})
