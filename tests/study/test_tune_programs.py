"""``togi.tune`` on programs: what cannot be captured whole is tuned in parts, proven whole, and put into the program.

The module inside sleeps, which a captured graph does not: its engine is faster on any machine, however busy. It also
computes for a millisecond, without which its speed-up would be too large to be measured well.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import togi
from togi import api
from togi.artifact.export import ENGINES
from togi.core.errors import ArtifactError, TogiError
from togi.core.recipe import ProgramRecipe
from togi.core.records import Decisions, Outcome
from togi.journal import Journal
from togi.study.result import StudyResult
from togi.techniques import is_exact

FACTORY = """
import time
import torch
from torch import nn
import togi

class Store:
    def __init__(self):
        self.states = None

class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, store=None):
        time.sleep(0.01)
        y = x
        for _ in range(50):
            y = torch.tanh(self.inner(y))
        store.states = y if store.states is None else torch.cat([store.states, y], 0)
        return {"hidden": store.states.mean(0, keepdim=True), "store": store}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = Step()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(8))
        self.config = {"steps": 4}

    def generate(self, x):
        store = Store()
        for _ in range(self.config["steps"]):
            found = self.step(x * self.scale, store=store)
            assert found["store"] is store
            x = found["hidden"]
            if float(x.sum()) > 1e6:
                break
        return x

def make():
    torch.manual_seed(0)
    return Model().eval()

def subject():
    return make().generate, torch.ones(1, 8)
"""

THREADS = """
import time
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn

