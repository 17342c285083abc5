"""Engines take a module in the mode that it is tuned in: batch statistics are batch statistics, or it is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from togi.core.records import Choice, Recipe, Stage
from togi.subject.inputs import Subject
from togi.techniques import technique
from togi.techniques.build import build, first_candidate
from togi.worker.survey import survey

NORMS = {
    "batch": lambda: nn.BatchNorm2d(8),
    "batch, kept": lambda: nn.BatchNorm2d(8, momentum=0.0),
    "instance": lambda: nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
}


def partly_training(norm: str) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), NORMS[norm](), nn.ReLU()).eval()
    module[1].train()
    return module


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("how", ["trace", "script"])
@pytest.mark.parametrize("norm", NORMS)
def test_torchscript_takes_the_statistics_of_the_batch(norm: str, how: str, tmp_path: Path) -> None:
    module, x = partly_training(norm), torch.randn(4, 3, 8, 8) + 2
    subject = Subject(module, x)
    found = survey(subject, captured=False)
    start = first_candidate(subject, found.facts, found.signature)
    options = {"how": how, "freeze": False, "optimize": False}
    made = build(Recipe(choices=(Choice(stage=Stage.ENGINE, technique="torchscript", options=options),)), start)
    assert made.program is not None
    meta = made.program.save(tmp_path)
    loaded = technique("torchscript").load(tmp_path, meta, found.signature, None)
    for call in (x, x * 3 - 1):
        with torch.no_grad():
            expected = copy.deepcopy(module)(call)
            for program in (made.program, loaded):
                assert torch.allclose(program.run([call.clone()])[0], expected, atol=1e-5)
