"""What a trial's child does, in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from togi.subject.inputs import Inputs
from togi.worker.trial import TrialJob


@pytest.mark.parametrize(("stateful", "expected"), [(False, ["called", "truth loaded"]), (True, ["truth loaded"])])
def test_the_first_call_comes_before_the_memory_of_verification(stateful: bool, expected: list[str]) -> None:
    """As where an artifact is used. What remembers its calls must not have been called when it is verified."""
    done: list[str] = []

    class Loaded(Exception):
        pass

    def load() -> Any:
        done.append("truth loaded")
        raise Loaded

    job: Any = object.__new__(TrialJob)
    job.config, job.channel = SimpleNamespace(device="cpu", seed=0), SimpleNamespace(send=lambda _: None)
    job.surveyed = SimpleNamespace(facts=SimpleNamespace(buffers_change=stateful))
    job.samples, job.call, job._known = (Inputs((torch.ones(1),)),), lambda _: done.append("called"), load
    with pytest.raises(Loaded):
        job._verify()
    assert done == expected
