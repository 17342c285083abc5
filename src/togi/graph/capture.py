"""The one graph form: ``torch.export`` of the flat module, at ATen level, with the subject's dynamic dimensions.

``export`` gives the exported program; ``capture`` gives the same as a plain ``torch.fx.GraphModule`` to edit, and
gives the graph of an already captured candidate back without exporting again.

Rewrites look for patterns in it, engines convert from it, artifacts store it. Capturing specialises Python control flow
on the samples, which is why every captured candidate is verified on inputs of other values and sizes.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from togi.core.errors import Refused
from togi.graph.python_operators import inline_bodies
from togi.graph.recurrent import WholeRecurrentLayers, opened, recurrent_layers, sealed
from togi.graph.settled import graphs_in, put_plainly, settle_sizes
from togi.graph.sizes import sizes_held
from togi.graph.uncaptured import (
    FIXED_SIZE,
    KEEP_SIZES_OPEN,
    depends_on_values,
    found_rank,
    in_plain_words,
    why_not_whole,
)
from togi.subject.behaviour import SavedBuffers
from togi.subject.conditions import size_of
from togi.subject.signature import Signature
from togi.torch_internals.constants import ConstantsComputed, small_tensors_kept
from togi.torch_internals.found_sizes import node_with_found_rank
from togi.torch_internals.modules import recurrent_weights_kept
from togi.torch_internals.script import holds_torchscript, operators_of
from togi.torch_internals.sizes import Decided, decided_sizes
from togi.verify.derived_inputs import Place

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from togi.graph.candidate import Candidate


class GraphModule(nn.Module):
    """A flat graph (tensors in, tuple of tensors out) that is called like the original. In eval mode."""

    def __init__(self, graph: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.training = False
        self.graph = graph
        self.signature = signature

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.signature.build_outputs(self.graph(*self.signature.flatten_inputs(args, kwargs)))


def export(candidate: Candidate) -> ExportedProgram:
    """The candidate's flat module as an exported program.

    ``view`` is ``reshape`` (the same on contiguous tensors), so that the graph also runs where an engine or a rewrite
    lays memory out otherwise, and ``detach_``, which follows each tensor that the forward pass makes of numbers, is
    ``detach``: it writes no value.

    Of one that was kept it is a copy, which shares its weights.

    Raises Refused with the first line of the reason where it cannot be captured.
    """
    if _kept and _kept[0][0].module is candidate.module and _kept[0][0].samples is candidate.samples:
        program = _kept[0][1]
        values = [*program.state_dict.values(), *program.constants.values()]
        return copy.deepcopy(program, {id(value): value for value in values})
    if reason := candidate.signature.opaque or why_not_whole(candidate):
        raise Refused(reason)
    try:
        program = _exported(candidate)
    except Exception as error:  # foreign code: anything a model's forward or the tracer may raise
        computed = _exported_with_constants(candidate) if depends_on_values(error) else None
        if computed is None:
            raise Refused(f"torch.export cannot capture it: {in_plain_words(error)}") from error
        program = computed
    opened(program.graph_module)
    inline_bodies(program, candidate.device.type)
    if fixed := _fixed_size(candidate.signature, program):
        raise Refused(f"torch.export cannot capture it: {FIXED_SIZE} ({fixed}). {KEEP_SIZES_OPEN}")
    if node := node_with_found_rank(program.graph):
        raise Refused(f"torch.export cannot capture it: {found_rank(node)}")
    _met_by_samples(candidate, _decided_sizes(candidate, program).firm)
    if candidate.facts.buffers_change:
        _check_buffers(candidate, program)
    settle_sizes(program.graph)
    put_plainly(program.graph_module)
    return program


def _exported(candidate: Candidate) -> ExportedProgram:
    """Raises whatever the module or the tracer raises."""
    flat: nn.Module = _sealed(candidate).flat()
    inputs = _distinct_sizes(candidate)
    with torch.no_grad(), recurrent_weights_kept(candidate.module), WholeRecurrentLayers():
        if holds_torchscript(candidate.module):
            flat = _operators(flat, inputs)
        return torch.export.export(flat, tuple(inputs), dynamic_shapes=_dynamic_shapes(candidate))


def _exported_with_constants(candidate: Candidate) -> ExportedProgram | None:
    """Where Python reads numbers that the module keeps in tensors, or that follow from these alone: they are the same
    in every call, and the graph holds them. None where it reads others."""
    changed = _changed_buffers(candidate) if candidate.facts.buffers_change else ()
    with small_tensors_kept(candidate.module, changed) as kept:
        if not kept:
            return None
        try:
            with ConstantsComputed(kept):
                return _exported(candidate)
        except Exception:  # foreign code; the reason is that of the first attempt
            return None


def held_for(candidate: Candidate, program: ExportedProgram) -> Signature:
    """The candidate's signature with the conditions on sizes under which the graph is what the module does.

    Raises Refused where a sample does not meet them, or does not lie in memory as the graph reads it.
    """
    names = {place: str(size) for place, size in _dynamic_sizes(candidate.signature, program).items()}
    held = sizes_held(candidate, _unlifted(program), _decided_sizes(candidate, program), names)
    signature = _met_by_samples(candidate, held)
    if not any(map(_reads_by_strides, graphs_in(program.graph_module))):
        return signature
    if not all(tensor.is_contiguous() for tensors in candidate.flat_samples() for tensor in tensors):
        raise Refused(
            "torch.export cannot capture it: it reads memory by strides (as_strided), and an input of its samples is "
            "not contiguous. Give .contiguous() of it"
        )
    return signature.of_contiguous()


def _reads_by_strides(graph_module: fx.GraphModule) -> bool:
    """Whether strides that the samples had are numbers in the graph."""
    aten = torch.ops.aten
    operators = (aten.as_strided.default, aten.as_strided_.default, aten.as_strided_copy.default)
    return any(graph_module.graph.find_nodes(op="call_function", target=operator) for operator in operators)


def _decided_sizes(candidate: Candidate, program: ExportedProgram) -> Decided:
    sizes = _dynamic_sizes(candidate.signature, program)
    decided = decided_sizes(program, {size_of(*place): size for place, size in sizes.items()})
    try:
        candidate.signature.under([*decided.firm, *decided.of_small])
    except ValueError as error:
        raise Refused(
            f"torch.export cannot capture it: it branches by sizes in a way that togi cannot state ({error})"
        ) from error
    return decided


def _met_by_samples(candidate: Candidate, conditions: list[str]) -> Signature:
    """The candidate's signature under them. One of the samples was followed."""
    signature = candidate.signature.under(conditions)
    for number, sample in enumerate(candidate.samples, start=1):
        if unmet := signature.unmet(sample):
            raise Refused(
                f"torch.export cannot capture it: by its sizes it computes something else for sample {number} than for "
                f"the largest, where {unmet[0]}. Tune each side as a subject of its own"
            )
    return signature


