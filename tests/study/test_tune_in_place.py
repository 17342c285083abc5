"""A module that ``torch.export`` does not capture is compiled where it stands.

It sleeps where it is not compiled: compiled it is faster on any machine, however busy. It also computes for a
millisecond, without which its speed-up would be too large to be measured well.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import togi
from togi.artifact.switch import Switch
from togi.artifact.weights import weights_hash
from togi.core.errors import ArtifactError, TogiError
from togi.core.recipe import ProgramRecipe
from togi.core.records import ErrorReport, Facts, Interval, Outcome, Recipe, Timing, Trial
from togi.core.settings import Settings
from togi.machine.describe import machine
from togi.program.cuts import find_cuts
from togi.program.parts import CutRequest, Uncaptured
from togi.study.parts.assembly import Assembly, write_assembly
from togi.study.parts.in_place import InPlace, fastest_settings
from togi.study.result import StudyResult
from togi.study.time_budget import TimeBudget
from togi.study.tuned_subject import TunedSubject
from togi.subject.inputs import Inputs, Subject
from togi.subject.program import ProgramModule
from togi.techniques import recipe
from togi.torch_internals.compiler import compilations
from togi.worker.protocol import Survey
from togi.worker.survey import survey

FACTORY = """
import time
import torch
from torch import nn
import togi

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(256))
        self.inner = nn.Linear(256, 256)

    def forward(self, x):
        if not torch.compiler.is_compiling():
            time.sleep(0.02)
        for _ in range(40):
            x = torch.tanh(x * self.scale)
        if x.sum() > 1e9:
            x = x - 1.0
        return self.inner(x[:1])

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Network() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x

def make():
    torch.manual_seed(0)
    return Network().eval()

def make_stack():
    torch.manual_seed(0)
    return Stack().eval()

def stack():
    return make_stack(), torch.rand(4, 256)

def whole():
    return make(), torch.rand(4, 256)
