"""Which operators a file may call."""

from __future__ import annotations

import pytest
import torch
import torchvision  # noqa: F401 - it registers operators
from torch import nn

from togi.torch_internals.accepted_operators import is_accepted


def overloads() -> list[tuple[str, str, str]]:
    """Every operator that torch has here."""
    found = []
    for whole in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = whole.partition("::")
        name, _, overload = rest.partition(".")
        found.append((namespace, name, overload or "default"))
    return found


class Busy(nn.Module):
    """What models do, in a few lines."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 4)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.slope = nn.PReLU()

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> list[torch.Tensor]:
        y = self.slope(self.normed(self.encoder(x)))
        y, _ = self.attention(y, y, y)
        y = self.recurrent(y)[0].masked_fill((y > 0) & (y < 1) | (x > 2), 0)
        bigger = nn.functional.interpolate(y[None], scale_factor=2.0, mode="bicubic", antialias=True)
        sampled = nn.functional.grid_sample(y[None], torch.zeros(1, 4, 4, 2))
        counted = torch.zeros(9).scatter_add(0, ids[0], y.flatten()[: ids.shape[1]])
        spectrum = torch.fft.irfft(torch.fft.rfft(y)) + torch.linalg.svd(y)[1].sum()
        distances, found, kept = torch.cdist(y, y), torch.unique(ids), y[y > 0]
        padded = nn.functional.pad(y, (1, 1), mode="circular").logcumsumexp(1)
        return [self.bag(ids), bigger, sampled, counted, spectrum, distances, found, kept, padded, y.topk(2)[1]]


def test_what_captures_hold_is_accepted() -> None:
    program = torch.export.export(Busy().eval(), (torch.randn(2, 6, 8), torch.randint(0, 9, (2, 4))), strict=False)
    called = {node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
    names = {(*op._schema.name.split("::"), op._overloadname) for op in called}
    assert len(names) > 30
    assert [name for name in sorted(names) if not is_accepted(*name)] == []


def test_no_operator_that_is_accepted_takes_a_storage_a_file_or_an_object() -> None:
    accepted = [each for each in overloads() if is_accepted(*each)]
    assert len(accepted) > 1000
    for namespace, name, overload in accepted:
        schema = getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema
        for argument in schema.arguments:
            assert "file" not in argument.name, schema
            assert not any(kind in str(argument.type) for kind in ("Storage", "Stream", "__torch__", "Any")), schema


@pytest.mark.parametrize(
    "name",
    [
        *(
            "_convert_indices_from_csr_to_coo",
            "_sparse_coo_tensor_unsafe",
            "sparse_coo_tensor",
            "_ctc_loss",
            "ctc_loss",
        ),
        *("from_file", "save", "set_", "resize_", "_reshape_alias", "_index_put_impl_", "segment_reduce", "_foobar"),
        *("max_pool2d_with_indices_backward", "embedding_dense_backward", "quantized_lstm", "_cudnn_rnn", "values"),
        *("_nested_view_from_buffer", "to_sparse", "record_stream", "_print", "_weight_int4pack_mm", "crow_indices"),
    ],
)
def test_operators_that_trust_their_arguments_are_not(name: str) -> None:
    assert not any(is_accepted(*each) for each in overloads() if each[:2] == ("aten", name))


@pytest.mark.parametrize("namespace", ["mkldnn", "quantized", "inductor", "profiler", "_quantized", "sparse", "c10d"])
def test_other_namespaces_are_not(namespace: str) -> None:
    assert not any(is_accepted(*each) for each in overloads() if each[0] == namespace)
