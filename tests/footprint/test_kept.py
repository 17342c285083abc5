"""What a call on tensors without values puts into objects is found, and taken out again."""

from __future__ import annotations

from collections import OrderedDict, deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.footprint.dry_run import dry_run_of
from togi.footprint.kept import Kept
from togi.torch_internals.tensors import FakeTensorMode


def without_values() -> Tensor:
    with FakeTensorMode():
        return torch.ones(3)


def _put(holder: Any, tensor: Tensor) -> None:
    match holder:
        case dict():
            holder.update(new=tensor, old=5)
        case set():
            holder.add(tensor)
        case SimpleNamespace():
            holder.seen, holder.count = [tensor], 5
        case _:
            holder.append({"deep": (tensor,)})


@pytest.mark.parametrize(
    "holder",
    [{"old": 1, "other": 2}, OrderedDict(old=1), [1, 2], deque([1, 2], 2), {1, 2}, SimpleNamespace(count=1)],
    ids=lambda holder: type(holder).__name__,
)
def test_each_kind_of_holder_is_as_it_was(holder: Any) -> None:
    before = repr(holder)
    kept = Kept(lambda: holder)
    assert not list(kept.changes())
    _put(holder, tensor := without_values())
    assert kept.tensors() == [tensor]
    kept.put_back()
    assert repr(holder) == before
    assert not list(kept.changes())


def test_what_holds_no_tensor_without_values_stays_as_it_is_now() -> None:
    counts, real = {"calls": 0}, [torch.ones(3)]
    kept = Kept(lambda: (counts, real))
    counts["calls"] += 1
    real.append(torch.ones(3))
    kept.put_back()
    assert (counts["calls"], len(real)) == (1, 2)


def test_modules_are_copied_and_what_they_share_with_others_is_put_back() -> None:
    shared: list[Tensor] = []

    class Keeps(nn.Module):
        seen: Tensor | None = None

        def forward(self, tensor: Tensor) -> Tensor:
            self.seen = tensor
            return tensor

    module = Keeps()
    module.register_forward_hook(lambda *given: shared.append(given[-1]))
    with dry_run_of(lambda tensor: module(tensor)) as dry:
        dry.program(without_values())
        assert len(dry.kept.tensors()) == 2
        assert (module.seen, len(shared)) == (None, 1)
    assert (module.seen, shared) == (None, [])
