"""Cutting a graph into loops over tiles and the small work around them.

A node is *large* when its bytes exceed a threshold; large nodes are never computed whole. What is wanted of them is a
*product*: a result of the function that is large itself, or a small tensor that an operation makes of a large one
(mostly a reduction). A product is made by a loop over tiles, in one of two ways: *assembled* from slices along one of
its own dimensions, or *combined* from parts over a dimension that it reduces. Inside a loop everything is computed
slice by slice by the rules of ``slicing``; what the rules want whole must be small (or
an input), and is computed before.

Products share a loop where they want the same slices of the same large nodes, so that these are computed once: the
nearest neighbours in both directions of Chamfer's distance take one loop, rows assembled and columns combined.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from togi.tiling.capture import Captured, NotLean
from togi.tiling.combining import COMBINERS, streamable_dims
from togi.tiling.loops import Loop, Product, Schedule, Task, Wanted
from togi.tiling.peak import Weights, is_number
from togi.tiling.slicing import NotSliceable, Slice, SlicedCall, name, rank
from togi.tiling.slicing_rules import sliced_call

_ASKS_ALL = {torch.ops.aten.prod.dim_int, torch.ops.aten.prod.default, torch.ops.aten.cumprod.default}
"""Their derivatives look at the whole tensor for a zero; next to an infinity the two ways differ in NaN."""


def make_schedule(
    captured: Captured, weights: Weights, large_bytes: int, gradient: bool, copies_whole: bool = False
) -> Schedule:
    """Tasks that compute the graph's outputs without any large node whole.

    Args:
        large_bytes: a node of more bytes than this is large.
        gradient: whether products must be differentiable.
        copies_whole: whether views that are copies may be made whole, however large they are.

    Raises:
        NotLean: no dimension of a large node is safe; the reason names it.
    """
    return _Scheduler(captured, weights, large_bytes, gradient, copies_whole).schedule()


class _Scheduler:
    def __init__(
        self, captured: Captured, weights: Weights, large_bytes: int, gradient: bool, copies_whole: bool
    ) -> None:
        self.captured, self.weights, self.gradient = captured, weights, gradient
        self.large_bytes, self.copies_whole = large_bytes, copies_whole
        self.order = {node: i for i, node in enumerate(captured.graph.nodes)}
        self.ancestors: dict[fx.Node, set[fx.Node]] = {}
        self.inside: dict[Slice, bool] = {}
        self.large: set[fx.Node] = set()
        for node in captured.graph.nodes:
            self.ancestors[node] = set().union(*({n} | self.ancestors[n] for n in node.all_input_nodes))
            of_large = any(source in self.large for source in node.all_input_nodes)
            held = node.op == "call_function" and (of_large or self._may_be_large(node))
            if held and weights.spread_bytes(node) > large_bytes:
                self.large.add(node)

    def _may_be_large(self, node: fx.Node) -> bool:
        """Of a node that is made of small ones: a view is no larger than they are, unless it is a copy."""
        return not self.weights.is_view(node) and not (self.copies_whole and node in self.weights.copies)

    def schedule(self) -> Schedule:
        small: set[fx.Node] = set()
        loops: list[Loop] = []
        pending = self._products(self.captured.outputs, small)
        nodes_made: set[fx.Node] = set()
        while pending:
            chosen = self._grouped(sorted(pending - nodes_made, key=self.order.__getitem__))
            loops += chosen
            nodes_made |= {product.node for loop in chosen for product in loop.products}
            pending = self._products([node for loop in chosen for node in loop.reads], small) - nodes_made
        return Schedule(self._ordered(small, loops))

    def _products(self, wanted: Any, small: set[fx.Node]) -> set[fx.Node]:
        """Products that computing ``wanted`` whole takes; the small nodes on the way are added to ``small``."""
        products: set[fx.Node] = set()
        stack = list(wanted)
        while stack:
            node = stack.pop()
            if node.op != "call_function" or node in small or node in products:
                continue
            if self._is_product(node):
                products.add(node)
            else:
                small.add(node)
                stack += [] if is_number(node) else node.all_input_nodes
        return products

    def _is_product(self, node: fx.Node) -> bool:
        return not is_number(node) and (
            node in self.large
            or node in self.weights.taken
            or any(source in self.large for source in node.all_input_nodes)
        )

    def _grouped(self, nodes: list[fx.Node]) -> list[Loop]:
        """The fewest loops that make all of ``nodes``: how the first is made decides what the others may share."""
        if not nodes:
            return []
        first, *others = nodes
        ways = self._ways(first)
        grouped = [self._with_shared(way, wanted, others) for way, wanted in ways]
        best = min(range(len(ways)), key=lambda i: self._cost(*ways[i], grouped[i][1]))
        loop, left = grouped[best]
        return [loop, *self._grouped(left)]

    def _with_shared(self, way: Product, wanted: Wanted, others: list[fx.Node]) -> tuple[Loop, list[fx.Node]]:
        products, left = [way], []
        for node in others:
            ways = self._ways(node, quiet=True)
            fitting = next((f for f in ways if self._fits(products, wanted, *f)), None)
            if fitting is None:
                left.append(node)
            else:
                products.append(fitting[0])
                wanted = wanted.merged(fitting[1])
        return Loop(tuple(products), wanted, way.length), left

    def _fits(self, products: list[Product], wanted: Wanted, other: Product, others: Wanted) -> bool:
        """The same dimension, large nodes in common and none of them in two ways, and neither waits for the other."""
        if products[0].length != other.length:
            return False
        mine = {s for s in wanted.computed if s.node in self.large}
        theirs = {s for s in others.computed if s.node in self.large}
        both = {s.node for s in mine} & {s.node for s in theirs}
        if not both or any((s in mine) != (s in theirs) for s in mine | theirs if s.node in both):
            return False
        return not any(p.node in self.ancestors[node] | {node} for node in others.reads for p in products)

    def _cost(self, way: Product, wanted: Wanted, left: list[fx.Node]) -> tuple[float, ...]:
        """Tiles fine enough; then fewer loops; then nothing to combine; then rows that lie together; then fine rows."""
        computed = [s for s in wanted.computed if s.node in self.large]
        row_bytes = max((self.weights.own_bytes(s.node) for s in computed), default=0) / self.weights.number(way.length)
        loops = len(left) + len(self._products(wanted.reads, set()))
        outermost = max((s.dim for s in computed), default=0)
        return (row_bytes > self.large_bytes, loops, way.combined, outermost, row_bytes)

    def _ways(self, node: fx.Node, quiet: bool = False) -> list[tuple[Product, Wanted]]:
        """All ways to make ``node``.

        Raises:
            NotLean: there is none (unless ``quiet``).
        """
        ways, reasons = [], []
        for product in self._candidates(node):
            try:
                ways.append((product, self._wanted(product)))
            except NotSliceable as reason:
                reasons.append(str(reason))
        if not ways and not quiet:
            why = "; ".join(dict.fromkeys(reasons)) or _without_ways(node)
            raise NotLean(f"no dimension is safe for {name(node)}: {why}")
        return ways

    def _candidates(self, node: fx.Node) -> Iterator[Product]:
        for dim in range(rank(node)):
            yield Product(node, dim, combined=False)
        combiner = COMBINERS.get(node.target)
        if combiner is not None and (combiner.differentiates(node) or not self.gradient or not _floating(node)):
            for dim in streamable_dims(node):
                yield Product(node, dim, combined=True)

    def _wanted(self, product: Product) -> Wanted:
        if product.length.is_number and int(product.length) < 2:
            raise NotSliceable("a dimension of size 1 has no slices")
        computed: dict[Slice, SlicedCall] = {}
        sliced: set[Slice] = set()
        whole: set[fx.Node] = set()
        self._check_derivative(product.node)
        call = product.call()
        if not product.combined:
            computed[product.first] = call
        stack = [call]
        while stack:
            current = stack.pop()
            for part in current.slices:
                if part in computed or part in sliced:
                    continue
                inner = self._call_inside(part)
                if inner is None:
                    sliced.add(part)
                else:
                    computed[part] = inner
                    stack.append(inner)
            whole |= current.whole_nodes
        needed = [node for node in whole if node in self.large]
        if needed:
            raise NotSliceable(f"a slice along dimension {product.dim} needs all of {name(needed[0])}, which is large")
        in_order = dict(sorted(computed.items(), key=lambda item: self.order[item[0].node]))
        return Wanted(in_order, frozenset(sliced), frozenset(whole))

    def _call_inside(self, part: Slice) -> SlicedCall | None:
        """The call that computes a slice inside the loop; None where it is read from the whole instead."""
        if part.node.op != "call_function":
            return None
        if part.node in self.large:
            self._check_derivative(part.node)
            return sliced_call(part.node, part.dim)
        return sliced_call(part.node, part.dim) if self._affordable(part) else None

    def _check_derivative(self, node: fx.Node) -> None:
        if self.gradient and node.target in _ASKS_ALL and _floating(node):
            raise NotSliceable(f"{name(node)} is differentiated in another way once any of all its values is 0")

    def _affordable(self, part: Slice) -> bool:
        """A small node is computed inside only where all it takes is at hand; else it is made whole, before."""
        if part not in self.inside:
            self.inside[part] = self._at_hand(part)
        return self.inside[part]

    def _at_hand(self, part: Slice) -> bool:
        if self._view_of_input(part.node):
            return False
        try:
            self._check_derivative(part.node)
            call = sliced_call(part.node, part.dim)
        except NotSliceable:
            return False
        if any(node.op == "call_function" and not is_number(node) for node in call.whole_nodes):
            return False
        return all(self._view_of_input(inner.node) or self._affordable(inner) for inner in call.slices)

    def _view_of_input(self, node: fx.Node) -> bool:
        while node.op == "call_function" and self.weights.is_view(node):
            node = node.all_input_nodes[0]
        return node.op != "call_function"

    def _ordered(self, small: set[fx.Node], loops: list[Loop]) -> tuple[Task, ...]:
        maker = {product.node: loop for loop in loops for product in loop.products}
        done: list[Task] = []
        seen: set[int] = set()

        def visit(node: fx.Node) -> None:
            task: Task = maker.get(node, node)
            if node.op != "call_function" or id(task) in seen:
                return
            if not isinstance(task, Loop) and node not in small:
                raise NotLean(f"{name(node)} would be needed whole")
            seen.add(id(task))
            reads = task.reads if isinstance(task, Loop) else [] if is_number(node) else node.all_input_nodes
            for source in sorted(reads, key=self.order.__getitem__):
                visit(source)
            done.append(task)

        for node in self.captured.outputs:
            visit(node)
        return tuple(done)


def _without_ways(node: fx.Node) -> str:
    combiner = COMBINERS.get(node.target)
    if combiner is not None and not combiner.differentiates(node):
        return "its gradient is divided among equal extremes, whose number is known only at the end"
    return "there is no rule for putting it together from parts"


def _floating(node: fx.Node) -> bool:
    """True if gradients can be asked of it."""
    results = node.meta["val"]
    first = results if isinstance(results, Tensor) else results[0]
    return bool(first.is_floating_point()) and not name(node).startswith("aten.arg")
