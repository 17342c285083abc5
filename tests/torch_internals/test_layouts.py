"""The storages of a tensor are those of its parts, whatever its layout and class."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from togi.torch_internals.layouts import NoStorage, is_one_storage, storages_of
from togi.torch_internals.tensors import FakeTensorMode

pytestmark = pytest.mark.filterwarnings("ignore")
ONES = torch.ones(6, 4)


class Wrapper(torch.Tensor):
    """Without ``__tensor_flatten__``."""

    @staticmethod
    def __new__(cls, *parts):
        return torch.Tensor._make_wrapper_subclass(cls, (6, 4), dtype=torch.float32)

    def __init__(self, *parts):
        self.named = dict(enumerate(parts)) or None
        for number, part in enumerate(parts):
            setattr(self, f"part{number}", part)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("the user's own code")


def compressed(layout, outer, block=()):
    """With two values (blocks) in the first row (column)."""
    values = torch.ones(2, *block)
    return torch.sparse_compressed_tensor(
        torch.tensor([0, 2] + [2] * (outer - 1)), torch.arange(2), values, (6, 4), layout=layout
    )


def jagged():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


def quantized():
    return torch.quantize_per_channel(ONES, torch.ones(6), torch.zeros(6), 0, torch.qint8)


JAGGED_BYTES = sum(getattr(jagged(), name).nbytes for name in jagged().__tensor_flatten__()[0])
LAYOUTS = {
    "coo": (lambda: ONES.to_sparse(), 24 * 4 + 2 * 24 * 8),
    "csr": (lambda: compressed(torch.sparse_csr, 6), (7 + 2) * 8 + 2 * 4),
    "csc": (lambda: compressed(torch.sparse_csc, 4), (5 + 2) * 8 + 2 * 4),
    "bsr": (lambda: compressed(torch.sparse_bsr, 2, (3, 2)), (3 + 2) * 8 + 12 * 4),
    "bsc": (lambda: compressed(torch.sparse_bsc, 2, (3, 2)), (3 + 2) * 8 + 12 * 4),
    "jagged": (jagged, JAGGED_BYTES),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), 5 * 4 + (2 + 2 + 2) * 8),
    "quantized by channel": (quantized, 24 + 6 * 4 + 6 * 4),
    "conjugated": (lambda: ONES.cfloat().conj(), 24 * 8),
    "negated": (lambda: torch._neg_view(ONES.clone()), 24 * 4),
    "empty": (lambda: torch.empty(0, 3), 0),
    "meta": (lambda: ONES.to("meta"), 24 * 4),
    "a wrapper by its attributes": (lambda: Wrapper(ONES.clone(), torch.ones(2)), 24 * 4 + 2 * 4),
    "sparse in a wrapper": (lambda: Wrapper(ONES.to_sparse()), 24 * 4 + 2 * 24 * 8),
    "uninitialized": (lambda: nn.UninitializedParameter(), 0),
    "a parameter": (lambda: nn.Parameter(ONES.clone()), 24 * 4),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_bytes_of_all_parts(name):
    make, expected = LAYOUTS[name]
    tensor = make()
    found = storages_of(tensor)
    assert sum({storage._cdata: storage.nbytes() for storage in found}.values()) == expected
    assert {storage._cdata for storage in storages_of(tensor)} == {storage._cdata for storage in found}


def test_fake_tensors():
    with FakeTensorMode():
        assert sum(storage.nbytes() for storage in storages_of(torch.ones(6, 4))) == 96
        assert len(storages_of(torch.ones(6, 4).to_sparse())) == 2


@pytest.mark.parametrize("make", [lambda: ONES.to_mkldnn(), Wrapper], ids=["oneDNN", "a wrapper of nothing"])
def test_what_has_no_storage_is_named(make):
    with pytest.raises(NoStorage, match="memory"):
        storages_of(make())


def test_wrappers_of_transforms():
    seen = []

    def look(x):
        seen.append(sum(storage.nbytes() for storage in storages_of(x)))
        return x.sum()

    torch.func.vmap(torch.func.grad(look))(ONES)
    torch.func.functionalize(look)(ONES)
    assert seen == [96, 96]


def test_which_tensors_are_one_storage():
    assert is_one_storage(ONES)
    assert is_one_storage(nn.Parameter(ONES))
    assert is_one_storage(ONES.T)
    assert not any(is_one_storage(t) for t in (ONES.to_sparse(), jagged(), quantized(), ONES.to_mkldnn()))


def test_a_look_leaves_no_trace_in_autograd():
    sparse = ONES.to_sparse().requires_grad_()
    storages_of(sparse)
    assert sparse.grad_fn is None
    assert pytree.tree_leaves(sparse.grad) in ([], [None])
