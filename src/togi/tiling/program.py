"""A schedule, ready to run on tensors: the small work as it was traced, the loops tile by tile.

A loop's body is a graph of its own; its parts are put into results of their full size, or combined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from togi.tiling.capture import Captured
from togi.tiling.combining import COMBINERS, Combiner, widened
from togi.tiling.loops import Loop, Product, Schedule, Task
from togi.tiling.peak import VIEWS, Weights, is_number, peak_of
from togi.tiling.sizes import element_count
from togi.tiling.slicing import Length, Offset, Slice, SlicedCall
from togi.torch_internals.autograd import below_autocast
from togi.torch_internals.layouts import room_for
from togi.torch_internals.tensors import FakeTensorMode, storage_key, tree_map_only

aten = torch.ops.aten
Body = Callable[..., Any]
_WIDER = 2
"""So many bytes has float32 for each of half precision."""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """The cut of a loop. With a compiled ``body``: tiles of ``compiled`` positions, and what is left over, where it has
    ``least`` positions, by ``body`` as well; the rest in ``plain`` tiles."""

    plain: int
    compiled: int = 0
    least: int = 0
    body: Body | None = None

    def cut(self, length: int, plain: Body) -> Iterator[tuple[int, int, Body]]:
        """``(offset, count, body)`` of every tile."""
        offset = 0
        while offset < length:
            left = length - offset
            if self.body is not None and left >= min(self.least or self.compiled, self.compiled):
                count, body = min(self.compiled, left), self.body
            else:
                count, body = min(self.plain, left), plain
            yield offset, count, body
            offset += count

    def samples(self, length: int, plain: Body, settled: int) -> Iterator[tuple[int, int, Body]]:
        """Samples of ``cut``, as few tiles as allocate like all of them: one of each length and body, at first and
        again once ``settled`` positions have been combined."""
        seen: set[tuple[int, int, bool]] = set()
        for offset, count, body in self.cut(length, plain):
            kind = (count, id(body), offset >= settled)
            if offset < settled or kind not in seen:
                seen.add(kind)
                yield offset, count, body


class TileLoop:
    """A loop, ready to run. Holds no tensor and no state of a call, so threads may share it."""

    def __init__(self, loop: Loop, owner: fx.Graph) -> None:
        order = {node: i for i, node in enumerate(owner.nodes)}
        self.loop = loop
        self.products = loop.products
        self.sliced = sorted(loop.wanted.sliced, key=lambda s: (order[s.node], s.dim))
        self.whole = sorted(loop.wanted.whole, key=order.__getitem__)
        self.body = _body(loop, self.sliced, self.whole)
        names = {node.target for node in self.body.graph.nodes if node.op == "placeholder"}
        self.uses_offset, self.uses_length = "offset" in names, "length" in names

    @property
    def reads(self) -> list[fx.Node]:
        """The values that ``run`` must be given, in order: nodes read in slices, then nodes read whole."""
        return [slice_.node for slice_ in self.sliced] + list(self.whole)

    def arguments(self, reads: Sequence[Any], offset: int, count: int) -> list[Any]:
        """The body's arguments for the tile of ``count`` positions from ``offset`` on."""
        cut = [read.narrow(s.dim, offset, count) for s, read in zip(self.sliced, reads, strict=False)]
        place = [number for number, used in ((offset, self.uses_offset), (count, self.uses_length)) if used]
        return [*cut, *reads[len(self.sliced) :], *place]

    def run(self, reads: Sequence[Any], length: int, tiles: Tiles) -> list[Any]:
        """The products, in order.

        Args:
            reads: values of ``self.reads``.
            length: positions of the loop's dimension, at least 1.
        """
        sinks = [_sink(product, length) for product in self.products]
        return self._run(sinks, reads, tiles.cut(length, self.body))

    def rehearse(self, reads: Sequence[Any], length: int, tiles: Tiles) -> None:
        """Allocate as ``run`` does, on as few tiles as show all that happens; what it makes is dropped."""
        sinks = [_sink(product, length) for product in self.products]
        settled = max((sink.settled_positions for sink in sinks), default=1)
        self._run(sinks, reads, tiles.samples(length, self.body, settled))

    def _run(
        self, sinks: Sequence[_Assembled | Combiner], reads: Sequence[Any], cut: Iterable[tuple[int, int, Body]]
    ) -> list[Any]:
        for offset, count, body in cut:
            parts = body(*self.arguments(reads, offset, count))
            for sink, part in zip(sinks, parts, strict=True):
                sink.add(part, offset, count)
            del parts, part  # or the tile would be kept next to the next one
        return [sink.finish() for sink in sinks]

    def product_bytes(self, weights: Weights) -> int:
        """Bytes of what ``run`` makes."""
        return sum(weights.spread_bytes(product.node) for product in self.products)

    def strided_bytes(self, reads: Sequence[Any], count: int) -> int:
        """Bytes of what a tile reads that does not lie side by side: some operations copy it first, which the model
        does not know of."""
        given = self.arguments(reads, 0, count)
        return sum(read.nbytes for read in given if isinstance(read, Tensor) and not read.is_contiguous())

    def tile_bytes(self, weights: Weights, backward: bool = False) -> tuple[float, float]:
        """Modelled bytes of one tile: (per position, besides). ``backward``: recomputed with gradients."""
        length = weights.number(self.loop.length)
        computed = self.loop.wanted.computed
        own = {part: (weights.own_bytes(part.node) + weights.taken.get(part.node, 0)) / length for part in computed}
        combined = {p: widened(p.node, p.dim) for p in self.products if p.combined}
        wide = [
            (weights.taken.get(p.node, 0) + _WIDER * sum(weights.spread_bytes(s.node) for s in slices)) / length
            for p, slices in combined.items()
        ]
        if backward:
            return sum(own.values()) + 2 * (max(own.values(), default=0.0) + sum(wide)), 0.0
        kept = [p.first for p in self.products if not p.combined]
        highest = peak_of(list(computed), lambda part: computed[part].slices, own.__getitem__, kept)
        parts = sum(3.0 * (_WIDER if s else 1) * weights.spread_bytes(p.node) for p, s in combined.items())
        return highest + max(wide, default=0.0), parts


