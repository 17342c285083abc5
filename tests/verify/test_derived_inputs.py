from __future__ import annotations

import pytest
import torch
from torch import nn

from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.verify.derived_inputs import variants
from togi.verify.leaves import clone, copy_inputs, fresh, input_tensors, tensors_in
from togi.verify.observe import overlap


class Anything(nn.Module):
    def forward(self, *args, **kwargs):
        return torch.zeros(1)


def signature(samples, dynamic=None):
    return Signature.of(Anything(), samples, [torch.zeros(1)] * len(samples), dynamic)


def derived(samples, dynamic=None, seed=0):
    return variants(samples, signature(samples, dynamic), seed)


def test_samples_come_first_and_the_rest_differs_in_values():
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = derived([Inputs((x,))])
    assert found[0].args[0] is x
    assert len(found) >= 3
    tensors = [one.args[0] for one in found]
    for i, a in enumerate(tensors):
        for b in tensors[i + 1 :]:
            assert not torch.equal(a, b)
        assert a.min() >= x.min()
        assert a.max() <= x.max()
        assert (a.dtype, a.shape, a.stride()) == (x.dtype, x.shape, x.stride())


def test_the_same_seed_gives_the_same_inputs():
    samples = [Inputs((torch.arange(12.0).reshape(3, 4),), {"n": torch.arange(5)})]
    for a, b in zip(derived(samples, seed=3), derived(samples, seed=3), strict=True):
        assert torch.equal(a.args[0], b.args[0])
        assert torch.equal(a.kwargs["n"], b.kwargs["n"])


def test_integers_are_only_observed_values_and_masks_follow_them():
    ids = torch.tensor([[101, 7, 9, 102, 0, 0]])
    mask = (ids != 0).long()
    for one in derived([Inputs((), {"ids": ids, "mask": mask})]):
        assert set(one.kwargs["ids"].flatten().tolist()) <= {101, 7, 9, 102, 0}
        assert torch.equal(one.kwargs["mask"], (one.kwargs["ids"] != 0).long())


def test_constants_stay_and_a_tensor_given_twice_stays_one():
    x = torch.randn(4)
    for one in derived([Inputs((x, x, 3, "mode", None, True))]):
        assert one.args[0] is one.args[1]
        assert one.args[2:] == (3, "mode", None, True)


def test_sizes_go_between_below_and_above_and_stay_related():
    samples = [Inputs((), {"ids": torch.ones(2, n).long(), "mask": torch.ones(2, n).long()}) for n in (8, 20)]
    sizes = set()
    for one in derived(samples):
        assert one.kwargs["ids"].shape == one.kwargs["mask"].shape
        sizes.add(one.kwargs["ids"].shape[1])
    assert {8, 20} < sizes
    assert min(sizes) < 8
    assert max(sizes) > 20
    assert any(8 < size < 20 for size in sizes)


def test_sizes_that_are_a_constant_apart_stay_so():
    samples = [Inputs((), {"mask": torch.ones(4, n + 1).long(), "cache": torch.randn(4, n, 8)}) for n in (64, 66, 94)]
    sizes = [(one.kwargs["mask"].shape[1], one.kwargs["cache"].shape[1]) for one in derived(samples)]
    assert {mask - cache for mask, cache in sizes} == {1}
    caches = {cache for _, cache in sizes}
    assert min(caches) < 64
    assert max(caches) > 94


def test_sizes_that_vary_on_their_own_do_so_here():
    samples = [Inputs((torch.ones(a), torch.ones(b))) for a, b in ((8, 30), (12, 50), (20, 40))]
    sizes = {(len(one.args[0]), len(one.args[1])) for one in derived(samples)}
    assert len({b - a for a, b in sizes}) > 3


def test_a_declared_dimension_varies_with_one_sample():
    sizes = {one.args[0].shape[0] for one in derived([Inputs((torch.randn(4, 3),))], {"args_0": [0]})}
    assert len(sizes) >= 3
    assert 1 not in sizes


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0, 4),
        torch.tensor(3.0),
        torch.tensor(2),
        torch.tensor(True),
        torch.randn(3, 4).t(),
        torch.randn(1, 4).expand(3, 4),
        torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        torch.randn(6, 8)[::2, ::2],
        torch.randn(4, dtype=torch.complex64),
        torch.randn(4).bfloat16(),
        torch.randn(4).to(torch.float8_e4m3fn),
        torch.tensor([float("nan"), float("inf"), 1.0]),
        torch.zeros(3),
        torch.randn(3).to_sparse(),
    ],
    ids=lambda t: f"{t.dtype}-{tuple(t.shape)}",
)
def test_every_kind_of_tensor_keeps_its_form(tensor):
    for one in derived([Inputs((tensor,))]):
        found = one.args[0]
        assert (found.dtype, found.shape, found.layout) == (tensor.dtype, tensor.shape, tensor.layout)
        if tensor.layout is torch.strided:
            assert found.stride() == tensor.stride()


