"""Small modules that between them hold what engines stumble over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.records import Facts
from togi.graph.candidate import Candidate
from togi.machine.describe import machine
from togi.subject.inputs import Inputs, samples_of
from togi.subject.signature import Signature

MACHINE = machine("cpu")


def candidate_of(module: nn.Module, samples: Any, **facts: Any) -> Candidate:
    """As a trial would make it."""
    module = module.eval()
    inputs = samples_of(samples)
    with torch.no_grad():
        outputs = [module(*sample.args, **sample.kwargs) for sample in inputs]
    signature = Signature.of(module, inputs, outputs)
    known = {
        "machine": MACHINE,
        "module_class": type(module).__name__,
        "inputs": signature.inputs_facts,
        "outputs": signature.outputs_facts,
        "parameter_dtypes": tuple({str(p.dtype).removeprefix("torch.") for p in module.parameters()}),
    }
    return Candidate(module=module, samples=inputs, signature=signature, facts=Facts(**(known | facts)))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


@dataclass
class Encoded:
    hidden: Tensor
    pooled: Tensor
    length: int = 0


class Encoder(nn.Module):
    """Integer inputs, a mask by keyword, a dataclass with a constant in it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)

    def forward(self, ids: Tensor, *, mask: Tensor | None = None) -> Encoded:
        hidden = self.layer(self.embed(ids))
        weights = torch.ones_like(ids, dtype=torch.float32) if mask is None else mask.to(torch.float32)
        pooled = (hidden * weights.unsqueeze(-1)).sum(1) / weights.sum(1, keepdim=True)
        return Encoded(hidden=hidden, pooled=pooled)


class Tied(nn.Module):
    """Two layers with one weight, which is also an output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.second(torch.relu(self.first(x))), self.first.weight


class NoParameters(nn.Module):
    """Returns an input itself, one result twice, a scalar, booleans, integers, a transposed view and None."""

    def forward(self, x: Tensor, other: Tensor, scale: float = 1.0) -> dict[str, Any]:
        product = x @ other * scale
        return {
            "input": x,
            "product": product,
            "again": product,
            "scalar": product.sum(),
            "positive": product > 0,
            "best": product.argmax(1),
            "transposed": product.t(),
            "nothing": None,
        }


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        output, state = self.lstm(x)
        return output, state


class Gated(nn.Module):
    """Two layers in both directions; time comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 6, num_layers=2, bidirectional=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0])


class ReadsLines(nn.Module):
    """Convolutions, then an LSTM over the columns of the picture, as networks that read text are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d((2, 1)), nn.BatchNorm2d(8))
        self.lstm = nn.LSTM(32, 6, bidirectional=True)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.layers(x).flatten(1, 2).permute(2, 0, 1)
        return self.head(self.lstm(columns)[0]).log_softmax(-1)


class Nested(nn.Module):
    """A list of tensors within a dict, an input that nothing uses, double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3, dtype=torch.float64))

    def forward(self, features: dict[str, list[Tensor]], unused: Tensor) -> list[Tensor]:
        return [self.scale * tensor for tensor in features["levels"]]


class Reshaped(nn.Module):
    """Written with reshape, so that any strides are welcome."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.reshape(x.shape[0], -1))


class Dense(nn.Module):
    """Two pictures in, of which the first meets an operator that may work in place; channels of odd sizes, a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(6, 5, 3, padding=1, bias=False), nn.Conv2d(5, 5, 3, padding=1)
        self.norm = nn.BatchNorm2d(5)
        self.up = nn.ConvTranspose2d(5, 2, 2, stride=2)
        self.head = nn.Linear(5, 4)

    def forward(self, one: Tensor, other: Tensor) -> dict[str, Tensor]:
        x = nn.functional.relu(self.norm(self.first(torch.cat([torch.relu(one), other], 1))))
        x = x + self.second(x)
        return {"picture": self.up(nn.functional.max_pool2d(x, 2)), "scores": self.head(x.mean((2, 3))), "again": x}


class Counting(nn.Module):
    """Counts its calls in a buffer, and shows the count."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.linear(x) + self.calls


class Neighbours(nn.Module):
    """Sums over the edges of a graph that are no loops: how many these are depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        edges = edges[:, edges[0] != edges[1]]
        return torch.zeros_like(x).index_add(0, edges[1], self.layer(x)[edges[0]])


FAMILY: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "convolutions": lambda: (Convolutions(), torch.randn(2, 3, 8, 8)),
    "channels_last_dynamic": lambda: (
        Convolutions().to(memory_format=torch.channels_last),
        [torch.randn(2, 3, 8, 8), torch.randn(3, 3, 10, 8)],
    ),
    "encoder_dynamic": lambda: (
        Encoder(),
        [Inputs((torch.randint(0, 20, (2, n)),), {"mask": torch.arange(n).expand(2, n) < n - 1}) for n in (5, 7)],
    ),
    "tied": lambda: (Tied(), torch.randn(4, 6)),
    "no_parameters": lambda: (NoParameters(), (torch.randn(3, 4), torch.randn(4, 5), 0.5)),
    "recurrent": lambda: (Recurrent(), torch.randn(2, 5, 4)),
    "recurrent_dynamic": lambda: (Recurrent(), [torch.randn(2, 5, 4), torch.randn(3, 9, 4)]),
    "gated_dynamic": lambda: (Gated(), [torch.randn(5, 1, 4), torch.randn(9, 1, 4)]),
    "reads_lines_dynamic": lambda: (ReadsLines(), [torch.randn(1, 1, 8, 12), torch.randn(2, 1, 8, 20)]),
    "nested_double": lambda: (
        Nested(),
        ({"levels": [torch.randn(2, 3).double(), torch.randn(4, 3).double()]}, torch.randn(1)),
    ),
    "dense": lambda: (Dense(), (torch.randn(1, 3, 13, 11), torch.randn(1, 3, 13, 11))),
    "neighbours_dynamic": lambda: (
        Neighbours(),
        [(torch.randn(n, 4), torch.randint(0, n, (2, 3 * n))) for n in (5, 8)],
    ),
    "strided_input": lambda: (Reshaped(), torch.randn(2, 4, 3).transpose(1, 2)),
}


def made(name: str, **facts: Any) -> Candidate:
    torch.manual_seed(0)
    return candidate_of(*FAMILY[name](), **facts)
