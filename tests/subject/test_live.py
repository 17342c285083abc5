"""Live modules: what their copies in other processes are without, and that it is seen."""

from __future__ import annotations

import copy
import copyreg
import importlib
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import togi
from tests.small_modules import ComputesWith
from togi.core.errors import SubjectError
from togi.subject.inputs import Subject
from togi.subject.program import as_module
from togi.subject.sources.live import unpickled
from togi.verify.live import LiveAnswer
from togi.worker.hand_over import copy_locks, dump

SOURCE = """
import torch

SCALE, HIDDEN = 1.0, False


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        y = self.layer(x) * SCALE
        return {"y": y, "hidden": [x] if HIDDEN else None}
"""
READ = """
import sys
from pathlib import Path
import torch
from togi.subject.sources.live import unpickled
model = unpickled(Path(sys.argv[1])).module
print(*model(torch.ones(1, 4, dtype=torch.long), output_hidden_states=True, output_attentions=True))
"""

MAIN = """
import dataclasses, sys
from pathlib import Path
import torch
from togi.subject.inputs import Subject
from togi.worker.hand_over import dump

@dataclasses.dataclass
class Answer:
    y: torch.Tensor

class Net(torch.nn.Module):
    def forward(self, x):
        return Answer(x + 1)

dump(Subject(Net(), torch.ones(1, 4)), Path(sys.argv[1]))
"""
RESOLVED = """
import sys
from pathlib import Path
import torch
from togi.subject.signature import Signature
from togi.subject.sources.live import unpickled
subject = unpickled(Path(sys.argv[1]))
sample = subject.inputs[0]
signature = Signature.of(subject.module, [sample], [subject.module(*sample.args)])
signature.resolve()
"""


@pytest.fixture
def patchable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A library whose switches decide what its module answers."""
    (tmp_path / "patchable_library.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("patchable_library", None)
    return importlib.import_module("patchable_library")


@pytest.mark.thorough
def test_classes_of_the_main_module_are_found_by_their_names(tmp_path: Path) -> None:
    """A script, or a notebook: what its module returns is of a class of its own."""
    for code in (MAIN, RESOLVED):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "subject")], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def answered(module: nn.Module, sample: Any) -> LiveAnswer:
    found = LiveAnswer.of(Subject(module, sample), device="cpu", seed=0)
    assert found is not None
    return found


@pytest.mark.thorough
def test_what_transformers_records_is_recorded_of_what_was_unpickled(tmp_path: Path) -> None:
    import transformers

    config = transformers.BertConfig(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=8, attn_implementation="eager"
    )
    (tmp_path / "subject").write_bytes(pickle.dumps(Subject(transformers.BertModel(config).eval(), torch.ones(1, 4))))
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "subject")], capture_output=True, text=True, check=False
    )
    assert {"hidden_states", "attentions"} <= set(done.stdout.split()), done.stderr


def test_a_live_module_is_asked_without_a_trace(patchable: ModuleType) -> None:
    module, sample = patchable.Net().train(), torch.rand(2, 8)
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    found = answered(module, sample)
    assert torch.equal(found.tensors[0], module.layer(sample))
    assert module.training
    assert module.calls.item() == 0
    after = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


@pytest.mark.parametrize(("free", "shared"), [(None, False), (1 << 30, False), (10, True)])
def test_parameters_that_a_call_changes_stay_those_of_the_live_module(
    free: int | None, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a second module may not fit."""
    monkeypatch.setattr("togi.subject.prepare.available_bytes", lambda: free)
    module = ComputesWith(lambda self, x: x * self.w.data.add_(1), w=nn.Parameter(torch.ones(3)))
    assert torch.equal(answered(module, torch.ones(3)).tensors[0], torch.full((3,), 2.0))
    assert torch.equal(module.w, torch.ones(3) + shared)


def test_what_cannot_be_asked_is_left_to_the_survey(patchable: ModuleType) -> None:
    assert LiveAnswer.of(Subject(patchable.Net(), torch.rand(2, 9)), device="cpu", seed=0) is None
    assert LiveAnswer.of(Subject(patchable.Net().to("meta"), torch.rand(2, 8)), device="cpu", seed=0) is None
    hooked, calls = patchable.Net(), list[int]()
    hooked.layer.register_forward_hook(lambda *_: calls.append(1))
    assert LiveAnswer.of(Subject(hooked, torch.rand(2, 8)), device="cpu", seed=0) is None
    module = patchable.Net()
    program = as_module(lambda x: calls.append(1) or module(x))
    assert LiveAnswer.of(Subject(program, torch.rand(2, 8)), device="cpu", seed=0) is None
    assert not calls


@pytest.mark.parametrize(("scale", "told"), [(1.0, False), (1.0001, False), (1.1, True), (float("nan"), True)])
def test_other_numbers_are_reported(patchable: ModuleType, scale: float, told: bool) -> None:
    module, sample = patchable.Net(), torch.rand(2, 8)
    patchable.SCALE = scale  # type: ignore[attr-defined]
    live = answered(module, sample)
    patchable.SCALE = 1.0  # type: ignore[attr-defined]
    found = live.compared(module(sample), module)
    assert ("answers the first sample otherwise than the live one" in found) is told


@pytest.mark.thorough
def test_an_output_of_another_kind_is_refused(patchable: ModuleType, tmp_path: Path) -> None:
    """Proven were a module without what its user wants of it."""
    patchable.HIDDEN = True  # type: ignore[attr-defined]
    with pytest.raises(SubjectError, match=r"its output\['hidden'\] is .*, the original returns .*stays behind"):
        togi.tune(patchable.Net(), torch.rand(2, 8), time_limit_s=30, journal=tmp_path / "j.sqlite", progress=False)


def test_parametrized_weights_are_sent(tmp_path: Path) -> None:
    """Weight norm, as the convolutions of audio models have it, twice on one module."""
    module = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3)), nn.ReLU())
    module[0].me = module[0]  # a module may lead back to itself
    nn.utils.parametrize.register_parametrization(module[0], "bias", nn.Tanh(), unsafe=True)
    dump(module, tmp_path / "subject")
    found = unpickled(tmp_path / "subject")
    sample = torch.rand(1, 4, 16)
    assert torch.equal(found(sample), module(sample))
    assert found[0].me is found[0]
    assert nn.utils.parametrize.is_parametrized(found[0], "weight")
    nn.utils.parametrize.remove_parametrizations(found[0], "weight")
    assert type(module[0]).__name__ == "ParametrizedConv1d"
    assert torch.allclose(found(sample), module(sample))


class Locked(nn.Module):
    """What it holds serves one at a time, as predictors and clients do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.lock, self.again = nn.Linear(2, 2), threading.Lock(), threading.RLock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock, self.again:
            return self.linear(x)  # type: ignore[no-any-return]


def test_a_module_that_holds_locks_is_sent_with_locks_of_its_own(tmp_path: Path) -> None:
    model = Locked()
    with model.lock, model.again:
        dump(Subject(model, torch.ones(1, 2)), tmp_path / "subject")
    sent = unpickled(tmp_path / "subject").module
    assert sent.lock is not model.lock
    assert torch.equal(sent(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_what_holds_locks_is_copied_where_subjects_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Locked()
    with pytest.raises(TypeError, match="lock"):
        copy.deepcopy(model)
    for kind in map(type, (model.lock, model.again)):
        monkeypatch.setitem(copyreg.dispatch_table, kind, None)  # which is taken out again at the end
    copy_locks()
    with model.lock:
        copied = copy.deepcopy(model)
        assert torch.equal(copied(torch.ones(1, 2)), model.linear(torch.ones(1, 2)))