def test_fresh_shares_no_memory_and_keeps_requires_grad():
    x = torch.randn(3, requires_grad=True)
    inputs = Inputs(({"a": [x]},))
    copied = fresh(inputs).args[0]["a"][0]
    assert torch.equal(copied, x)
    assert copied.requires_grad
    assert not overlap(copied, x)


def test_inference_tensors_can_be_copied():
    with torch.inference_mode():
        x = torch.randn(3)
    assert not clone(x).is_inference()


class Cache:
    def __init__(self, tensor):
        self.layers = [tensor]
        self.itself = self


def test_tensors_inside_opaque_objects_are_found_once():
    x = torch.randn(3)
    found = tensors_in((Cache(x), x), "output")
    assert [name for name, _ in found] == ["output[0].layers[0]", "output[1]"]
    copied = copy_inputs(Inputs((Cache(x),)), lambda t: t + 1)
    assert torch.equal(copied.args[0].layers[0], x + 1)


def test_inputs_are_named_as_the_signature_names_them():
    samples = [Inputs((torch.ones(1),), {"b": torch.ones(1)})]
    assert [n for n, _ in input_tensors(samples[0], signature(samples))] == ["args_0", "b"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
@pytest.mark.parametrize("side", ["left", "right"])
def test_masks_keep_their_side_and_no_row_is_masked_whole(dtype, side):
    lengths = torch.tensor([[6], [4], [3]])
    counts = torch.arange(6) < lengths if side == "right" else torch.arange(6) >= 6 - lengths
    mask = torch.where(counts, 0.0, float("-inf")) if dtype.is_floating_point else counts.to(dtype)
    ids = torch.where(counts, torch.arange(1, 19).reshape(3, 6), 0)
    found = derived([Inputs((ids, mask))])
    assert any(not torch.equal(one.args[1], mask) for one in found)
    for one in found:
        counted = one.args[1] == 0 if dtype.is_floating_point else one.args[1].bool()
        assert counted.any(-1).all()
        edges = counted if side == "right" else counted.flip(-1)
        assert (edges.long().diff(dim=-1) <= 0).all(), "padding stays on its side"
        assert torch.equal(one.args[0] != 0, counted)


def test_a_single_padded_row_gets_more_padding_and_a_full_one_stays():
    ids = torch.tensor([[0, 0, 5, 6, 7]])
    changed = [one.kwargs["mask"] for one in derived([Inputs((), {"ids": ids, "mask": ids != 0})])[1:]]
    assert all(mask.tolist() == [[False, False, False, True, True]] for mask in changed)
    full = torch.ones(1, 5, dtype=torch.int64)
    assert all(torch.equal(one.kwargs["mask"], full) for one in derived([Inputs((), {"ids": ids, "mask": full})]))


def test_smaller_sizes_of_padded_prompts_keep_what_counts():
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1, 1]])
    samples = [Inputs((mask * 5, mask)), Inputs((torch.ones(2, 12).long(), torch.ones(2, 12).long()))]
    samples[1].args[1][1, :9] = 0
    found = derived(samples, dynamic={"args_1": [1]})
    assert {one.args[1].shape[1] for one in found} >= {4, 8, 10, 12}
    assert all(one.args[1].bool().any(-1).all() for one in found)


@pytest.mark.parametrize(
    ("sizes", "others"),
    [
        ((24, 40), {8, 32, 56}),  # multiples of 8, as both are
        ((7, 13), {3, 10, 16}),
        ((48, 80), {16, 64, 112}),
        ((2, 3), {2, 3, 4}),
        ((64, 64), {32, 96}),
    ],
)
def test_other_sizes_keep_the_multiple_that_the_samples_have(sizes, others):
    samples = [Inputs((torch.randn(size),)) for size in sizes]
    found = derived(samples, dynamic={"args_0": [0]})
    assert {len(one.args[0]) for one in found} == {*sizes, *others}


def test_overlapping_windows_are_laid_out_apart():
    windows = torch.arange(10.0).unfold(0, 4, 2)
    for one in derived([Inputs((windows,))])[1:]:
        assert one.args[0].stride() == (4, 1), "no element is written twice"
        assert one.args[0].shape == windows.shape


def test_integers_of_which_torch_finds_no_smallest_are_varied():
    x = torch.arange(12).reshape(3, 4).to(torch.uint16)
    varied = variants([Inputs((x,))], Signature.of(nn.Identity(), [Inputs((x,))], [x]), 0)
    assert all(each.args[0].dtype is torch.uint16 for each in varied)
    assert any(not torch.equal(each.args[0], x) for each in varied)


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
def test_a_sparse_tensor_of_rows_is_copied():
    given = torch.eye(3).to_sparse_csr()
    (copied,) = Inputs((given,)).clone().args
    copied.values().zero_()
    assert torch.equal(given.to_dense(), torch.eye(3))
