"""Models with batch norms whose statistics and weights are far from the trivial ones they are initialised with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from togi.graph.candidate import Candidate
from togi.graph.edit import call_name
from togi.techniques import conformance


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _randomise(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    for norm in module.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.running_mean is not None:
            norm.running_mean.normal_(0, 0.3, generator=generator)
            norm.running_var.uniform_(0.5, 2, generator=generator)
            if norm.affine:
                norm.weight.data.uniform_(0.5, 1.5, generator=generator)
                norm.bias.data.normal_(0, 0.2, generator=generator)
    return module.eval()


@pytest.fixture
def randomise() -> Callable[[nn.Module], nn.Module]:
    """Gives every batch norm statistics, weight and bias that change the result, and sets eval mode."""
    return _randomise


def _error_units(original: Candidate, result: Candidate, samples: Sequence[Tensor]) -> float:
    def answers(module: nn.Module, dtype: torch.dtype) -> list[list[Tensor]]:
        with torch.no_grad():
            return [original.signature.flatten_outputs(module(sample.to(dtype))) for sample in samples]

    eager = answers(original.module, torch.float32)
    truth = answers(copy.deepcopy(original.module).double(), torch.float64)
    return conformance.check_faithful("result", truth, eager, answers(result.module, torch.float32))


@pytest.fixture
def error_units() -> Callable[[Candidate, Candidate, Sequence[Tensor]], float]:
    """A candidate's error on float32 samples, in units of eager's own; fails above what is faithful."""
    return _error_units


@pytest.fixture
def calls() -> Callable[[Candidate], list[str]]:
    """Names of the ATen calls in a rewritten candidate's graph: ``["conv2d", "relu_"]``."""

    def names(candidate: Candidate) -> list[str]:
        called = map(call_name, candidate.module.graph.graph.nodes)
        return [name.partition(".")[0] for name in called if name]

    return names
