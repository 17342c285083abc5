"""Merges parallel linear branches in a captured graph: each sum of them becomes one call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.fx import Node

from togi.graph.branches import Branch, merged, readings
from togi.graph.edit import EditableGraph, arguments, call_name, in_place, same_form, value


def merge_sums(graph: EditableGraph) -> dict[Node, int]:
    """Merge what can be merged. How many branches went, by the sum's last call (no longer in the graph)."""
    roots = [node for node in graph.nodes if node.users and _is_sum_root(node)]
    return {root: merged for root in roots if (merged := _merge_sum(graph, root))}


@dataclass(frozen=True)
class _Term:
    node: Node
    factor: float


ADDITIONS = {"add.Tensor": 1, "add_.Tensor": 1, "sub.Tensor": -1, "sub_.Tensor": -1}


def _operands(node: Node) -> list[tuple[object, float]] | None:
    """The two sides of an addition or subtraction with their factors, or None."""
    if call_name(node) not in ADDITIONS:
        return None
    given = arguments(node)
    if type(given["alpha"]) not in (int, float):
        return None
    sign = ADDITIONS[call_name(node)]
    return [(given["self"], 1.0), (given["other"], float(sign * given["alpha"]))]


def _is_sum_root(node: Node) -> bool:
    """It adds, and its only user does not add it to something of its own form."""
    users = list(node.users)
    inside = len(users) == 1 and _operands(users[0]) is not None and same_form(node, users[0])
    return _operands(node) is not None and not inside


def _terms(graph: EditableGraph, node: Node, factor: float = 1.0) -> Iterator[_Term | float | None]:
    """Terms (and added numbers) of the sum; None stands for one that forbids an edit."""
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


def _inner_additions(node: Node) -> Iterator[Node]:
    """The sum's other additions, each before those that it adds to: nothing else uses them."""
    for side, _ in _operands(node) or ():
        if isinstance(side, Node) and _operands(side) is not None and len(side.users) == 1:
            yield side
            yield from _inner_additions(side)


def _merge_sum(graph: EditableGraph, root: Node) -> int:
    """Merge what fits among the terms of the sum that ends in ``root``. Returns how many branches went."""
    summands = list(_terms(graph, root))
    form = value(root)
    if None in summands or form is None or not form.dtype.is_floating_point:
        return 0
    terms = [term for term in summands if isinstance(term, _Term)]
    number = sum(term for term in summands if isinstance(term, float))
    branches = {term.node: _readings(graph, term, root) for term in terms}
    groups = []
    while (group := _best_group(branches)) is not None:
        groups.append(group)
        branches = {node: branches[node] for node in branches if node not in {b.term for b in group[1]}}
    rest = [term for term in terms if term.node in branches]
    rest_nodes = [term.node for term in rest]
    twice = len(branches) + sum(len(members) for _, members in groups) != len(terms)
    # additions that belong to the sum may write into their terms
    memory = graph.memory
    if not groups or twice or any(memory.written_between(n, n, root) and not memory.private(n) for n in rest_nodes):
        return 0
    _rebuild(graph, root, [merged for merged, _ in groups], rest, number)
    return sum(len(members) - 1 for _, members in groups)


def _readings(graph: EditableGraph, term: _Term, root: Node) -> list[Branch]:
    return [
        branch.times(term.factor)
        for branch in readings(graph, term.node)
        if (len(term.node.users) == 1 or not branch.cost)  # else it would be computed twice
        and not graph.memory.written_between(branch.source, branch.first, root)
    ]


def _best_group(branches: dict[Node, list[Branch]]) -> tuple[Branch, list[Branch]] | None:
    """The largest kernel that something can be merged into: ``(merged, members)``."""
    anchors = [branch for branches_of_term in branches.values() for branch in branches_of_term if not branch.diagonal]
    for anchor in sorted(anchors, key=lambda branch: -branch.kernel.numel()):
        result, members = anchor, [anchor]
        rest = [
            branch
            for node, branches_of_term in branches.items()
            if node is not anchor.term
            for branch in branches_of_term
        ]
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
    additions, total = list(_inner_additions(root)), None
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
    for addition in additions:  # some write into terms that stay, which are read by others now
        graph.erase(addition)
    graph.remove_unused()


def _linear_call(graph: EditableGraph, root: Node, branch: Branch, number: float) -> Node:
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
