"""Which parts of a module can be treated as one, at several granularities, with what each would bring.

Bytes and times are those of the traced step: additive over operations, so a plan's cost is a sum. How high the peak
really is, with the spike while one region is repeated, is for the simulation to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import nn

from togi.budget.fit.plan import Treatment
from togi.budget.fit.trace import Call, Operation, Trace
from togi.budget.fit.treated import is_plain_sequential, treatable

_SHARES = (2, 4, 8, 16, 32, 64)
"""A region keeps at most this part of what the whole forward pass keeps."""


@dataclass(frozen=True, eq=False)
class Region:
    """A module, or a run of a Sequential's children, over all its calls."""

    module: str
    children: tuple[int, int] | None
    spans: tuple[tuple[int, int], ...]
    """``start < number <= stop`` of each call."""
    kept_bytes: int
    """What autograd keeps for it, without its results."""
    added_bytes: int
    """Inputs that would be freed early, and must be kept for repeating it."""
    operations: tuple[tuple[str, int, float, bool], ...]
    """(``name#occurrence``, bytes of its result, ms, may be kept), equal occurrences of several calls together."""
    state: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return Treatment(module=self.module, children=self.children).label


@dataclass(eq=False)
class _Node:
    name: str
    part: nn.Module
    calls: list[Call]
    inside: list[_Node] = field(default_factory=list)
    kept_bytes: int = 0
    problem: str = ""