class _Assembled:
    """Slices put side by side. The result lies in memory as the plain function's does."""

    settled_positions = 1

    def __init__(self, product: Product, length: int) -> None:
        self.product, self.length = product, length
        self.made: list[Tensor] | None = None

    def add(self, part: Any, offset: int, count: int) -> None:
        parts = [part] if isinstance(part, Tensor) else list(part)
        if self.made is None:
            self.made = [room_for(piece, self.product.dim, self.length) for piece in parts]
        for room, piece in zip(self.made, parts, strict=True):
            room.narrow(self.product.dim, offset, count).copy_(piece)

    def finish(self) -> Any:
        assert self.made is not None
        return self.made[0] if isinstance(self.product.node.meta["val"], Tensor) else tuple(self.made)


def _sink(product: Product, length: int) -> _Assembled | Combiner:
    if product.combined:
        return COMBINERS[product.node.target](product.node, product.dim, length)
    return _Assembled(product, length)


def _body(loop: Loop, sliced: Sequence[Slice], whole: Sequence[fx.Node]) -> fx.GraphModule:
    """The work of one tile: ``body(*slices, *whole[, offset][, length])``, one part per product."""
    graph = fx.Graph()
    emitted: dict[Any, fx.Node] = {}
    for i, part in enumerate(sliced):
        emitted[part] = graph.placeholder(f"slice_{i}")
    for i, node in enumerate(whole):
        emitted[node] = graph.placeholder(f"whole_{i}")
    emitted[Offset()] = graph.placeholder("offset")
    emitted[Length()] = graph.placeholder("length")

    def emit(call: SlicedCall) -> fx.Node:
        markers = (Slice, fx.Node, Offset, Length)
        args, kwargs = tree_map_only(markers, lambda item: emitted.get(item, item), (call.args, dict(call.kwargs)))
        return graph.call_function(call.target, args, kwargs)

    for part, call in loop.wanted.computed.items():
        emitted[part] = emit(call)
    graph.output(tuple(emit(p.call()) if p.combined else emitted[p.first] for p in loop.products))
    for marker in (Offset(), Length()):
        if not emitted[marker].users:
            graph.erase_node(emitted[marker])
    return fx.GraphModule(torch.nn.Module(), graph)


RunLoop = Callable[[TileLoop, Sequence[Any], int], list[Any]]
"""``(loop, reads, length) -> products``."""


