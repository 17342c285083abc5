"""Artifacts of a small model, made without a study."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.artifact.artifact_maker import ArtifactMaker
from togi.artifact.manifest import Manifest
from togi.core.records import Recipe
from togi.subject.inputs import Subject
from togi.techniques import recipe

RECIPES = {
    "eager": recipe(eager={}, no_grad={}),
    "torchscript": recipe(torchscript={"how": "trace", "freeze": True, "optimize": True}, no_grad={}),
    "torch_compile": recipe(torch_compile={"mode": "default", "freezing": True}, no_grad={}),
    "aot_inductor": recipe(aot_inductor={"freezing": False, "max_autotune": False}, no_grad={}),
    "onnxruntime": recipe(onnxruntime={"spinning": False}, no_grad={}),
    "openvino": recipe(openvino={}, no_grad={}),
}


class Net(nn.Module):
    """Keyword arguments in, a dict out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        y = self.linear(x)
        return {"y": y if scale is None else y * scale, "norm": y.square().sum(-1)}


def make(folder: Path, chosen: Recipe, *, dynamic: bool = False) -> Manifest:
    """``dynamic``: its first dimension."""
    torch.manual_seed(0)
    samples = [
        {"x": torch.randn(count, 8), "scale": torch.full((count, 4), 2.0)} for count in ((3, 5) if dynamic else (3,))
    ]
    return ArtifactMaker.of(Subject(Net(), samples), "Net").make(folder, chosen)
