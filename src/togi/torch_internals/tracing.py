"""Reads of tensors by Python while ``torch.jit.trace`` records: a trace holds each answer as a constant.

An operator that runs while the tracer is at work, and not inside of an operator that it records, is not recorded. If
it answers with a number, Python has read something: the graph recorded until then tells whether it follows from the
values of inputs, or from weights and sizes alone.

Behind it: torch._C._get_tracing_state, torch._C._set_tracing_state, torch._C._get_value_trace,
torch._C._RestorePythonTLSSnapshot, torch._C._dispatch_tls_is_dispatch_key_excluded, and the nodes of torch._C.Graph
(torch 2.9 to 2.15). When they go: the tracer's warnings tell the line, and not whether values decide;
each line must then be refused.
"""

from __future__ import annotations

import linecache
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from togi.core.checks import only_raises
from togi.core.user_code import user_frames
from togi.torch_internals.found_sizes import FoundSizes, ShapeInWorlds
from togi.torch_internals.modes import DispatchObserver
from togi.torch_internals.operators import OpOverload, schema_of
from togi.torch_internals.tensors import tensors_of

_internals: Any = torch._C
"""Some of its functions have no types."""
_HANDED_ON = frozenset({"Int", "IntImplicit", "FloatImplicit", "ComplexImplicit", "ScalarImplicit"})
"""Nodes that turn a tensor into a number for an operator: the trace follows these."""
_OF_SHAPE = frozenset({"size", "numel", "dim", "len", "sym_size", "sym_numel"})
_NUMBERS, _LIST = frozenset({"IntType", "FloatType", "NumberType", "BoolType"}), "prim::ListConstruct"
_COPIED_OUT = ("tolist", "numpy", "__dlpack__", "__repr__")
"""Methods of a tensor that read its memory without an operator."""
_KEY = "Tracer"
_TRACER = str(sys.modules["torch.jit._trace"].__file__)
_DYNAMOS = re.compile(r"torch[/\\]_(dynamo[/\\]|compile\.py$)")
_CONVERTS = "Converting a tensor to a"
"""How the tracer's own warnings of a read begin."""


@dataclass(frozen=True)
class Read:
    """An answer that values decide, and that a trace holds as it was."""

    of: str
    """``a value``, ``a size``, ``the number of dimensions or results``."""
    operator: str
    """Whose result was read, or whose values decide the size that was."""
    place: str
    """``model.py:12 (`if found.numel() == 0:`)``; empty where no line of the user's led there."""

    def __str__(self) -> str:
        return f"{self.of} that {self.operator} decides{f', at {self.place}' if self.place else ''}"


