"""Recorded calls come back from their files as they were given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from togi.core.errors import SubjectError
from togi.subject.inputs import Inputs
from togi.subject.stored_inputs import read_inputs, write_inputs


def again(folder: Path, *given: Inputs) -> list[Inputs]:
    write_inputs(folder / "calls", given)
    return read_inputs(folder / "calls")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).reshape(2, 3, 4),
        torch.arange(48.0).reshape(2, 4, 2, 3).permute(0, 3, 1, 2),
        torch.arange(48.0).reshape(1, 4, 4, 3).to(memory_format=torch.contiguous_format).permute(0, 3, 1, 2),
        torch.arange(12).reshape(3, 4).T,
        torch.arange(24.0).reshape(1, 2, 3, 4).transpose(1, 2),
        torch.tensor(7),
        torch.randn(2, 3, 5, 1).bool(),
    ],
)
def test_dimensions_lie_in_memory_as_they_did(tensor: Tensor, tmp_path: Path) -> None:
    (found,) = again(tmp_path, Inputs((tensor,), {"scale": 2}))
    (read,) = found.args
    assert torch.equal(read, tensor)
    assert (read.dtype, read.stride()) == (tensor.dtype, tensor.stride())
    assert found.kwargs == {"scale": 2}


def test_what_shares_memory_is_stored_for_itself(tmp_path: Path) -> None:
    row = torch.arange(4.0)
    (found,) = again(tmp_path, Inputs((row.expand(3, 4), [row, {"again": row}])))
    expanded, (one, inside) = found.args
    assert torch.equal(expanded, row.expand(3, 4))
    assert expanded.is_contiguous()
    assert torch.equal(one, row)
    assert torch.equal(inside["again"], row)


def test_a_slice_of_something_larger_is_dense(tmp_path: Path) -> None:
    picture = torch.randn(1, 6, 8, 3).permute(0, 3, 1, 2)[:, :, ::2]
    (found,) = again(tmp_path, Inputs((picture,)))
    assert torch.equal(found.args[0], picture)
    assert found.args[0].is_contiguous(memory_format=torch.channels_last)


def test_what_has_no_tensor_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match="object"):
        write_inputs(tmp_path / "calls", [Inputs((object(),))])
