"""What ``--repro`` writes of a training step is pasted and runs as the recipe does, or says how to apply that."""

from __future__ import annotations

import copy
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.core.errors import OutputExistsError, TogiError
from togi.core.records import Outcome, Recipe, Study, Trial
from togi.machine.describe import machine
from togi.study.progress import Progress
from togi.study.repro import write_repro
from togi.subject.inputs import Subject, as_given
from togi.subject.training import TrainingStep
from togi.techniques import all_techniques, recipe, technique
from togi.techniques.build import build_step
from togi.verify.step_truth import make_step_truth
from togi.verify.training import verify_step
from togi.worker.training_survey import survey_step

SOURCE = """
import torch
from torch import nn
import togi


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)

    def forward(self, x):
        return x + self.norm(self.conv(x)).relu()


def network():
    torch.manual_seed(0)
    blocks = [Block() for _ in range(3)]
    return nn.Sequential(nn.Conv2d(3, 4, 3), *blocks, nn.Flatten(), nn.Linear(4 * 36, 5)).train()


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 3, 8, 8, generator=generator), torch.randint(0, 5, (4,), generator=generator)


def loss(module, sample):
    pictures, labels = sample
    return nn.functional.cross_entropy(module(pictures), labels)


def loop(module, optimizer, sample):
    optimizer.zero_grad()
    found = loss(module, sample)
    found.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    return found.detach()


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def step():
    return togi.Subject(network(), [batch()], step=loss, optimizer=adamw)


def own_loop():
    return togi.Subject(network(), [batch()], train_step=loop, optimizer=adamw)
"""
SLOW = pytest.mark.thorough


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("subject") / "blocks.py"
    path.write_text(SOURCE, encoding="utf-8")
    return path


def subject_of(source: Path, factory: str) -> Subject:
    found: Subject = runpy.run_path(str(source))[factory]()
    return found


def written(source: Path, chosen: Recipe, out: Path, factory: str = "step") -> Callable[..., Any]:
    """The function of the script that is written for it."""
    facts = survey_step(TrainingStep.of(subject_of(source, factory)), seed=0, machine=machine("cpu")).facts
    trial = Trial(recipe=chosen, outcome=Outcome.OK)
    study = Study(id="1", subject=f"{source}:{factory}", facts=facts, trials=(trial,))
    faster: Callable[..., Any] = runpy.run_path(str(write_repro(study, chosen.id, out, Progress()) / "repro.py"))[
        "faster"
    ]
    return faster


def pasted(faster: Callable[..., Any], step: TrainingStep) -> TrainingStep:
    """The step as a user runs it who has called the function."""
    if step.train_step is not None:
        faster(step.module, step.optimizer)
        return step
    theirs = faster(step.module, step.optimizer, step.own_loss)

    def loss(module: nn.Module, sample: Any) -> Tensor:
        found: Tensor = theirs(module, as_given(sample))
        return found

    return step.changed(lambda: None, loss=loss)


