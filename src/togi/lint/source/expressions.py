"""Abstract interpretation of one scope: expressions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from togi.lint.source import torch_api
from togi.lint.source.guess import guessed
from togi.lint.source.join import Environment, element_of, join, join_all
from togi.lint.source.narrowing import key, narrow
from togi.lint.source.pairwise import is_pairwise
from togi.lint.source.tree import FUNCTIONS, Scope
from togi.lint.source.value import UNKNOWN, Kind, Value

if TYPE_CHECKING:
    from togi.lint.source.flow import Flow

NUMBER = Value(Kind.NUMBER)
STRING = Value(Kind.STRING)
NONE = Value(Kind.NONE)
ARRAY = Value(Kind.NDARRAY)
_BITWISE = (ast.BitAnd, ast.BitOr, ast.BitXor)


class Expressions:
    """Evaluates expressions in ``self.env`` and records what every one of them is."""

    def __init__(self, flow: Flow, scope: Scope) -> None:
        self.flow = flow
        self.scope = scope
        self.values = flow.values
        self.env: Environment = {}
        self.alive = True
        self.grad = True
        """Whether autograd records here."""
        self.dotted: set[str] = set()
        """Names of which ``env`` keeps attributes."""
        self.breaks: list[Environment | None] = []
        self.continues: list[Environment | None] = []
        self.returned: list[Value] = []
        self.yielded: list[Value] = []

    def qualified(self, node: ast.AST) -> str | None:
        return self.flow.names.qualified(node, self.scope)

    def ev(self, node: ast.expr) -> Value:
        """The value of ``node`` here and now."""
        handler = self._expressions.get(type(node))
        value = handler(self, node) if handler is not None else UNKNOWN
        self.values[node] = value
        return value

    def read(self, target: ast.expr) -> Value:
        """The value of an assignment's target before the assignment."""
        if isinstance(target, ast.Name):
            return self.name(target)
        if isinstance(target, ast.Attribute):
            return self.attribute(target)
        if isinstance(target, ast.Subscript):
            return self.subscript(target)
        return UNKNOWN

    # Names and attributes

    def constant(self, node: ast.Constant) -> Value:
        value = node.value
        if value is None:
            return NONE
        if isinstance(value, str):
            base = value.partition(":")[0]
            device = "cpu" if base == "cpu" else "cuda" if base in ("cuda", "mps", "xpu", "npu", "hpu") else None
            return Value(Kind.STRING, constant=value, device=device)
        if isinstance(value, int | float | complex):
            return Value(Kind.NUMBER, constant=value)
        return STRING if isinstance(value, bytes) else UNKNOWN

    def name(self, node: ast.Name) -> Value:
        found = self.env.get(node.id)
        if found is not None:
            return found
        holder = self.flow.names.holder(node.id, self.scope)
        if holder is None:
            return Value(Kind.FUNCTION, qualified=node.id) if node.id in torch_api.BUILTINS else guessed(node.id)
        imported = self.flow.names.imported(node.id, self.scope)
        if imported is not None:
            return self.named(imported)
        if holder is self.scope and isinstance(holder.node, FUNCTIONS):
            return UNKNOWN
        return self.flow.outer(holder, node.id)

    def named(self, name: str) -> Value:
        """What the imported ``name`` is."""
        package, _, last = name.rpartition(".")
        if package == "torch" and last in torch_api.DTYPES:
            return Value(Kind.DTYPE, dtype=torch_api.DTYPE_NAMES.get(last, last))
        if package == "numpy" and last in ("pi", "e", "inf", "nan", "newaxis", "euler_gamma"):
            return NUMBER if last != "newaxis" else NONE
        if package == "math" and last in ("pi", "e", "inf", "nan", "tau"):
            return NUMBER
        return Value(Kind.CLASS if last[:1].isupper() else Kind.FUNCTION, qualified=name)

    def attribute(self, node: ast.Attribute) -> Value:
        name = self.qualified(node)
        if name is not None:
            return self.named(name)
        dotted = key(node)
        if dotted is not None and dotted in self.env:
            self.ev(node.value)
            return self.env[dotted]
        return self.attribute_of(self.ev(node.value), node)

    def attribute_of(self, base: Value, node: ast.Attribute) -> Value:
        attr = node.attr
        if base.kind is Kind.TENSOR:
            return self._of_tensor(base, attr, node)
        if isinstance(base.definition, ast.ClassDef) and base.kind in (Kind.MODULE, Kind.UNKNOWN):
            found = self.flow.attribute(base.definition, attr)
            if found.kind is not Kind.UNKNOWN or found.definition is not None:
                return found
        if base.kind is Kind.MODULE:
            return self._of_module(base, attr)
        if base.kind is Kind.NDARRAY:
            return ARRAY if attr in ("T", "real", "imag", "flat") else NUMBER
        if base.kind is Kind.UNKNOWN:
            if attr in ("shape", "ndim"):
                return Value(Kind.SHAPE if attr == "shape" else Kind.NUMBER)
            if attr in torch_api.TORCH_ONLY and isinstance(self.flow.tree.parents.get(node), ast.Call):
                return UNKNOWN
            return guessed(attr)
        if base.kind is Kind.DEVICE:
            return STRING if attr == "type" else NUMBER
        if base.kind is Kind.DATALOADER and attr == "dataset":
            return Value(Kind.DATASET)
        return UNKNOWN

    def _of_tensor(self, base: Value, attr: str, node: ast.Attribute) -> Value:
        if attr == "shape":
            return Value(Kind.SHAPE)
        if attr in torch_api.NUMBER_PROPERTIES:
            return NUMBER
        if attr == "device":
            return Value(Kind.DEVICE, device=base.device)
        if attr == "dtype":
            return Value(Kind.DTYPE, dtype=base.dtype)
        if attr in torch_api.TENSOR_PROPERTIES:
            graph = False if attr in ("data", "grad") else base.graph
            return base.but(graph=graph, call=None, origin=node, note="", cause=base)
        if base.certain or attr in torch_api.OTHER_PROPERTIES:
            return UNKNOWN
        held = attr in ("loss", "logits", "last_hidden_state", "pooler_output")
        return (
            base.but(call=None, origin=node, certain=attr in ("loss", "logits"), scalar=attr == "loss", cause=base)
            if (held or base.batch)
            else UNKNOWN
        )

    def _of_module(self, base: Value, attr: str) -> Value:
        if attr in ("weight", "bias", "running_mean", "running_var", "in_proj_weight"):
            return Value(Kind.TENSOR, device=base.device, certain=False)
        if attr == "training":
            return NUMBER
        if attr == "device":
            return Value(Kind.DEVICE, device=base.device)
        if attr == "dtype":
            return Value(Kind.DTYPE)
        if attr == "module" and base.definition is None:
            return base
        if attr in torch_api.CONTAINER_ATTRIBUTES and base.definition is None:
            return UNKNOWN
        return guessed(attr)

    def subscript(self, node: ast.Subscript) -> Value:
        base, index = self.ev(node.value), self.ev(node.slice)
        if base.kind is Kind.TENSOR:
            if index.kind is Kind.STRING and base.certain:
                return UNKNOWN
            large = base.large and not isinstance(node.slice, ast.Constant)
            return base.but(call=None, scalar=False, large=large, origin=node, note="", cause=base)
        if base.kind is Kind.TUPLE and base.items is not None:
            return self._of_tuple(base.items, node.slice, index)
        if base.kind in (Kind.LIST, Kind.TUPLE):
            return base if isinstance(node.slice, ast.Slice) else element_of(base)
        if base.kind is Kind.DICT:
            return base.element or UNKNOWN
        if base.kind is Kind.SHAPE:
            return base if isinstance(node.slice, ast.Slice) else NUMBER
        if base.kind in (Kind.NDARRAY, Kind.STRING):
            return base.but(constant=None)
        if base.kind is Kind.MODULE and base.definition is None:
            return Value(Kind.MODULE, device=base.device)
        return UNKNOWN

    def _of_tuple(self, items: tuple[Value, ...], node: ast.expr, index: Value) -> Value:
        try:
            at = ast.literal_eval(node) if not isinstance(node, ast.Slice) else None
        except (ValueError, TypeError, SyntaxError):
            at = None
        if isinstance(at, int) and -len(items) <= at < len(items):
            return items[at]
        joined = join_all(items)
        return Value(Kind.LIST, element=joined) if isinstance(node, ast.Slice) else joined

    def slice(self, node: ast.Slice) -> Value:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.ev(part)
        return UNKNOWN

    # Operators

    def binary(self, node: ast.BinOp) -> Value:
        return self.operation(node, node.op, self.ev(node.left), self.ev(node.right), node.left, node.right)

    def operation(
        self, node: ast.AST, op: ast.operator, one: Value, other: Value, left: ast.expr, right: ast.expr
    ) -> Value:
        kinds = {one.kind, other.kind}
        if Kind.TENSOR in kinds:
            return self._of_tensors(node, op, one, other, left, right)
        if one.kind is Kind.STRING:
            return STRING if isinstance(op, ast.Mod | ast.Add | ast.Mult) else UNKNOWN
        if Kind.NDARRAY in kinds:
            return ARRAY
        if kinds == {Kind.NUMBER}:
            return NUMBER
        if one.kind in (Kind.LIST, Kind.TUPLE):
            if isinstance(op, ast.Add) and other.kind in (Kind.LIST, Kind.TUPLE):
                return self._concatenation(one, other)
            return Value(Kind.LIST, element=element_of(one)) if isinstance(op, ast.Mult) else UNKNOWN
        return UNKNOWN

    def _concatenation(self, one: Value, other: Value) -> Value:
        if one.items is not None and other.items is not None:
            return Value(Kind.TUPLE, items=one.items + other.items)
        elements = [element_of(value) for value in (one, other) if value.items or value.element]
        return Value(Kind.LIST, element=join_all(elements) if elements else None)

    def _of_tensors(
        self, node: ast.AST, op: ast.operator, one: Value, other: Value, left: ast.expr, right: ast.expr
    ) -> Value:
        if Kind.STRING in (one.kind, other.kind) or Kind.NONE in (one.kind, other.kind):
            return UNKNOWN
        tensors = [value for value in (one, other) if value.kind is Kind.TENSOR]
        main = tensors[0]
        both = len(tensors) == 2
        boolean = isinstance(op, _BITWISE) and any(value.dtype == "bool" for value in tensors)
        same = main.dtype if both and one.dtype == other.dtype and main.dtype != "bool" else None
        return Value(
            Kind.TENSOR,
            device=common_device(tensors),
            dtype="bool" if boolean else same,
            graph=self.recorded(tensors),
            certain=main.certain or tensors[-1].certain,
            large=(any(value.large for value in tensors) and not isinstance(op, ast.MatMult))
            or (both and is_pairwise(left, right)),
            scalar=all(value.scalar for value in tensors),
            origin=node,
            cause=main,
        )

    def recorded(self, operands: Sequence[Value]) -> bool | None:
        """Whether autograd's graph hangs on a result computed from ``operands``."""
        if not self.grad:
            return False
        graphs = [value.graph for value in operands]
        if True in graphs:
            return True
        return False if graphs and all(graph is False for graph in graphs) else None

    def unary(self, node: ast.UnaryOp) -> Value:
        value = self.ev(node.operand)
        if isinstance(node.op, ast.Not):
            return NUMBER
        if value.kind is Kind.TENSOR:
            return value.but(call=None, origin=node, note="", cause=value)
        if value.kind is Kind.NUMBER:
            negative = isinstance(node.op, ast.USub) and value.constant is not None
            return Value(Kind.NUMBER, constant=-value.constant) if negative else NUMBER
        return value if value.kind is Kind.NDARRAY else UNKNOWN

    def boolean(self, node: ast.BoolOp) -> Value:
        before, values = self.env, []
        self.env = dict(before)
        for one in node.values:
            values.append(self.ev(one))
            narrow(self.env, one, isinstance(node.op, ast.And), self.qualified)
        self.env = before
        return join_all(values)

    def compare(self, node: ast.Compare) -> Value:
        operands = [self.ev(node.left), *map(self.ev, node.comparators)]
        if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops):
            return NUMBER
        kinds = {value.kind for value in operands}
        if Kind.STRING in kinds or Kind.NONE in kinds or kinds & {Kind.SHAPE, Kind.DEVICE, Kind.DTYPE}:
            return NUMBER
        if Kind.TENSOR in kinds:
            tensors = [value for value in operands if value.kind is Kind.TENSOR]
            return Value(
                Kind.TENSOR,
                device=common_device(tensors),
                dtype="bool",
                graph=False,
                origin=node,
                certain=any(value.certain for value in tensors),
                scalar=all(value.scalar for value in tensors),
                large=any(value.large for value in tensors)
                or (len(tensors) == 2 == len(operands) and is_pairwise(node.left, node.comparators[0])),
                cause=tensors[0],
            )
        if Kind.NDARRAY in kinds:
            return ARRAY
        return UNKNOWN if Kind.UNKNOWN in kinds else NUMBER

    def conditional(self, node: ast.IfExp) -> Value:
        self.ev(node.test)
        before = self.env
        values = []
        for branch, truth in ((node.body, True), (node.orelse, False)):
            self.env = dict(before)
            narrow(self.env, node.test, truth, self.qualified)
            values.append(self.ev(branch))
        self.env = before
        return join(*values)

    # Displays, comprehensions and the rest

    def tuple_(self, node: ast.Tuple) -> Value:
        items = tuple(map(self.ev, node.elts))
        if any(isinstance(one, ast.Starred) for one in node.elts):
            return Value(Kind.LIST, element=join_all(items))
        return Value(Kind.TUPLE, items=items)

    def list_(self, node: ast.List | ast.Set) -> Value:
        values = [self.ev(one) for one in node.elts]
        return Value(Kind.LIST, element=join_all(values) if values else None)

    def dict_(self, node: ast.Dict) -> Value:
        for one in node.keys:
            if one is not None:
                self.ev(one)
        values = [self.ev(one) for one in node.values]
        return Value(Kind.DICT, element=join_all(values) if values else None)

    def starred(self, node: ast.Starred) -> Value:
        return self.element(self.ev(node.value), None)

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        return Value(Kind.LIST, element=self._inside(node.generators, lambda: self.ev(node.elt)))

    def dict_comprehension(self, node: ast.DictComp) -> Value:
        def pair() -> Value:
            self.ev(node.key)
            return self.ev(node.value)

        return Value(Kind.DICT, element=self._inside(node.generators, pair))

    def _inside(self, generators: Sequence[ast.comprehension], body: Callable[[], Value]) -> Value:
        before = self.env
        self.env = dict(before)
        for generator in generators:
            self.assign(generator.target, self.element(self.ev(generator.iter), generator.iter))
            for test in generator.ifs:
                self.ev(test)
                narrow(self.env, test, True, self.qualified)
        value = body()
        self.env = before
        return value

    def named_expression(self, node: ast.NamedExpr) -> Value:
        value = self.ev(node.value)
        self.assign(node.target, value)
        return value

    def formatted(self, node: ast.JoinedStr) -> Value:
        for one in node.values:
            if isinstance(one, ast.FormattedValue):
                self.ev(one.value)
                if isinstance(one.format_spec, ast.JoinedStr):
                    self.formatted(one.format_spec)
        return STRING

    def lambda_(self, node: ast.Lambda) -> Value:
        return Value(Kind.FUNCTION, definition=node)

    def await_(self, node: ast.Await) -> Value:
        return self.ev(node.value)

    def yield_(self, node: ast.Yield | ast.YieldFrom) -> Value:
        if node.value is not None:
            value = self.ev(node.value)
            self.yielded.append(value if isinstance(node, ast.Yield) else element_of(value))
        return UNKNOWN

    def element(self, value: Value, node: ast.expr | None) -> Value:
        """What iterating over ``value`` gives, one at a time."""
        match value.kind:
            case Kind.DATALOADER:
                note = "comes out of the DataLoader, in CPU memory"
                return Value(
                    Kind.TENSOR,
                    device="cpu",
                    batch=True,
                    certain=False,
                    graph=False,
                    pinned=value.pinned,
                    note=note,
                    cause=value,
                )
            case Kind.TENSOR:
                return value.but(call=None, scalar=False)
            case Kind.LIST | Kind.TUPLE:
                return element_of(value)
            case Kind.NDARRAY:
                return value
            case Kind.SHAPE:
                return NUMBER
            case Kind.MODULE if value.definition is None:
                return Value(Kind.MODULE, device=value.device)
            case Kind.DICT | Kind.STRING:
                return STRING if value.kind is Kind.STRING else UNKNOWN
            case _:
                return UNKNOWN

    def assign(self, target: ast.expr, value: Value) -> None:
        raise NotImplementedError

    def call(self, node: ast.Call) -> Value:
        raise NotImplementedError

    def _call(self, node: ast.Call) -> Value:
        return self.call(node)

    _expressions: ClassVar[dict[type[ast.expr], Callable[[Any, Any], Value]]] = {
        ast.Name: name,
        ast.Constant: constant,
        ast.Attribute: attribute,
        ast.Call: _call,
        ast.Subscript: subscript,
        ast.Slice: slice,
        ast.BinOp: binary,
        ast.UnaryOp: unary,
        ast.BoolOp: boolean,
        ast.Compare: compare,
        ast.IfExp: conditional,
        ast.Tuple: tuple_,
        ast.List: list_,
        ast.Set: list_,
        ast.Dict: dict_,
        ast.Starred: starred,
        ast.ListComp: comprehension,
        ast.SetComp: comprehension,
        ast.GeneratorExp: comprehension,
        ast.DictComp: dict_comprehension,
        ast.NamedExpr: named_expression,
        ast.JoinedStr: formatted,
        ast.Lambda: lambda_,
        ast.Await: await_,
        ast.Yield: yield_,
        ast.YieldFrom: yield_,
    }


def common_device(tensors: Sequence[Value]) -> str | None:
    """Where the result of an operation on ``tensors`` lies: a CPU scalar may join tensors of a device."""
    devices = {value.device for value in tensors}
    if "cuda" in devices:
        return "cuda"
    return "cpu" if devices == {"cpu"} else None
