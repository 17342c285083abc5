"""Sizes that values decide: how many elements ``nonzero``, ``unique`` or a mask finds, and all that follows from it.

Each such tensor is given the shapes that it would have if nothing, one, two or very many had been found. An operator
on it is run with fake tensors of these shapes. A dimension that is the same in all of them does not depend on what is
found; a rank or a number of results that differs does.

Behind it: fake tensors (see ``tensors``), ``SymInt.node`` (torch 2.9 to 2.15). When they go: every dimension after a
dynamic operator counts as one that values decide.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols
from torch.utils.weak import WeakIdKeyDictionary

from togi.torch_internals.modes import without_modes
from togi.torch_internals.operators import OpOverload, bound_arguments, schema_of
from togi.torch_internals.tensors import (
    DynamicOutputShapeException,
    FakeTensorMode,
    tensors_of,
    tree_leaves,
    tree_map_only,
)

_COUNTS = (0, 1, 2, 100_003)
"""How many are found in each world. The last is prime, and beyond the thresholds that people write."""

Shape = tuple[int, ...]
_Results = list[Shape]


@dataclass(frozen=True)
class ShapeInWorlds:
    """The shape of a tensor, and its shape in each world: None where the operators before it fail."""

    real: Shape
    worlds: tuple[Shape | None, ...]
    origin: str
    """The operator whose values decide."""

    @property
    def rank_varies(self) -> bool:
        return any(shape is not None and len(shape) != len(self.real) for shape in self.worlds)

    def varies(self, dim: int | None = None) -> bool:
        """Return whether values decide the size of ``dim``, or of any dimension."""
        shapes = [shape for shape in self.worlds if shape is not None]
        if not shapes or self.rank_varies:
            return True
        return any(shape != self.real if dim is None else shape[dim] != self.real[dim] for shape in shapes)


class FoundSizes:
    """Follows operators as they run, and knows the tensors whose sizes values decide."""

    def __init__(self) -> None:
        self._of: Any = WeakIdKeyDictionary()
        self._known: dict[Any, _Results | None] = {}

    def of(self, tensor: Tensor) -> ShapeInWorlds | None:
        sizes: ShapeInWorlds | None = self._of.get(tensor)
        return sizes

    def hand_on(self, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Give the sizes to the results of an operator that have the shape of what it is given."""
        found = next((sizes for tensor in tensors if (sizes := self.of(tensor)) is not None), None)
        if found is not None:
            for result in results:
                self._of[result] = found

    def follow(
        self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Any, origin: str | None = None
    ) -> str | None:
        """Note the sizes of ``results``. Returns the operator whose values decide their rank or number, if one does.

        Args:
            origin: the operator whose values decided a number that this call was given as a size.
        """
        tensors, outputs = tensors_of((args, kwargs)), tensors_of(results)
        found = next((sizes for tensor in tensors if (sizes := self.of(tensor)) is not None), None)
        if origin is not None:
            worlds: list[_Results | None] = [None] * len(_COUNTS)
        elif found is None and (not _may_find(operator, tensors) or self._is_fixed(operator, args, kwargs, outputs)):
            return None
        elif self._takes_apart(operator, args, kwargs):
            worlds = [[]] * len(_COUNTS)
        else:
            worlds = [self._in_world(i, operator, args, kwargs) for i in range(len(_COUNTS))]
        origin = origin or (str(operator) if found is None else found.origin)
        written = {id(tensor) for tensor in tensors}  # what an operator writes in place keeps its size
        return _noted(outputs, worlds, origin, lambda out, sizes: id(out) in written or self._of.update({out: sizes}))

    def _is_fixed(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: list[Tensor]) -> bool:
        """Return whether shapes alone decide the sizes of its results."""
        shapes = self._in_world(0, operator, args, kwargs)
        return shapes == [tuple(output.shape) for output in outputs]

    def _takes_apart(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether it cuts its first argument along a dimension whose size values decide. There may be 100,003
        pieces, or one up to some size that no world has."""
        if not isinstance(operator, OpOverload):
            return False
        if [str(value.type) for value in schema_of(operator).returns] != ["List[Tensor]"]:
            return False
        named = bound_arguments(operator, args, kwargs)
        sizes = self.of(named["self"]) if isinstance(named.get("self"), Tensor) else None
        return sizes is not None and sizes.varies(named.get("dim"))

    def _in_world(self, i: int, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Results | None:
        def shape_of(tensor: Tensor) -> Shape | None:
            sizes = self.of(tensor)
            return tuple(tensor.shape) if sizes is None else sizes.worlds[i]

        forms = tree_map_only(Tensor, lambda tensor: (shape_of(tensor), tensor.dtype), (args, kwargs))
        call = operator, i, repr(forms)
        if call not in self._known:  # a loop over classes asks the same again and again
            self._known[call] = _run(operator, (args, kwargs), shape_of, _COUNTS[i])
        return self._known[call]


def node_with_found_rank(graph: fx.Graph) -> fx.Node | None:
    """The first operator of an exported graph whose rank, or number of results, values decide: an operator that
    squeezes a dimension if one element is found, as an example. The graph holds one rank for it."""
    for node in graph.nodes:
        values = [source.meta.get("val") for source in node.all_input_nodes]
        if not isinstance(node.target, OpOverload) or not any(map(free_unbacked_symbols, filter(_is_tensor, values))):
            continue
        args = fx.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
        ranks = [len(leaf.shape) for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)]
        for count in _COUNTS:
            shapes = _run(node.target, args, partial(_shape, count=count), count)
            if shapes is not None and [len(shape) for shape in shapes] != ranks:
                traced: fx.Node = node
                return traced
    return None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _may_find(operator: Any, tensors: Sequence[Tensor]) -> bool:
    """Return whether values may decide the sizes of its results. ATen says so of its own operators by a tag, except
    where integers are lengths."""
    tags = getattr(operator, "tags", ())
    if not tensors or torch.Tag.pointwise in tags:
        return False
    if torch.Tag.dynamic_output_shape in tags or not isinstance(operator, OpOverload):
        return True
    of_aten = schema_of(operator).name.startswith(("aten::", "prim"))
    return not of_aten or any(not (tensor.is_floating_point() or tensor.is_complex()) for tensor in tensors)


def _run(operator: Any, args: Any, shape_of: Callable[[Tensor], Shape | None], count: int) -> _Results | None:
    """The shapes of its results if its tensors had other shapes. None where it fails, or one of them has no shape."""
    try:
        if torch.Tag.pointwise in getattr(operator, "tags", ()):
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            shapes = [_known(shape_of(tensor)) for tensor in tensors]
            return [tuple(torch.broadcast_shapes(*shapes))]  # type: ignore[no-untyped-call]
        with _silent(), without_modes(), torch.no_grad():
            try:
                return _faked(FakeTensorMode(), operator, args, shape_of, count)
            except DynamicOutputShapeException:  # symbols for what is found make everything slow
                return _faked(FakeTensorMode(shape_env=ShapeEnv()), operator, args, shape_of, count)
    except Exception:  # whatever an operator raises for shapes that it does not take
        return None


def _faked(
    mode: FakeTensorMode, operator: Any, args: Any, shape_of: Callable[[Tensor], Shape | None], count: int
) -> _Results:
    def fake(tensor: Tensor) -> Tensor:
        return torch.empty(_known(shape_of(tensor)), dtype=tensor.dtype, device=tensor.device)

    with mode:
        positional, named = tree_map_only(Tensor, fake, args)
        positional, named = tree_map_only(torch.SymInt, lambda size: _number(size, count), (positional, named))
        results = operator(*positional, **named)
        return [_shape(leaf, count) for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]


def _known(shape: Shape | None) -> Shape:
    if shape is None:
        raise ValueError("an operator before this one fails")
    return shape


@contextmanager
def _silent() -> Iterator[None]:
    """Fake tensors log a traceback where an operator refuses shapes, which is an answer here."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _shape(tensor: Tensor, count: int) -> Shape:
    return tuple(_number(size, count) for size in tensor.shape)


def _number(size: int | torch.SymInt, count: int) -> int:
    """The size where each operator finds ``count``."""
    if isinstance(size, int):
        return size
    expression, environment = size.node.expr, cast(Any, size.node.shape_env)
    hints = environment.var_to_val if torch.__version__ < "2.11" else environment.backed_var_to_val
    return int(expression.subs({symbol: hints.get(symbol, count) for symbol in expression.free_symbols}))


def _noted(
    outputs: Sequence[Tensor],
    worlds: Sequence[_Results | None],
    origin: str,
    note: Callable[[Tensor, ShapeInWorlds], Any],
) -> str | None:
    """Hand each output's sizes to ``note``. Returns ``origin`` where their rank or number differs between worlds."""
    counts = [len(shapes) for shapes in worlds if shapes is not None]
    same_number = bool(counts) and set(counts) == {len(outputs)}
    differ = bool(counts) and not same_number
    for i, output in enumerate(outputs):
        real = tuple(output.shape)
        if same_number:
            shapes = tuple(None if world is None else world[i] for world in worlds)
        else:  # nothing is known: each dimension may be decided by values
            shapes = tuple((count,) * len(real) for count in _COUNTS)
        sizes = ShapeInWorlds(real, shapes, origin)
        differ = differ or sizes.rank_varies
        if any(shape != real for shape in shapes if shape is not None):
            note(output, sizes)
    return origin if differ else None
