"""A function of tensors as a graph of ATen operations, with the conditions under which the graph is the function.

The function is traced once on fake tensors with symbolic sizes (no arithmetic is done, nothing large is allocated), so
one graph serves all sizes that its guards admit. Tensors that the function reaches without being given them (closures,
parameters of a module) become inputs of the graph, so gradients reach them.

Source: torch.fx.experimental.proxy_tensor.make_fx; torch.func.functionalize; ShapeEnv guards.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from togi.tiling.simplify import differentiated, merge_equal, mutates, simplify
from togi.tiling.sizes import SymbolSources, size_expressions
from togi.torch_internals.compiler import trace_symbolically, varying_source
from togi.torch_internals.modes import FunctionObserver
from togi.torch_internals.operators import HigherOrderOperator, OpOverload
from togi.torch_internals.tensors import FakeTensorMode, tree_flatten, tree_unflatten

aten = torch.ops.aten


class NotLean(Exception):
    """The reason why a function cannot be streamed, for the sizes of one call. Internal: becomes a line of the plan,
    and the function runs as it is."""

    admits: Callable[[Sequence[Tensor]], bool] | None = None
    """The tensors for which tracing fails in the same way."""
    remember: Callable[[], None] | None = None
    """Called once the function has answered as it is."""


class Refuted(NotLean):
    """The reason why a program is not the function, whatever the sizes."""


def in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A function as a graph. Placeholders are the tensors given, then ``constants``."""

    graph: fx.Graph
    constants: tuple[Tensor, ...]
    placeholders: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    rebuild: Callable[[Sequence[Any]], Any]
    """From the values of ``outputs`` to what the function returns."""
    sizes: SymbolSources
    admits: Callable[[Sequence[Tensor]], bool]
    """Whether the graph is the function for tensors of these sizes."""


class _LostInGraph(FunctionObserver):
    """Sees what a graph would lose: calls made with gradients off (a ``no_grad`` block, the inside of a custom autograd
    function), and gradients stopped by ``detach``, which functionalization writes as a plain alias."""

    without_gradients: bool = False
    detaches: bool = False

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self.without_gradients = self.without_gradients or not torch.is_grad_enabled()
        self.detaches = self.detaches or function in _DETACHING or function in _IN_WORDS
        return _IN_WORDS.get(function, function)(*args, **kwargs)


