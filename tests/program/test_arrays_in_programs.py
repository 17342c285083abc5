"""Programs that take NumPy arrays and return them: surveyed, cut and served like any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.program.test_difficult_programs import put_in
from togi.program.cuts import find_cuts
from togi.program.parts import CutRequest
from togi.subject.inputs import Inputs, Subject
from togi.subject.program import ProgramModule
from togi.worker.survey import survey

X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


class Policy:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(20))).eval()

    @torch.no_grad()
    def predict(self, observation: Any, episode: int = 0) -> tuple[Any, int]:
        return self.net(torch.as_tensor(observation)).numpy(), episode


def test_a_survey_says_why_it_is_not_captured_whole() -> None:
    surveyed = survey(Subject(ProgramModule(Policy().predict), X))
    assert surveyed.facts.program
    assert surveyed.facts.export_error is not None
    assert "numpy:ndarray" in surveyed.facts.export_error
    assert not surveyed.facts.random
    assert surveyed.facts.repeatable
    assert surveyed.signature.flatten_inputs((X[:2],), {}) == []


def test_its_network_is_a_part_that_an_engine_serves(tmp_path: Path) -> None:
    policy = Policy()
    samples = [Inputs((X, 1)), Inputs((X[:2], 2))]
    cuts = find_cuts(Subject(ProgramModule(policy.predict), samples), CutRequest(folder=str(tmp_path)))
    assert {part.key.path for part in cuts.parts} == {"net"}
    expected, _ = policy.predict(X)
    installed = put_in(policy.predict, "net", policy.net, torch.from_numpy(X))
    found, episode = policy.predict(X, 3)
    installed.remove()
    assert installed.counts == {"net": (1, 0)}
    assert episode == 3
    np.testing.assert_allclose(found, expected + 1.0, rtol=1e-5)
