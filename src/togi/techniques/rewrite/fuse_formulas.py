"""The technique ``fuse_formulas``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from togi.core.quantities import plural
from togi.core.records import Facts
from togi.techniques.base import Applies, GraphRewrite, Options, Refuses

if TYPE_CHECKING:
    from togi.graph.edit import EditableGraph


class FuseFormulas(GraphRewrite):
    """Roll what is written out by hand into the one operator that computes it.

    What it does: finds attention (``softmax(q k^T * scale + mask) v``), layer norm (``(x - mean) / sqrt(variance +
    eps)`` over the last dimensions, with weight and bias), GELU in both forms, SiLU and hard swish in the captured
    graph. Order and constants of the formula do not matter. In their place it puts ``scaled_dot_product_attention``,
    ``layer_norm``, ``gelu``, ``silu`` and ``hardswish``.

    When it applies: the forward pass calls what such formulas are made of.

    When it refuses: none is found. Left alone: a formula of which a part is used elsewhere; an unbiased variance;
    probabilities of attention that are returned; masks that may hide all keys from a query with minus infinity.

    Claim: one pass over memory instead of one per call; scores of attention that never leave the processor's caches.
    Most for plain eager: engines find some of these formulas themselves. ``togi explain fuse_formulas --prove``
    measures it here.

    Source: Dao et al., FlashAttention, https://arxiv.org/abs/2205.14135; Hendrycks and Gimpel, GELU,
    https://arxiv.org/abs/1606.08415; Ba et al., layer normalization, https://arxiv.org/abs/1607.06450.

    Cost and risk: exact up to rounding: sums are taken in another order, and constants count as the operator's where
    they agree to 2e-7.
    """

    id = "fuse_formulas"
    rank = 8
    nothing_to_do = "no attention, layer norm or activation in the graph is written out by hand"

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.functions and not _expected(facts):
            return Refuses("it calls nothing that written out attention, layer norms or activations are made of")
        return Applies()

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return max(_expected(facts), default=1.0)

    def edit(self, graph: EditableGraph, options: Options) -> str:
        from togi.graph.attention import fuse_attention
        from togi.graph.composites import fuse_activations, fuse_layer_norms

        counts = {
            "attention": fuse_attention(graph),
            "layer norm": fuse_layer_norms(graph),
            "activation": fuse_activations(graph),
        }
        fused = [plural(count, name) for name, count in counts.items() if count]
        return f"fused {', '.join(fused)}" if fused else ""


_PARTS = (
    (("softmax", "matmul"), 1.1),
    (("softmax", "bmm"), 1.1),
    (("sqrt", "mean", "sub"), 1.2),
    (("rsqrt", "mean", "sub"), 1.2),
)
"""What attention and layer norm are made of, and what fusing them brought in small transformers."""
_ACTIVATIONS = ("erf", "tanh", "sigmoid", "relu6")
_EVERY = 4
"""One activation to so many layers at least; gates and pooling have fewer."""


def _expected(facts: Facts) -> list[float]:
    calls = facts.functions
    gains = [gain for parts, gain in _PARTS if all(calls.get(part) for part in parts)]
    layers = sum(count for name, count in calls.items() if name.startswith(("conv", "linear", "addmm")))
    activations = max(calls.get(name, 0) for name in _ACTIVATIONS)
    return [*gains, 1.05] if calls.get("mul") and 0 < layers <= _EVERY * activations else gains
