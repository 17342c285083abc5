"""Why compiled code is not replayed as a CUDA graph: what Inductor tells of it, and what its graphs show without a GPU.

Behind it: ``torch._inductor.compile_fx.cudagraphify``, the counter ``cudagraph_skips``, and log messages of
torch._inductor.{cudagraph_utils, cudagraph_trees, scheduler, utils} (torch 2.9 to 2.15). torch 2.9 logs them as
``perf_hints``, newer ones as ``cudagraphs``; why a graph was cut into parts is logged since 2.11 at the level of
debugging only. When they go: no reason is known, and no note made. For ``examining_backend``: AOTAutograd as a backend,
its list of inputs at fixed addresses, Inductor's pass that moves constants to the GPU, its test for operations that
cannot be recorded, and what its CUDA graph trees take for one call. When they go: ``no-cuda-graph`` reports nothing.
For ``replays_by_itself``: ``get_compiler_config`` of what torch.compile returns, and ``Module._compiled_call_impl``.
When they go: a capture of such a function fails with what CUDA says.
For ``trees_in_turn``: ``cudagraph_trees.local`` and its two attributes, ``torch._C._is_key_in_tls`` (torch 2.9 to
2.13). When ``_initialize_tls`` goes, which tells newer ones: threads take turns that need not.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from unittest.mock import patch

import torch

from togi.torch_internals.compiler import as_dynamos_fakes
from togi.torch_internals.tensors import FakeTensor, storage_key, tensors_of

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

__all__ = [
    "Examined",
    "ExaminedGraph",
    "GraphReport",
    "NotRecorded",
    "Obstacle",
    "examining_backend",
    "graphs_reported",
    "replays_by_itself",
    "trees_in_turn",
]

_PARTITIONS = "torch._inductor.scheduler.__cudagraphs"
_LOGGERS = (
    _PARTITIONS,
    "torch._inductor.cudagraph_trees.__cudagraphs",
    "torch._inductor.cudagraph_utils.__cudagraphs",
    "torch._inductor.cudagraph_utils.__perf_hints",
    "torch._inductor.utils.__perf_hints",
)
_DUE_TO = re.compile(r"(?:(?:skipping|disabling) cudagraphs? |cudagraph partition )due to ")
_SIZES = re.compile(r"We have observed (\d+ distinct sizes)")
_OPERATION = re.compile(r"    \S+: reason=(?P<reason>[^,]+)")
_OPERATION_STACK = " " * 9


def replays_by_itself(function: Any) -> bool:
    """Whether it, or a module within it, was compiled with Inductor's own CUDA graphs (``mode="reduce-overhead"``)."""
    parts = function.modules() if isinstance(function, torch.nn.Module) else (function,)
    compiled = [each for part in parts for each in (part, getattr(part, "_compiled_call_impl", None))]
    asked = (getattr(each, "get_compiler_config", None) for each in compiled)
    configs = (ask() for ask in asked if callable(ask))
    return any(config.get("triton.cudagraphs", False) for config in configs if config is not None)


_trees = threading.RLock()


@contextmanager
def trees_in_turn() -> Iterator[bool]:
    """Inside, this thread may replay what Inductor recorded in another one; whether threads take turns for it.

    Before torch 2.14 a thread that neither imported Inductor nor belongs to autograd has no CUDA graph trees of its
    own, which is an assertion without a word (pytorch #123177), and all threads replay the graphs of the first one.
    """
    from torch._inductor import cudagraph_trees

    if hasattr(cudagraph_trees, "_initialize_tls"):  # 2.14: each thread records its own
        yield False
        return
    with _trees:
        local = cudagraph_trees.local
        if not hasattr(local, "tree_manager_containers") and not torch._C._is_key_in_tls("tree_manager_containers"):
            local.tree_manager_containers, local.tree_manager_locks = {}, defaultdict(threading.Lock)
        yield True


@dataclass
class NotRecorded:
    """Something that is not replayed as a CUDA graph."""

    reason: str
    """In torch's words: ``mutated inputs (1 instances)``, ``cpu ops``."""
    stack: str = ""
    """The traceback of the operation as torch prints it, outermost line first; empty where torch gives none."""


@dataclass
class GraphReport:
    """What Inductor told inside ``graphs_reported``."""

    parts: int = 0
    """Parts of compiled code that were handed over to be recorded. One whose inputs turn out to be mutated is not
    recorded after all."""
    skips: int = 0
    """Graphs that were skipped; torch does not give a reason for each."""
    reasons: list[NotRecorded] = field(default_factory=list)


