"""``togi.tune`` of a training step from end to end: searched, proven, recorded, applied and taken off again."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import togi
from togi.cli.app import run
from togi.core.errors import ArtifactError, TogiError
from togi.core.records import Outcome
from togi.study.result import StudyResult
from togi.techniques import recipe

pytestmark = pytest.mark.usefixtures("brief_studies")

FACTORY = """
import torch
from torch import nn
import togi


def loss(module, sample):
    pictures, labels = sample
    return nn.functional.cross_entropy(module(pictures), labels)


def step():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    sample = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
    return togi.Subject(module, sample, step=loss, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))
"""


def loss_of(module: nn.Module, sample: tuple[Tensor, Tensor]) -> Tensor:
    pictures, labels = sample
    return nn.functional.cross_entropy(module(pictures), labels)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))


def of_many_parameters() -> nn.Module:
    """Most of its step is in the optimizer, so that the fused one is faster on any machine, however busy."""
    return nn.Sequential(*network(), *(nn.PReLU(init=1.0) for _ in range(60)))  # type: ignore[misc]


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 3, 8, 8, generator=generator), torch.randint(0, 5, (4,), generator=generator)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def own_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOGI_HOME", str(home))


def tuned(module: nn.Module, **given: Any) -> StudyResult:
    options: dict[str, Any] = {
        "train": True,
        "step": loss_of,
        "optimizer": adamw,
        "effort": "quick",
        "time_limit_s": 200.0,
    }
    return togi.tune(module, batch(), **(options | given))


STEP_TECHNIQUES = ["fused", "channels_last", "kept_memory"]


@pytest.fixture(scope="module")
def study(home: Path, brief_studies: None) -> StudyResult:  # noqa: ARG001 - it is a brief one
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOGI_HOME", str(home))
        return tuned(of_many_parameters(), only=STEP_TECHNIQUES)


@pytest.mark.thorough
def test_recipes_of_a_live_step_are_tried_next_to_the_step_as_it_is(study: StudyResult) -> None:
    record = study.record
    assert record.facts.train
    assert (record.facts.optimizer, record.facts.optimizer_options) == ("AdamW", ("fused", "foreach", "capturable"))
    assert record.reference is not None
    assert record.reference.recipe == recipe(plain_step={})
    tried = [trial for trial in record.trials if trial.timing is not None]
    assert len(tried) > 1
    assert all(trial.recipe.trains for trial in record.trials), "nothing of calls is tried or named"
    assert {choice.technique for trial in tried for choice in trial.recipe.choices} <= {*STEP_TECHNIQUES, "plain_step"}
    for trial in tried:
        assert trial.outcome in (Outcome.OK, Outcome.UNSTABLE), trial.reason
        assert trial.error is not None
        assert trial.error.faithful
        assert "gradient 0.weight" in {leaf.name for leaf in trial.error.leaves}
    assert all(trial.footprint is not None and trial.footprint.peak_bytes > 0 for trial in tried)


@pytest.mark.thorough
@pytest.mark.parametrize(("only", "made"), [("kept_memory", False), ("fused", True)])
def test_the_whole_truth_is_made_once_a_recipe_needs_it(
    only: str, made: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tuned(network(), only=[only], progress=True)
    assert ("the rest of it" in capsys.readouterr().err) is made
    tried, *_ = (trial for trial in found.record.trials if only in trial.recipe.techniques)
    assert tried.outcome in (Outcome.OK, Outcome.UNSTABLE), tried.reason
    assert tried.error is not None
    assert tried.error.faithful


@pytest.mark.thorough
def test_an_allocator_is_tried_in_a_process_that_was_started_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A copy of a library that does nothing of the kind stands for one: what counts is that it is preloaded."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    mapped = next(line.split()[-1] for line in maps if "/libm.so" in line or "/libm-" in line)
    stand_in = shutil.copy(mapped, tmp_path / "libtcmalloc_minimal.so.4")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = tuned(network(), only=["allocator"], journal=tmp_path / "studies.sqlite")
    tried = next(trial for trial in found.record.trials if trial.recipe.find("allocator"))
    assert tried.outcome in (Outcome.OK, Outcome.UNSTABLE), tried.reason
    assert tried.error is not None
    assert tried.error.units == 0.0
    assert found.record.facts.machine.allocators["tcmalloc"] == str(stand_in)


@pytest.mark.thorough
def test_what_is_chosen_is_a_record_with_its_proof(study: StudyResult, tmp_path: Path) -> None:
    record = togi.TrainingRecipe.read(study.best.save(tmp_path / "step.togi"))
    assert record.recipe == study.best.recipe
    assert record.proof is not None
    assert record.proof.error is not None
    assert record.proof.error.faithful
    assert record.optimizer == "AdamW"
    with pytest.raises(TogiError, match=r"best\.apply\(model, optimizer\)"):
        study.best.load()
    with pytest.raises(TogiError, match="the record of a training step"):
        togi.load(tmp_path / "step.togi")
    module = of_many_parameters()
    before = module[0].weight.detach().clone()  # type: ignore[index]
    with study.best.apply(module, adamw(module.parameters()), step=loss_of) as applied:
        applied.step(batch())
    assert not torch.equal(before, module[0].weight)  # type: ignore[index]


@pytest.mark.thorough
def test_a_training_study_is_reported_as_one(
    study: StudyResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    assert run(["report", study.record.id, "--html", str(page)]) == 0
    assert "took turns with the training step as it is" in page.read_text(encoding="utf-8")
    fused = next(trial.recipe for trial in study.record.trials if "fused" in trial.recipe.techniques)
    assert run(["report", study.record.id, "--repro", str(tmp_path / "repro"), "--recipe", fused.id]) == 0
    assert f"repro: {tmp_path / 'repro' / 'repro.py'}" in capsys.readouterr().err
    assert "group.update(fused=True" in (tmp_path / "repro" / "repro.py").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_the_journal_goes_on_with_a_training_study(study: StudyResult) -> None:
    again = tuned(of_many_parameters(), only=STEP_TECHNIQUES)
    assert again.record.id == study.record.id
    assert tuned(of_many_parameters(), only=STEP_TECHNIQUES, seed=1, time_limit_s=1.0).record.id != study.record.id


def recorded(**choices: Any) -> togi.TrainingRecipe:
    module = network()
    from togi.machine.describe import machine
    from togi.subject.inputs import Subject
    from togi.subject.training import TrainingStep
    from togi.worker.training_survey import survey_step

    step = TrainingStep.of(Subject(module, batch(), step=loss_of, optimizer=adamw))
    facts = survey_step(step, seed=0, machine=machine("cpu")).facts
    return togi.TrainingRecipe.of(recipe(**choices, plain_step={}), step, facts)


def trained(step: Callable[[Any], Any], steps: int = 3) -> list[float]:
    return [float(step(batch())) for _ in range(steps)]


def plain_steps(module: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Any], Tensor]:
    def step(sample: Any) -> Tensor:
        module.zero_grad()
        loss = loss_of(module, sample)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize(
    "choices", [{"channels_last": {}, "fused": {}}, {"kept_memory": {}}, {"threads": {"count": 1}}]
)
def test_a_recipe_is_applied_in_the_middle_of_a_training_and_taken_off(choices: dict[str, Any]) -> None:
    module = network()
    optimizer = adamw(module.parameters())
    other = copy.deepcopy(module)
    others = adamw(other.parameters())
    assert trained(plain_steps(module, optimizer)) == trained(plain_steps(other, others))
    threads = torch.get_num_threads()
    with recorded(**choices).apply(module, optimizer, loss_of) as applied:
        under_it = trained(applied.step)
    after = trained(plain_steps(module, optimizer))
    assert [*under_it, *after] == pytest.approx(trained(plain_steps(other, others), 6), rel=1e-4)
    assert all(parameter.is_contiguous() for parameter in module.parameters())
    assert not any(group["fused"] for group in optimizer.param_groups)
    assert torch.get_num_threads() == threads
    assert not module._forward_pre_hooks


def test_a_recipe_of_module_and_optimizer_leaves_the_loop_to_the_user() -> None:
    module = network()
    optimizer = adamw(module.parameters())
    applied = recorded(fused={}).apply(module, optimizer)
    assert all(group["fused"] for group in optimizer.param_groups)
    trained(plain_steps(module, optimizer))
    with pytest.raises(TogiError, match="applied without a loss"):
        applied.step(batch())
    with pytest.raises(TogiError, match="computes the loss in another way"):
        recorded(torch_compile={"of": "loss"}).apply(module, optimizer)


def test_what_fails_while_a_recipe_is_taken_off_is_not_repeated() -> None:
    module = network()
    applied = recorded(channels_last={}, fused={}).apply(module, adamw(module.parameters()), loss_of)
    calls: list[str] = []

    def fails() -> None:
        calls.append("again")
        raise ValueError("no")

    applied._step = applied._step.changed(fails)
    with pytest.raises(ValueError, match="no"):
        applied.remove()
    applied.remove()
    assert calls == ["again"]
    assert not module._forward_pre_hooks
    assert all(parameter.is_contiguous() for parameter in module.parameters())


def test_another_module_or_optimizer_is_refused() -> None:
    module = network()
    with pytest.raises(ArtifactError, match="the optimizer is SGD and was AdamW"):
        recorded(fused={}).apply(module, torch.optim.SGD(module.parameters(), lr=0.1))
    other = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(ArtifactError, match="another training step"):
        recorded(fused={}).apply(other, adamw(other.parameters()))


def test_a_technique_that_is_wrong_is_found_and_not_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The children import the planted fault with the subject."""
    (tmp_path / "planted.py").write_text(
        FACTORY
        + """

from togi.techniques.optimizer.fused import Fused


def wrong(self, step, options):
    for group in step.optimizer.param_groups:
        group["lr"] *= 1.001
    return step


Fused.apply_step = wrong
""",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    found = togi.tune("planted.py:step", train=True, only=["fused"], effort="quick", time_limit_s=200)
    wrong = [trial for trial in found.record.trials if "fused" in trial.recipe.techniques]
    assert [trial.outcome for trial in wrong] == [Outcome.WRONG]
    assert found.best.recipe.is_reference


@pytest.mark.thorough
def test_the_command_line_says_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "digits.py").write_text(FACTORY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    arguments = ["tune", "digits.py:step", "--train", "--effort", "quick", "--only", "fused", "--time-limit", "200s"]
    assert run([*arguments, "--out", "step.togi", "-v"]) == 0
    said = capsys.readouterr().out
    assert "peak of a step" in said
    assert "TrainingRecipe.read('step.togi')" in said
    assert "no_grad" not in said
    document = json.loads((tmp_path / "step.togi" / "training.json").read_text(encoding="utf-8"))
    assert document["kind"] == "training recipe"
    assert run([*arguments, "--out", "step.togi", "--force", "--json"]) == 0
    assert "--train" in json.loads(capsys.readouterr().out)["command"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"objective": "throughput"}, "time of a training step is raced"),
        ({"min_agreement": "99%", "data": "data.py:validation"}, "proven by its loss, gradients and updates"),
        ({"max_latency": "1s"}, "limits of calls"),
        ({"device": "cuda"}, "on the CPU so far"),
        ({"train": False}, "step is part of a training step"),
    ],
)
def test_what_means_nothing_for_a_step_is_refused_before_anything_runs(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TogiError, match=said):
        tuned(network(), **given)


