"""Subjects that are TorchScript already: each technique works on them or says why not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from togi.core.errors import Refused
from togi.graph.candidate import Candidate
from togi.subject.behaviour import SavedBuffers
from togi.techniques import Applies, Technique, all_techniques, conformance, technique


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class WithState(Plain):
    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1.0)
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3))) + self.calls


class OfTwoRanks(Plain):
    """Weights of five dimensions beside those of four."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Conv3d(8, 8, (1, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.deep(self.conv(x).unsqueeze(2)).mean((2, 3, 4)))


def scripted(module: type[nn.Module]) -> Candidate:
    torch.manual_seed(0)
    return conformance.candidate_of(torch.jit.script(module().eval()), [torch.randn(2, 3, 8, 8)])


def with_engine(each: Technique) -> list[Technique]:
    """A technique, and the engine without which it is of no use."""
    return [each, *(technique(need.removeprefix("engine:")) for need in each.needs if need.startswith("engine:"))]


ON_CPU = [each for each in all_techniques().values() if "cpu" in each.devices]


@pytest.mark.thorough
@pytest.mark.parametrize("each", ON_CPU, ids=lambda each: each.id)
@pytest.mark.parametrize("module", [Plain, WithState])
def test_each_technique_works_on_it_or_refuses(each: Technique, module: type[nn.Module]) -> None:
    steps = with_engine(each)
    if not all(isinstance(step.applies(scripted(module).facts), Applies) for step in steps):
        return
    if any(package.missing() for step in steps for package in step.packages):
        pytest.skip("its package is not installed here")
    for options in each.options(scripted(module).facts):
        candidate = scripted(module)
        before = copy.deepcopy(candidate.module)
        chosen = [(step, options if step is each else step.options(candidate.facts)[0]) for step in steps]
        built = candidate
        try:
            for step, its in chosen:
                built = step.apply(step.configure(built, its), its)
        except Refused as refused:
            assert len(str(refused).split()) > 2  # noqa: PT017 - most do not refuse
            continue
        state = SavedBuffers(built.module)
        sample = candidate.samples[0]
        with torch.no_grad():
            right, found = before(*sample.args), built.runnable()(*sample.args)
        state.restore()
        if all(step.exact for step in steps) and module is Plain:
            torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (Plain, {"how": "script", "freeze": True, "optimize": True}),
        (WithState, {"how": "script", "freeze": False, "optimize": False}),
    ],
)
def test_it_is_taken_as_it_is_by_torchscript(module: type[nn.Module], options) -> None:
    """Without a trace, and with a state of its own."""
    candidate, engine = scripted(module), technique("torchscript")
    assert options in engine.options(candidate.facts)
    before, original = copy.deepcopy(candidate.module), SavedBuffers(candidate.module)
    built = engine.apply(candidate, options).runnable()
    assert not original.changed()
    (x,) = candidate.samples[0].args
    with torch.no_grad():
        first, second, right = built(x), built(x), before(x)
    torch.testing.assert_close(second - first, torch.full_like(first, float(module is WithState)), atol=1e-5, rtol=0)
    if module is Plain:
        torch.testing.assert_close(first, right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("module", [Plain, WithState])
def test_torch_compile_refuses_it(module: type[nn.Module]) -> None:
    """Also where there is a compiler, of which the facts above know nothing."""
    engine, candidate = technique("torch_compile"), scripted(module)
    for options in engine.options(candidate.facts):
        with pytest.raises(Refused, match=r"TorchScript, which torch\.compile does not take"):
            engine.apply(candidate, options)


@pytest.mark.parametrize("layout", ["channels_last", "channels_last_3d"])
@pytest.mark.parametrize("script", [False, True])
def test_a_layout_is_for_weights_of_its_rank(layout: str, script: bool) -> None:
    torch.manual_seed(0)
    module = OfTwoRanks().eval()
    candidate = conformance.candidate_of(torch.jit.script(module) if script else module, [torch.randn(2, 3, 8, 8)])
    conformance.check_application(technique(layout), candidate, {})


@pytest.mark.parametrize("engine", ["torchscript", "onnxruntime", "openvino"])
def test_frozen_torchscript_has_no_mode_and_is_a_subject_like_any(engine: str) -> None:
    if engine != "torchscript":
        pytest.importorskip(engine)
    torch.manual_seed(0)
    frozen = torch.jit.freeze(torch.jit.script(Plain().eval()))
    candidate = conformance.candidate_of(frozen, [torch.randn(2, 3, 8, 8)])
    step = technique(engine)
    built = step.apply(candidate, step.options(candidate.facts)[0]).runnable()
    given = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(built(given), frozen(given), rtol=1e-4, atol=1e-5)