@contextmanager
def graphs_reported(report: GraphReport) -> Iterator[None]:
    """Inside, what Inductor tells of CUDA graphs is added to ``report``. One thread at a time: what is compiled or
    called on others meanwhile is added as well.

    A mutated input is reported at the first call, a size too many at the call that has it.
    """
    import torch._inductor.compile_fx as compile_fx
    from torch._dynamo.utils import counters

    cudagraphify = compile_fx.cudagraphify

    def counted(*args: Any, **kwargs: Any) -> Any:
        report.parts += 1
        return cudagraphify(*args, **kwargs)

    listener = _Listener(report)
    partitions = logging.getLogger(_PARTITIONS)
    level, propagate = partitions.level, partitions.propagate
    skips = counters["inductor"]["cudagraph_skips"]
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(listener)
    partitions.setLevel(logging.DEBUG)
    partitions.propagate = False  # what was not asked for is not printed
    try:
        with patch.object(compile_fx, "cudagraphify", counted):
            yield
    finally:
        partitions.setLevel(level)
        partitions.propagate = propagate
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(listener)
        report.skips += counters["inductor"]["cudagraph_skips"] - skips


class _Listener(logging.Handler):
    def __init__(self, report: GraphReport) -> None:
        super().__init__()
        self.report = report

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if operation := _OPERATION.match(text):
            self.report.reasons.append(NotRecorded(operation["reason"]))
        elif record.name == _PARTITIONS:
            if text.startswith(_OPERATION_STACK) and self.report.reasons:
                self.report.reasons[-1].stack += f"{text.strip()}\n"
        elif record.levelno >= logging.WARNING:
            self.report.reasons.append(_read(text))


def _read(text: str) -> NotRecorded:
    """A warning of torch's. A reason that passes two of its functions has the same words before it twice."""
    if sizes := _SIZES.search(text):
        return NotRecorded(f"one graph is recorded for each of {sizes[1]}")
    reason, _, stack = _DUE_TO.sub("", text).partition("Found from")
    return NotRecorded(reason.strip().rstrip("."), stack.lstrip(" :\n"))


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
class Obstacle:
    """Why a compiled graph is not replayed as one CUDA graph."""

    cause: Cause
    op: str
    """The ATen operation."""
    stack: str
    """As in ``NotRecorded``."""


@dataclass(eq=False)
class ExaminedGraph:
    """One graph that ``torch.compile`` made, and the calls of it."""

    obstacles: Sequence[Obstacle]
    varies_at: str
    """The traceback of the first operation whose result varies in size; empty where sizes are fixed."""
    sizes: set[tuple[int, ...]] = field(default_factory=set)
    """The sizes that varied, one tuple for each recording that the calls ask for."""
    stale: Counter[Obstacle] = field(default_factory=Counter)
    """Inputs that an earlier call of compiled code returned, and how often they were: a replay overwrites them."""
    addresses: dict[tuple[int, Obstacle], set[int]] = field(default_factory=lambda: defaultdict(set))
    """Of each input that is recorded at its address (weights, buffers, attributes), by its place: where it was, in all
    calls."""


@dataclass(eq=False)
class Examined:
    """What an ``examining_backend`` saw."""

    graphs: list[ExaminedGraph] = field(default_factory=list)
    _running: bool = False
    _replayed_in: int | None = None
    """The latest call of compiled code that would replay a graph."""

    def reads_overwritten(self, operator: Any, arguments: Any) -> bool:
        """Whether code that is not compiled reads (or writes) here what an earlier call returned, after the replay of a
        later one: torch raises an error then."""
        from torch._guards import TracingContext

        if self._running or TracingContext.try_get() is not None or not _touches_values(operator):
            return False
        dense = (tensor for tensor in tensors_of(arguments) if tensor.layout is torch.strided)
        made_in = {getattr(tensor.untyped_storage(), _MADE_IN, None) for tensor in dense}
        return bool(made_in - {None, self._replayed_in})