class TraceReads(DispatchObserver):
    """Active round ``torch.jit.trace``, it collects what Python reads of values. A read that decides only whether the
    module raises is left out: a call that raises has no answer that could be wrong."""

    def __init__(self, module: nn.Module, *, buffers_change: bool = False) -> None:
        """
        Args:
            module: what is traced. Hooks on it tell when the trace begins and ends.
        """
        super().__init__()
        self.found: list[Read] = []
        self._buffers_change = buffers_change
        self._sizes = FoundSizes()
        self._graph: Any = None
        self._node: tuple[Any, str | None] = (None, None)
        self._of_nodes: dict[
            int, tuple[Any, list[ShapeInWorlds | None]]
        ] = {}  # the node is kept, since its id is the key
        self._inside: Read | None = None
        self._asked: list[tuple[Any, Read]] = []
        self._handed_on = Counter[int]()
        self._free = set[int]()
        """Values of the graph that are the same for all inputs."""
        self._lines = Counter[tuple[str, int]]()
        self._patches = ExitStack()
        self._module = module

    def __enter__(self) -> TraceReads:
        self._patches.callback(self._module.register_forward_pre_hook(self._begin).remove)
        self._patches.callback(self._module.register_forward_hook(self._end).remove)
        for name in _COPIED_OUT:
            self._patches.enter_context(patch.object(Tensor, name, self._noting(getattr(Tensor, name))))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patches.close()

    def unseen(self, warned: Sequence[warnings.WarningMessage]) -> list[Read]:
        """Reads that the tracer warned of and no operator showed: modes are off while a tensor is printed."""
        reads = (warning for warning in warned if str(warning.message).startswith(_CONVERTS))
        lines = Counter((read.filename, read.lineno) for read in reads if read.filename != __file__) - self._lines
        return [Read("a value", "an operator", _place(path, line)) for path, line in lines]

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        state = torch._C._get_tracing_state()
        if state is not None and _tracer_was_off():
            return operator(*args, **kwargs)
        if state is None:
            self._settle()
        elif _answers_python(operator):
            frame = _caller()
            self._lines[frame.f_code.co_filename, frame.f_lineno] += 1
            for tensor in tensors_of((args, kwargs)):
                self._ask(tensor, frame)
            return operator(*args, **kwargs)
        if state is not None and self._is_recorded(operator):
            results = operator(*args, **kwargs)
            self._sizes.hand_on(tensors_of((args, kwargs)), tensors_of(results))
            self._keep_sizes(self._graph.insertPoint().prev(), results)
            return results
        with _tracer_dispatched(state is not None):  # a convolution is recorded as what it calls
            results = operator(*args, **kwargs)
        if self._graph is not None:
            with _untraced(state):
                self._follow(operator, args, kwargs, results)
        return results

    def _is_recorded(self, operator: Any) -> bool:
        """Whether a kernel of the tracer's own has recorded it just now: ``detach``, ``copy_``, whose results have the
        shape of what they are given."""
        return self._graph is not None and bool(self._graph.insertPoint().prev().kind() == _name(operator))

    def _begin(self, *_: Any) -> None:
        if (state := torch._C._get_tracing_state()) is not None:
            self._graph = state.graph()

    def _end(self, *_: Any) -> None:
        """Still inside of the trace: its nodes are gone after it."""
        self._settle()
        self._settle_node()
        self._graph = None

    def _noting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if torch._C._get_tracing_state() is not None:
                self._ask(tensor, sys._getframe(1))
            return method(tensor, *args, **kwargs)

        return noted

    def _ask(self, tensor: Tensor, frame: FrameType) -> None:
        """Python asks what a tensor holds. The tracer notes that a number goes on to the next operator just before it
        reads it, or just after (bounds of a slice)."""
        if tensor.requires_grad:
            return  # a parameter: under no_grad nothing that was computed does
        value = _internals._get_value_trace(tensor)
        if not self._was_handed_on(value) and (decided := self._decided_by(value)) and not only_raises(frame, _TRACER):
            self._asked.append((value, _read(frame, *decided)))

    def _settle(self) -> None:
        """The next operator is being recorded: what it was not handed was read."""
        pending, self._asked = self._asked, []
        self.found += [read for value, read in pending if not self._was_handed_on(value)]

    def _was_handed_on(self, value: Any) -> bool:
        """Return whether an operator was handed the number: once for each time that it was asked for."""
        uses = sum(use.user.kind().removeprefix("aten::") in _HANDED_ON for use in value.uses())
        handed_on = uses > self._handed_on[value.unique()]
        self._handed_on[value.unique()] += handed_on
        return handed_on

    def _follow(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any], results: Any) -> None:
        """Note the sizes that values decide."""
        node = self._graph.insertPoint().prev()  # it was recorded before it ran
        if node is not self._node[0]:
            self._settle_node()
            self._node = node, self._decides_a_number_of(node)
        decided = self._sizes.follow(operator, args, kwargs, results, self._node[1])
        if decided is not None:
            self._inside = _read(_caller(), "the number of dimensions or results", decided)
        self._keep_sizes(node, results)

    def _keep_sizes(self, node: Any, results: Any) -> None:
        self._of_nodes[id(node)] = node, [self._sizes.of(tensor) for tensor in tensors_of(results)]

    def _settle_node(self) -> None:
        """Another node is recorded. What differed inside of the last one matters where its results differ."""
        inside, self._inside = self._inside, None
        if inside is None:
            return
        node, sizes = self._of_nodes[id(self._node[0])]
        listed = any(value.type().kind() == "ListType" for value in node.outputs())
        if listed or any(shape is not None and shape.rank_varies for shape in sizes):
            self.found.append(inside)

    def _decides_a_number_of(self, node: Any) -> str | None:
        """The operator whose values decide a number that a node is given."""
        if node.kind().startswith("prim::"):
            return None
        values = list(node.inputs())
        values += [inside for value in values if value.node().kind() == _LIST for inside in value.node().inputs()]
        numbers = (value for value in values if value.type().kind() in _NUMBERS)
        decided = (self._decided_by(number) for number in numbers if number.node().kind() != "prim::Constant")
        return next((operator for _, operator in filter(None, decided)), None)

    def _decided_by(self, value: Any) -> tuple[str, str] | None:
        """Whether it is a value or a size that decides a number in the graph, and the operator it comes from. None:
        the number is the same for all values of inputs."""
        first, visited, pending = value.node().kind(), set[int](), [value]
        while pending:
            value = pending.pop()
            if value.unique() in visited or value.unique() in self._free:
                continue
            visited.add(value.unique())
            node = value.node()
            inputs = list(node.inputs())
            if _asks_for_shape(node.kind()):
                sizes, inputs = self._sizes_of(inputs[0]), inputs[1:]
                dim = inputs[0].toIValue() if node.kind() == "aten::size" and inputs else None
                if sizes is not None and sizes.varies(dim):
                    return "a size", sizes.origin
            elif self._varies(node, value):
                return "a value", "the input" if first == "prim::Param" else first
            pending.extend(inputs)
        self._free |= visited
        return None

    def _varies(self, node: Any, value: Any) -> bool:
        """Return whether another call may bring another value."""
        if node.kind() == "prim::Param":
            return bool(value.type().kind() == "TensorType")
        if node.kind() in ("prim::TracedAttr", "prim::GetAttr"):
            return self._buffers_change
        return bool(node.kind().startswith("aten::") and node.isNondeterministic())

    def _sizes_of(self, value: Any) -> ShapeInWorlds | None:
        node, i = value.node(), value.offset()
        while node.kind() in ("prim::ListUnpack", "prim::TupleUnpack"):
            node = node.input().node()
        _, sizes = self._of_nodes.get(id(node), (None, []))
        return sizes[i] if i < len(sizes) else next(filter(None, sizes), None)


