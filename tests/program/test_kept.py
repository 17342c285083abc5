"""Modules that keep something from one call to the next in attributes: parts whose engines are given it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.artifact.installed import install
from togi.core.errors import ArtifactError
from togi.graph.candidate import Candidate
from togi.graph.capture import capture
from togi.program.cuts import find_cuts
from togi.program.parts import CutRequest, Part
from togi.subject.inputs import Inputs, Subject
from togi.subject.program import ProgramModule
from togi.subject.pure import pure
from togi.subject.stored_inputs import read_inputs
from togi.techniques import recipe
from togi.techniques.build import build, first_candidate
from togi.torch_internals.script import assigned_attributes
from togi.worker.survey import survey


class Voice(nn.Module):
    """As voice detectors are published: state of a size that the first call decides, and how it was called last."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 4)
        self.state: Tensor = torch.zeros(0)
        self.last_rate: int = 0

    @torch.jit.export
    def reset(self) -> None:
        self.state = torch.zeros(0)
        self.last_rate = 0

    def forward(self, x: Tensor, rate: int) -> Tensor:
        if self.last_rate != 0 and self.last_rate != rate:
            self.reset()
        if len(self.state) == 0:
            self.state = torch.zeros(2, x.size(0), 4)
        h, c = self.cell(x, (self.state[0], self.state[1]))
        self.state = torch.stack([h, c])
        self.last_rate = rate
        return h.sum(1) / rate


