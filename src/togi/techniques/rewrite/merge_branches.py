"""The technique ``merge_branches``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from togi.core.errors import Refused
from togi.core.proven import Proven
from togi.core.records import Facts, Stage
from togi.techniques.base import Applies, Options, Refuses, Technique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.fx import Node

    from togi.graph.branches import Branch
    from togi.graph.candidate import Candidate
    from togi.graph.edit import EditableGraph


@final
class MergeBranches(Technique):
    """Merge parallel linear branches whose results are only added into one convolution or linear layer.

    What it does: finds sums in the captured graph whose terms are linear in the same input (convolutions of other
    kernel sizes such as 3x3, 1x1, 1x3 and 3x1; batch norms, factors and identity on the input; average pools; low-rank
    adapters beside a linear layer), places their kernels on a common grid and adds them. RepVGG, MobileOne, ACNet and
    LoRA blocks become one call each, whatever classes wrote them. Computed in float64, rounded once.

    When it applies: the forward pass adds, and has convolutions or linear layers.

    When it refuses: no sum in the graph has such terms; strides, groups or dilations differ; a branch's result has
    other users; the merged kernel would cost over 1.5 times the branches' multiplications.

    Claim: one pass over input and output instead of one per branch. ``togi explain merge_branches --prove`` measures
    it here.

    Source: Ding et al., RepVGG, https://arxiv.org/abs/2101.03697; ACNet, https://arxiv.org/abs/1908.03930;
    Vasu et al., MobileOne, https://arxiv.org/abs/2206.04040.

    Cost and risk: exact up to rounding; sums are taken in another order, which float16 and bfloat16 weights may show.
    """

    id = "merge_branches"
    proven = Proven(cpu="2026-11-21")
    stage = Stage.REWRITE
    rank = 20

    def applies(self, facts: Facts) -> Applies | Refuses:
        if not facts.functions:
            return Applies()
        if not any(name.rstrip("_").strip("_") in ("add", "iadd", "radd", "sum") for name in facts.functions):
            return Refuses("it adds nothing, so there are no branches to merge")
        if not any(name.startswith(("conv", "linear")) for name in facts.functions):
            return Refuses("it has no convolution or linear layer")
        return Applies()

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        convolutions = facts.functions.get("conv2d", 0)
        return 1.3 if facts.functions.get("batch_norm", 0) > 1.2 * convolutions > 0 else 1.02

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 1.0 + 0.02 * sum(facts.functions.values())

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.graph.edit import EditableGraph

        graph = EditableGraph.of(candidate)
        merged = sum(merge_sums(graph).values())
        if not merged:
            raise Refused("no sum in the graph has two terms that are linear in the same input and fit together")
        return graph.candidate(candidate).noting(f"merged {merged} parallel branches")


def merge_sums(graph: EditableGraph) -> dict[Node, int]:
    """Merge what can be merged. How many branches went, by the sum's last call (no longer in the graph)."""
    roots = [node for node in graph.nodes if node.users and _is_sum_root(node)]
    return {root: merged for root in roots if (merged := _merge_sum(graph, root))}


@final
@dataclass(frozen=True)
class _Term:
    node: Node
    factor: float


ADDITIONS = {"add.Tensor": 1, "add_.Tensor": 1, "sub.Tensor": -1, "sub_.Tensor": -1}


def _operands(node: Node) -> list[tuple[object, float]] | None:
    """The two sides of an addition or subtraction with their factors, or None."""
    from togi.graph.edit import arguments, call_name

    if call_name(node) not in ADDITIONS:
        return None
    given = arguments(node)
    if type(given["alpha"]) not in (int, float):
        return None
    sign = ADDITIONS[call_name(node)]
    return [(given["self"], 1.0), (given["other"], float(sign * given["alpha"]))]


def _inside_sum(node: Node) -> bool:
    """Its only user adds it to something of its own form."""
    from togi.graph.edit import same_form

    users = list(node.users)
    return len(users) == 1 and _operands(users[0]) is not None and same_form(node, users[0])


def _is_sum_root(node: Node) -> bool:
    return _operands(node) is not None and not _inside_sum(node)


def _terms(graph: EditableGraph, node: Node, factor: float = 1.0) -> Iterator[_Term | float | None]:
    """Terms (and added numbers) of the sum; None stands for one that forbids an edit."""
    from torch.fx import Node

    from togi.graph.edit import in_place, same_form

    operands = _operands(node)
    assert operands is not None
    if in_place(node) and not graph.memory.private(node.args[0]):
        yield None
    for side, weight in operands:
        if type(side) in (int, float):
            yield float(side) * weight * factor  # type: ignore[arg-type]
        elif not isinstance(side, Node) or not same_form(side, node):
            yield None
        elif _operands(side) is not None and len(side.users) == 1:
            yield from _terms(graph, side, factor * weight)
        else:
            yield _Term(side, factor * weight)


