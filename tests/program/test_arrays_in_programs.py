"""Programs that take NumPy arrays, pictures or tables and return them: surveyed, cut, served and proven like any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.program.test_difficult_programs import put_in
from togi.program.cuts import find_cuts
from togi.program.parts import CutRequest
from togi.subject.inputs import Inputs, Subject
from togi.subject.program import ProgramModule
from togi.subject.signature import Signature
from togi.verify.derived_inputs import variants
from togi.verify.reference import make_truth
from togi.verify.verdict import verify
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


class OfOneKind:
    """Takes a value of a library's own kind and returns another one of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(20))).eval()
        self.given: list[Any] = []

    @torch.no_grad()
    def filters(self, picture: Any) -> tuple[Any, tuple[int, int]]:
        self.given.append(picture)
        levels = self.net(torch.from_numpy(np.array(picture)).float() / 255)
        found = picture.copy()
        found.frombytes(((levels + 1) * 100).byte().numpy().tobytes())
        return found, found.size

    @torch.no_grad()
    def scores(self, table: Any) -> Any:
        self.given.append(table)
        numbers = torch.from_numpy(table.drop(columns="name").to_numpy(np.float32, copy=True))
        return table.assign(score=self.net(numbers).sum(1).numpy())


def picture() -> Any:
    image = pytest.importorskip("PIL.Image")
    return image.new("L", (64, 4), 7).point(lambda level: level + 90)


def table() -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({f"c{number}": X[:, number] for number in range(64)}).assign(name=["a", "b", "c", "d"])


def bytes_of(value: Any) -> bytes:
    return bytes(value.tobytes()) if hasattr(value, "tobytes") else value.to_csv().encode()


def other_picture(answer: Any) -> Any:
    found, size = answer
    return found.point(lambda level: level + 9), size


def other_table(answer: Any) -> Any:
    return answer.assign(score=answer.score * 1.01)


@pytest.mark.parametrize(
    ("name", "make", "other"), [("filters", picture, other_picture), ("scores", table, other_table)]
)
def test_what_a_library_makes_passes_as_it_is_and_is_compared(
    name: str, make: Callable[[], Any], other: Callable[[Any], Any], tmp_path: Path
) -> None:
    given, program = make(), OfOneKind()
    call, before = getattr(program, name), bytes_of(given)
    module, samples = ProgramModule(call), [Inputs((given,))]
    surveyed = survey(Subject(module, samples))
    assert surveyed.facts.repeatable
    cuts = find_cuts(Subject(module, samples), CutRequest(folder=str(tmp_path)))
    assert {part.key.path for part in cuts.parts} == {"net"}
    signature = Signature.of(module, samples, [call(given)])
    inputs = variants(samples, signature, 0)
    truth = make_truth(module, inputs, signature, seed=0, samples=1)
    assert verify(call, truth, inputs, signature, seed=0).faithful
    assert not verify(lambda value: other(call(value)), truth, inputs, signature, seed=0).faithful
    assert {type(each) for each in program.given} == {type(given)}
    assert bytes_of(given) == before