class Sleeper(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        time.sleep(0.02)
        for _ in range(100):
            x = torch.tanh(self.inner(x))
        return x

class Both:
    def __init__(self):
        self.first, self.second = Sleeper().eval(), Sleeper().eval()

    def __call__(self, x):
        with ThreadPoolExecutor(2) as threads:
            found = threads.map(lambda module: module(x), (self.first, self.second))
            return [each.item() for one in found for each in one[0]]

def make():
    torch.manual_seed(0)
    return Both()

def subject():
    return make(), torch.ones(1, 8)
"""

BUDGETED = """
import torch
from torch import nn

class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))

    def forward(self, x):
        return self.layers(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.step, self.head = Step(), nn.Linear(256, 16)

    def forward(self, x):
        for _ in range(3):
            x = x + self.step(x)
            if float(x.abs().amax()) > 1e6:
                break
        return self.head(x)

def subject():
    torch.manual_seed(0)
    return Model().eval(), torch.randn(8, 256)

def data():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 256, generator=generator) for _ in range(40)]
"""


pytestmark = pytest.mark.usefixtures("brief_studies")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "generator.py").write_text(FACTORY, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def study(place: Path) -> Any:
    patch = pytest.MonkeyPatch()
    patch.setenv("TOGI_HOME", str(place / "home"))
    try:
        only = ["torchscript", "inference_mode"]
        yield togi.tune(f"{place}/generator.py:subject", only=only, effort="quick", time_limit_s=400)
    finally:
        patch.undo()


def made(place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(place))
    import generator  # type: ignore[import-not-found]

    return generator.make()


@torch.no_grad()
def generated(model: Any, x: Tensor) -> Tensor:
    found: Tensor = model.generate(x)
    return found


def test_the_part_is_found_tuned_and_proven_whole(study: StudyResult) -> None:
    tree = study.record.program
    assert tree is not None
    assert [call.path for call in tree.calls][:2] == ["", "model.step"]
    parts = {(part.key.path, part.calls): part for part in tree.parts}
    assert {path for path, _ in parts} == {"model.step"}
    assert any(part.recipe is not None for part in tree.parts), tree.parts
    assert isinstance(study.best.recipe, ProgramRecipe), (study.record.verdict, study.record.program)
    trial = study.best.trial
    assert trial.error is not None
    assert trial.error.faithful
    assert trial.timing is not None
    assert trial.timing.speedup_x.median > 1.3, tree.parts
    whole = [trial.recipe.techniques for trial in study.record.trials]
    assert frozenset() in whole
    assert not any("inference_mode" in techniques for techniques in whole)  # it would not come on top of the parts


def test_parts_go_into_the_live_program_and_out_again(
    study: StudyResult, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(place, monkeypatch)
    x = torch.randn(1, 8)
    expected = generated(model, x)
    with study.best.apply(model.generate) as installed:
        found = generated(model, x)
        torch.testing.assert_close(found, expected)
        served, original = installed.counts["model.step"]
        assert served + original == 4
        assert served >= 3
        assert model.config == {"steps": 4}
    assert torch.equal(generated(model, x), expected)
    assert "forward" not in vars(model.step)


def test_what_was_not_proven_runs_the_original_and_is_counted(
    study: StudyResult, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(place, monkeypatch)
    with study.best.apply(model.generate) as installed:
        wide = torch.randn(1, 8).double()
        model.double()
        generated(model, wide)
        model.float()
        assert installed.counts["model.step"] == (0, 4)
        assert "float64" in installed.switches[0].last_reason
        model.train()
        generated(model, torch.ones(1, 8))
        assert installed.counts["model.step"] == (0, 8)


def test_calls_that_want_gradients_run_the_original_and_say_so(
    study: StudyResult, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(place, monkeypatch)
    with study.best.apply(model.generate) as installed:
        with pytest.warns(UserWarning, match=r"call the program under torch\.no_grad\(\)") as told:
            model.generate(torch.ones(1, 8)).sum().backward()
        assert sum("want gradients" in str(each.message) for each in told) == 1
        assert installed.counts["model.step"] == (0, 4)
    assert model.scale.grad is not None


def test_weights_that_are_changed_later_are_used(
    study: StudyResult, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(place, monkeypatch)
    x = torch.randn(1, 8)
    with study.best.apply(model.generate) as installed:
        generated(model, x)
        model.step.load_state_dict({name: value + 0.5 for name, value in model.step.state_dict().items()})
        before = installed.counts["model.step"]
        found = generated(model, x)
        assert installed.counts["model.step"] == (before[0], before[1] + 4)
        assert "its weights were changed ('inner.weight' was written to) since" in installed.switches[0].last_reason
    assert torch.equal(found, generated(model, x))


def test_another_program_or_other_weights_are_refused(
    study: StudyResult, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(place, monkeypatch)
    with torch.no_grad():
        model.step.inner.weight[0, 0] += 1
    with pytest.raises(ArtifactError, match="are not those that were tuned"):
        study.best.apply(model.generate)
    with pytest.raises(ArtifactError, match="it is another program"):
        study.best.apply(nn.Linear(2, 2))
    whole = made(place, monkeypatch)
    with study.best.apply(whole.generate), pytest.raises(ArtifactError, match="a tuned part already"):
        study.best.apply(whole.generate)


def test_originals_can_be_freed(study: StudyResult, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(place, monkeypatch)
    expected = generated(model, torch.ones(1, 8))
    installed = study.best.apply(model.generate, keep_originals=False)
    if installed.counts.keys() == {"model.step"} and len(installed.switches[0].forms) == 2:
        torch.testing.assert_close(generated(model, torch.ones(1, 8)), expected)
    assert model.step.inner.weight.numel() == 0
    assert model.blocks[0].weight.numel() == 64
    with pytest.raises(TogiError, match="was freed"):
        model.step(torch.ones(1, 8).double(), store=None)
    with pytest.raises(TogiError, match="cannot be put back"):
        installed.remove()


def test_an_artifact_of_parts_says_that_it_needs_its_program(study: StudyResult, tmp_path: Path) -> None:
    loaded = togi.load(study.save(tmp_path / "generator.togi"))
    with pytest.raises(TogiError, match=r"togi.load\(path\).into\(program\)"):
        loaded(torch.ones(1, 8))


@pytest.mark.thorough
def test_an_artifact_of_parts_is_proven_again_beside_its_program(study: StudyResult, tmp_path: Path) -> None:
    artifact = study.save(tmp_path / "generator.togi")
    found = api.verify(artifact, subject=study.record.subject, time_limit_s=60)
    assert found.outcome is Outcome.OK, found.verdict
    assert found.proven or "too disturbed to judge its speed" in found.verdict, found.verdict
    compared = found.comparison.contestants[1]
    assert compared.error is not None
    assert compared.error.faithful
    assert compared.speedup_x is not None
    assert compared.speedup_x.median > 1.3


@pytest.mark.thorough
def test_parts_of_another_program_are_not_proven(study: StudyResult, tmp_path: Path) -> None:
    other = FACTORY.replace("manual_seed(0)", "manual_seed(1)")
    (tmp_path / "other.py").write_text(other, encoding="utf-8")
    out = study.save(tmp_path / "generator.togi")
    found = api.verify(out, subject=f"{tmp_path}/other.py:subject", time_limit_s=3)
    assert not found.proven
    assert "the weights of 'model.step' are not those that were tuned" in found.verdict


def test_a_server_has_no_form_for_parts(study: StudyResult, tmp_path: Path) -> None:
    out = study.save(tmp_path / "generator.togi")
    for form in ENGINES:
        with pytest.raises(
            ArtifactError, match=r"parts of a program, whose rest is Python .*\.into\(program\); or tune"
        ):
            api.export(out, to=form, out=tmp_path / "out")


@pytest.mark.thorough
def test_where_nothing_is_faster_the_program_stays_as_it_is(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    found = togi.tune(f"{place}/generator.py:subject", only=["channels_last"], effort="quick", time_limit_s=400)
    assert found.best.recipe.is_reference
    model, x = made(place, monkeypatch), torch.randn(1, 8)
    expected = generated(model, x)
    with found.best.apply(model.generate) as installed:
        assert str(installed) == "the program runs as it is: nothing was faster beyond doubt, so no part is in it"
        assert installed.counts == {}
        assert torch.equal(generated(model, x), expected)
    assert torch.equal(generated(model, x), expected)
    with pytest.raises(TogiError, match="the original, which needs no files"):
        found.best.load()


@pytest.mark.thorough
def test_modules_that_are_called_in_threads_are_tuned_and_served_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    (tmp_path / "threaded.py").write_text(THREADS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = togi.tune(f"{tmp_path}/threaded.py:subject", only=["torchscript"], effort="quick", time_limit_s=300)
    assert isinstance(found.best.recipe, ProgramRecipe), (found.record.verdict, found.record.program)
    import threaded  # type: ignore[import-not-found]

    both, x = threaded.make(), torch.randn(1, 8)
    expected = both(x)
    with found.best.apply(both) as installed:
        assert both(x) == pytest.approx(expected, rel=1e-4)
        assert sum(served for served, _ in installed.counts.values()) == 2
        assert all(original == 0 for _, original in installed.counts.values())


@pytest.mark.thorough
@pytest.mark.parametrize("max_drop", [0.5, 0.0])
def test_parts_have_a_precision_of_their_own_within_the_budget_of_the_program(
    max_drop: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the part is faster in 8 bits depends on the machine; that it is tried does not, nor what judges it."""
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    (tmp_path / "budgeted.py").write_text(BUDGETED, encoding="utf-8")
    found = togi.tune(
        f"{tmp_path}/budgeted.py:subject",
        data=f"{tmp_path}/budgeted.py:data",
        metric="rms",
        max_drop=max_drop,
        only=["onnxruntime", "int8_onnxruntime"],
        time_limit_s=150,
        journal=tmp_path / "journal.sqlite",
    )
    tree = found.record.program
    assert tree is not None
    assert {part.key.path for part in tree.parts} >= {"step"}
    with Journal.open(tmp_path / "journal.sqlite", read_only=True) as journal:
        parts = [journal.read(entry.id) for entry in journal.studies() if entry.part]
    lowered = [trial for study in parts for trial in study.trials if not is_exact(trial.recipe)]
    ends = {trial.outcome for trial in lowered if trial.error is not None}  # a busy machine has no time for some
    assert ends <= {Outcome.OK, Outcome.UNSTABLE, Outcome.TIMED_OUT}, "an error of its own alone refuses nothing"
    assert all(trial.error is None or trial.error.accuracy is None for trial in lowered)
    if max_drop == 0.0:
        assert is_exact(found.best.recipe), "nothing is proven to lose nothing"
    elif not is_exact(found.best.recipe):
        error = found.best.trial.error
        assert error is not None
        assert error.accuracy is not None
        assert error.accuracy.drop.high <= max_drop


