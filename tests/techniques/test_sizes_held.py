"""For every size that is taken, a captured graph answers as the module does; sizes that are not taken are few."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.small_modules import Computes
from togi.core.errors import Refused
from togi.graph.candidate import Candidate
from togi.graph.capture import capture, export, held_for
from togi.subject.signature import Signature
from togi.techniques import conformance

Answers = Callable[..., Tensor]


def halved(x: Tensor) -> Tensor:
    return F.conv1d(x, torch.ones(1, 1, 2), stride=2)


def refused_sizes(start: Candidate, shapes: Sequence[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Those of the shapes that are not taken. Of the others the graph is right."""
    signature, graph = held_for(start, export(start)), capture(start)
    refused = set()
    for shape in shapes:
        given = torch.randn(shape)
        try:
            signature.check([given])
        except ValueError:
            refused.add(shape)
            continue
        right = start.module(given.clone())
        torch.testing.assert_close(graph(given)[0], right, msg=str(shape))
    return refused


BRANCHES: dict[str, tuple[Answers, Callable[[int], bool]]] = {
    "a rest": (lambda x: x * 2 if x.shape[1] % 4 == 0 else x * 3, lambda n: n % 4 == 0),
    "a quotient of one": (lambda x: x * 2 if x.shape[1] // 2 == 1 else x * 3, lambda n: n in (2, 3)),
    "a bit": (lambda x: x * 2 if x.shape[1] & 1 else x * 3, lambda n: n % 2 == 0),
    "a power of two": (lambda x: x * 2 if x.shape[1] & (x.shape[1] - 1) == 0 else x * 3, lambda n: n & (n - 1) == 0),
    "a root": (lambda x: x * 2 if x.shape[1] ** 0.5 > 4 else x * 3, lambda n: n > 16),
    "a true quotient": (lambda x: x * 2 if x.shape[1] / 2 > 8.2 else x * 3, lambda n: n > 16),
    "rounded up": (lambda x: x * 2 if math.ceil(x.shape[1] / 3) > 5 else x * 3, lambda n: n > 15),
    "rounded": (lambda x: x * 2 if round(x.shape[1] / 3) > 5 else x * 3, lambda n: n > 16),
    "a product": (lambda x: x * 2 if x.shape[1] * 0.3 > 5 else x * 3, lambda n: n > 16),
    "a distance": (lambda x: x * 2 if abs(x.shape[1] - 9) > 6 else x * 3, lambda n: abs(n - 9) > 6),
    "padding": (
        lambda x: F.pad(x, (0, 4 - x.shape[1] % 4)) if x.shape[1] % 4 else x,
        lambda n: n % 4 == 0,
    ),
    "one": (lambda x: x * 2 if x.shape[1] == 1 else x * 3, lambda n: n == 1),
    "none": (lambda x: x * 2 if x.shape[1] else x.new_zeros(2, 1), lambda n: n < 0),
    "one after a step": (
        lambda x: (lambda y: y * 5 if y.shape[1] == 1 else y)(F.avg_pool1d(x, 3, 4)),
        lambda n: n < 7,
    ),
    "one, and a little else": (lambda x: x.mean(1) * 1e-4 if x.shape[1] > 1 else x.sum(1) * 3e-4, lambda n: n == 1),
    "one, and another number": (
        lambda x: torch.full((2,), 1000) if x.shape[1] > 1 else torch.full((2,), 1003),
        lambda n: n == 1,
    ),
    "nothing": (lambda x: F.relu(x) + x.mean(1, keepdim=True), lambda n: n < 0),
    "steps that end at one": (lambda x: halved(halved(x[:, None])), lambda n: n < 4),
}


@pytest.mark.parametrize(("answers", "other"), BRANCHES.values(), ids=BRANCHES)
def test_what_it_computes_otherwise_is_not_taken(answers: Answers, other: Callable[[int], bool]) -> None:
    sizes = [n for n in (13, 9, 10, 14, 11, 7) if not other(n)][:2]
    start = conformance.candidate_of(Computes(answers), [torch.randn(2, n) for n in sizes])
    refused = refused_sizes(start, [(2, n) for n in range(24)])
    wrong = {(2, n) for n in range(1, 24) if other(n)}
    assert refused - {(2, 0), (2, 1), (2, 2)} == wrong - {(2, 0), (2, 1), (2, 2)}


TWO: dict[str, tuple[Answers, Callable[[tuple[int, ...]], bool]]] = {
    "both": (lambda x: x * 3 if x.shape[0] == 1 and x.shape[1] == 1 else x, lambda shape: shape == (1, 1)),
    "one beside few": (lambda x: x * 3 if x.shape[0] == 1 and x.shape[1] < 5 else x, lambda shape: shape[0] == 1),
    "one beside more": (lambda x: x * 3 if x.shape[0] > 1 and x.shape[1] == 1 else x, lambda shape: shape[1] == 1),
    "squeezed": (lambda x: (x + 1).squeeze(), lambda shape: 1 in shape),
}


@pytest.mark.parametrize("samples", [((4, 9), (6, 7)), ((4, 4), (9, 9))], ids=["apart", "equal in all samples"])
@pytest.mark.parametrize(("answers", "other"), TWO.values(), ids=TWO)
def test_two_dynamic_sizes_are_held_together_where_they_must_be(
    answers: Answers, other: Callable[[tuple[int, ...]], bool], samples: tuple[tuple[int, int], ...]
) -> None:
    start = conformance.candidate_of(Computes(answers), [torch.randn(*shape) for shape in samples])
    refused = refused_sizes(start, list(itertools.product(range(1, 11), repeat=2)))
    wrong = {shape for shape in itertools.product(range(1, 11), repeat=2) if other(shape)}
    assert wrong <= refused
    assert all(1 in shape for shape in refused)


def test_a_size_of_one_that_a_sample_has_is_taken() -> None:
    start = conformance.candidate_of(Computes(lambda x: x.squeeze(0)), [torch.randn(2, 1), torch.randn(4, 6)])
    assert held_for(start, export(start)).conditions_in_words() == ["x.shape[0] >= 2"]


def test_a_module_that_keeps_what_it_was_given_is_not_called_again() -> None:
    class Keeps(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(x.sum(0))
            return x + self.seen

    start = conformance.candidate_of(Keeps(), [torch.randn(2, 4), torch.randn(6, 4)])
    assert start.facts.buffers_change
    assert held_for(start, export(start)).conditions_in_words() == ["x.shape[0] >= 2"]


def test_samples_on_both_sides_of_a_rest_are_refused() -> None:
    pads = Computes(lambda x: F.pad(x, (0, 4 - x.shape[1] % 4)) if x.shape[1] % 4 else x)
    start = conformance.candidate_of(pads, [torch.randn(2, 8), torch.randn(2, 13)])
    with pytest.raises(
        Refused, match=r"something else for sample 1 than for the largest, where x\.shape\[1\] % 4 != 0"
    ):
        held_for(start, export(start))


def test_a_branch_that_cannot_be_stated_is_refused() -> None:
    shifts = Computes(lambda x: x * 2 if torch.sym_ite(x.shape[1] > 3, x.shape[1], x.shape[1] * 2) > 50 else x)
    start = conformance.candidate_of(shifts, [torch.randn(2, 8), torch.randn(2, 13)])
    with pytest.raises(Refused, match=r"branches by sizes in a way that togi cannot state"):
        export(start)


def test_a_graph_that_reads_by_strides_takes_contiguous_inputs() -> None:
    """The strides that it was captured with are numbers in it."""

    def frames(x: Tensor) -> Tensor:
        return x.as_strided((5, 4), (2 * x.stride(0), x.stride(0))) * 2

    start = conformance.candidate_of(Computes(frames), [torch.arange(12.0)])
    signature = held_for(start, export(start))
    signature.check([torch.arange(12.0)])
    with pytest.raises(ValueError, match=r"is not contiguous.*give \.contiguous\(\) of it"):
        signature.check([torch.arange(24.0)[::2]])
    assert Signature.from_json(signature.to_json()).contiguous
    by_rows = conformance.candidate_of(Computes(frames), [torch.arange(24.0)[::2]])
    with pytest.raises(Refused, match="reads memory by strides"):
        held_for(by_rows, export(by_rows))
    windows = conformance.candidate_of(Computes(lambda x: x.unfold(0, 4, 2) * 2), [torch.arange(12.0)])
    assert not held_for(windows, export(windows)).contiguous
