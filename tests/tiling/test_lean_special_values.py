"""Values and gradients of ``lean(f)`` are torch's own where derivatives have special cases: NaN, infinities and zeros
stand where torch has them."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import togi
from togi.tiling.lean import LeanWarning

INF, NAN = float("inf"), float("nan")


def _values(dtype):
    """Rows: ordinary, zero, equal to a row of the other side, tiny, saturated, infinite, NaN."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 4, generator=generator, dtype=dtype)
    y = torch.randn(64, 4, generator=generator, dtype=dtype)
    x[0:16] = y[0:16]
    x[16:24], y[16:20] = 0, 0
    x[24:32], y[20:24] = 1, 1
    x[32:36] *= 1e-10
    x[36:48] *= 100
    x[48:52] *= 1e4
    x[52:56] = x[51]
    return x, y


def _with(x, y, value, rows):
    x, y = x.clone(), y.clone()
    x[rows] = value
    x[rows + 1, 0] = value
    return x, y


def special_inputs(dtype):
    x, y = _values(dtype)
    yield "finite", x, y
    yield "zeros", torch.zeros_like(x), torch.zeros_like(y)
    yield "infinite", *_with(*_with(x, y, INF, 60), -INF, 70)
    yield "NaN", *_with(x, y, NAN, 60)
    yield "NaN on the other side", x, _with(y, x, NAN, 30)[0]


def pairs(x, y):
    return x[:, None] - y[None]


def each(function):
    """Of every difference, then the sum."""
    return lambda x, y: function(pairs(x, y)).sum((1, 2))


def reduced(function, dim=-1):
    return lambda x, y: function(pairs(x, y), dim)


def loss(function, scale=1.0, **options):
    """Of every difference against half of its rows, averaged by the loss itself and by row."""

    def call(x, y):
        found = (pairs(x, y) * scale).sum(-1)
        target = torch.full_like(found, 0.3)
        return function(found, target, **options), function(found, target, reduction="none", **options).sum(1)

    return call


FUNCTIONS = {
    **{f"norm {p}": reduced(lambda d, dim, p=p: d.norm(p, dim).sum(1)) for p in (0, 0.5, 1, 1.5, 2, 3, INF, -INF)},
    **{f"cdist {p}": lambda x, y, p=p: torch.cdist(x, y, p).sum(1) for p in (0, 0.5, 1, 1.5, 2, 3, INF)},
    "cdist by differences": lambda x, y: torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").sum(1),
    "norm of all": lambda x, y: pairs(x, y).norm(),
    "norm of columns": lambda x, y: pairs(x, y).norm(dim=0),
    "norm of both": lambda x, y: torch.linalg.vector_norm(pairs(x, y), 3, (0, 2)),
    "frobenius": lambda x, y: torch.linalg.matrix_norm(pairs(x, y)).sum(),
    "normalize": lambda x, y: (F.normalize(x, dim=1) @ F.normalize(y, dim=1).T).relu().mean(1),
    "normalize rows of distances": lambda x, y: F.normalize(pairs(x, y).sum(-1), dim=1).abs().sum(1),
    "cosine similarity": lambda x, y: F.cosine_similarity(x[:, None], y[None], -1).sum(1),
    "pairwise distance": lambda x, y: F.pairwise_distance(x[:, None], y[None]).sum(1),
    **{
        name: each(getattr(F, name))
        for name in (
            *("softplus", "mish", "selu", "elu", "celu", "gelu", "silu", "logsigmoid", "hardswish", "hardsigmoid"),
            *("relu", "relu6", "leaky_relu", "hardtanh", "softsign", "tanhshrink", "hardshrink", "softshrink"),
        )
    },
    **{
        name: each(getattr(torch, name))
        for name in (
            *("sinc", "sqrt", "rsqrt", "log", "log1p", "log2", "abs", "sign", "sgn", "square", "reciprocal", "expm1"),
            *("asin", "acos", "atanh", "acosh", "lgamma", "erfinv", "logit", "nan_to_num", "frac", "exp2"),
        )
    },
    **{f"pow {p}": each(lambda d, p=p: d.pow(p)) for p in (0, 0.5, 1, 2, 3, -1, -0.5)},
    "pow of tensors": lambda x, y: (x[:, None].abs() ** y[None]).sum((1, 2)),
    "base 0": lambda x, y: (0.0 ** pairs(x, y)).sum((1, 2)),
    "prelu": lambda x, y: F.prelu(pairs(x, y), y.new_tensor([0.25])).sum((1, 2)),
    "glu": lambda x, y: F.glu(pairs(x, y)).sum((1, 2)),
    "xlogy": lambda x, y: torch.xlogy(x[:, None], y[None]).sum((1, 2)),
    "atan2": lambda x, y: torch.atan2(x[:, None], y[None]).sum((1, 2)),
    "hypot": lambda x, y: torch.hypot(x[:, None], y[None]).sum((1, 2)),
    "fmod": lambda x, y: torch.fmod(x[:, None], y[None]).sum((1, 2)),
    "logaddexp": lambda x, y: torch.logaddexp(x[:, None], y[None]).sum((1, 2)),
    "maximum with ties": lambda x, y: torch.maximum(x[:, None], y[None]).sum((1, 2)),
    "fmax": lambda x, y: torch.fmax(x[:, None], y[None]).sum((1, 2)),
    "clamp": each(lambda d: d.clamp(0, 1)),
    "clamp by tensors": lambda x, y: x[:, None].clamp(y[None], y[None] + 1).sum((1, 2)),
    "threshold": each(lambda d: F.threshold(d, 0.0, 7.0)),
    "where of a branch that is NaN": each(lambda d: torch.where(d > 0, d, 0.0) + torch.where(d > 0, d.sqrt(), 0.0)),
    "infinite slopes that cancel": each(lambda d: torch.where(d != 0, d.abs().sqrt(), 0.0) + d.abs().sqrt()),
    "masked": each(lambda d: d.abs().sqrt().masked_fill(d == 0, 0.0)),
    **{
        f"{name} over {dim}": reduced(lambda d, dim, name=name: getattr(d, name)(dim).sum(), dim)
        for name in ("amax", "amin", "prod", "std", "var", "logsumexp", "softmax", "log_softmax", "cumprod", "nansum")
        for dim in (-1, 1)
    },
    **{
        f"{name} over {dim}": reduced(lambda d, dim, name=name: getattr(d, name)(dim)[0].sum(-1), dim)
        for name in ("max", "min", "median", "cummax", "sort", "mode")
        for dim in (-1, 1)
    },
    "logsumexp by both": lambda x, y: (pairs(x, y).sum(-1).logsumexp(0), pairs(x, y).sum(-1).logsumexp(1)),
    "std of all": lambda x, y: pairs(x, y).sum(-1).std(),
    "var_mean of all": lambda x, y: torch.var_mean(pairs(x, y).sum(-1)),
    "softmax of hidden rows": lambda x, y: (x @ y.T).masked_fill(x[:, :1] > 0, -INF).softmax(1) @ y,
    "layer norm": each(lambda d: F.layer_norm(d, (4,))),
    "binary cross-entropy": lambda x, y: loss(lambda p, t, **o: F.binary_cross_entropy(p.sigmoid(), t, **o))(x, y),
    "with logits": loss(F.binary_cross_entropy_with_logits),
    "with weights": loss(F.binary_cross_entropy_with_logits, pos_weight=torch.tensor(3.0)),
    "huber": loss(F.huber_loss),
    "smooth l1": loss(F.smooth_l1_loss),
    "smooth l1 without beta": loss(F.smooth_l1_loss, beta=0.0),
    "mean squares": loss(F.mse_loss),
    "l1": loss(F.l1_loss),
    "soft margin": loss(F.soft_margin_loss),
    "divergence": loss(F.kl_div),
    "divergence of logs": loss(F.kl_div, log_target=True),
    "poisson": loss(F.poisson_nll_loss),
    "cross-entropy": lambda x, y: F.cross_entropy(x @ y.T, torch.arange(96) % 64, ignore_index=3),
}
QUICK = [
    *("norm 2", "norm of all", "cdist 2", "normalize", "cosine similarity", "softplus", "sinc", "std of all"),
    *("binary cross-entropy", "infinite slopes that cancel", "logsumexp by both", "amax over 1", "huber"),
]
"""One of each way in which a derivative gets into a tile; the others are the same with other operations."""


