"""The technique ``fold_batch_norm``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from togi.core.errors import Refused
from togi.core.proven import Proven
from togi.core.records import Facts, Stage
from togi.techniques.base import Applies, Options, Refuses, Technique

if TYPE_CHECKING:
    from torch.fx import Node

    from togi.graph.candidate import Candidate
    from togi.graph.edit import EditableGraph


@final
class FoldBatchNorm(Technique):
    """Fold batch norms into the convolutions and linear layers beside them.

    What it does: a batch norm with running statistics is ``y * scale + shift`` per channel. Before it, a convolution
    (1d, 2d, 3d, transposed, grouped) or linear layer takes both into its weight and bias; after it, an unpadded
    convolution or a linear layer does. Frozen batch norms and other constant factors per channel (layer scale) are
    folded in the same way. Found in the captured graph, whatever classes wrote it; computed in float64, rounded once.

    When it applies: the forward pass calls a batch norm, or multiplies, beside a convolution or linear layer.

    When it refuses: nothing in the graph can be folded: the batch norm uses the statistics of the batch, the value
    between has other users, weights are computed from the input, or the folded weights would overflow their dtype.

    Claim: one pass over the activations less per folded norm. ``togi explain fold_batch_norm --prove`` measures it
    here.

    Source: Jacob et al., Quantization and Training of Neural Networks, https://arxiv.org/abs/1712.05877, section 3.2;
    https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.fusion.fuse_conv_bn_weights.html

    Cost and risk: exact up to rounding. A weight that several norms share is stored once per norm.
    """

    id = "fold_batch_norm"
    proven = Proven(cpu="2026-11-21")
    stage = Stage.REWRITE
    rank = 10

    def applies(self, facts: Facts) -> Applies | Refuses:
        known = facts.functions or facts.modules
        norm = any("batch_norm" in name or "BatchNorm" in name for name in known)
        factor = facts.functions.get("mul", 0) + facts.functions.get("mul_", 0)
        if not norm and not factor:
            return Refuses("it has no batch norm and no constant factors to fold")
        if not any(word in name.lower() for name in known for word in ("conv", "linear", "addmm")):
            return Refuses("it has no convolution or linear layer to fold a batch norm into")
        return Applies()

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return (
            1.15
            if any("batch_norm" in name or "BatchNorm" in name for name in facts.functions or facts.modules)
            else 1.0
        )

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 1.0 + 0.02 * sum(facts.functions.values())

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.graph.edit import EditableGraph

        graph = EditableGraph.of(candidate)
        folded = sum(fold_into_previous(graph, node) or fold_into_next(graph, node) for node in graph.nodes)
        if not folded:
            raise Refused("no batch norm or factor in the graph can be folded into a convolution or linear layer")
        return graph.candidate(candidate).noting(f"folded {folded} batch norms or constant factors")


def fold_into_previous(graph: EditableGraph, node: Node) -> bool:
    """Fold the affine call ``node`` into the linear call whose only user it is. Whether it was possible."""
    from togi.graph.edit import same_form
    from togi.graph.linear import absorbed, affine, linear, set_weights

    after = affine(graph, node)
    before = linear(graph, after.source) if after else None
    if (
        after is None
        or before is None
        or not _only_user(before.node, node)
        or not same_form(before.node, _result(node))
    ):
        return False
    new = absorbed(before, after)
    if new is None or not set_weights(graph, before, new, key=_weights_key(before.node, node)):
        return False
    _replace(graph, node, before.node)
    return True


def fold_into_next(graph: EditableGraph, node: Node) -> bool:
    """Fold the affine call ``node`` into the unpadded linear call that is its only user. Whether it was possible."""
    from togi.graph.edit import arguments, in_place, same_form, set_arguments, shape
    from togi.graph.linear import affine, linear, set_weights

    result = _result(node)
    before = affine(graph, node)
    after = linear(graph, next(iter(result.users))) if before is not None and len(result.users) == 1 else None
    if before is None or after is None or after.source is not result or after.transposed or any(after.padding):
        return False
    channels = 1 if after.spatial else len(shape(result)) - 1
    moved = graph.memory.written_between(before.source, node, after.node)
    if before.dim not in (None, channels) or moved or not same_form(before.source, result) or in_place(node):
        return False
    size = after.weight.shape[1] * after.groups
    scale, shift = (t.to(after.weight.device).expand(size) for t in (before.scale, before.shift))
    if not set_weights(graph, after, after.preceded(scale, shift), key=_weights_key(after.node, node)):
        return False
    set_arguments(after.node, {**arguments(after.node), "input": before.source})
    return True


def _only_user(node: Node, user: Node) -> bool:
    return set(node.users) == {user}


def _result(node: Node) -> Node:
    """The tensor: decomposed batch norms return a tuple, of which only the first item may be used."""
    import operator

    users = list(node.users)
    first = len(users) == 1 and users[0].target is operator.getitem and users[0].args[1] == 0
    return users[0] if first else node


def _replace(graph: EditableGraph, node: Node, other: Node) -> None:
    result = _result(node)
    if result is not node:
        graph.replace(result, other)
        graph.erase(node)
    else:
        graph.replace(node, other)


def _weights_key(linear: Node, affine: Node) -> Any:
    """The same for another call of the same layers, so that a shared block stays shared."""

    def constants(node: Node) -> tuple[Any, ...]:
        return tuple(str(getattr(arg, "target", arg)) for arg in node.args[1:])

    return constants(linear), str(affine.target), constants(affine)