class Regions:
    """Reads a trace."""

    def __init__(self, module: nn.Module, trace: Trace, changed_buffers: Iterable[str]) -> None:
        self._trace = trace
        self._changed = tuple(changed_buffers)
        self._parts = dict(module.named_modules(remove_duplicate=False))
        self._last_writes = trace.written
        self._root = self._tree()
        self.problems = {node.name: node.problem for node in _below(self._root) if node.problem and node.kept_bytes}
        """Why a module that keeps something cannot be treated."""

    def partitions(self) -> list[tuple[Region, ...]]:
        """Sets of regions that do not overlap, from coarse to fine; those that repeat are left out."""
        found: dict[tuple[str, ...], tuple[Region, ...]] = {}
        for share in _SHARES:
            regions = tuple(self._cut(self._root, self._root.kept_bytes // share, set()))
            if regions:
                found.setdefault(tuple(region.label for region in regions), regions)
        return list(found.values())

    def of_modules(self, names: Sequence[str]) -> tuple[Region, ...]:
        """The regions of the named modules, those that cannot be treated left out."""
        nodes = {node.name: node for node in _below(self._root)}
        return tuple(self._region([nodes[name]], None) for name in names if name in nodes and not nodes[name].problem)

    def blocks(self) -> tuple[Region, ...]:
        """What is commonly checkpointed: the outermost modules whose class occurs at least three times."""
        classes: dict[type[nn.Module], int] = {}
        for node in _below(self._root):
            if node.inside:
                classes[type(node.part)] = classes.get(type(node.part), 0) + 1
        return self.of_modules([node.name for node in self._outermost(self._root, classes)])

    def _outermost(self, node: _Node, classes: dict[type[nn.Module], int]) -> Iterable[_Node]:
        if classes.get(type(node.part), 0) >= 3 and not isinstance(node.part, nn.Sequential):
            yield node
        else:
            for child in node.inside:
                yield from self._outermost(child, classes)

    def _tree(self) -> _Node:
        root = _Node("", self._parts[""], [])
        nodes = {"": root}
        for call in self._trace.calls:
            node = nodes.get(call.name)
            if node is None:
                node = nodes[call.name] = _Node(call.name, self._parts[call.name], [])
                nodes[call.parent.name if call.parent else ""].inside.append(node)
            node.calls.append(call)
        for node in nodes.values():
            node.kept_bytes = sum(self._kept(call) for call in node.calls)
            node.problem = _problem(node)
        return root

    def _cut(self, node: _Node, most_bytes: int, taken: set[str]) -> Iterable[Region]:
        if node.name in taken or not node.kept_bytes:
            return
        fits = node.kept_bytes <= most_bytes or not any(child.kept_bytes for child in node.inside)
        if fits and not node.problem:
            taken.add(node.name)
            yield self._region([node], None)
        elif is_plain_sequential(node.part) and len(node.calls) == 1 and not node.problem:
            yield from self._runs(node, most_bytes, taken)
        else:
            for child in node.inside:
                yield from self._cut(child, most_bytes, taken)

    def _runs(self, node: _Node, most_bytes: int, taken: set[str]) -> Iterable[Region]:
        """Neighbouring children of a Sequential together, as far as they keep little enough."""
        by_name = {child.name: child for child in node.inside}
        run: list[_Node] = []
        start = 0
        for at, (name, _) in enumerate([*node.part.named_children(), ("", None)]):
            child = by_name.get(f"{node.name}.{name}" if node.name else name) if name else None
            joins = child is not None and not child.problem and child.name not in taken and len(child.calls) == 1
            if run and (not joins or child is None or sum(n.kept_bytes for n in run) + child.kept_bytes > most_bytes):
                yield from self._run(node, run, start)
                run = []
            if child is not None and joins and child.kept_bytes <= most_bytes:
                start = at if not run else start
                run.append(child)
            elif child is not None:
                yield from self._cut(child, most_bytes, taken)

    def _run(self, node: _Node, run: list[_Node], start: int) -> Iterable[Region]:
        if sum(child.kept_bytes for child in run):
            yield self._region(run, (start, start + len(run)), owner=node)

    def _region(self, nodes: list[_Node], children: tuple[int, int] | None, owner: _Node | None = None) -> Region:
        owner = owner or nodes[0]
        calls = [_joined(first, last) for first, last in zip(nodes[0].calls, nodes[-1].calls, strict=True)]
        prefix = f"{owner.name}." if owner.name else ""
        names = [f"{node.name}." if node.name else "" for node in nodes]
        return Region(
            module=owner.name,
            children=children,
            spans=tuple((call.start, call.stop) for call in calls),
            kept_bytes=sum(self._kept(call) for call in calls),
            added_bytes=sum(p.bytes for p in {p for c in calls for p in c.inputs} if not self._trace.alive_at_end(p)),
            operations=self._operations(calls),
            state=tuple(
                buffer.removeprefix(prefix) for buffer in self._changed if any(buffer.startswith(n) for n in names)
            ),
        )

    def _kept(self, call: Call) -> int:
        made = (piece for operation in self._between(call) for piece in operation.made)
        return sum(piece.bytes for piece in made if piece not in call.outputs and self._trace.alive_at_end(piece))

    def _operations(self, calls: list[Call]) -> tuple[tuple[str, int, float, bool], ...]:
        """Repeating stops at the last tensor that autograd kept: what runs after it costs nothing and is not kept."""
        found: dict[str, tuple[int, float, bool]] = {}
        for call in calls:
            seen: dict[str, int] = {}
            last = max((at for at in self._trace.packs if call.start <= at <= call.stop), default=call.stop)
            for operation in self._between(call):
                key = f"{operation.name}#{seen.get(operation.name, 0)}"
                seen[operation.name] = seen.get(operation.name, 0) + 1
                if operation.number <= last:
                    bytes, ms, may = found.get(key, (0, 0.0, True))
                    may = may and self._may_be_kept(operation)
                    found[key] = (bytes + operation.bytes, ms + operation.ms, may)
        return tuple((key, *values) for key, values in found.items())

    def _may_be_kept(self, operation: Operation) -> bool:
        """A result that is written into later is not what a repetition needs; random draws must all be repeated.

        Casts are not told apart by their number: autocast remembers those of weights, and casts fewer the second time.
        """
        written = any(self._last_writes.get(piece, 0) > operation.number for piece in operation.made)
        cast = operation.name.startswith("aten._to_copy")
        return bool(operation.made) and not written and not operation.seeded and not cast

    def _between(self, call: Call) -> Sequence[Operation]:
        return self._trace.forward[call.start : call.stop]


def _joined(first: Call, last: Call) -> Call:
    return Call(first.name, first.start, last.stop, inputs=first.inputs, outputs=last.outputs)


def _below(node: _Node) -> Iterable[_Node]:
    yield node
    for child in node.inside:
        yield from _below(child)


def _problem(node: _Node) -> str:
    if reason := treatable(node.part):
        return reason
    if any(call.hooks_forbidden for inner in _below(node) for call in inner.calls):
        return "it, or a part of it, runs inside disable_saved_tensors_hooks(), which forbids recomputation"
    if any(call.changed_inputs for call in node.calls):
        return "an input of it is changed in place after it was read, so it cannot be computed again"
    return ""