@pytest.mark.parametrize(
    ("factory", "choices"),
    [
        ("step", {"fused": {}, "channels_last": {}, "kept_memory": {}}),
        ("step", {"threads": {"count": 1}, "returned_memory": {}}),
        ("step", {"bf16": {"how": "autocast"}, "fused": {}}),
        ("own_loop", {"bf16": {"how": "autocast"}, "channels_last": {}, "fused": {}}),
        pytest.param("step", {"torch_compile": {"of": "loss"}, "fused": {}}, marks=SLOW),
        pytest.param("step", {"torch_compile": {"of": "loss"}, "recompute": {"keep": 0.5}}, marks=SLOW),
        pytest.param("step", {"torch_compile": {"of": "module", "eager_random": True}}, marks=SLOW),
        pytest.param("own_loop", {"torch_compile": {"of": "module"}}, marks=SLOW),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_the_pasted_lines_train_as_the_recipe_does(
    factory: str, choices: dict[str, Any], source: Path, tmp_path: Path
) -> None:
    chosen = recipe(**choices, plain_step={})
    faster = written(source, chosen, tmp_path / "repro", factory)
    threads = torch.get_num_threads()
    pair = [TrainingStep.of(subject_of(source, factory)) for _ in range(2)]
    ours = build_step(chosen, pair[0])
    try:
        theirs = pasted(faster, pair[1])
        for _ in range(3):
            for step in (ours, theirs):
                step.run(step.samples[0])
        for (name, one), two in zip(ours.parameters.items(), theirs.parameters.values(), strict=True):
            assert torch.equal(one, two), name
            assert one.stride() == two.stride(), name
    finally:
        ours.undo()
        torch.set_num_threads(threads)


def test_the_pasted_lines_are_right(source: Path, tmp_path: Path) -> None:
    """By the proof of the recipe, which begins in the middle of a training."""
    faster = written(source, recipe(channels_last={}, fused={}, plain_step={}), tmp_path / "repro")
    truth = make_step_truth(TrainingStep.of(subject_of(source, "step")), seed=1)
    report = verify_step(lambda step: pasted(faster, step), truth)
    assert report.faithful, report.problems


def test_a_checkpoint_that_is_loaded_later_is_laid_out_for_the_fused_kernel(source: Path, tmp_path: Path) -> None:
    faster = written(source, recipe(channels_last={}, fused={}, plain_step={}), tmp_path / "repro")
    plain, other = (TrainingStep.of(subject_of(source, "step")) for _ in range(2))
    assert plain.optimizer is not None
    assert other.optimizer is not None
    plain.run(plain.samples[0])
    theirs = pasted(faster, other)
    theirs.module.load_state_dict(plain.module.state_dict())
    saved = copy.deepcopy(plain.optimizer.state_dict())
    for group in saved["param_groups"]:
        group.update(fused=True, foreach=None)
    other.optimizer.load_state_dict(saved)
    for step in (plain, theirs):
        step.run(step.samples[0])
    for one, two in zip(plain.parameters.values(), theirs.parameters.values(), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.thorough
def test_blocks_are_named_and_the_script_runs_in_a_process_without_togi(source: Path, tmp_path: Path) -> None:
    chosen = recipe(torch_compile={"of": "blocks"}, kept_memory={}, plain_step={})
    written(source, chosen, tmp_path / "repro")
    script = tmp_path / "repro" / "repro.py"
    assert "for name in ('1', '2', '3'):" in script.read_text(encoding="utf-8")
    program = f"""
import runpy, sys, types
sys.modules["togi"] = types.SimpleNamespace()
given = runpy.run_path({str(source)!r})
module, batch = given["network"](), given["batch"]()
optimizer = given["adamw"](module.parameters())
loss = runpy.run_path({str(script)!r})["faster"](module, optimizer, given["loss"])
loss(module, batch).backward()
optimizer.step()
compiled = [name for name, part in module.named_modules() if part._compiled_call_impl is not None]
assert compiled == ["1", "2", "3"], compiled
assert not [name for name in sys.modules if name.startswith("togi.")]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"recompute": {"keep": 0.5}, "fused": {}}, r"recompute\(keep=0\.5\)"),
        ({"micro_batches": {"parts": 2}}, r"micro_batches\(parts=2\)"),
    ],
)
def test_what_has_no_such_form_says_how_to_apply_it(
    choices: dict[str, Any], named: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(TogiError, match=rf"{named} is more than a few lines of PyTorch. Apply its record instead"):
        written(source, recipe(**choices, plain_step={}), tmp_path / "repro")
    assert not (tmp_path / "repro").exists()
    with pytest.raises(TogiError, match="there is nothing to repeat"):
        written(source, recipe(plain_step={}), tmp_path / "repro")
    with pytest.raises(TogiError, match="is none of togi's"):
        written(source, recipe(fused={"x": "1); import os #"}, plain_step={}), tmp_path / "repro")
    with pytest.raises(OutputExistsError):
        written(source, recipe(fused={}, plain_step={}), tmp_path)


def test_every_technique_of_steps_has_lines_or_is_known_to_have_none(source: Path) -> None:
    """A new one has to choose."""
    facts = survey_step(TrainingStep.of(subject_of(source, "step")), seed=0, machine=machine("cpu")).facts
    without = {
        id
        for id, one in all_techniques().items()
        if one.trains and technique(id).step_lines(dict(one.options(facts)[0]), Recipe(), facts) is None
    }
    assert without == {"recompute", "micro_batches", "fused_loss"}