def _answers(function, x, y, gradients):
    x, y = (t.detach().clone().requires_grad_(gradients) for t in (x, y))
    leaves = [leaf for leaf in pytree.tree_leaves(function(x, y)) if leaf.is_floating_point()]
    made = [leaf for leaf in leaves if leaf.requires_grad]
    if not made:
        return [leaf.detach() for leaf in leaves]
    found = torch.autograd.grad(made, [x, y], [torch.full_like(m, 0.7) for m in made], allow_unused=True)
    return [leaf.detach() for leaf in leaves] + [g for g in found if g is not None]


def _check(name, dtype, gradients):
    function = FUNCTIONS[name]
    call = togi.lean(function, memory=(6 << 10) * dtype.itemsize + (128 << 10) * (" over " in name), compile=False)
    generator = torch.Generator().manual_seed(1)
    ordinary = [torch.rand(rows, 4, generator=generator, dtype=dtype) for rows in (96, 64)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeanWarning)
        _answers(call, *ordinary, gradients)
        plan = call.plan()
        for kind, x, y in special_inputs(dtype):
            try:
                expected = _answers(function, x, y, gradients)
            except RuntimeError:  # torch refuses such values, and so does the other
                with pytest.raises(RuntimeError):
                    _answers(call, x, y, gradients)
                continue
            found = _answers(call, x, y, gradients)
            for one, other in zip(found, expected, strict=True):
                for special in (torch.isnan, torch.isposinf, torch.isneginf):
                    assert torch.equal(special(one), special(other)), (kind, special.__name__)
                scale = float(other[other.isfinite()].abs().max()) if other.isfinite().any() else 1.0
                tolerance = 2e-4 if dtype == torch.float32 else 1e-9
                torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    return plan


@pytest.mark.parametrize("name", QUICK)
def test_values_and_gradients_at_special_values(name):
    assert _check(name, torch.float32, gradients=True).strategy == "streamed"


OTHERS = [(torch.float64, True), (torch.float32, False), (torch.float64, False)]


@pytest.mark.thorough
@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_types_with_and_without_gradients(name):
    """In float32 with gradients, and one of the others."""
    if name not in QUICK:
        _check(name, torch.float32, gradients=True)
    dtype, gradients = OTHERS[[*FUNCTIONS].index(name) % len(OTHERS)]
    _check(name, dtype, gradients)


def test_a_derivative_that_asks_all_values_is_not_cut():
    """Whether any value is 0 decides how torch differentiates a product: a tile would not know."""
    call = togi.lean(FUNCTIONS["prod over -1"], memory=24 << 10, compile=False)
    x, y = _values(torch.float32)
    with pytest.warns(LeanWarning, match="any of all its values is 0"):
        call(x.requires_grad_(), y)
    call(x.detach(), y)
    assert call.plan().strategy == "streamed"