@pytest.mark.thorough
def test_a_step_that_raises_is_explained_with_its_place() -> None:
    def broken(_module: nn.Module, _sample: Any) -> Tensor:
        raise ValueError("no labels")

    with pytest.raises(TogiError, match="no labels"):
        tuned(network(), step=broken)


def deep() -> nn.Module:
    """Most of what its step takes is kept for the backward pass, in blocks so large that malloc gives them back."""
    torch.manual_seed(0)
    layers = [part for _ in range(2) for part in (nn.Linear(66, 66), nn.GELU(), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(66, 5))


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2**17, 66, generator=generator), torch.randint(0, 5, (2**17,), generator=generator)


@pytest.mark.thorough
@pytest.mark.timeout(900)  # two studies, next to others
def test_under_a_limit_of_memory_what_is_computed_again_makes_it_fit() -> None:
    given: dict[str, Any] = {"train": True, "step": loss_of, "optimizer": adamw, "effort": "quick", "time_limit_s": 200}
    first = togi.tune(deep(), rows(), only=["recompute"], **given)
    assert first.best.recipe.is_reference, "it gains no time, and nothing asks for memory"
    assert first.record.reference is not None
    plain = first.record.reference.footprint
    assert plain is not None
    limit_bytes = plain.idle_bytes + round(0.8 * plain.peak_bytes)
    found = togi.tune(deep(), rows(), only=["recompute"], max_memory=limit_bytes, **given)
    assert found.best.recipe.find("recompute")
    proof = found.best.trial.footprint
    assert proof is not None
    assert proof.total_bytes <= limit_bytes
    assert found.best.trial.error is not None
    assert found.best.trial.error.faithful
    module, other = deep(), deep()
    own = adamw(module.parameters())
    with found.best.apply(module, own):
        plain_steps(module, own)(rows())
    assert "forward" not in vars(module)
    plain_steps(other, adamw(other.parameters()))(rows())
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