def _merge_sum(graph: EditableGraph, root: Node) -> int:
    """Merge what fits among the terms of the sum that ends in ``root``. Returns how many branches went."""
    found = list(_terms(graph, root))
    if None in found or not all(_of_dtype(term, root) for term in found):
        return 0
    terms = [term for term in found if isinstance(term, _Term)]
    number = sum(term for term in found if isinstance(term, float))
    branches = {term.node: _readings(graph, term, root) for term in terms}
    groups = []
    while (group := _best_group(branches)) is not None:
        groups.append(group)
        branches = {node: branches[node] for node in branches if node not in {b.term for b in group[1]}}
    rest = [term for term in terms if term.node in branches]
    twice = len(branches) + sum(len(members) for _, members in groups) != len(terms)
    if not groups or twice or any(_changes(graph, term.node, root) for term in rest):
        return 0
    _rebuild(graph, root, [merged for merged, _ in groups], rest, number)
    return sum(len(members) - 1 for _, members in groups)


def _changes(graph: EditableGraph, term: Node, root: Node) -> bool:
    """Whether the term is written in place before the sum ends (by others than additions that belong to the sum)."""
    written = graph.memory.written_between(term, term, root)
    return written and not graph.memory.private(term)


def _of_dtype(term: object, root: Node) -> bool:
    """Numbers that fit and floating-point sums only."""
    from togi.graph.edit import value

    found = value(root)
    return term is not None and found is not None and found.dtype.is_floating_point


def _readings(graph: EditableGraph, term: _Term, root: Node) -> list[Branch]:
    from togi.graph.branches import readings

    return [
        branch.times(term.factor)
        for branch in readings(graph, term.node)
        if (len(term.node.users) == 1 or not branch.cost)  # else it would be computed twice
        and not graph.memory.written_between(branch.source, branch.first, root)
    ]


def _best_group(branches: dict[Node, list[Branch]]) -> tuple[Branch, list[Branch]] | None:
    """The largest kernel that something can be merged into: ``(merged, members)``."""
    from togi.graph.branches import merged

    anchors = [branch for found in branches.values() for branch in found if not branch.diagonal]
    for anchor in sorted(anchors, key=lambda branch: -branch.kernel.numel()):
        result, members = anchor, [anchor]
        rest = [branch for node, found in branches.items() if node is not anchor.term for branch in found]
        for other in sorted(rest, key=lambda branch: (branch.diagonal, -branch.kernel.numel())):
            if other.source is not anchor.source or any(other.term is member.term for member in members):
                continue
            larger = merged(anchor, [*members[1:], other])
            if larger is not None:
                result, members = larger, [*members, other]
        if len(members) > 1:
            return result, members
    return None


def _rebuild(graph: EditableGraph, root: Node, merged: list[Branch], rest: list[_Term], number: float) -> None:
    import torch

    total = None
    for branch in merged:
        node = _linear_call(graph, root, branch, number if total is None else 0.0)
        if total is not None:
            node = graph.call(torch.ops.aten.add_.Tensor, (total, node), root, like=root)
        total = node
    for term in rest:
        total = graph.call(torch.ops.aten.add_.Tensor, (total, term.node), root, like=root)
        total.kwargs = {} if term.factor == 1 else {"alpha": term.factor}
    assert total is not None
    graph.replace(root, total)
    graph.remove_unused()


def _linear_call(graph: EditableGraph, root: Node, branch: Branch, number: float) -> Node:
    import torch

    from togi.graph.edit import value

    like = value(root)
    assert like is not None
    weight = graph.insert_constant(branch.kernel.to(like.dtype), f"{root.name}_weight", root)
    bias = graph.insert_constant((branch.bias + number).to(like.dtype), f"{root.name}_bias", root)
    aten = torch.ops.aten
    if branch.kernel.dim() == 2:
        return graph.call(aten.linear.default, (branch.source, weight, bias), root, like=root)
    call = {1: aten.conv1d, 2: aten.conv2d, 3: aten.conv3d}[branch.kernel.dim() - 2].default
    grid = (list(branch.stride), list(branch.padding), list(branch.dilation), branch.groups)
    return graph.call(call, (branch.source, weight, bias, *grid), root, like=root)
