"""The usual families of models are shown to compute rows apart; each kind of dependence is named, with its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from togi.graph.dependence.any_size import rows_apart_at_any_size
from togi.graph.dependence.proof import RowProof, rows_apart

ROWS = 6


class Residual(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(8, 8, 3, padding=1), norm
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Hardsigmoid())

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)), inplace=True)
        return x + y * self.squeeze(y)


class Windows(nn.Module):
    """Attention in shifted windows, with a mask for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.mask = nn.Linear(8, 24), torch.zeros(4, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        x = x.roll((-1, -1), (1, 2)).view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        q, k, v = self.qkv(x).view(-1, 4, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.transpose(-2, -1)).view(b, 4, 2, 4, 4) + self.mask[None, :, None]
        x = (scores.view(-1, 2, 4, 4).softmax(-1) @ v).transpose(1, 2).reshape(-1, 4, c)
        x = x.view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return x.roll((1, 1), (1, 2))


class Text(nn.Module):
    """Tokens and their padding -> the vector at the last token, as CLIP has it."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.tokens, self.places, self.start = nn.Embedding(50, 16), nn.Embedding(9, 16), torch.zeros(1, 1, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder, self.causal = nn.TransformerEncoder(layer, 1), causal

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]).isinf() if self.causal else None
        x = self.encoder(x, mask=mask, src_key_padding_mask=padding, is_causal=self.causal)
        x = torch.cat([self.start.expand(x.shape[0], -1, -1), x], 1)
        return x[torch.arange(x.shape[0], device=x.device), ids.argmax(-1)]


def _unet(x: Tensor) -> Tensor:
    down = F.max_pool2d(F.silu(F.group_norm(x, 2)), 2)
    return torch.cat([x, F.interpolate(down, scale_factor=2.0, mode="bilinear")], 1)


def _guided(x: Tensor) -> Tensor:
    """Classifier-free guidance."""
    with_text, without = (torch.cat([x, x * 0.5]).exp()).chunk(2)
    return without + 3 * (with_text - without)


def _modulated(x: Tensor, style: Tensor) -> Tensor:
    """A kernel for each row, as StyleGAN2 has it."""
    b, c, h, w = x.shape
    kernels = torch.ones(1, 5, c, 3, 3) * style[:, None, :, None, None]
    kernels = kernels * kernels.square().sum((2, 3, 4), keepdim=True).rsqrt()
    return F.conv2d(x.reshape(1, b * c, h, w), kernels.view(b * 5, c, 3, 3), padding=1, groups=b).view(b, 5, h, w)


def _written(x: Tensor) -> Tensor:
    made = torch.zeros(x.shape[0], 5, x.shape[1])
    made[:, 1], made[:, 2:4] = x, x[:, None] * 2
    made[made < 0] = 0.5
    return made.index_add_(1, torch.tensor([0, 4]), x[:, None].expand(-1, 2, -1))


def _images(channels: int = 8) -> Tensor:
    return torch.randn(ROWS, channels, 8, 8)


_IDS, _PADDING = torch.randint(0, 50, (ROWS, 7)), torch.zeros(ROWS, 7, dtype=torch.bool)
APART: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "resnet": (Residual(nn.BatchNorm2d(8)).eval(), (_images(),)),
    "instance norm": (Residual(nn.InstanceNorm2d(8, affine=True)), (_images(),)),
    "group norm": (Residual(nn.GroupNorm(2, 8)), (_images(),)),
    "unet": (_unet, (_images(),)),
    "convnext": (
        lambda x: nn.LayerNorm(8)(F.conv2d(x, torch.ones(8, 1, 7, 7), padding=3, groups=8).permute(0, 2, 3, 1)),
        (_images(),),
    ),
    "swin": (Windows(), (torch.randn(ROWS, 4, 4, 8),)),
    "bert with padding": (Text().eval(), (_IDS, _PADDING)),
    "causal decoder": (Text(causal=True).eval(), (_IDS, _PADDING)),
    "gru": (nn.GRU(4, 4, 2, batch_first=True, bidirectional=True), (torch.randn(ROWS, 5, 4),)),
    "gru, time first": (nn.GRU(4, 4), (torch.randn(5, ROWS, 4),)),
    "lstm": (nn.LSTM(4, 4, batch_first=True, bidirectional=True), (torch.randn(ROWS, 5, 4),)),
    "mixer": (lambda x: x + F.linear(x.transpose(1, 2), torch.ones(7, 7)).transpose(1, 2), (torch.randn(ROWS, 7, 4),)),
    "einsum attention": (
        lambda q: torch.einsum("bhij,bjhd->bihd", torch.einsum("bihd,bjhd->bhij", q, q).softmax(-1), q),
        (torch.randn(ROWS, 7, 2, 4),),
    ),
    "spectrogram": (
        lambda x: torch.stft(x, 16, 4, window=torch.ones(16), return_complex=True).abs().log1p(),
        (torch.randn(ROWS, 64),),
    ),
    "guidance": (_guided, (torch.randn(ROWS, 4),)),
    "modulated convolution": (_modulated, (_images(3), torch.randn(ROWS, 3))),
    "writes in place": (_written, (torch.randn(ROWS, 3),)),
    "boxes": (lambda x: torch.maximum(x[:, :, None, :2], x[:, None, :, :2]).prod(-1), (torch.rand(ROWS, 9, 4),)),
    "mask by row numbers, as transformers has it": (
        lambda x, keep: (x @ x.transpose(1, 2)).masked_fill(
            ~keep[torch.arange(x.shape[0])[:, None, None], torch.arange(keep.shape[1])[None, None, :]], 0.0
        ),
        (torch.randn(ROWS, 7, 4), torch.ones(ROWS, 7).bool()),
    ),
    "levels": (lambda x: torch.bucketize(x, torch.arange(3.0)), (torch.randn(ROWS, 5),)),
    "argmax of each": (lambda x: F.one_hot(x.argmax(-1), 5), (torch.randn(ROWS, 5),)),
    "singular values": (torch.linalg.svdvals, (torch.randn(ROWS, 5, 4),)),
}
"""A call, and tensors whose rows are the dimension of size ``ROWS``."""


def _cut(tensors: tuple[Tensor, ...]) -> list[int]:
    return [tensor.shape.index(ROWS) for tensor in tensors]


@pytest.mark.parametrize("name", APART)
def test_usual_models_are_shown_to_compute_rows_apart(name: str) -> None:
    call, tensors = APART[name]
    with torch.no_grad():
        found = rows_apart(call, tensors, _cut(tensors), [2, 1])
        assert found.reason == ""
        whole, cut = call(*tensors), _cut(tensors)
        part = call(*(tensor.narrow(dim, 2, 2) for tensor, dim in zip(tensors, cut, strict=True)))
    leaves = [whole, part] if isinstance(whole, Tensor) else [whole[0], part[0]]
    torch.testing.assert_close(leaves[0].narrow(found.along[0], 2, 2), leaves[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", APART)
def test_they_are_for_any_number_of_rows(name: str) -> None:
    call, tensors = APART[name]
    places = [(i, dim) for i, dim in enumerate(_cut(tensors))]
    with torch.no_grad():
        found = rows_apart_at_any_size(call, tensors, _cut(tensors), dict.fromkeys(places, (places[0], 0)))
    assert found.reason == ""


def _router(x: Tensor) -> Tensor:
    chosen = F.one_hot(x.argmax(1), 8)
    return x * ((chosen.cumsum(0) * chosen) <= 2).all(1)[:, None]


def _cached(x: Tensor, kept: list[Tensor] = []) -> Tensor:  # noqa: B006 - the fault
    kept[:] = kept or [x.mean(0)]
    return x - kept[0]


def _all_rows_in_memory(x: Tensor) -> Tensor:
    seen = x.contiguous().as_strided((x.shape[0], 4), (x.shape[1], 1), x.shape[1])
    return seen * 2


def _list_in_place(x: Tensor) -> Tensor:
    made = torch.zeros(8)
    torch._foreach_add_([made], [x.sum(0)])
    return x + made


DEPENDENT: dict[str, tuple[Callable[..., Any], str]] = {
    "floor of the loudest": (lambda x: torch.maximum(x, x.max() - 4), "aten.max works across the rows"),
    "capacity": (lambda x: x * (x.argmax(1).cumsum(0) <= 6)[:, None], "aten.cumsum works across the rows"),
    "router": (_router, "aten.cumsum works across the rows"),
    "share of all": (lambda x: x / x.shape[0], "aten.div computes with the number of rows"),
    "mixed up": (lambda x: x + x.roll(1, 0), "aten.roll works across the rows"),
    "reversed": (lambda x: x.flip(0), "aten.flip works across the rows"),
    "shifted by a view": (lambda x: torch.cat([x[1:], x[:1]]), "takes some rows"),
    "frames of clips": (lambda x: x.view(-1, 2, 8).flip(1).reshape(-1, 8), "merges rows"),
    "detached in secret": (lambda x: x - x.mean(0).data, "aten.mean works across the rows"),
    "ranks among all": (lambda x: x + torch.bucketize(x[:, 0], x[:, 0])[:, None], "not known to keep them apart"),
    "sorted": (lambda x: x.sort(0).values, "aten.sort works across the rows"),
    "top of all": (lambda x: x * (x >= x.flatten().topk(9).values[-1]), "merges rows"),
    "duplicates": (lambda x: torch.unique(x, dim=0), "depends on values"),
    "seen by all": (lambda x: (x @ x.T).softmax(-1) @ x, "aten.mm"),
    "attention over the batch": (
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None])[0],
        "see each other",
    ),
    "statistics of the batch": (nn.BatchNorm1d(8, track_running_stats=False), "statistics of all rows"),
    "statistics that are kept": (nn.BatchNorm1d(8), "outlives the call"),
    "numbered": (lambda x: x + torch.arange(x.shape[0])[:, None], "numbers of the rows"),
    "places of rows": (lambda x: x + torch.ones(99, 8)[: x.shape[0]], "aten.slice"),
    "counted in Python": (lambda x: x + torch.tensor([float(i) for i in range(x.shape[0])])[:, None], "constant"),
    "written over another row": (lambda x: x.clone().index_copy_(0, torch.tensor([0]), x[-1:]), "takes some rows"),
    "written through a view": (lambda x: x.clone().t().contiguous().view(-1).roll(1).view(8, -1).t(), "aten.roll"),
    "read beyond its row": (_all_rows_in_memory, "by strides"),
    "decides by values": (lambda x: x * 2 if x.sum() > 0 else x, "depends on values"),
    "leaves torch": (lambda x: torch.from_numpy(x.numpy() * 2), "cannot be followed"),
    "random": (lambda x: x + torch.rand_like(x), "random numbers"),
    "dropout": (lambda x: F.dropout(x), "random numbers"),
    "other steps for fewer": (lambda x: x * 2 if x.shape[0] > 4 else x + x, "by their number"),
    "others for one": (lambda x: x if x.shape[0] == 1 else x * 2, "by their number"),
    "another number for one": (lambda x: x * min(2, x.shape[0]), "one row"),
    "kept from the call before": (_cached, "by their number"),
    "the first hundred": (lambda x: x[:100], "takes some rows"),
    "pieces of a hundred": (lambda x: torch.cat([part * 2 for part in x.split(100)]), "by the number of rows"),
    "a number beside it": (lambda x: (x * 2, x.shape[0]), "returns a number that changes"),
    "lists of tensors in place": (
        lambda x: torch._foreach_mul([made := x * 2, x * 3], [x.sum(0), 2])[0] + made,
        "foreach",
    ),
    "a list in place, without a result": (_list_in_place, "aten._foreach_add_ is not known"),
    "a choice as an operator": (
        lambda x: torch.cond(torch.ones(()).bool(), lambda y: y - y.mean(0), lambda y: y.clone(), (x,)),
        "is not known to keep rows apart",
    ),
    "numbers of later rows": (
        lambda x: torch.stack([x, x])[:, torch.cat([torch.arange(x.shape[0]), torch.arange(1)])[1:]].sum(0),
        "numbers of the rows",
    ),
    "a sum": (lambda x: x.sum(), "aten.sum works across the rows"),
    "no row in the result": (lambda x: torch.ones(x.dim()), "one row for each"),
    "insists on its size": (lambda x: x.view(ROWS, 2, 4).sum(1), "do not run"),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_the_operator_that_mixes_rows_is_named(name: str) -> None:
    call, said = DEPENDENT[name]
    found = rows_apart(call, [torch.randn(ROWS, 8)], [0], [3, 2, 1])
    assert said in found.reason


@pytest.mark.parametrize("name", DEPENDENT)
def test_dependence_is_seen_for_any_number_of_rows(name: str) -> None:
    call, _ = DEPENDENT[name]
    assert (
        name.endswith("for one")
        or rows_apart_at_any_size(call, [torch.randn(ROWS, 8)], [0], {(0, 0): ((0, 0), 0)}).reason
    )


def test_an_operator_that_nobody_knows_is_refused() -> None:
    @torch.library.custom_op("togi_tests::plus_one", mutates_args=())
    def plus_one(x: Tensor) -> Tensor:
        return x + 1

    plus_one.register_fake(torch.empty_like)
    assert "togi_tests.plus_one is not known" in rows_apart(plus_one, [torch.randn(ROWS, 8)], [0], [3]).reason


def test_a_call_of_very_many_operators_is_not_followed_with_symbols() -> None:
    def long(x: Tensor) -> Tensor:
        for _ in range(3000):
            x = x * 0.5
        return x

    assert (
        "more than 2,000 operators"
        in rows_apart_at_any_size(long, [torch.randn(ROWS, 8)], [0], {(0, 0): ((0, 0), 0)}).reason
    )


def test_shuffled_channels_are_no_rows_whatever_comes_behind_them() -> None:
    for behind in ((3,), (3, 3), (3, 3, 3)):
        given = torch.randn(2, 8, *behind)
        assert rows_apart(nn.ChannelShuffle(2), [given], [0], [1]).reason == ""
        assert "works across the rows" in rows_apart(nn.ChannelShuffle(2), [given], [1], [4]).reason


def test_what_is_left_in_an_object_has_to_be_the_same_for_all_rows() -> None:
    left: list[Tensor] = []

    def forward(x: Tensor, keep: Callable[[Tensor], Tensor]) -> Tensor:
        left[:] = [keep(x)]
        return x * 2

    def reason(keep: Callable[[Tensor], Tensor]) -> str:
        proof = RowProof(lambda x: forward(x, keep), [torch.randn(ROWS, 8)], [0], kept=lambda: left)
        return proof.of([3]).reason

    assert reason(lambda x: torch.arange(x.shape[1])) == ""
    assert "keeps something of its rows" in reason(lambda x: x)
    assert "keeps something of its rows" in reason(lambda x: x.mean(0))


def test_the_line_that_mixes_rows_is_named() -> None:
    def forward(x: Tensor) -> Tensor:
        y = x.exp()
        return y - y.mean()

    assert "test_row_proof.py" in rows_apart(forward, [torch.randn(ROWS, 8)], [0], [3]).reason
    assert "`return y - y.mean()`" in rows_apart(forward, [torch.randn(ROWS, 8)], [0], [3]).reason


def test_what_holds_for_the_sizes_asked_for_holds() -> None:
    """Up to four rows it is a constant."""
    proof = RowProof(lambda x: x * min(3, x.shape[0]), [torch.randn(ROWS, 8)], [0])
    assert proof.of([3]).reason == ""
    assert "number of rows" in proof.of([2]).reason or "by their number" in proof.of([2]).reason


def test_shared_inputs_are_the_same_for_all_rows() -> None:
    weight = torch.randn(ROWS, 8)
    assert rows_apart(lambda x, w: x @ w.T, [torch.randn(ROWS, 8), weight], [0, None], [2, 1]).reason == ""
    assert rows_apart(lambda x, w: x * w, [torch.randn(ROWS, 8), weight], [0, None], [2]).reason


def test_nothing_is_computed_and_nothing_is_kept() -> None:
    norm = nn.BatchNorm1d(8)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    given = torch.randn(ROWS, 8)
    copied = given.clone()
    rows_apart(norm, [given], [0], [3])
    rows_apart(lambda x: x.mul_(2), [given], [0], [3])
    assert torch.equal(given, copied)
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