"""

pytestmark = pytest.mark.usefixtures("brief_studies")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in_place")
    (folder / "networks.py").write_text(FACTORY, encoding="utf-8")
    return folder


def tuned(place: Path, factory: str) -> StudyResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOGI_HOME", str(place / "home"))
        return togi.tune(f"{place}/networks.py:{factory}", only=["torch_compile"], effort="quick", time_limit_s=400)


@pytest.fixture(scope="module")
def study(place: Path) -> StudyResult:
    return tuned(place, "whole")


def made(place: Path, monkeypatch: pytest.MonkeyPatch, factory: str = "make") -> Any:
    monkeypatch.syspath_prepend(str(place))
    import networks  # type: ignore[import-not-found]

    return getattr(networks, factory)()


def whole_study(folder: Path, surveyed: Survey, *ways: Any) -> Any:
    """Of a network, with these ways to compile it and the time for them."""
    pool: Any = SimpleNamespace(folder=folder)
    return SimpleNamespace(
        subject=TunedSubject(pool, "network", surveyed.facts, surveyed.signature, Settings()),
        search=SimpleNamespace(space=SimpleNamespace(configurations=ways)),
        budget=TimeBudget(Settings(effort="thorough"), started=time.monotonic()),
    )


def composed(network: nn.Module, x: torch.Tensor, folder: Path) -> Path:
    """The artifact of the network compiled where it stands, as a study puts it together before it proves it."""
    return put_together(network, x, folder, "")


def put_together(network: nn.Module, x: torch.Tensor, folder: Path, *paths: str) -> Path:
    """The same of what stands at these places, each of which is called with ``x``."""
    found = [(path, survey(Subject(network.get_submodule(path), [Inputs((x,))]), captured=False)) for path in paths]
    choice = recipe(torch_compile={"freezing": False, "mode": "default"}).find("torch_compile")
    assert choice is not None
    way = SimpleNamespace(choice=choice, expected_speedup_x=1.0, cost_s=0.0)
    whole = whole_study(folder, found[0][1], way)
    places = [
        Uncaptured(
            path=path,
            module="Network",
            share=1.0,
            calls=1,
            weights=weights_hash(network.get_submodule(path)),
            survey=of,
        )
        for path, of in found
    ]
    in_place = InPlace(whole, *places)
    tuned = in_place.next()
    assert tuned is not None
    return write_assembly(whole, Assembly({in_place.key: tuned}))


def test_blocks_that_repeat_are_compiled_once_for_all(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = made(place, monkeypatch, "make_stack"), torch.rand(4, 256)
    paths = [f"blocks.{number}" for number in range(3)]
    saved = put_together(network, x, tmp_path, *paths)
    assert togi.load(saved).recipe.label.startswith("parts(blocks.0 and 2 alike=torch_")
    with torch.no_grad():
        expected = network(x)
        slept: list[float] = []
        monkeypatch.setattr(time, "sleep", slept.append)
        with togi.load(saved).into(network) as installed:
            network.blocks[0](x)
            graphs = compilations().graphs
            torch.testing.assert_close(network(x), expected)
            assert compilations().graphs == graphs, "the others run what was compiled for the first"
            assert installed.counts == {"blocks.0": (2, 0), "blocks.1": (1, 0), "blocks.2": (1, 0)}
            assert slept == []
            network.blocks[1].inner.bias += 1.0
            changed = network(x)
        monkeypatch.setattr(time, "sleep", lambda _: None)
        torch.testing.assert_close(changed, network(x))


def test_the_artifact_compiles_the_live_module(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = made(place, monkeypatch), torch.rand(4, 256)
    saved = composed(network, x, tmp_path)
    assert {file.name for file in saved.rglob("*") if file.is_file()} == {"manifest.json"}
    with torch.no_grad():
        expected = network(x)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    with togi.load(saved).into(network, keep_originals=False) as installed:
        found = network(x)
        assert not found.requires_grad, "parts serve no gradients"
        torch.testing.assert_close(found, expected)
        assert installed.counts == {"": (1, 0)}
        assert str(installed) == "calls served by engines: the program 1 of 1"
        assert slept == []
        network(torch.rand(3, 256))
        assert installed.counts == {"": (1, 1)}
        assert slept == [0.02], "where it is not compiled"
        with torch.no_grad():
            network.inner.bias += 1.0
            torch.testing.assert_close(network(x), expected + 1.0)
        assert installed.counts == {"": (1, 2)}
    assert "forward" not in vars(network)


class Counts(nn.Module):
    """Its answer depends on the calls before it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.state = torch.zeros(1, 8)

    @torch.jit.export
    def reset(self) -> None:
        self.state = torch.zeros(1, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(200):  # nearly all of the program's time
            x = torch.tanh(self.inner(x))
        if bool(x.sum() < 1e9):
            self.state = x + self.state
        return self.state


def test_settings_alone_are_put_round_the_calls_of_live_modules(tmp_path: Path) -> None:
    """TorchScript that decides by values is neither captured nor compiled."""
    torch.manual_seed(0)
    scripted = torch.jit.script(Counts().eval())

    def follow(x: torch.Tensor) -> torch.Tensor:
        scripted.reset()
        return torch.cat([scripted(row) for row in torch.split(x, 1)])

    x = torch.rand(5, 8)
    (found,) = find_cuts(Subject(ProgramModule(follow), Inputs((x,))), CutRequest(folder=str(tmp_path))).uncaptured
    assert (found.path, found.calls, found.compiles) == ("scripted", 5, False)
    assert found.survey is not None
    whole = whole_study(tmp_path, found.survey)
    in_place = InPlace(whole, found)
    assert in_place.next() is None
    settings = in_place.tuned(recipe(flush_denormal={}, inference_mode={}))
    saved = write_assembly(whole, Assembly({in_place.key: settings}))
    assert {file.name for file in saved.rglob("*") if file.is_file()} == {"manifest.json"}
    with torch.no_grad():
        expected = follow(x)
        loaded = togi.load(saved)
        assert loaded.recipe.label == "parts(scripted=flush_denormal+inference_mode) + no_grad"
        with loaded.into(follow) as installed:
            assert not scripted(x[:1]).is_inference(), "callers may write to it"
            torch.testing.assert_close(follow(x), expected)
            assert installed.counts == {"scripted": (6, 0)}
            before = scripted.inner.bias.clone()
            scripted.inner.bias.add_(1.0)
            scripted.reset()
            changed = scripted(x[:1])
            assert installed.counts == {"scripted": (7, 0)}, "it is the original that answers, whatever it is then"
        assert not isinstance(scripted.forward, Switch)
        scripted.reset()
        torch.testing.assert_close(scripted(x[:1]), changed)
        scripted.inner.bias.copy_(before)
    scripted.reset()
    with loaded.into(follow) as installed:
        given = x[:1].clone().requires_grad_()
        scripted(given).sum().backward()
        assert given.grad is not None
        assert installed.counts == {"scripted": (0, 1)}, "whose inputs want gradients"


def test_the_fastest_settings() -> None:
    """Beyond doubt, with nothing else in the recipe, and none that a process must be started with."""
    here = machine("cpu").model_copy(update={"allocators": {"tcmalloc": "libtcmalloc.so"}})
    facts = Facts(device="cpu", machine=here, module_class="Network")
    quick = recipe(inference_mode={})

    def trial(of: Recipe, speedup_x: float, low: float, outcome: Outcome = Outcome.OK) -> Trial:
        one = Interval(median=1.0, low=1.0, high=1.0)
        timing = Timing(latency_ms=one, speedup_x=Interval(median=speedup_x, low=low, high=speedup_x + 0.1))
        error = ErrorReport(faithful=True, units=1.0, rmse=0.0, max_abs=0.0)
        return Trial(recipe=of, outcome=outcome, timing=timing, error=error)

    others = [
        trial(recipe(flush_denormal={}, no_grad={}), 1.1, 1.06),
        trial(recipe(torchscript={}, inference_mode={}), 2.0, 1.9),
        trial(recipe(threads={"count": 1}), 1.5, 0.9),
        trial(recipe(threads={"count": 2}), 1.5, 1.4, Outcome.UNSTABLE),
        trial(recipe(allocator={"name": "tcmalloc"}, no_grad={}), 1.5, 1.4),
    ]
    assert fastest_settings([*others, trial(quick, 1.2, 1.15)], facts) == quick
    assert fastest_settings(others[1:4], facts) is None


def test_another_network_is_refused(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = made(place, monkeypatch), torch.rand(4, 256)
    loaded = togi.load(composed(network, x, tmp_path))
    with pytest.raises(ArtifactError, match="it is another program"):
        loaded.into(nn.Linear(2, 2))
    with loaded.into(network), pytest.raises(ArtifactError, match="a tuned part already"):
        loaded.into(network)
    with monkeypatch.context() as patch:
        patch.setitem(vars(network.inner), "forward", Switch(network.inner, "inner", network.inner.forward))
        with pytest.raises(ArtifactError, match=r"has tuned parts inside: call \.remove\(\) on them first"):
            loaded.into(network)
    with torch.no_grad():
        network.inner.bias += 1.0
    with pytest.raises(ArtifactError, match="are not those that were tuned"):
        loaded.into(network)
    with pytest.raises(TogiError, match=r"\.into\(program\)"):
        loaded(x)


@pytest.mark.thorough
def test_the_program_itself_is_compiled_and_proven_from_its_artifact(
    study: StudyResult, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = study.best
    assert best.artifact is not None, study.record.verdict
    assert isinstance(best.recipe, ProgramRecipe), study.record.verdict
    ((key, compiled),) = best.recipe.parts
    assert key.label == "program"
    assert compiled.short_label.startswith("torch_compile(")
    assert best.trial.error is not None
    assert best.trial.error.faithful
    assert best.trial.timing is not None
    assert best.trial.timing.speedup_x.median > 1.3
    assert study.record.program is not None
    (part,) = (part for part in study.record.program.parts if part.recipe is not None)
    assert (part.key.path, part.module, part.share) == ("", "Network", 1.0)
    network, x = made(place, monkeypatch), torch.rand(4, 256)
    with torch.no_grad():
        expected = network(x)
    with togi.load(study.save(tmp_path / "network.togi")).into(network) as installed:
        torch.testing.assert_close(network(x), expected)
        assert installed.counts == {"": (1, 0)}
