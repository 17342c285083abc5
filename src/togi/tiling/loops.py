"""Loops over tiles, before it is known how long the tiles are."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
from torch import fx

from togi.tiling.combining import part_call
from togi.tiling.slicing import Slice, SlicedCall, sizes
from togi.tiling.slicing_rules import sliced_call


@dataclass(frozen=True)
class Product:
    """A node that a loop makes. ``dim``: of the node where it is assembled, of its operand where it is combined."""

    node: fx.Node
    dim: int
    combined: bool

    @property
    def first(self) -> Slice:
        """The first value that the loop has to compute of it."""
        source: Any = self.node.args[0]
        return Slice(source, self.dim) if self.combined else Slice(self.node, self.dim)

    @property
    def length(self) -> sympy.Expr:
        return sizes(self.first.node)[self.dim]

    def call(self) -> SlicedCall:
        return part_call(self.node, self.dim) if self.combined else sliced_call(self.node, self.dim)


@dataclass(frozen=True, eq=False)
class Wanted:
    """The needs of making products: slices computed in the loop, slices read from whole nodes, nodes read whole."""

    computed: Mapping[Slice, SlicedCall] = field(default_factory=dict)
    sliced: frozenset[Slice] = frozenset()
    whole: frozenset[fx.Node] = frozenset()

    @property
    def reads(self) -> set[fx.Node]:
        """The nodes that it takes from outside."""
        return {slice_.node for slice_ in self.sliced} | self.whole

    def merged(self, other: Wanted) -> Wanted:
        return Wanted({**self.computed, **other.computed}, self.sliced | other.sliced, self.whole | other.whole)


@dataclass(frozen=True, eq=False)
class Loop:
    """One pass over the tiles of one dimension of ``length`` positions."""

    products: tuple[Product, ...]
    wanted: Wanted
    length: sympy.Expr

    @property
    def reads(self) -> set[fx.Node]:
        return self.wanted.reads


Task = Loop | fx.Node


@dataclass(frozen=True)
class Schedule:
    """Tasks in the order in which they run."""

    tasks: tuple[Task, ...]

    @property
    def loops(self) -> tuple[Loop, ...]:
        return tuple(task for task in self.tasks if isinstance(task, Loop))

    @property
    def form(self) -> tuple[Hashable, ...]:
        """Equal for two that compute the same in the same way."""
        return tuple(
            (task.products, frozenset(task.wanted.computed), task.wanted.sliced, task.wanted.whole)
            if isinstance(task, Loop)
            else task
            for task in self.tasks
        )
