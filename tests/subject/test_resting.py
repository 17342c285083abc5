"""A copy that rests in a file is the tensor, and leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

from togi.subject.resting import resting

MIB = 1 << 20
TENSORS = {
    "small": lambda: torch.arange(6.0),
    "large": lambda: torch.randn(MIB),
    "float64": lambda: torch.randn(512, 1024, dtype=torch.float64),
    "bf16, channels last": lambda: torch.randn(8, 64, 64, 64).bfloat16().to(memory_format=torch.channels_last),
    "integers": lambda: torch.arange(MIB),
    "bools": lambda: torch.randn(2 * MIB) > 0,
    "not a number": lambda: torch.full((MIB,), float("nan")),
    "sparse": lambda: torch.eye(4).to_sparse(),
    "a slice": lambda: torch.randn(1024, 4096)[:, ::3],
}


@pytest.mark.parametrize("name", TENSORS)
def test_it_holds_the_same_values(name: str) -> None:
    tensor: Tensor = TENSORS[name]()
    rested = resting(tensor)
    assert (rested.shape, rested.dtype, rested.layout) == (tensor.shape, tensor.dtype, tensor.layout)
    assert torch.equal(rested.to_dense().nan_to_num(), tensor.to_dense().nan_to_num())
    if tensor.layout is torch.strided:
        tensor.zero_()
        assert bool(rested.to(torch.float32).nan_to_num(1.0).any()), "memory of its own"


def test_no_file_is_left_and_none_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tensor = torch.randn(MIB)
    rested = resting(tensor)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert torch.equal(resting(tensor), rested)


def test_a_full_disk_is_noticed_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    tensor = torch.randn(MIB)
    assert torch.equal(resting(tensor), tensor)