_kept: list[tuple[Candidate, ExportedProgram]] = []
"""One at most, of this process."""


def keep(candidate: Candidate) -> Candidate:
    """Export it now, for processes that are forked from this one: each of them would take seconds to do it.

    Returns it with the sizes for which that holds. Raises Refused as ``export`` does.
    """
    program = export(candidate)
    candidate = candidate.with_(signature=held_for(candidate, program))
    _kept[:] = [(candidate, program)]
    return candidate


def kept() -> Candidate | None:
    """A graph that was kept before this process was forked."""
    return _kept[0][0] if _kept else None


def _sealed(candidate: Candidate) -> Candidate:
    """The same; recurrent layers of a captured one as operators that tracing does not take apart."""
    captured = captured_graph(candidate.module)
    if captured is None or not (kinds := recurrent_layers(captured)):
        return candidate
    weights = [*captured.parameters(), *captured.buffers()]
    copied = copy.deepcopy(captured, {id(tensor): tensor for tensor in weights})
    sealed(copied, kinds)
    return candidate.with_(module=GraphModule(copied, candidate.signature))


def captured_graph(module: nn.Module) -> fx.GraphModule | None:
    """The graph of ``capture``, where the module was made of it."""
    graph = module.graph if isinstance(module, GraphModule) else None
    return graph if isinstance(graph, fx.GraphModule) else None


def _operators(flat: nn.Module, inputs: list[Tensor]) -> fx.GraphModule:
    """The operators as the interpreter of TorchScript inside runs them. The module is the user's: its buffers are put
    back."""
    buffers = SavedBuffers(flat)
    try:
        return operators_of(flat, inputs)
    finally:
        buffers.restore()


def _fixed_size(signature: Signature, program: ExportedProgram) -> str:
    """The first dimension that varies and that the graph has for one size only; empty where there is none."""
    for (index, dim), size in _dynamic_sizes(signature, program).items():
        if is_concrete_int(size):
            return f"dimension {dim} of {signature.inputs_facts[index].name}, to {size}"
    return ""