class Meter(nn.Module):
    """A plain attribute that is assigned, and a buffer that is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.last: Tensor | None = None
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("scale", torch.full((6,), 2.0))

    def reset(self) -> None:
        self.last = None
        self.count = torch.zeros(1)

    def forward(self, x: Tensor, rate: int) -> Tensor:
        last = torch.zeros_like(x) if self.last is None else self.last
        self.count.add_(1)
        self.last = torch.tanh(self.layer(x) + last) * self.scale
        return self.last.sum(1) / (rate * self.count)


def voice() -> nn.Module:
    return torch.jit.script(Voice().eval())  # type: ignore[no-any-return]


def meter() -> nn.Module:
    return Meter().eval()


ENGINES: dict[str, dict[str, Any]] = {
    "eager": {},
    "torchscript": {"torchscript": {"how": "trace", "freeze": True, "optimize": False}},
    "onnxruntime": {"onnxruntime": {"spinning": False}},
    "openvino": {"openvino": {}},
}
MODULES = [pytest.param(voice, id="TorchScript"), pytest.param(meter, id="Python")]
RATE = 2
X = torch.rand(5, 6, generator=torch.Generator().manual_seed(0))


def follow(model: Any) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        model.reset()
        return torch.cat([model(row, RATE) for row in x.split(1)])

    return run


pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning", "ignore:.*torch.jit.*:DeprecationWarning")


def part_of(run: Callable[[Tensor], Tensor], folder: Path) -> Part:
    """Of the calls that go on from another."""
    cuts = find_cuts(Subject(ProgramModule(run), Inputs((X,))), CutRequest(folder=str(folder)))
    (part,) = (part for part in cuts.parts if part.calls == 4)
    return part


def candidate_of(model: nn.Module, part: Part, folder: Path) -> Candidate:
    given = read_inputs(folder / part.inputs)
    return first_candidate(Subject(pure(model, part.effects), given), part.survey.facts, part.survey.signature)


class Engine:
    """A program of a recipe, as an artifact's part has it."""

    in_place = runs_original = False
    keeps = None

    def __init__(self, call: Callable[..., Any], part: Part) -> None:
        self.call, self.signature, self.entry = call, part.survey.signature, part.entry(part.key.path)

    def of(self, _: Any) -> Engine:
        return self

    def call_with(self, _: list[Tensor], args: Any, kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


def loaded(model: nn.Module, part: Part, folder: Path, engine: str = "eager") -> Engine:
    chosen = recipe(**ENGINES[engine], no_grad={})
    call = build(chosen, candidate_of(model, part, folder)).runnable()
    return Engine(call, part)


@pytest.mark.thorough
@pytest.mark.parametrize("make", MODULES)
@pytest.mark.parametrize("engine", ENGINES)
def test_engines_are_given_what_it_keeps_and_hand_it_on(
    make: Callable[[], nn.Module], engine: str, tmp_path: Path
) -> None:
    if engine in ("onnxruntime", "openvino"):
        pytest.importorskip(engine)
    torch.manual_seed(0)
    model: Any = make()
    run = follow(model)
    part = part_of(run, tmp_path)
    other = X.flip(0) * 2
    with torch.no_grad():
        expected = run(other)
        goes_on = model(X[:1], RATE)
        run(X)  # as it was recorded
        with install([loaded(model, part, tmp_path, engine)], run, keep_originals=True) as installed:
            torch.testing.assert_close(run(other), expected)
            assert installed.counts == {part.key.path: (4, 1)}, "the first call begins with nothing"
        torch.testing.assert_close(model(X[:1], RATE), goes_on), "the original goes on from what the engine left"


@pytest.mark.parametrize("make", MODULES)
def test_its_state_may_be_any_when_a_part_is_put_in_and_other_values_may_not(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model: Any = make()
    run = follow(model)
    entry = loaded(model, part_of(run, tmp_path), tmp_path)
    with torch.no_grad():
        run(X.flip(0))
        install([entry], run, keep_originals=True).remove()
        next(iter(model.parameters())).add_(1)
        with pytest.raises(ArtifactError, match="the weights of 'model' are not those that were tuned"):
            install([entry], run, keep_originals=True)


def test_a_buffer_next_to_it_is_watched(tmp_path: Path) -> None:
    model: Any = meter()
    run = follow(model)
    entry = loaded(model, part_of(run, tmp_path), tmp_path)
    assert entry.entry.effects.state == ("count", "last")
    with torch.no_grad(), install([entry], run, keep_originals=True) as installed:
        model.scale.mul_(3)
        with pytest.warns(UserWarning, match="'scale' was written to"):
            run(X)
        assert installed.counts == {"model": (0, 5)}


def test_another_state_than_was_proven_is_the_originals(tmp_path: Path) -> None:
    """How it was called last is a constant of the part."""
    model: Any = voice()
    run = follow(model)
    entry = loaded(model, part_of(run, tmp_path), tmp_path)
    with torch.no_grad(), install([entry], run, keep_originals=True) as installed:
        run(X)
        assert installed.counts == {"model": (4, 1)}
        model(X[:1], 3)
        again = model(X[:1], RATE)
        assert installed.counts == {"model": (4, 3)}
        torch.testing.assert_close(again, run(X[:1]))


def test_torchscript_alone_is_captured_for_its_sizes() -> None:
    """Control flow that sizes decide is followed; its weights are not copied."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(x.size(0)):
                x = torch.relu(self.layer(x))
            return x

    scripted = torch.jit.script(Twice().eval())
    samples = [Inputs((X[:2],))]
    found = survey(Subject(scripted, samples))
    start = first_candidate(Subject(scripted, samples), found.facts, found.signature)
    captured = capture(start)
    with torch.no_grad():
        torch.testing.assert_close(captured(-X[:2]), (scripted(-X[:2]),), rtol=0, atol=0)
    held = {tensor.data_ptr() for tensor in (*captured.parameters(), *captured.buffers())}
    assert {tensor.data_ptr() for tensor in start.module.parameters()} <= held
    several = [Inputs((X[:2],)), Inputs((X[:3],))]
    assert "captured for one size" in str(survey(Subject(scripted, several)).facts.export_error)


def test_torchscript_that_was_never_called_is_captured(tmp_path: Path) -> None:
    """As in a trial: what its interpreter does once, when it compiles, is no operator of the call."""

    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Conv1d(1, 2, 3), nn.Conv1d(1, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x) * torch.tensor([2.0]) + self.other(x) * torch.tensor([2.0])

    torch.jit.save(torch.jit.freeze(torch.jit.script(Twins().eval())), str(tmp_path / "twins.ts"))
    sample = Inputs((torch.rand(1, 1, 8),))
    once = Subject(torch.jit.load(str(tmp_path / "twins.ts")), sample)
    found = survey(once)
    assert found.facts.export_error is None
    fresh = Subject(torch.jit.load(str(tmp_path / "twins.ts")), sample)
    captured = capture(first_candidate(fresh, found.facts, found.signature))
    with torch.no_grad():
        torch.testing.assert_close(captured(*sample.args), (once.module(*sample.args),))


def test_torchscript_with_branches_or_state_is_not_captured() -> None:
    class Signed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if bool(x.sum() > 0) else -x

    signed = torch.jit.script(Signed().eval())
    assert "torch.export cannot capture it" in str(survey(Subject(signed, Inputs((X,)))).facts.export_error)
    keeps = voice()
    assert assigned_attributes(keeps) == ["last_rate", "state"]
    assert assigned_attributes(nn.Linear(1, 1)) == []
    error = survey(Subject(keeps, Inputs((X, RATE)))).facts.export_error
    assert "TorchScript that keeps last_rate from call to call" in str(error)
