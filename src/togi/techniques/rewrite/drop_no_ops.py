"""The technique ``drop_no_ops``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from togi.core.records import Facts
from togi.techniques.base import FOLDS_CONSTANTS, Applies, GraphRewrite, Options, Refuses

if TYPE_CHECKING:
    from torch.fx import Node

    from togi.graph.edit import EditableGraph


class DropNoOps(GraphRewrite):
    """Remove calls that do nothing at inference.

    What it does: in the captured graph it removes dropout (it was captured in eval mode), casts to the dtype a tensor
    has, views to the shape it has, full slices, and transposes that undo each other. It also removes copies nobody can
    tell from the original, ``x + 0``, ``x * 1``, assertions, and results nobody uses.

    When it applies: the forward pass calls more than a few functions.

    When it refuses: the graph holds nothing of the kind, or an engine does the same when it loads the model.

    Claim: saves the dispatch of each call, and one pass over the tensor for copies and arithmetic.
    ``togi explain drop_no_ops --prove`` measures it here.

    Source: https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/export/ir_spec.html (what is captured);
    the operators' own definitions.

    Cost and risk: exact, to the bit except that ``-0.0 + 0`` is ``0.0`` and now stays ``-0.0``. A copy is kept where
    memory would become shared that is written in place or returned. Assertions on sizes are gone: inputs that the
    original would reject may go through.
    """

    id = "drop_no_ops"
    rank = 0
    conflicts = frozenset({FOLDS_CONSTANTS})
    speedup = 1.01
    nothing_to_do = "every call in the graph does something"

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.functions and sum(facts.functions.values()) < 2:
            return Refuses("one call has nothing to spare")
        return Applies()

    def edit(self, graph: EditableGraph, options: Options) -> str:
        dropped = graph.idle_removed + sum(_drop(graph, node) for node in graph.nodes) + graph.remove_unused()
        return f"dropped {dropped} calls without effect" if dropped else ""


def _drop(graph: EditableGraph, node: Node) -> bool:
    from togi.graph.edit import is_call

    if is_call(node, *ASSERTIONS) and not node.users:
        graph.erase(node)
        return True
    source = _unchanged_source(node)
    if source is None or not _indistinguishable(graph, node, source):
        return False
    graph.replace(node, source)
    return True


ASSERTIONS = (
    "_assert_async.msg",
    "_assert_scalar.default",
    "sym_constrain_range_for_size.default",
    "sym_constrain_range.default",
)
SAME_MEMORY = frozenset(
    [
        "to.dtype",
        "to.device",
        "to.dtype_layout",
        "to.other",
        "contiguous.default",
        "view.default",
        "reshape.default",
        "flatten.using_ints",
        "expand.default",
        "slice.Tensor",
        "permute.default",
        "alias.default",
        "detach.default",
        "squeeze.dim",
        "unsqueeze.default",
        "transpose.int",
        "view_as.default",
        "reshape_as.default",
        "expand_as.default",
        "type_as.default",
        "positive.default",
    ]
)
"""Where shape and dtype stay the same these return what they are given, or a view of it."""
COPIES = frozenset(["clone.default", "_to_copy.default", "lift_fresh_copy.default"])
NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1, "pow": 1}


def _unchanged_source(node: Node) -> Node | None:
    """The argument (or its argument) that the call returns unchanged, or None."""
    from togi.graph.edit import call_name, same_form

    name = call_name(node)
    if not name or not node.args:
        return None
    source: Any = node.args[0]
    undone = _undone(node, name)
    if undone is not None:
        return undone
    if not same_form(node, source) or not _same_strides(node, source):
        return None
    if name in SAME_MEMORY:
        return source if _moves_nothing(node, name) else None
    return source if name in COPIES or _neutral(node, name) else None


def _moves_nothing(node: Node, name: str) -> bool:
    """Same shape and strides can still hide a change of values: a transposed square, a step, a forced copy or
    device."""
    from togi.graph.edit import arguments, shape

    given = arguments(node)
    if name == "permute.default":
        return [dim % len(given["dims"]) for dim in given["dims"]] == list(range(len(given["dims"])))
    if name == "transpose.int":
        rank = len(shape(node))
        return bool(given["dim0"] % rank == given["dim1"] % rank)
    if name == "slice.Tensor":
        return given["start"] in (0, None) and given["step"] == 1
    source: Any = node.args[0]
    return not given.get("copy", False) and bool(node.meta["val"].device == source.meta["val"].device)


def _same_strides(node: Node, source: Any) -> bool:
    return str(node.meta["val"].stride()) == str(source.meta["val"].stride())


def _undone(node: Node, name: str) -> Node | None:
    """The source of two transposes, permutes or squeeze and unsqueeze that undo each other."""
    from togi.graph.edit import arguments, is_call, shape

    inner: Any = node.args[0]
    if not is_call(inner, "transpose.int", "permute.default", "unsqueeze.default"):
        return None
    first, second, rank = arguments(inner), arguments(node), len(shape(inner))
    if name == "transpose.int" and is_call(inner, name):
        same = {first[k] % rank for k in ("dim0", "dim1")} == {second[k] % rank for k in ("dim0", "dim1")}
    elif name == "permute.default" and is_call(inner, name):
        same = [first["dims"][dim] % rank for dim in second["dims"]] == list(range(rank))
    else:
        same = (
            name == "squeeze.dim"
            and is_call(inner, "unsqueeze.default")
            and first["dim"] % rank == second["dim"] % rank
        )
    return first["self"] if same else None


def _neutral(node: Node, name: str) -> bool:
    """``x + 0``, ``x - 0``, ``x * 1``, ``x / 1``, ``x ** 1`` with a number, not a tensor."""
    from togi.graph.edit import arguments

    operation, _, kind = name.partition(".")
    if kind not in ("Tensor", "Scalar", "Tensor_Scalar"):
        return False
    given = arguments(node)
    number = given.get("exponent" if operation.startswith("pow") else "other")
    return type(number) in (int, float) and number == NEUTRAL.get(operation.rstrip("_"))


def _indistinguishable(graph: EditableGraph, node: Node, source: Node) -> bool:
    """Nobody can tell ``source`` from the call's result: in memory that is written, or in what is returned."""
    outputs = graph.output.all_input_nodes
    if node in outputs and (source in outputs or source.op != "call_function"):
        return False  # it would return an input, a parameter, or one object twice
    if graph.memory.share(node, source):
        return True
    if graph.memory.writers(node) or graph.memory.writers(source):
        return False
    returned = any(graph.memory.share(node, output) for output in outputs)
    lasting = any(root.op in ("placeholder", "get_attr") for root in graph.memory.roots[source])
    return not returned or not (lasting or any(graph.memory.share(source, output) for output in outputs))