class TiledProgram:
    """Runs a schedule. Holds no state of a call, so threads may share it."""

    def __init__(self, captured: Captured, schedule: Schedule) -> None:
        self.captured, self.schedule = captured, schedule
        self.loops = {loop: TileLoop(loop, captured.graph) for loop in schedule.loops}
        self.dropped = _dropped_after(schedule.tasks, captured.outputs)

    @property
    def tile_loops(self) -> list[TileLoop]:
        return list(self.loops.values())

    def run(self, tensors: Sequence[Tensor], weights: Weights, run_loop: RunLoop) -> Any:
        """The results of the function for ``tensors`` (without the graph's constants). The casts of the autocast in
        which it was traced are operations of the graph: none are added."""
        with below_autocast():
            return self._run(tensors, weights, run_loop)

    def _run(self, tensors: Sequence[Tensor], weights: Weights, run_loop: RunLoop) -> Any:
        values: dict[fx.Node, Any] = dict(
            zip(self.captured.placeholders, (*tensors, *self.captured.constants), strict=True)
        )
        for task, dropped in zip(self.schedule.tasks, self.dropped, strict=True):
            if isinstance(task, Loop):
                loop = self.loops[task]
                products = run_loop(loop, [values[node] for node in loop.reads], weights.number(task.length))
                values.update(zip((p.node for p in task.products), products, strict=True))
                del products
            else:
                values[task] = value_of(task, values, weights)
            for node in dropped:
                values.pop(node, None)
        return self.captured.rebuild([values[node] for node in self.captured.outputs])

    def base_bytes(self, weights: Weights) -> int:
        """Modelled peak of all but the tiles: results, small work, and the sums that loops keep."""

        def allocated(task: Task) -> float:
            if isinstance(task, Loop):
                return self.loops[task].product_bytes(weights)
            return weights.own_bytes(task)

        def besides(task: Task) -> float:
            return 0 if isinstance(task, Loop) else weights.besides_bytes(task)

        def uses(task: Task) -> list[Task]:
            return [maker.get(node, node) for node in _reads(task)]

        maker = {p.node: task for task in self.schedule.tasks if isinstance(task, Loop) for p in task.products}
        outputs = [maker.get(node, node) for node in self.captured.outputs]
        return int(peak_of(self.schedule.tasks, uses, allocated, outputs, besides))


def result_bytes(captured: Captured, weights: Weights) -> int:
    """Bytes of what the function returns, inputs that it gives back (or views of them) not counted."""
    total = 0
    for node in dict.fromkeys(captured.outputs):
        source = node
        while source.op == "call_function" and weights.own_bytes(source) == 0 and source.all_input_nodes:
            source = source.all_input_nodes[0]
        if source.op == "call_function" and isinstance(node.meta["val"], Tensor):
            total += weights.number(element_count(node.meta["val"])) * node.meta["val"].element_size()
    return total


def copied_views(captured: Captured, tensors: Sequence[Tensor], weights: Weights) -> frozenset[fx.Node]:
    """The views that are copies where the tensors lie in memory as these do: the graph was traced for contiguous ones,
    and no other can be viewed in every shape. Nothing is computed."""
    if all(tensor.is_contiguous() for tensor in tensors):
        return frozenset()
    views = [node for node in captured.graph.nodes if node.target in VIEWS and isinstance(node.meta["val"], Tensor)]
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode, torch.no_grad():
            values = {
                node: torch.empty_strided(given.shape, given.stride(), dtype=given.dtype, device=given.device)
                for node, given in zip(captured.placeholders, (*tensors, *captured.constants), strict=True)
            }
            for node in captured.graph.nodes:
                if node.op == "call_function":
                    values[node] = value_of(node, values, weights)
    except Exception:  # an operation without a form for fake tensors of fixed sizes: then each may be one
        return frozenset(node for node in views if node.target in _RESHAPED)
    return frozenset(node for node in views if not _share_memory(values[node], values[node.all_input_nodes[0]]))


def _share_memory(one: Tensor, other: Any) -> bool:
    """True for a part of a result of several tensors, too."""
    return not isinstance(other, Tensor) or storage_key(one.untyped_storage()) == storage_key(other.untyped_storage())


_RESHAPED = (aten.view.default, aten._unsafe_view.default)
"""They are run as ``reshape``."""


def value_of(node: fx.Node, values: Mapping[fx.Node, Any], weights: Weights) -> Any:
    """What a node is, given the values of those that it takes."""
    if is_number(node):
        number = node.meta["val"]
        return number if isinstance(number, int | float) else _number(number, weights)
    target: Any = node.target
    if target in _RESHAPED:
        target = aten.reshape.default
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    return target(*args, **kwargs)


def _number(symbolic: Any, weights: Weights) -> int | float | bool:
    expression = symbolic.node.expr.xreplace(dict(weights.values))
    kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(symbolic)]
    value: int | float | bool = kind(expression)
    return value


def _reads(task: Task) -> list[fx.Node]:
    if isinstance(task, Loop):
        return list(task.reads)
    return [] if is_number(task) else list(task.all_input_nodes)


def _dropped_after(tasks: Sequence[Task], outputs: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Per task, the nodes whose value nobody reads later."""
    seen, dropped = set(outputs), []
    for task in reversed(tasks):
        nodes_made = [p.node for p in task.products] if isinstance(task, Loop) else [task]
        last = [node for node in dict.fromkeys((*_reads(task), *nodes_made)) if node not in seen]
        dropped.append(last)
        seen.update(last)
    return dropped[::-1]
