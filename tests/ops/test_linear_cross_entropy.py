"""The loss of a large vocabulary in blocks: torch's values and gradients within its own rounding, in less memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from togi import ops
from togi.core.errors import BudgetError
from togi.measure.memory import torch_allocator_peak_bytes
from togi.ops.logit_blocks import LogitBlocks

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
ONE_BLOCK, SEVERAL, TINY = "64MiB", 9_000, 1
"""Budgets: all logits at once, some rows of some columns, and one logit at a time."""


def _example(
    rows: int = 9, features: int = 8, vocabulary: int = 700, dtype: torch.dtype = torch.float32, bias: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    hidden = torch.randn(rows, features).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, features).to(dtype).requires_grad_()
    extra = torch.randn(vocabulary).to(dtype).requires_grad_() if bias else None
    return hidden, weight, torch.randint(vocabulary, (rows,)), extra


def _torchs(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None, **options: Any) -> Tensor:
    logits = functional.linear(hidden, weight, bias)
    losses = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1), **options)
    return losses.reshape(target.shape) if losses.dim() else losses


def _with_gradients(loss: Tensor, inputs: list[Tensor], upstream: Tensor) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, inputs, upstream.to(loss.dtype))]


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm().clamp_min(1e-300))


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(1, 12),
    features=st.integers(1, 9),
    vocabulary=st.sampled_from((1, 2, 511, 512, 513, 1100)),
    memory=st.sampled_from((ONE_BLOCK, SEVERAL, 700)),
    reduction=st.sampled_from(("mean", "sum", "none")),
    smoothing=st.sampled_from((0.0, 0.1, 1.0)),
    bias=st.booleans(),
    ignored=st.integers(0, 12),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_are_torchs_within_its_own_rounding(
    dtype: torch.dtype,
    rows: int,
    features: int,
    vocabulary: int,
    memory: str | int,
    reduction: str,
    smoothing: float,
    bias: bool,
    ignored: int,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    hidden, weight, target, extra = _example(rows, features, vocabulary, dtype, bias)
    target[torch.randperm(rows)[:ignored]] = -100
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
    inputs = [t for t in (hidden, weight, extra) if t is not None]
    upstream = torch.rand(rows).add(0.5).to(dtype) if reduction == "none" else torch.tensor(1.5)

    ours = ops.linear_cross_entropy(hidden, weight, target, bias=extra, memory=memory, **options)
    theirs = _torchs(hidden, weight, target, extra, **options)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    exact = _torchs(wide[0], wide[1], target, wide[2] if bias else None, **options)
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    found, expected, true = (
        _with_gradients(loss, leaves, upstream) for loss, leaves in ((ours, inputs), (theirs, inputs), (exact, wide))
    )
    for one, other, reference in zip(found, expected, true, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.isnan(), reference.isnan())  # the mean of nothing; torch's own overflows in float16
        if reference.isfinite().all() and reference.norm() > 1e-6 * math.sqrt(reference.numel()):
            floor = 8 * torch.finfo(dtype).eps * (1 if dtype != torch.float64 else 64)
            their_error = _error(other, reference)
            assert _error(one, reference) <= (4 * their_error if math.isfinite(their_error) else 0) + floor


@pytest.mark.parametrize("memory", [ONE_BLOCK, SEVERAL, TINY])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_agree_with_finite_differences(memory: str | int, reduction: str) -> None:
    torch.manual_seed(0)
    hidden, weight, target, bias = _example(5, 3, 11, torch.float64, bias=True)
    target[2] = -100

    def loss(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.linear_cross_entropy(
            hidden, weight, target, bias=bias, reduction=reduction, label_smoothing=0.2, z_loss=0.3, memory=memory
        )

    assert torch.autograd.gradcheck(loss, (hidden, weight, bias))


def test_z_loss_is_the_squared_log_sum_of_the_rows_that_count() -> None:
    torch.manual_seed(0)
    hidden, weight, target, _ = _example(6, 4, 40, torch.float64)
    target[1] = -100
    plain = ops.linear_cross_entropy(hidden, weight, target)
    log_sums = (hidden @ weight.T).logsumexp(1)[target != -100]
    found = ops.linear_cross_entropy(hidden, weight, target, z_loss=0.01)
    assert torch.allclose(found, plain + 0.01 * log_sums.square().mean(), rtol=1e-12)


def test_leading_dimensions_strides_and_a_transposed_weight() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(4, 6, 3, 8).transpose(1, 2)[:, :, :-1].requires_grad_()
    weight, target = torch.randn(8, 50).T.requires_grad_(), torch.randint(50, (4, 3, 5))
    for reduction in ("mean", "none"):
        ours = ops.linear_cross_entropy(hidden, weight, target, reduction=reduction, memory=2000)
        theirs = _torchs(hidden, weight, target, reduction=reduction)
        torch.testing.assert_close(ours, theirs)
        for one, other in zip(
            torch.autograd.grad(ours.sum(), (hidden, weight)),
            torch.autograd.grad(theirs.sum(), (hidden, weight)),
            strict=True,
        ):
            torch.testing.assert_close(one, other)
    single = ops.linear_cross_entropy(hidden[0, 0, 0], weight, target[0, 0, 0], reduction="none")
    assert single.shape == ()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nothing_to_learn_from(reduction: str) -> None:
    for hidden, target in (
        (torch.randn(0, 4, requires_grad=True), torch.zeros(0, dtype=torch.int64)),
        (torch.randn(3, 4, requires_grad=True), torch.full((3,), -100)),
        (torch.randn(2, 0, 4, requires_grad=True), torch.zeros(2, 0, dtype=torch.int64)),
    ):
        weight, bias = torch.randn(5, 4, requires_grad=True), torch.randn(5, requires_grad=True)
        ours = ops.linear_cross_entropy(hidden, weight, target, bias=bias, reduction=reduction)
        assert torch.equal(ours.isnan(), _torchs(hidden, weight, target, bias, reduction=reduction).isnan())
        assert not ours.nan_to_num().any()
        ours.sum().backward()
        for leaf in (hidden, weight, bias):
            assert leaf.grad is not None
            assert not leaf.grad.any()


def test_without_a_row_that_counts_there_is_no_block() -> None:
    """A loop over the vocabulary would take a second for nothing."""
    assert not list(LogitBlocks(torch.randn(0, 4), torch.randn(700, 4), None, 1 << 20).columns())
    assert list(LogitBlocks(torch.randn(1, 4), torch.randn(700, 4), None, 1 << 20).columns()) == [slice(0, 700)]


@pytest.mark.parametrize("memory", [ONE_BLOCK, TINY])
@pytest.mark.parametrize(
    "bias",
    [
        [math.nan, 0, 0, 0],
        [math.inf, 0, 0, 0],
        [-math.inf, 0, 0, 0],
        [0, -math.inf, 0, 0],
        [-math.inf] * 4,
        [math.inf, math.inf, 0, -math.inf],
        [3e38, 3e38, -3e38, 0],
    ],
)
def test_logits_that_are_not_finite_give_what_torch_gives(bias: list[float], memory: str | int) -> None:
    torch.manual_seed(0)
    for at in range(4):
        leaves = [torch.randn(2, 3), torch.randn(4, 3), torch.tensor(bias)]
        ours, theirs = ([t.clone().requires_grad_() for t in leaves] for _ in range(2))
        target = torch.tensor([at, 1])
        one = ops.linear_cross_entropy(ours[0], ours[1], target, bias=ours[2], reduction="none", memory=memory)
        other = _torchs(theirs[0], theirs[1], target, theirs[2], reduction="none")
        torch.testing.assert_close(one, other, equal_nan=True)
        one.sum().backward()
        other.sum().backward()
        for mine, yours in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine.grad, yours.grad, equal_nan=True)


def test_no_features_leave_the_bias() -> None:
    hidden, weight, bias = torch.zeros(3, 0), torch.zeros(5, 0), torch.randn(5)
    target = torch.tensor([0, 1, 2])
    for extra in (None, bias):
        torch.testing.assert_close(
            ops.linear_cross_entropy(hidden, weight, target, bias=extra), _torchs(hidden, weight, target, extra)
        )


def test_an_ignored_row_takes_no_part_whatever_it_holds() -> None:
    hidden, weight, target, _ = _example()
    with torch.no_grad():
        hidden[3] = math.nan
    target[3] = 7
    loss = ops.linear_cross_entropy(hidden, weight, target, ignore_index=7)
    loss.backward()
    kept = torch.arange(9) != 3
    torch.testing.assert_close(loss, _torchs(hidden[kept], weight, target[kept], ignore_index=7))
    assert hidden.grad is not None
    assert not hidden.grad[3].any()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


def test_gradients_that_nobody_wants_are_not_made() -> None:
    hidden, weight, target, _ = _example()
    weight.requires_grad_(False)
    (for_hidden,) = torch.autograd.grad(ops.linear_cross_entropy(hidden, weight, target), [hidden])
    assert torch.allclose(for_hidden, torch.autograd.grad(_torchs(hidden, weight, target), [hidden])[0], atol=1e-6)
    with torch.no_grad():
        assert not ops.linear_cross_entropy(hidden, weight, target).requires_grad


def test_a_graph_is_kept_when_asked_and_a_second_derivative_is_refused() -> None:
    hidden, weight, target, _ = _example()
    loss = ops.linear_cross_entropy(hidden, weight, target)
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    again = torch.autograd.grad(loss, (hidden, weight))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    (gradient,) = torch.autograd.grad(ops.linear_cross_entropy(hidden, weight, target), [hidden], create_graph=True)
    with pytest.raises(RuntimeError):
        gradient.sum().backward()


def test_a_weight_changed_in_place_between_the_passes_is_an_error() -> None:
    hidden, weight, target, _ = _example()
    loss = ops.linear_cross_entropy(hidden, weight, target)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_tied_embedding_gets_both_gradients() -> None:
    torch.manual_seed(0)
    embedding, tokens = nn.Embedding(60, 8), torch.randint(60, (3, 7))

    def gradient(loss: Any) -> Tensor:
        embedding.zero_grad()
        loss(embedding(tokens)[:, :-1].tanh(), embedding.weight, tokens[:, 1:]).backward()
        assert embedding.weight.grad is not None
        return embedding.weight.grad.clone()

    torch.testing.assert_close(gradient(ops.linear_cross_entropy), gradient(_torchs))


def test_under_autocast_as_linear_and_cross_entropy_are() -> None:
    torch.manual_seed(0)
    hidden, weight, target, bias = _example(bias=True)
    assert bias is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = ops.linear_cross_entropy(hidden, weight, target, bias=bias, memory=SEVERAL)
        theirs = _torchs(hidden, weight, target, bias)
    assert ours.dtype == theirs.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    found, expected = (torch.autograd.grad(loss, (hidden, weight, bias)) for loss in (ours, theirs))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        assert _error(one, other.double()) < 1e-2


def test_a_loss_scale_keeps_small_gradients_of_float16() -> None:
    torch.manual_seed(0)
    hidden, weight, target, _ = _example(rows=64, vocabulary=3000, dtype=torch.float16)
    scale = 2.0**12
    found = torch.autograd.grad(ops.linear_cross_entropy(hidden, weight, target).float() * scale, [weight])[0]
    wide = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    exact = torch.autograd.grad(_torchs(*wide, target) * scale, [wide[1]])[0]
    assert _error(found, exact) < 3e-3


def test_torch_compile_keeps_it_whole() -> None:
    torch.manual_seed(0)
    hidden, weight, target, _ = _example()
    target[0] = -100

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        return ops.linear_cross_entropy(hidden.tanh(), weight, target, memory=SEVERAL) * 2

    found = torch.compile(loss, fullgraph=True, backend="aot_eager")(hidden, weight)
    expected = loss(hidden, weight)
    assert torch.equal(found, expected)
    for one, other in zip(
        torch.autograd.grad(found, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight)), strict=True
    ):
        assert torch.equal(one, other)


def test_three_lines_stand_in_for_the_loss_of_a_language_model() -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=300, resid_pdrop=0, attn_pdrop=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    tokens = torch.randint(300, (2, 12))
    labels = tokens.masked_fill(torch.arange(12) < 4, -100)
    theirs = model(tokens, labels=labels).loss
    hidden = model.base_model(tokens).last_hidden_state
    head = model.get_output_embeddings()
    ours = ops.linear_cross_entropy(hidden[:, :-1], head.weight, labels[:, 1:], bias=head.bias, memory=20_000)
    torch.testing.assert_close(ours, theirs)
    parameters = list(model.parameters())
    for one, other in zip(torch.autograd.grad(ours, parameters), torch.autograd.grad(theirs, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("dtype", "memory_mib"), [(torch.float32, 1), (torch.float32, 3), (torch.bfloat16, 1)])
def test_memory_stays_within_what_was_said(dtype: torch.dtype, memory_mib: int) -> None:
    rows, features, vocabulary = 512, 16, 6_000
    hidden, weight, target, _ = _example(rows, features, vocabulary, dtype)
    gradients = hidden.nbytes + weight.nbytes

    def step() -> None:
        hidden.grad = weight.grad = None
        ops.linear_cross_entropy(hidden, weight, target, memory=f"{memory_mib}MiB").backward()

    step()
    hidden.grad = weight.grad = None
    peak = torch_allocator_peak_bytes(step)
    beside = 200 * rows
    if dtype != torch.float32:  # sums in float32 and one product each; workspaces of the kernels
        beside += 6 * (rows + 512) * features + (64 << 10)
    assert peak is not None
    assert peak <= (memory_mib << 20) + gradients + beside
    assert peak < rows * vocabulary * dtype.itemsize  # the logits alone


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_label_smoothing_takes_a_number_per_row_and_no_block(dtype: torch.dtype) -> None:
    """On the CPU a sum in another dtype than that of what is summed makes a copy of all of it."""
    hidden, weight, target, _ = _example(rows=64, vocabulary=2_000, dtype=dtype)

    def peak(smoothing: float) -> int:
        def forward() -> None:
            with torch.no_grad():
                ops.linear_cross_entropy(hidden, weight, target, label_smoothing=smoothing, memory="64KiB")

        forward()
        found = torch_allocator_peak_bytes(forward)
        assert found is not None
        return found

    assert peak(0.1) - peak(0.0) <= 64 * len(hidden)


def test_what_is_refused_and_what_is_reported() -> None:
    hidden, weight, target, bias = _example(bias=True)
    call = ops.linear_cross_entropy
    for run, said in (
        (lambda: call(hidden, nn.Linear(8, 700), target), "weight is a Linear"),  # type: ignore[arg-type]
        (lambda: call(hidden, weight.T, target), r"weight \[8, 700\].*weight\.T"),
        (lambda: call(hidden, weight, target[:-1]), r"target \[8\].*\[9\].*tokens\[:, 1:\]"),
        (lambda: call(hidden, weight, target.float()), "int64"),
        (lambda: call(hidden, weight, target.int()), r"target\.long\(\)"),
        (lambda: call(hidden, weight[:0], target), "vocabulary of 0"),
        (lambda: call(hidden, weight.double(), target), "differ in dtype"),
        (lambda: call(hidden.long(), weight.long(), target), "int64"),
        (lambda: call(hidden, weight, target, bias=bias[:-1]), r"bias \[699\]"),  # type: ignore[index]
        (lambda: call(hidden, weight, target, reduction="meen"), "did you mean 'mean'"),
        (lambda: call(hidden, weight, target, label_smoothing=1.5), r"label_smoothing=1\.5"),
        (lambda: call(hidden.to("meta"), weight, target), "hidden is on meta"),
    ):
        with pytest.raises(ops.CrossEntropyError, match=said):
            run()
    with pytest.raises(BudgetError):
        call(hidden, weight, target, memory="much")
    for wrong in (700, -1):
        with pytest.raises(IndexError, match=f"target {wrong} is out of bounds for a vocabulary of 700"):
            call(hidden, weight, torch.tensor([0] * 8 + [wrong]))
