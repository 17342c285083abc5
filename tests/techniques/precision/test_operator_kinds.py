"""Kinds of operators in an OpenVINO model, and what stays in floating point because of its kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.core.choices import OperatorKind
from togi.core.errors import Refused
from togi.techniques.precision.lowering.operator_kinds import all_others, kinds_of, operators_to_keep

openvino = pytest.importorskip("openvino")


class Net(nn.Module):
    """One of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.squeeze = nn.Conv2d(8, 8, 1)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.dense = nn.Conv2d(8, 8, 3, padding=1)
        self.mlp = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.stem(x).relu())
        x = x * self.squeeze(x.mean((2, 3), keepdim=True)).sigmoid()
        x = self.dense(self.pointwise(x)).flatten(2).transpose(1, 2)
        x = (x @ x.transpose(1, 2)).softmax(-1) @ x
        scores: Tensor = self.head(self.mlp(x).relu().mean(1))
        return scores


def converted(module: nn.Module) -> Any:
    torch.manual_seed(0)
    return openvino.convert_model(module.eval(), example_input=torch.randn(1, 3, 8, 8))


def test_each_operator_is_of_one_kind() -> None:
    kinds = list(kinds_of(converted(Net())).values())
    counted = {kind: kinds.count(kind) for kind in OperatorKind}
    assert counted == {kind: 2 if kind is OperatorKind.ATTENTION else 1 for kind in OperatorKind}


def test_what_is_kept_and_what_is_alone_are_each_others_rest() -> None:
    model = converted(Net())
    for kind in OperatorKind:
        kept, others = set(operators_to_keep(model, [kind])), set(all_others(model, kind))
        assert kept
        assert not kept & others
        assert set(kinds_of(model)) <= kept | others
    assert set(operators_to_keep(model, [OperatorKind.FIRST, OperatorKind.LAST])) == {
        *operators_to_keep(model, [OperatorKind.FIRST]),
        *operators_to_keep(model, [OperatorKind.LAST]),
    }


def test_a_kind_that_is_not_there_is_refused() -> None:
    model = converted(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)))
    for kind in (OperatorKind.DEPTHWISE, OperatorKind.ATTENTION):
        with pytest.raises(Refused, match=f"no operator is of the kind {kind}"):
            operators_to_keep(model, [kind])
        with pytest.raises(Refused, match="nothing to quantize alone"):
            all_others(model, kind)