def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The decomposition of torch, which raises small norms to ``eps`` with gradients off: they flow as if it had
    not."""

    def directed(tensor: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(tensor, 2, dim, keepdim=True)
        return tensor / torch.where(norm < eps, norm + (eps - norm).detach(), norm)

    kind = torch.promote_types(x1.dtype, x2.dtype)
    first, second = torch.broadcast_tensors(x1.to(kind), x2.to(kind))  # type: ignore[no-untyped-call]
    return (directed(first) * directed(second)).sum(dim)


_IN_WORDS: dict[Any, Callable[..., Any]] = {torch.cosine_similarity: _cosine_similarity}
"""Functions whose C++ switches gradients off inside, which a graph loses, in other words."""
_DETACHING = (Tensor.detach, torch.detach, Tensor.data.__get__)  # type: ignore[attr-defined]


def capture(call: Callable[..., Any], tensors: Sequence[Tensor], decompositions: Mapping[Any, Any]) -> Captured:
    """The graph of ``call(*tensors)``.

    Args:
        call: takes the tensors positionally; returns any pytree.
        decompositions: operation -> its parts, for those that are not recorded as they are.

    Raises:
        NotLean: the function depends on values, draws random numbers, changes its inputs, or cannot be traced.
    """
    environment = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    fakes = [_contiguous_fake(mode, tensor, index) for index, tensor in enumerate(tensors)]
    form: list[Any] = []

    def flat(*given: Tensor) -> list[Any]:
        leaves, spec = tree_flatten(call(*given))
        kept = [isinstance(leaf, Tensor | torch.SymInt) for leaf in leaves]
        form[:] = [spec, [None if keep else leaf for keep, leaf in zip(kept, leaves, strict=True)], kept]
        return [leaf for keep, leaf in zip(kept, leaves, strict=True) if keep]

    watch = _LostInGraph()
    try:
        module = _traced(flat, fakes, mode, watch, decompositions)
        constants = _checked(module, tensors, watch)
    except NotLean as refusal:
        with suppress(Exception):  # torch's, of a trace that ended halfway: then it holds for these sizes only
            refusal.admits = _guards(environment, fakes)
        raise
    graph = module.graph
    merge_equal(graph, differentiated(graph, (*tensors, *constants)))
    simplify(graph)
    for node in graph.nodes if watch.detaches else ():
        if node.target is aten.alias.default:
            node.target = aten.detach.default
    placeholders = tuple(node for node in graph.nodes if node.op == "placeholder")
    spec, leaves, kept = form

    def rebuild(values: Sequence[Any]) -> Any:
        computed = iter(values)
        return tree_unflatten([next(computed) if keep else leaf for keep, leaf in zip(kept, leaves, strict=True)], spec)

    return Captured(
        graph=graph,
        constants=constants,
        placeholders=placeholders,
        outputs=tuple(next(n for n in graph.nodes if n.op == "output").args[0]),
        rebuild=rebuild,
        sizes=SymbolSources.of(fakes),
        admits=_guards(environment, fakes),
    )


def _checked(module: fx.GraphModule, tensors: Sequence[Tensor], watch: _LostInGraph) -> tuple[Tensor, ...]:
    """The tensors that the graph holds, which become further placeholders.

    Raises:
        NotLean: the graph does less, or more, than the function's result tells.
    """
    constants = _lift_constants(module)
    if watch.without_gradients and differentiated(module.graph, (*tensors, *constants)):
        raise NotLean("it switches gradients off inside, or has an autograd function of its own, which a graph loses")
    _refuse_effects(module.graph)
    return constants


def _contiguous_fake(mode: FakeTensorMode, tensor: Tensor, index: int) -> Tensor:
    """A stand-in of symbolic size. Always contiguous, so that one graph serves all strides."""
    dynamic = [DimDynamic.STATIC if size < 2 else DimDynamic.DYNAMIC for size in tensor.shape]
    context: Any = StatelessSymbolicContext(dynamic_sizes=dynamic)
    sized = mode.from_tensor(tensor, source=varying_source(f"tensor{index}"), symbolic_context=context)
    with mode:
        stand_in = torch.empty(sized.shape, dtype=tensor.dtype, device=tensor.device)
    return stand_in.requires_grad_(tensor.requires_grad)


def _traced(
    flat: Callable[..., Any],
    fakes: Sequence[Tensor],
    mode: FakeTensorMode,
    watch: _LostInGraph,
    decompositions: Mapping[Any, Any],
) -> fx.GraphModule:
    def watched(*given: Tensor) -> Any:
        with watch:
            return flat(*given)

    def trace(call: Callable[..., Any]) -> fx.GraphModule:
        return trace_symbolically(functionalize(call, remove="mutations"), fakes, decompositions)

    try:
        with mode:
            module = trace(watched)
            if any(mutates(node) for node in module.graph.nodes):  # left over by composite operations
                module = trace(module)
    except Exception as error:  # the user's function, and every tracer's own complaint
        raise NotLean(_why(error)) from error
    return module


def _why(error: Exception) -> str:
    name, text = type(error).__name__, str(error)
    if "DataDependent" in name or "data-dependent" in text or "unbacked" in text.lower():
        return f"what it does depends on the values of its tensors ({name})"
    return f"it cannot be traced ({in_one_line(error)})"


def _lift_constants(module: fx.GraphModule) -> tuple[Tensor, ...]:
    """Tensors held by the traced module as further placeholders."""
    graph = module.graph
    constants: list[Tensor] = []
    known: dict[str, fx.Node] = {}
    last = [node for node in graph.nodes if node.op == "placeholder"][-1:]
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        value = getattr(module, str(node.target), None)
        if not isinstance(value, Tensor):
            raise NotLean("it calls higher-order operations (conditions, loops or maps as operators)")
        if str(node.target) not in known:
            with graph.inserting_after(last[-1]) if last else graph.inserting_before():
                lifted = graph.placeholder(f"held_{len(constants)}")
            lifted.meta["val"] = value
            last, known[str(node.target)] = [lifted], lifted
            constants.append(value)
        node.replace_all_uses_with(known[str(node.target)])
        graph.erase_node(node)
    return tuple(constants)


def _refuse_effects(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if isinstance(node.target, OpOverload):
            if mutates(node):
                raise NotLean(f"it writes into a tensor that it was given ({node.target})")
            if torch.Tag.nondeterministic_seeded in node.target.tags:
                raise NotLean(f"it draws random numbers ({node.target}), which other tiles would draw differently")
            if torch.Tag.dynamic_output_shape in node.target.tags and not _picks_by_index(node):
                raise NotLean(f"the size of {node.target} depends on values")
            if node.target in (aten.as_strided.default, aten.set_.source_Storage):
                raise NotLean(f"it reads memory by strides ({node.target})")
        elif isinstance(node.target, HigherOrderOperator):
            raise NotLean(f"it calls the higher-order operation {node.target}")
        elif node.target is not operator.getitem and isinstance(node.meta.get("val"), Tensor):
            raise NotLean(f"it calls {node.target}, which is not an ATen operation")


def _picks_by_index(node: fx.Node) -> bool:
    """``x[i, j]`` with integer indices: its size is theirs, unlike that of a mask."""
    if node.target is not aten.index.Tensor:
        return False
    indices: Any = node.args[1]
    return all(index.meta["val"].dtype not in (torch.bool, torch.uint8) for index in indices if index is not None)


def _guards(environment: ShapeEnv, fakes: Sequence[Tensor]) -> Callable[[Sequence[Tensor]], bool]:
    code = environment.produce_guards_expression(list[Any](fakes))
    fixed = [
        (index, dim, int(expression))
        for index, fake in enumerate(fakes)
        for dim, expression in enumerate(size_expressions(fake))
        if expression.is_number
    ]

    def admits(tensors: Sequence[Tensor]) -> bool:
        if any(tensors[index].shape[dim] != size for index, dim, size in fixed):
            return False
        return code is None or bool(environment.evaluate_guards_expression(code, [_Shaped(t.shape) for t in tensors]))

    return admits


class _Shaped:
    """Answers what guards ask of a tensor, as if it were contiguous."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape

    def size(self) -> torch.Size:
        return self.shape

    def stride(self) -> tuple[int, ...]:
        return tuple(math.prod(max(size, 1) for size in self.shape[dim + 1 :]) for dim in range(len(self.shape)))

    def storage_offset(self) -> int:
        return 0
