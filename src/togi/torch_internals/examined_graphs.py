"""Obstacles to replaying compiled code as a CUDA graph, found in its graphs and their calls, without a GPU.

Behind it: AOTAutograd as a backend, its list of inputs at fixed addresses, Inductor's pass that moves constants to the
GPU, its test for operations that cannot be recorded, and what its CUDA graph trees take for one call (torch 2.9 to
2.15). When they go: ``no-cuda-graph`` reports nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from togi.torch_internals.compiler import as_dynamos_fakes
from togi.torch_internals.tensors import FakeTensor, storage_key, tensors_of

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

__all__ = ["Examined", "ExaminedGraph", "ReplayObstacle", "examining_backend"]

Cause = Literal[
    "mutated input",
    "CPU operation",
    "copy between devices",
    "several GPUs",
    "unsupported operation",
    "stale output",
    "moved input",
]
_NOTHING_RECORDED: frozenset[Cause] = frozenset({"mutated input", "several GPUs"})
_MADE_IN = "_togi_made_in"
"""Attribute of a storage: the call of compiled code whose graph made it."""


@dataclass(frozen=True, kw_only=True)
class ReplayObstacle:
    """Why a compiled graph is not replayed as one CUDA graph."""

    cause: Cause
    op: str
    """The ATen operation."""
    stack: str
    """The traceback of the operation as torch prints it, outermost line first; empty where torch gives none."""


@dataclass(eq=False)
class ExaminedGraph:
    """One graph that ``torch.compile`` made, and the calls of it."""

    obstacles: Sequence[ReplayObstacle]
    varies_at: str
    """The traceback of the first operation whose result varies in size; empty where sizes are fixed."""
    sizes: set[tuple[int, ...]] = field(default_factory=set)
    """The sizes that varied, one tuple for each recording that the calls ask for."""
    stale: Counter[ReplayObstacle] = field(default_factory=Counter)
    """Inputs that an earlier call of compiled code returned, and how often they were: a replay overwrites them."""
    addresses: dict[tuple[int, ReplayObstacle], set[int]] = field(default_factory=lambda: defaultdict(set))
    """Of each input that is recorded at its address (weights, buffers, attributes), by its place: where it was, in all
    calls."""


@dataclass(eq=False)
class Examined:
    """The graphs that an ``examining_backend`` saw."""

    graphs: list[ExaminedGraph] = field(default_factory=list)
    _running: bool = False
    _replayed_in: int | None = None
    """The latest call of compiled code that would replay a graph."""

    def reads_overwritten(self, operator: Any, arguments: Any) -> bool:
        """Return whether code that is not compiled touches here what an earlier call returned, after the replay of a
        later one: torch raises an error then."""
        from torch._guards import TracingContext

        if self._running or TracingContext.try_get() is not None or not _touches_values(operator):
            return False
        dense = (tensor for tensor in tensors_of(arguments) if tensor.layout is torch.strided)
        made_in = {getattr(tensor.untyped_storage(), _MADE_IN, None) for tensor in dense}
        return bool(made_in - {None, self._replayed_in})


def examining_backend(seen: Examined) -> Callable[..., Any]:
    """A backend of ``torch.compile`` that adds each graph to ``seen`` and runs it as it is.

    What counts as an obstacle is what Inductor looks at before it records CUDA graphs: inputs that change and are
    neither parameters, nor buffers, nor marked as static; operations on the CPU that it cannot move; copies between
    devices. In calls that record no gradients, inputs that lie where a replay writes, and inputs at fixed addresses
    that are elsewhere than before, are seen too. On fake CUDA tensors no GPU is needed, except for a backward pass.

    Source: torch/_inductor/scheduler.py (should_partition), cudagraph_utils.py (check_for_mutation),
    cudagraph_trees.py (check_invariants, dealloc_current_path_weakrefs).
    """
    from torch._dynamo.backends.common import aot_autograd

    def examine(graph_module: GraphModule, _inputs: Sequence[Any], *, forward: bool) -> Callable[..., Any]:
        examined = ExaminedGraph(tuple(_obstacles(graph_module, forward)), _varies_at(graph_module))
        seen.graphs.append(examined)
        inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        fixed = _fixed_inputs() if forward else set()  # a backward pass has other inputs, which the forward one made
        causes = {obstacle.cause for obstacle in examined.obstacles}
        recorded = _NOTHING_RECORDED.isdisjoint(causes) and bool(_gpus(graph_module))

        def call(arguments: Sequence[Any]) -> Any:
            examined.sizes.add(tuple(size for size in arguments if isinstance(size, int)))
            tensors = list(arguments)
            if watched := recorded and not torch.is_grad_enabled():
                seen._replayed_in = _this_call()
                _look_at_inputs(examined, inputs, fixed, tensors)
            seen._running = True
            try:
                results = graph_module.forward(*arguments)
            finally:
                seen._running = False
            if watched:
                _mark_results(tensors, results)
            return results

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    forward, backward = partial(examine, forward=True), partial(examine, forward=False)
    compile_graph = aot_autograd(
        fw_compiler=forward, inference_compiler=forward, bw_compiler=backward, keep_inference_input_mutations=True
    )
    return lambda graph_module, inputs: compile_graph(graph_module, as_dynamos_fakes(inputs))


def _obstacles(graph_module: GraphModule, forward: bool) -> Iterator[ReplayObstacle]:
    from torch._inductor.utils import get_first_incompatible_cudagraph_node

    nodes = graph_module.graph.nodes
    gpus = _gpus(graph_module)
    if not gpus:
        return
    if forward:
        yield from (_obstacle("mutated input", node) for node in _mutations(graph_module))
    moved = _moved_to_gpu(graph_module)
    for node in nodes:
        works = node.op == "call_function" and node not in moved and not _computes_nothing(node)
        if works and (cause := _crossing(node, moved)):
            yield _obstacle(cause, node)
    if len(gpus) > 1:
        yield _obstacle("several GPUs", next(node for node in nodes if _device(node) == gpus[1]))
    if (unsupported := get_first_incompatible_cudagraph_node(graph_module)) is not None:
        yield _obstacle("unsupported operation", unsupported)


def _gpus(graph_module: GraphModule) -> list[torch.device]:
    devices = (device for node in graph_module.graph.nodes if (device := _device(node)) and device.type == "cuda")
    return list(dict.fromkeys(devices))


def _crossing(node: Node, moved: set[Node]) -> Cause | None:
    """Find what keeps an operation out of the GPU's graph. It may read numbers (tensors without dimensions) of the CPU;
    what was computed there is an obstacle itself."""
    sources = [source for source in node.all_input_nodes if source not in moved and _device(source) is not None]
    on_cpu = [source for source in sources if str(_device(source)) == "cpu"]
    if str(_device(node)) == "cpu":
        return "CPU operation" if len(on_cpu) == len(sources) else "copy between devices"
    plain = [source for source in on_cpu if _computes_nothing(source)]
    copied = any(source.meta["val"].dim() for source in plain) or (plain and len(on_cpu) == len(sources))
    return "copy between devices" if copied else None


def _fixed_inputs() -> set[int]:
    """The places of those inputs, of the graph that is being compiled, that lie at fixed addresses."""
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return set(metadata.static_input_indices) if metadata is not None else set()


def _look_at_inputs(examined: ExaminedGraph, inputs: Sequence[Node], fixed: set[int], arguments: Sequence[Any]) -> None:
    for at, (node, tensor) in enumerate(zip(inputs, arguments, strict=True)):
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cuda":
            continue
        if getattr(tensor.untyped_storage(), _MADE_IN, _this_call()) != _this_call():
            examined.stale[_input(node, "stale output")] += 1
        elif at in fixed:
            examined.addresses[at, _input(node, "moved input")].add(_address(tensor))


def _mark_results(arguments: Sequence[Any], results: Any) -> None:
    """Mark what a replay writes: results that are not views of inputs."""
    storages_given = {storage_key(tensor.untyped_storage()) for tensor in tensors_of(arguments)}
    for tensor in tensors_of(results):
        if tensor.device.type == "cuda" and storage_key(tensor.untyped_storage()) not in storages_given:
            setattr(tensor.untyped_storage(), _MADE_IN, _this_call())


def _this_call() -> int:
    """The number of the call of compiled code, from outside of it: what it returned lives until the next begins."""
    from torch._inductor.cudagraph_trees import CUDAGraphTreeManager

    return int(CUDAGraphTreeManager.get_curr_generation())


def _input(node: Node, cause: Cause) -> ReplayObstacle:
    """At the line that reads it first."""
    stacks = (user.meta.get("stack_trace") for user in node.users)
    return ReplayObstacle(cause=cause, op="an input", stack=next(filter(None, stacks), ""))


def _address(tensor: torch.Tensor) -> int:
    return storage_key(tensor.untyped_storage()) if isinstance(tensor, FakeTensor) else tensor.data_ptr()


def _mutations(graph_module: GraphModule) -> Iterator[Node]:
    """The writes into inputs that are not at a fixed address. AOTAutograd puts them at the end."""
    fixed = _fixed_inputs()
    inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    varying = {node for index, node in enumerate(inputs) if index not in fixed}
    for node in graph_module.graph.nodes:
        if node.target is torch.ops.aten.copy_.default and node.args[0] in varying:
            yield node


def _moved_to_gpu(graph_module: GraphModule) -> set[Node]:
    """Find what stands on the CPU in the graph, but Inductor computes on the GPU: constants made without a device."""
    import torch._inductor.fx_passes.post_grad as post_grad

    twins: dict[Node, Node] = {}
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, twins))
    post_grad.move_constructors_to_gpu(graph)
    moved: set[Node] = set()
    for node in graph_module.graph.nodes:
        device = _device(node)
        if device is None or device.type != "cpu" or node.op != "call_function":
            continue
        target = twins[node].kwargs.get("device")
        if (isinstance(target, torch.device) and target.type != "cpu") or moved.intersection(node.all_input_nodes):
            moved.add(node)
    return moved


def _device(node: Node) -> torch.device | None:
    """The device of the value, or of the first of several; None if it is not a tensor."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, tuple | list) and value else value
    return first.device if isinstance(first, torch.Tensor) else None


def _computes_nothing(node: Node) -> bool:
    """Views, constants of the graph, items of a tuple."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or node.target is torch.ops.aten.lift_fresh_copy.default:
        return True
    return any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)


def _touches_values(operator: Any) -> bool:
    """Not a view, and not a question for a size or a device."""
    schema = getattr(operator, "_schema", None)
    results = () if schema is None else schema.returns
    tensors = (result for result in results if "Tensor" in str(result.type))
    return any(tensor.alias_info is None or tensor.alias_info.is_write for tensor in tensors)


def _varies_at(graph_module: GraphModule) -> str:
    for node in graph_module.graph.nodes:
        value, stack = node.meta.get("val"), node.meta.get("stack_trace")
        varies = isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)
        if node.op == "call_function" and varies and stack:
            return str(stack)
    return ""


def _obstacle(cause: Cause, node: Node) -> ReplayObstacle:
    """An obstacle at the node's line, or at that of what it writes if it has none (an input of a training step)."""
    stacks = (place.meta.get("stack_trace") for place in (node, *reversed(node.all_input_nodes)))
    return ReplayObstacle(cause=cause, op=str(node.target), stack=next(filter(None, stacks), ""))
