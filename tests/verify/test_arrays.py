"""Programs that take and return what is no tensor: it is compared, and varied where it holds numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from togi.core.records import ErrorReport
from togi.subject.behaviour import observe
from togi.subject.inputs import Inputs
from togi.subject.program import ProgramModule
from togi.subject.signature import Signature
from togi.verify.derived_inputs import variants
from togi.verify.leaves import fresh
from togi.verify.reference import make_truth
from togi.verify.verdict import verify

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


@dataclass
class Action:
    values: Any
    name: str


class Policy:
    """Predicts as policies of reinforcement learning do: an array in, an array and a state out."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2)).eval()

    def predict(self, observation: Any, scale: float = 1.0) -> tuple[Any, None]:
        with torch.no_grad():
            action = self.net(torch.as_tensor(observation)) * scale
        return action.cpu().numpy(), None

    def choose(self, observation: Any) -> Any:
        return self.predict(observation)[0].argmax(1)

    def named(self, observation: Any) -> dict[str, Any]:
        action = self.predict(observation)[0]
        return {"action": Action(action, "walk"), "frame": (action * 40 + 128).astype(np.uint8), "raw": b"header"}


def answered(original: Callable[..., Any], candidate: Callable[..., Any], *samples: Inputs) -> ErrorReport:
    program, given = ProgramModule(original), samples or (Inputs((X,)),)
    outputs = [program(*sample.clone().args, **sample.kwargs) for sample in given]
    signature = Signature.of(program, given, outputs)
    found = variants(given, signature, 0)
    truth = make_truth(program, found, signature, seed=0, samples=len(given))
    assert truth.facts.answers[0].leaves
    return verify(candidate, truth, found, signature, seed=0)


def test_a_policy_is_its_own_equal() -> None:
    policy = Policy()
    for method in (policy.predict, policy.choose, policy.named):
        report = answered(method, method)
        assert report.faithful, report.problems
        assert not report.problems


def test_roundings_of_an_array_are_allowed() -> None:
    policy = Policy()
    report = answered(policy.predict, lambda x: (policy.predict(x)[0] * np.float32(1 + 1e-7), None))
    assert report.faithful
    assert report.units > 0


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("predict", lambda found: (found[0] + np.float32(1e-3), None)),
        ("predict", lambda found: (found[0].astype(np.float64), None)),
        ("predict", lambda found: (torch.from_numpy(found[0]), None)),
        ("predict", lambda found: (found[0], {})),
        ("predict", lambda found: (found[0][:1], None)),
        ("choose", lambda found: 1 - found),
        ("named", lambda found: found | {"raw": b"trailer"}),
        ("named", lambda found: found | {"frame": 255 - found["frame"]}),
        ("named", lambda found: found | {"action": Action(found["action"].values, "run")}),
        ("named", lambda found: found | {"action": Action(-found["action"].values, "walk")}),
    ],
)
def test_another_answer_is_found_out(method: str, change: Callable[[Any], Any]) -> None:
    original = getattr(Policy(), method)
    assert not answered(original, lambda x: change(original(x))).faithful


def test_an_answer_of_the_samples_alone_is_found_out() -> None:
    policy = Policy()
    kept = policy.predict(X)
    assert not answered(policy.predict, lambda _: kept).faithful


def test_one_kept_by_the_identity_of_its_array_is_found_out() -> None:
    policy = Policy()
    seen: dict[int, Any] = {}
    alive: list[Any] = []

    def cached(x: Any) -> Any:
        alive.append(x)
        return seen.setdefault(id(x), policy.predict(x))

    report = answered(policy.predict, cached)
    assert any("cached by identity" in problem for problem in report.problems), report.problems


def test_an_array_that_is_written_to_is_found_out() -> None:
    policy = Policy()

    def writes(x: Any) -> Any:
        found = policy.predict(x)
        x[:] = 0
        return found

    report = answered(policy.predict, writes)
    assert any("observation is modified" in problem for problem in report.problems), report.problems


def test_the_memory_of_the_call_before_is_found_out() -> None:
    policy, buffer = Policy(), np.zeros((4, 2), dtype=np.float32)

    def reuses(x: Any) -> Any:
        buffer[:] = policy.predict(x)[0]
        return buffer, None

    report = answered(policy.predict, reuses)
    assert any("overwritten by a later call" in problem for problem in report.problems), report.problems


def test_numbers_that_differ_between_samples_are_no_reason_to_doubt() -> None:
    policy = Policy()
    samples = [Inputs((X,), {"scale": scale}) for scale in (0.5, 2.0)]
    assert answered(policy.predict, policy.predict, *samples).faithful
    assert not answered(policy.predict, lambda x, **_: policy.predict(x, 0.5), *samples).faithful


@pytest.mark.parametrize(
    "given",
    [X, np.asfortranarray(X), X[::2], np.arange(6, dtype=np.uint16), np.float32(2.5), np.array([0.5], dtype=">f8")],
    ids=str,
)
def test_arrays_are_varied_and_stay_what_they_are(given: Any) -> None:
    sample = Inputs((given,), {"name": "x"})
    signature = Signature.of(ProgramModule(Policy().predict), [sample], [None])
    own, *derived = variants([sample], signature, 0)
    assert own is sample
    assert len(derived) == 2
    for call in derived:
        (varied,) = call.args
        assert (type(varied), varied.dtype, varied.shape) == (type(given), given.dtype, given.shape)
        assert not np.array_equal(varied, given)
        assert varied.min() >= min(0, given.min())
        assert varied.max() <= max(0, given.max())
        assert call.kwargs == {"name": "x"}


def test_a_masked_array_keeps_its_mask() -> None:
    given = np.ma.masked_array([1.0, 2.0], mask=[True, False])
    copied = fresh(Inputs((given,))).args[0]
    assert copied is not given
    assert copied.mask.tolist() == [True, False]


def test_a_random_answer_is_seen_in_arrays() -> None:
    policy = Policy()

    def noisy(observation: Any) -> Any:
        return policy.predict(observation)[0] + torch.randn(4, 2).numpy()

    sample = Inputs((X,))
    assert observe(ProgramModule(noisy), sample, [noisy(X)], seed=0).random
    assert not observe(ProgramModule(policy.predict), sample, [policy.predict(X)], seed=0).random