def _dynamic_sizes(signature: Signature, program: ExportedProgram) -> dict[Place, int | torch.SymInt]:
    """The sizes that the graph has for each."""
    given = set(program.graph_signature.user_inputs)
    inputs = [node for node in program.graph.find_nodes(op="placeholder") if node.name in given]
    return {(i, dim): inputs[i].meta["val"].shape[dim] for i, dim in signature.dynamic_dims}


def _check_buffers(candidate: Candidate, program: ExportedProgram) -> None:
    """torch.export keeps a buffer's update in place, but loses an assignment (``self.mean = ...``) inside a
    submodule."""
    from togi.graph.aliasing import MemorySharing

    written = {str(node.target) for node in MemorySharing(_unlifted(program).graph).written_attributes()}
    if lost := sorted(name for name in _changed_buffers(candidate) if f"module.{name}" not in written):
        raise Refused(
            f"torch.export loses the update of the buffer {lost[0]}, which the forward pass assigns: "
            f"write it in place (self.{lost[0]}.copy_(...)) to have it captured"
        )


def _changed_buffers(candidate: Candidate) -> list[str]:
    """Names of those that a call changes."""
    module, sample = candidate.copy(), candidate.samples[0].clone()
    buffers = SavedBuffers(module)
    with torch.no_grad(), torch.random.fork_rng([candidate.device] if candidate.device.type == "cuda" else []):
        module(*sample.args, **sample.kwargs)
    return buffers.changed()


def capture(candidate: Candidate) -> fx.GraphModule:
    """The candidate as a flat graph of ATen calls that the caller may edit: tensors in, a tuple of tensors out.

    Parameters and buffers lie on the root under flat names and share memory with the candidate's, except buffers that
    the forward pass writes: those are copies. Guards and input checks are left out (``Signature.check`` makes them).
    ``node.meta["val"]`` is a fake tensor with the node's shape and dtype.

    Raises Refused where the candidate cannot be captured.
    """
    if (captured := captured_graph(candidate.module)) is not None:
        return _plain(captured)
    return _plain(_unlifted(export(candidate)))


def _unlifted(program: ExportedProgram) -> fx.GraphModule:
    """The module with parameters as attributes. Before ``check_guards`` existed (and where it is ignored) guards are
    dropped later."""
    if "check_guards" in inspect.signature(program.module).parameters:
        return program.module(check_guards=False)
    return program.module()


def _plain(source: fx.GraphModule) -> fx.GraphModule:
    """A new graph module of the same calls: plain calling convention, flat attribute names, no guards."""
    from togi.graph.aliasing import MemorySharing

    written = {str(node.target) for node in MemorySharing(source.graph).written_attributes()}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    attributes: dict[str, Any] = {}
    names: dict[str, str] = {}
    for node in source.graph.nodes:
        if node.op == "call_module" or (node.op == "get_attr" and not node.users):
            continue  # the only modules are the guards that export adds
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].meta = {
            key: node.meta[key] for key in ("val", "stack_trace", "nn_module_stack") if key in node.meta
        }
        if node.op == "get_attr":
            name = names.setdefault(node.target, _flat_name(node.target, names.values()))
            attributes[name] = _shared(_attribute(source, node.target), node.target in written)
            copies[node].target = name
    module = fx.GraphModule(attributes, graph)
    module.training = False
    return module


def _flat_name(target: str, taken: Any) -> str:
    name = target.replace(".", "_")
    while name in taken or hasattr(nn.Module, name):
        name += "_"
    return name


def _attribute(module: nn.Module, target: str) -> Any:
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part)
    return value


def _shared(value: Any, written: bool) -> Any:
    """A tensor object of its own, so that nothing done to it reaches the user's module; memory is shared if only
    read."""
    if not isinstance(value, Tensor):
        return value
    tensor = value.detach().clone() if written else value.detach()
    return nn.Parameter(tensor, requires_grad=False) if isinstance(value, nn.Parameter) else tensor


def _distinct_sizes(candidate: Candidate) -> list[Tensor]:
    """The flat sample whose dynamic dimensions are largest: sizes 0 and 1 would be specialised."""
    dynamic = candidate.signature.dynamic_dims
    return max(candidate.flat_samples(), key=lambda tensors: [tensors[i].shape[dim] for i, dim in dynamic])


def _dynamic_shapes(candidate: Candidate) -> Any:
    """The shapes for ``FlatModule.forward(*tensors)``: relations between dimensions are left to the tracer
    (Dim.AUTO)."""
    if not candidate.signature.dynamic:
        return None
    auto = torch.export.Dim.AUTO
    shapes = [
        {dim: auto for dim, size in enumerate(facts.shape) if size is None}
        for facts in candidate.signature.inputs_facts
    ]
    return (tuple(shapes),)
