"""A captured graph under edit: arguments by name, constants by value, insertion and removal of calls.

Used by all rewrites. The meaning of calls as linear algebra is in ``linear``, memory that they share in ``aliasing``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.fx import Node

from togi.graph.aliasing import MemorySharing
from togi.graph.capture import GraphModule, capture
from togi.torch_internals.modules import own_buffers, own_parameters
from togi.torch_internals.operators import OpOverload, bound_arguments, schema_of

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate


def call_name(node: Any) -> str:
    """``"add.Tensor"`` for a call of ``aten.add.Tensor``; empty for anything else than an ATen call."""
    if not isinstance(node, Node) or not isinstance(node.target, OpOverload):
        return ""
    return str(node.target).removeprefix("aten.")


def is_call(node: Any, *names: str) -> bool:
    """True if ``node`` calls one of these ATen operations: ``is_call(node, "add.Tensor", "add_.Tensor")``."""
    return call_name(node) in names if names else False


def in_place(node: Node) -> bool:
    """True if it is an ATen call that writes into one of its arguments."""
    return bool(call_name(node)) and schema_of(node.target).is_mutable


def arguments(node: Node) -> dict[str, Any]:
    """All arguments of an ATen call by schema name, defaults filled in, in schema order."""
    return bound_arguments(node.target, node.args, node.kwargs)


def set_arguments(node: Node, values: Mapping[str, Any]) -> None:
    """Give the call these arguments; ``values`` must name all of them."""
    schema = schema_of(node.target).arguments
    node.args = tuple(values[a.name] for a in schema if not a.kwarg_only)
    node.kwargs = {a.name: values[a.name] for a in schema if a.kwarg_only}


def value(node: Any) -> Tensor | None:
    """The fake tensor with the node's shape, strides and dtype, or None where it is not one tensor."""
    val = node.meta.get("val") if isinstance(node, Node) else None
    return val if isinstance(val, Tensor) else None


def shape(node: Any) -> tuple[Any, ...]:
    """Sizes of a tensor node; dynamic ones are symbols. Empty where it is not a tensor."""
    tensor = value(node)
    return tuple(tensor.shape) if tensor is not None else ()


def same_form(one: Any, other: Any) -> bool:
    """True if both are tensors of the same shape and dtype. Symbols are compared by name: asking for equality would set
    a guard."""
    a, b = value(one), value(other)
    return a is not None and b is not None and a.dtype == b.dtype and str(tuple(a.shape)) == str(tuple(b.shape))


def held_as(node: Node) -> Any:
    """By what a key of ``shared_constant`` knows the tensor of ``node``: the name of an attribute, which all who read
    it share; else the very call that computes it, since its operator is the same for others."""
    return node.target if node.op in ("get_attr", "placeholder") else node


OF_FORM = frozenset(("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"))
"""Operations that ask a tensor for its shape, dtype and device alone."""
DROPOUTS = tuple(
    f"{kind}dropout{place}.default" for kind in ("", "alpha_", "feature_", "feature_alpha_") for place in ("", "_")
)


