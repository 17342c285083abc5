"""Blocks that are alike are one part, tuned once: each copy is served by an engine with its own weights.

A block sleeps, which a captured graph does not: its engine is faster on any machine, however busy.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import togi
from togi.artifact.manifest import read_manifest

FACTORY = """
import time
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        time.sleep(0.01)
        for _ in range(30):
            x = torch.tanh(self.inner(x)) + 0.5 * x
        return x

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def run(self, x):
        for block in self.blocks:
            x = block(x)
            if float(x.sum()) > 1e6:
                break
        return x

def make():
    torch.manual_seed(0)
    return Stack().eval()

def subject():
    return make().run, torch.ones(2, 8)
"""

pytestmark = [pytest.mark.usefixtures("brief_studies"), pytest.mark.thorough]


def test_copies_of_a_block_are_served_each_with_its_own_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stacks.py").write_text(FACTORY, encoding="utf-8")
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    study = togi.tune(f"{tmp_path}/stacks.py:subject", only=["torchscript"], effort="quick", time_limit_s=400)
    assert study.record.program is not None, study.record.verdict
    (part,) = study.record.program.parts
    paths = tuple(f"model.blocks.{number}" for number in range(3))
    assert (part.copies, part.calls) == (paths, 1)
    assert part.recipe is not None, (part.reason, study.record.verdict)
    assert part.reason == "", "in all of them"

    saved = study.save(tmp_path / "stack.togi")
    entries = read_manifest(saved).parts
    assert sorted(entry.key.path for entry in entries) == sorted(paths)
    assert len({entry.weights for entry in entries}) == 3

    monkeypatch.syspath_prepend(str(tmp_path))
    import stacks  # type: ignore[import-not-found]

    model, x = stacks.make(), torch.randn(2, 8)
    with torch.no_grad():
        expected = model.run(x)
        by_block = [block(x) for block in model.blocks]
        assert not torch.allclose(by_block[0], by_block[1])
        with togi.load(saved).into(model.run) as installed:
            torch.testing.assert_close(model.run(x), expected)
            assert installed.counts == dict.fromkeys(paths, (1, 0))
            for block, alone in zip(model.blocks, by_block, strict=True):
                torch.testing.assert_close(block(x), alone)
            assert installed.counts == dict.fromkeys(paths, (2, 0))
            model.run(torch.randn(3, 8))
            assert installed.counts == dict.fromkeys(paths, (2, 1)), "a size that was not proven"
        assert torch.equal(model.run(x), expected)