@pytest.mark.thorough
def test_a_live_pipeline_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))

    class Sleeper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.02)
            for _ in range(100):
                x = torch.tanh(self.inner(x))
            return x

    class Pipeline:
        def __init__(self) -> None:
            self.encoder = Sleeper().eval()

        def __call__(self, numbers: list[float]) -> tuple[list[float], int]:
            found = self.encoder(torch.tensor([numbers]).repeat(1, 2))[0, :4]
            return found.tolist(), int(found.argmax())

    pipeline = Pipeline()
    study = togi.tune(
        pipeline, togi.Inputs(([1.0, 2.0, 3.0, 4.0],)), only=["torchscript"], effort="quick", time_limit_s=300
    )
    assert isinstance(study.best.recipe, ProgramRecipe), (study.record.verdict, study.record.program)
    error = study.best.trial.error
    assert error is not None
    assert error.decisions == Decisions(agree=1, total=1), "the place of the largest number"
    expected = pipeline([4.0, 3.0, 2.0, 1.0])
    with study.best.apply(pipeline) as installed:
        numbers, place = pipeline([4.0, 3.0, 2.0, 1.0])
        assert numbers == pytest.approx(expected[0], rel=1e-5)
        assert place == expected[1]
        assert installed.counts == {"encoder": (1, 0)}