def examining_backend(found: Examined) -> Callable[..., Any]:
    """A backend of ``torch.compile`` that adds each graph to ``found`` and runs it as it is.

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
        found.graphs.append(examined)
        inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        fixed = _fixed_inputs()
        recorded = _NOTHING_RECORDED.isdisjoint(one.cause for one in examined.obstacles) and bool(_gpus(graph_module))

        def call(arguments: Sequence[Any]) -> Any:
            examined.sizes.add(tuple(size for size in arguments if isinstance(size, int)))
            given = list(arguments)
            if watched := recorded and not torch.is_grad_enabled():
                found._replayed_in = _this_call()
                _look_at_inputs(examined, inputs, fixed, given)
            found._running = True
            try:
                results = graph_module.forward(*arguments)
            finally:
                found._running = False
            if watched:
                _mark_results(given, results)
            return results

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    forward, backward = partial(examine, forward=True), partial(examine, forward=False)
    compile_graph = aot_autograd(
        fw_compiler=forward, inference_compiler=forward, bw_compiler=backward, keep_inference_input_mutations=True
    )
    return lambda graph_module, inputs: compile_graph(graph_module, as_dynamos_fakes(inputs))


def _obstacles(graph_module: GraphModule, forward: bool) -> Iterator[Obstacle]:
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
    found = (device for node in graph_module.graph.nodes if (device := _device(node)) and device.type == "cuda")
    return list(dict.fromkeys(found))


def _crossing(node: Node, moved: set[Node]) -> Cause | None:
    """What keeps an operation out of the GPU's graph. It may read numbers (tensors without dimensions) of the CPU; what
    was computed there is an obstacle itself."""
    sources = [source for source in node.all_input_nodes if source not in moved and _device(source) is not None]
    on_cpu = [source for source in sources if str(_device(source)) == "cpu"]
    if str(_device(node)) == "cpu":
        return "CPU operation" if len(on_cpu) == len(sources) else "copy between devices"
    given = [source for source in on_cpu if _computes_nothing(source)]
    copied = any(source.meta["val"].dim() for source in given) or (given and len(on_cpu) == len(sources))
    return "copy between devices" if copied else None


def _fixed_inputs() -> set[int]:
    """Of the graph that is being compiled, the inputs that lie at fixed addresses, by place."""
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
    """What a replay writes: results that are not views of inputs."""
    given = {storage_key(tensor.untyped_storage()) for tensor in tensors_of(arguments)}
    for tensor in tensors_of(results):
        if tensor.device.type == "cuda" and storage_key(tensor.untyped_storage()) not in given:
            setattr(tensor.untyped_storage(), _MADE_IN, _this_call())


def _this_call() -> int:
    """Of compiled code, from outside of it: what one returned lives until the next begins."""
    from torch._inductor.cudagraph_trees import CUDAGraphTreeManager

    return int(CUDAGraphTreeManager.get_curr_generation())


def _input(node: Node, cause: Cause) -> Obstacle:
    """At the line that reads it first."""
    stacks = (user.meta.get("stack_trace") for user in node.users)
    return Obstacle(cause=cause, op="an input", stack=next(filter(None, stacks), ""))


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
    """What stands on the CPU in the graph, and is computed on the GPU by Inductor: constants made without a device."""
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
        made = twins[node].kwargs.get("device")
        if (isinstance(made, torch.device) and made.type != "cpu") or moved.intersection(node.all_input_nodes):
            moved.add(node)
    return moved


def _device(node: Node) -> torch.device | None:
    """Of the value, or of the first of several; None where it is not a tensor."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, tuple | list) and value else value
    return first.device if isinstance(first, torch.Tensor) else None


def _computes_nothing(node: Node) -> bool:
    """Views, constants of the graph, items of a tuple."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or node.target is torch.ops.aten.lift_fresh_copy.default:
        return True
    return any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)


def _touches_values(operator: Any) -> bool:
    """Not a view, and not a question for a size or a device."""
    schema = getattr(operator, "_schema", None)
    results = () if schema is None else schema.returns
    return any("Tensor" in str(one.type) and (one.alias_info is None or one.alias_info.is_write) for one in results)


def _varies_at(graph_module: GraphModule) -> str:
    for node in graph_module.graph.nodes:
        value, stack = node.meta.get("val"), node.meta.get("stack_trace")
        varies = isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)
        if node.op == "call_function" and varies and stack:
            return str(stack)
    return ""


def _obstacle(cause: Cause, node: Node) -> Obstacle:
    """Where the node has no line, as a write into an input of a training step has none: that of what is written."""
    nodes = (node, *reversed(node.all_input_nodes))
    return Obstacle(cause=cause, op=str(node.target), stack=next(filter(None, map(_stack, nodes)), ""))


def _stack(node: Node) -> str:
    return node.meta.get("stack_trace") or ""