class EditableGraph:
    """A graph that is being edited. Its calls may be changed freely, its tensors never.

    Args:
        module: from ``capture``; the caller owns it.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.graph: fx.Graph = module.graph
        self._constants: dict[Node, Tensor | None] = {}
        self._inserted: dict[Any, str] = {}
        self._memory: MemorySharing | None = None
        self.idle_removed = self._remove_idle_dropouts() + self._remove_form_assertions()
        """Dropout that is off returns its very argument, and the form of what a captured call makes is known; either
        would stand between calls that belong together."""
        self._written = {node for node in self.nodes if self.memory.writers(node)}

    @classmethod
    def of(cls, candidate: Candidate) -> EditableGraph:
        """Raises Refused where the candidate cannot be captured."""
        return cls(capture(candidate))

    def _remove_idle_dropouts(self) -> int:
        idle = [
            n for n in self.nodes if is_call(n, *DROPOUTS) and (not arguments(n)["train"] or arguments(n)["p"] == 0)
        ]
        for node in idle:
            self.replace(node, node.all_input_nodes[0])
        return len(idle)

    def _remove_form_assertions(self) -> int:
        """Casts leave them next to them, as if something else used the value."""
        assertions = [node for node in self.nodes if is_call(node, "_assert_tensor_metadata.default")]
        for node in assertions:
            self.erase(node)
        return len(assertions)

    @property
    def nodes(self) -> list[Node]:
        """A snapshot, safe to iterate over while editing."""
        return list(self.graph.nodes)

    @property
    def output(self) -> Node:
        return next(node for node in reversed(self.nodes) if node.op == "output")

    @property
    def memory(self) -> MemorySharing:
        """Who shares and writes memory, as the graph is now."""
        if self._memory is None:
            self._memory = MemorySharing(self.graph)
        return self._memory

    def attribute(self, node: Node) -> Any:
        return getattr(self.module, str(node.target))

    def constant(self, node: Any) -> Tensor | None:
        """The tensor a node always holds: a parameter, a buffer nobody writes, or what is computed from such, from
        numbers, or from the fixed form of a tensor. Else None."""
        if not isinstance(node, Node):
            return None
        if node not in self._constants:
            self._constants[node] = None  # what is under evaluation, or cannot be evaluated
            self._constants[node] = self._evaluate(node)
        return self._constants[node]

    def _evaluate(self, node: Node) -> Tensor | None:
        if node in self._written:
            return None
        if node.op == "get_attr":
            result = self.attribute(node)
            return result.detach() if isinstance(result, Tensor) else None
        if not pure(node) or "empty" in call_name(node):
            return None
        known = self._of_form if call_name(node).partition(".")[0] in OF_FORM else self.constant
        if any(known(source) is None for source in node.all_input_nodes):
            return None
        args, kwargs = fx.map_arg((node.args, node.kwargs), known)
        with torch.no_grad():
            result = node.target(*args, **kwargs)  # type: ignore[operator]
        return result if isinstance(result, Tensor) else None

    @staticmethod
    def _of_form(node: Node) -> Tensor | None:
        """Some tensor of the node's form, where no dimension of it is dynamic."""
        form = value(node)
        if form is None or not all(type(size) is int for size in form.shape):
            return None
        return torch.empty_strided(form.shape, form.stride(), dtype=form.dtype, device=form.device)

    def insert_constant(self, tensor: Tensor, name: str, before: Node) -> Node:
        """A new parameter (no gradient) named after ``name``, read just before ``before``."""
        unique = name
        while hasattr(self.module, unique):
            unique += "_"
        self.module.register_parameter(unique, nn.Parameter(tensor.detach(), requires_grad=False))
        return self._read(unique, before)

    def shared_constant(self, key: Any, make: Callable[[], Tensor], name: str, before: Node) -> Node:
        """Like ``insert_constant``, but one tensor for all requests with the same ``key`` (weights that are shared)."""
        if key in self._inserted:
            return self._read(self._inserted[key], before)
        node = self.insert_constant(make(), name, before)
        self._inserted[key] = str(node.target)
        return node

    def _read(self, name: str, before: Node) -> Node:
        with self.graph.inserting_before(before):
            node = self.graph.create_node("get_attr", name)
        self._memory = None
        node.meta["val"] = self.fake(getattr(self.module, name))
        return node

    def fake(self, tensor: Tensor) -> Any:
        """A fake tensor of the graph's own mode."""
        mode = next((mode for v in map(value, self.graph.nodes) if (mode := getattr(v, "fake_mode", None))), None)
        return mode.from_tensor(tensor, static_shapes=True) if mode is not None else tensor.to("meta")

    def call(self, target: Any, args: tuple[Any, ...], before: Node, like: Node | None = None) -> Node:
        """A new call before ``before``; its ``val`` is that of ``like``."""
        with self.graph.inserting_before(before):
            node = self.graph.call_function(target, args)
        self._memory = None
        if like is not None:
            node.meta = dict(like.meta)
        return node

    def call_with(self, target: Any, given: Mapping[str, Any], before: Node) -> Node:
        """A new call with these arguments by schema name, the others' defaults filled in; its ``val`` is computed."""
        node = self.call(target, (), before)
        set_arguments(node, bound_arguments(target, (), given))
        self.propagate([node])
        return node

    def replace(self, node: Node, other: Node) -> None:
        """``other`` takes the place of ``node``, which goes."""
        node.replace_all_uses_with(other)
        self.erase(node)

    def replace_if_laid_out_alike(self, node: Node, made: Sequence[Node]) -> bool:
        """The last of the calls ``made`` takes the place of ``node``; all of them go if it lays its result out
        otherwise. Whether it could."""
        if str(made[-1].meta["val"].stride()) != str(node.meta["val"].stride()):
            for call in reversed(made):
                self.erase(call)
            return False
        self.replace(node, made[-1])
        return True

    def erase(self, node: Node) -> None:
        """Remove a call that has no users."""
        self.graph.erase_node(node)
        self._memory = None

    def propagate(self, nodes: Iterable[Node]) -> None:
        """Compute the ``val`` of these calls again, in the order given, after edits that changed their shapes."""
        for node in nodes:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            with torch.no_grad():
                node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]

    def remove_unused(self) -> int:
        """Remove calls whose result nobody uses and that neither write nor draw random numbers. Returns how many."""
        removed = 0
        for node in reversed(self.nodes):
            if not node.users and (node.op == "get_attr" or pure(node) or self._writes_unseen(node)):
                removed += node.op != "get_attr"
                self.erase(node)
        return removed

    def _writes_unseen(self, node: Node) -> bool:
        written = self.memory.written_by(node) if isinstance(node.target, OpOverload) else []
        return bool(written) and not _random(node.target) and all(self.memory.private(target) for target in written)

    def candidate(self, candidate: Candidate) -> Candidate:
        """The next candidate: ``candidate`` running this graph. The graph must not be edited afterwards."""
        self.remove_unused()
        self.graph.lint()
        self.module.recompile()
        self.module.delete_all_unused_submodules()
        used = {node.target for node in self.graph.nodes if node.op == "get_attr"}
        for name in [*own_parameters(self.module), *own_buffers(self.module)]:
            if name not in used:
                delattr(self.module, name)
        return candidate.with_(module=GraphModule(self.module, candidate.signature))


_ARITHMETIC = frozenset(
    {operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.getitem, operator.neg}
)


def pure(node: Node) -> bool:
    """Its only effect is its result: removing it when unused, or computing it beforehand, changes nothing."""
    if node.op != "call_function":
        return False
    target = node.target
    if not isinstance(target, OpOverload):
        return target in _ARITHMETIC
    return not schema_of(target).is_mutable and not _random(target) and bool(schema_of(target).returns)


def _random(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in target.tags