def _asks_for_shape(kind: str) -> bool:
    name = kind.removeprefix("aten::")
    return kind != name and (name in _OF_SHAPE or name.endswith("_like") or name.startswith("new_"))


def _answers_python(operator: Any) -> bool:
    """Return whether it gives a number that follows from what tensors hold."""
    if not isinstance(operator, OpOverload):
        return False
    schema = schema_of(operator)
    if not schema.returns or any("Tensor" in str(result.type) for result in schema.returns):
        return False
    return torch.Tag.data_dependent_output in operator.tags or not schema.name.startswith(("aten::", "prim"))


def _name(operator: Any) -> str:
    return schema_of(operator).name if isinstance(operator, OpOverload) else str(operator)


def _caller() -> FrameType:
    """Find what called the operator that is being observed, without the wrapper that keeps Dynamo out."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    frame = None if frame is None else frame.f_back
    while frame is not None and _DYNAMOS.search(frame.f_code.co_filename):
        frame = frame.f_back
    return frame or sys._getframe(1)


def _read(frame: FrameType | None, of: str, operator: str) -> Read:
    """A read at the innermost line of the user's, or of a package's that uses torch."""
    users = next(user_frames(frame), None)
    place = "" if users is None else _place(users.f_code.co_filename, users.f_lineno)
    return Read(of, operator.replace("aten::", "").replace("aten.", ""), place)


def _place(path: str, line: int) -> str:
    code = linecache.getline(path, line).strip()
    return f"{path}:{line}" + (f" (`{code}`)" if code else "")


def _tracer_was_off() -> bool:
    """Whether the operator that is being observed would not have been recorded: torch makes a tensor of a list with the
    tracer off, so that the trace holds a constant. For observers the tracer is off in any case."""
    with _internals._RestorePythonTLSSnapshot():
        return bool(_internals._dispatch_tls_is_dispatch_key_excluded(_KEY))


@contextmanager
def _tracer_dispatched(wanted: bool) -> Iterator[None]:
    """Inside, operators reach the tracer, which an observer of operators keeps them from."""
    if wanted:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, False)
    try:
        yield
    finally:
        if wanted:
            torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, True)


@contextmanager
def _untraced(state: Any) -> Iterator[None]:
    """Inside, nothing is recorded, sizes neither. Nothing is where the tracer has no state: inside of an operator."""
    with _tracer_dispatched(state is not None):
        if state is not None:
            _internals._set_tracing_state(None)
        try:
            yield
        finally:
            if state is not None:
                _internals._set_tracing_state(state)
