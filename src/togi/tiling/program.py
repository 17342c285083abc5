"""A schedule, ready to run on tensors: the small work as it was traced, the loops tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from togi.tiling.arithmetic import element_count
from togi.tiling.capture import Captured
from togi.tiling.footprint import Weights, is_number, peak_of
from togi.tiling.loop import TileLoop
from togi.tiling.schedule import Loop, Schedule, Task

aten = torch.ops.aten
RunLoop = Callable[[TileLoop, Sequence[Any], int], list[Any]]
"""``(loop, reads, length) -> products``."""


class Program:
    """Runs a schedule. Holds no state of a call, so threads may share it."""

    def __init__(self, captured: Captured, schedule: Schedule) -> None:
        self.captured, self.schedule = captured, schedule
        self.loops = {id(loop): TileLoop(loop, captured.graph) for loop in schedule.loops}
        self.dropped = _dropped_after(schedule.tasks, captured.outputs)

    @property
    def tile_loops(self) -> list[TileLoop]:
        return list(self.loops.values())

    def run(self, tensors: Sequence[Tensor], weights: Weights, run_loop: RunLoop) -> Any:
        """What the function returns for ``tensors`` (without the graph's constants)."""
        values: dict[fx.Node, Any] = dict(
            zip(self.captured.placeholders, (*tensors, *self.captured.constants), strict=True)
        )
        for task, dropped in zip(self.schedule.tasks, self.dropped, strict=True):
            if isinstance(task, Loop):
                loop = self.loops[id(task)]
                made = run_loop(loop, [values[node] for node in loop.reads], weights.number(task.length))
                values.update(zip((p.node for p in task.products), made, strict=True))
                del made
            else:
                values[task] = _value(task, values, weights)
            for node in dropped:
                values.pop(node, None)
        return self.captured.rebuild([values[node] for node in self.captured.outputs])

    def base_bytes(self, weights: Weights) -> int:
        """Modelled peak of all but the tiles: results, small work, and the sums that loops keep."""

        def allocated(task: Task) -> float:
            if isinstance(task, Loop):
                return sum(weights.spread_bytes(product.node) for product in task.products)
            return weights.own_bytes(task)

        made = {p.node: task for task in self.schedule.tasks if isinstance(task, Loop) for p in task.products}
        outputs = [made.get(node, node) for node in self.captured.outputs]
        return int(
            peak_of(self.schedule.tasks, lambda task: [made.get(n, n) for n in _reads(task)], allocated, outputs)
        )


def result_bytes(captured: Captured, weights: Weights) -> int:
    """Bytes of what the function returns, inputs that it gives back (or views of them) not counted."""
    total = 0
    for node in dict.fromkeys(captured.outputs):
        source = node
        while source.op == "call_function" and weights.own_bytes(source) == 0 and source.all_input_nodes:
            source = source.all_input_nodes[0]
        if source.op == "call_function" and isinstance(node.meta["val"], Tensor):
            total += weights.number(element_count(node.meta["val"].shape)) * node.meta["val"].element_size()
    return total


def _value(node: fx.Node, values: Mapping[fx.Node, Any], weights: Weights) -> Any:
    if is_number(node):
        found = node.meta["val"]
        return found if isinstance(found, int | float) else _number(found, weights)
    target: Any = node.target
    if target in (aten.view.default, aten._unsafe_view.default):
        target = aten.reshape.default
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    return target(*args, **kwargs)


def _number(symbolic: Any, weights: Weights) -> int | float | bool:
    expression = symbolic.node.expr.xreplace(dict(weights.values))
    kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(symbolic)]
    found: int | float | bool = kind(expression)
    return found


def _reads(task: Task) -> list[fx.Node]:
    if isinstance(task, Loop):
        return list(task.reads)
    return [] if is_number(task) else list(task.all_input_nodes)


def _dropped_after(tasks: Sequence[Task], outputs: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Per task, the nodes whose value nobody reads later."""
    seen, dropped = set(outputs), []
    for task in reversed(tasks):
        made = [p.node for p in task.products] if isinstance(task, Loop) else [task]
        last = [node for node in dict.fromkeys((*_reads(task), *made)) if node not in seen]
        dropped.append(last)
        seen.update(last)
    return dropped[::-1]
