"""Which dimension of a call is its batch, and calls of other batch sizes."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from togi.core.errors import SubjectError
from togi.core.records import TensorFacts
from togi.subject.batch import Batch, BatchRequest, batch_of, find_batch, rows
from togi.subject.inputs import Dynamic, Inputs, Subject
from togi.subject.signature import Signature

Shapes = dict[str, tuple[int, ...]]


def found(*samples: Shapes, dynamic: Dynamic | None = None) -> dict[str, int]:
    """By input, the dimension that is the batch of such samples."""

    class Module(nn.Module):
        def forward(self, **given: torch.Tensor) -> list[torch.Tensor]:
            return list(given.values())

    calls = [Inputs((), {name: torch.zeros(shape) for name, shape in shapes.items()}) for shapes in samples]
    subject = Subject(Module(), [dict(call.kwargs) for call in calls], dynamic=dynamic)
    signature = Signature.of(subject.module, calls, [list(call.kwargs.values()) for call in calls], dynamic)
    batch = batch_of(subject, BatchRequest(signature=signature))
    return {signature.inputs_facts[i].name: dim for i, dim in batch.dims}


@pytest.mark.parametrize(
    ("samples", "dynamic", "dims"),
    [
        ([{"x": (4, 8)}], None, {"x": 0}),
        ([{"x": (4, 8), "mask": (4,), "scale": ()}], None, {"x": 0, "mask": 0}),
        ([{"x": (4, 8)}, {"x": (16, 8)}], None, {"x": 0}),
        ([{"x": (4, 8), "table": (9, 8)}, {"x": (16, 8), "table": (9, 8)}], None, {"x": 0}),
        ([{"x": (4, 8)}, {"x": (16, 32)}], None, {"x": 0}),
        ([{"x": (4, 8)}], {"x": [0]}, {"x": 0}),
        ([{"x": (8, 4), "state": (2, 4, 3)}], {"x": {1: "batch"}, "state": {-2: "batch_size"}}, {"x": 1, "state": 1}),
        ([{"x": (1, 8)}, {"x": (1, 32)}], {"x": {0: "batch", 1: "length"}}, {"x": 0}),
    ],
)
def test_it_is_what_is_called_so_else_dimension_0_where_it_varies_else_of_all(
    samples: list[Shapes], dynamic: Dynamic | None, dims: dict[str, int]
) -> None:
    assert found(*samples, dynamic=dynamic) == dims


@pytest.mark.parametrize(
    ("samples", "dynamic"),
    [
        ([{"x": (4, 8), "y": (3, 8)}], None),
        ([{"x": (1, 8)}, {"x": (1, 32)}], None),  # a length
        ([{"x": (8, 4)}], {"x": [1]}),
        ([{"nodes": (5, 8), "edges": (9, 2)}, {"nodes": (7, 8), "edges": (12, 2)}], None),
        ([{"x": (0, 8)}], None),
        ([{"x": ()}], None),
    ],
)
def test_where_it_is_not_clear_it_says_how_to_name_it(samples: list[Shapes], dynamic: Dynamic | None) -> None:
    with pytest.raises(
        SubjectError, match=r"not clear which dimension is the batch.*dynamic=\{'\w+': \{0: 'batch'\}\}"
    ):
        found(*samples, dynamic=dynamic)


def test_of_an_artifact_alone_sizes_that_vary_are_not_known() -> None:
    inputs = [TensorFacts(name=name, dtype="float32", shape=(None, 8)) for name in "xy"]
    assert find_batch(inputs, [[each.shape for each in inputs]], {}).dims == ((0, 0), (1, 0))


class Cached(nn.Module):
    def forward(self, x: torch.Tensor, *, cache: dict[str, object], bias: torch.Tensor) -> torch.Tensor:
        return x


def test_calls_are_made_larger_and_smaller_in_the_batch_alone() -> None:
    x, bias = torch.arange(6.0).reshape(2, 3), torch.arange(3.0)
    keys = torch.arange(4.0).reshape(2, 2)
    call = Inputs((x,), OrderedDict(cache={"keys": keys, "name": "k"}, bias=bias))
    signature = Signature.of(Cached(), [call], [x])
    names = [facts.name for facts in signature.inputs_facts]
    (keys_at,) = [i for i, name in enumerate(names) if name.startswith("cache")]
    batch = Batch(dims=((names.index("x"), 0), (keys_at, 0)), size=5)
    made = batch.of(call, signature)
    torch.testing.assert_close(made.args[0], x[[0, 1, 0, 1, 0]])
    torch.testing.assert_close(made.kwargs["cache"]["keys"], keys[[0, 1, 0, 1, 0]])
    assert made.kwargs["cache"]["name"] == "k"
    torch.testing.assert_close(made.kwargs["bias"], bias)
    one = batch.model_copy(update={"size": 1}).of(call, signature)
    torch.testing.assert_close(one.args[0], x[:1])
    assert batch.in_words(signature) == f"dimension 0 of x and {names[keys_at]}"


def test_rows_are_repeated_along_any_dimension_and_are_not_a_view() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    found = rows(tensor, 7, dim=1)
    torch.testing.assert_close(found, tensor[:, [0, 1, 2, 0, 1, 2, 0]])
    assert rows(tensor, 2).untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
