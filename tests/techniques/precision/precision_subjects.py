"""Modules whose precision is lowered, with facts as a survey would find them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from togi.core.records import Facts
from togi.graph.candidate import Candidate
from togi.machine.describe import machine
from togi.subject.inputs import samples_of
from togi.subject.signature import Signature

MACHINE = machine("cpu")


class Mixed(nn.Module):
    """Convolutions and linear layers; integer input; a dict with a float, an integer and a boolean output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 16)
        self.conv = nn.Conv2d(3, 16, 3)
        self.linear = nn.Linear(16, 32)
        self.head = nn.Linear(32, 8)

    def forward(self, x: Tensor, *, label: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.conv(x)).mean((2, 3)) + self.embed(label)
        scores = self.head(torch.relu(self.linear(hidden)))
        return {"scores": scores, "best": scores.argmax(1), "sure": scores.amax(1) > 100}


def mixed(**machine_changes: Any) -> Candidate:
    torch.manual_seed(0)
    module = Mixed().eval()
    inputs = samples_of([{"x": torch.randn(4, 3, 8, 8), "label": torch.randint(0, 10, (4,))} for _ in range(3)])
    with torch.no_grad():
        signature = Signature.of(module, inputs, [module(**sample.kwargs) for sample in inputs])
    facts = Facts(
        machine=MACHINE.model_copy(update=machine_changes),
        module_class="Mixed",
        modules={"Conv2d": 1, "Linear": 2, "Embedding": 1},
        functions={"conv2d": 1, "linear": 2, "embedding": 1},
        parameter_dtypes=("float32",),
        inputs=signature.inputs_facts,
        outputs=signature.outputs_facts,
    )
    return Candidate(module=module, samples=inputs, calibration=inputs, signature=signature, facts=facts)
