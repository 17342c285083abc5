"""Infers the parameters of a function from annotations, defaults, calls within the file, and use."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from togi.lint.source import torch_api
from togi.lint.source.definitions import passed_argument
from togi.lint.source.hints import annotated, guessed
from togi.lint.source.names import BUILTINS
from togi.lint.source.tree import Function, Scope
from togi.lint.source.value import UNKNOWN, Environment, Kind, Value, join_all

if TYPE_CHECKING:
    from togi.lint.source.flow import Flow

_USUAL = frozenset(
    """x y z input inputs target targets hidden_states query key value q k v feature features image images label
    labels logits pred preds prediction predictions tokens input_ids embeddings embedding attention_mask
    output outputs tensor mask""".split()
)
"""Names that a parameter of ``forward`` without a default bears when it is a tensor."""
_OF_OTHERS = frozenset("device gather type half cuda".split())
"""Attributes that modules, settings and objects that drive a training have as well."""
_PLURAL = frozenset("inputs targets features images labels preds predictions tokens embeddings outputs".split())
"""Names that lists bear as well."""


@dataclass(slots=True)
class _Use:
    """How a parameter is used in its function: a node that shows it, each."""

    strong: ast.AST | None = None
    weak: ast.AST | None = None
    against: ast.AST | None = None
    number: bool = False
    sequence: bool = False


def parameters(flow: Flow, scope: Scope) -> Environment:
    """The environment in which the body of ``scope`` starts."""
    function = scope.node
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    found: Environment = {}
    owner = flow.tree.class_of(function)
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    pairs = [*zip(plain, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    method = owner is not None and not _is_static(function) and bool(plain)
    for position, (arg, default) in enumerate(pairs):
        if position == 0 and method and owner is not None:
            found[arg.arg] = flow.instance(owner)
        else:
            found[arg.arg] = _parameter(flow, scope, arg, default, position - method, owner)
    for many in (arguments.vararg, arguments.kwarg):
        if many is not None:
            found[many.arg] = Value(Kind.LIST if many is arguments.vararg else Kind.DICT)
    return found


def _is_static(function: Function) -> bool:
    decorators = getattr(function, "decorator_list", [])
    return any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in decorators)


def _parameter(
    flow: Flow, scope: Scope, arg: ast.arg, default: ast.expr | None, position: int, owner: ast.ClassDef | None
) -> Value:
    function = scope.node
    where = f"is a parameter of {getattr(function, 'name', 'a lambda')}"
    name = ast.Name(arg.arg)
    promised = annotated(arg.annotation, lambda node: flow.names.qualified(node, scope.outer or scope))
    none = isinstance(default, ast.Constant) and default.value is None
    if promised.kind is not Kind.UNKNOWN:
        note = f"{where}, annotated {ast.unparse(arg.annotation)}" if arg.annotation else where
        return promised.but(
            optional=promised.optional or none, origin=name, note=note, device=_seen_device(flow, scope, arg)
        )
    if promised.note:
        return promised
    if isinstance(default, ast.Constant) and default.value is not None:
        kind = Kind.STRING if isinstance(default.value, str) else Kind.NUMBER
        return Value(kind, certain=False, origin=name, note=where)
    passed = _passed(flow, scope, arg.arg, owner)
    if passed.kind is not Kind.UNKNOWN and passed.kind is not Kind.NONE:
        return passed.but(
            optional=passed.optional or none,
            origin=name,
            note=f"{where}, which is called with it",
            cause=passed,
            constant=None,
            call=None,
            batch=False if passed.kind is Kind.TENSOR and not passed.batch else passed.batch,
        )
    by_name = guessed(arg.arg)
    if by_name.kind is not Kind.UNKNOWN:
        return by_name.but(origin=name)
    return _by_use(flow, scope, arg.arg, position, default, where)


def _seen_device(flow: Flow, scope: Scope, arg: ast.arg) -> str | None:
    passed = _passed(flow, scope, arg.arg, flow.tree.class_of(scope.node))
    return passed.device if passed.kind is Kind.TENSOR else None


def _passed(flow: Flow, scope: Scope, name: str, owner: ast.ClassDef | None) -> Value:
    """Join over the calls in this file, as far as they have been worked out; a tensor among unknowns counts."""
    function = scope.node
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.name == "forward":
        return UNKNOWN
    if any(_may_change_arguments(flow, scope, one) for one in function.decorator_list):
        return UNKNOWN
    method = owner is not None and not _is_static(function)
    sent = [passed_argument(call, function, name, method=method) for call in flow.callers.sites(function)]
    values = [flow.values[one] for one in sent if one is not None and one in flow.values]
    known = [value for value in values if value.kind is not Kind.UNKNOWN]
    if not known:
        return UNKNOWN
    joined = join_all(known)
    return joined if len(known) == len(values) else joined.but(certain=False)


def _may_change_arguments(flow: Flow, scope: Scope, decorator: ast.expr) -> bool:
    """Of a library other than PyTorch: it may compile the function, to which arguments are something else then."""
    func = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = flow.names.qualified(func, scope.outer or scope)
    return (
        name is not None and name not in BUILTINS and name.partition(".")[0] not in (*sys.stdlib_module_names, "torch")
    )


def _by_use(flow: Flow, scope: Scope, name: str, position: int, default: ast.expr | None, where: str) -> Value:
    function = scope.node
    assert not isinstance(function, ast.Module | ast.ClassDef)
    use = _uses(flow, scope, name)
    if use.number and not use.strong:
        return Value(Kind.NUMBER, certain=False)
    tensors = flow.takes_tensors(function)
    none = default is not None
    origin = ast.Name(name)
    if use.strong is not None and not use.against:
        note = f"{where}, used as a tensor in line {getattr(use.strong, 'lineno', '?')}"
        return Value(Kind.TENSOR, optional=none, origin=origin, note=note)
    if use.against or use.sequence or not tensors:
        return UNKNOWN
    certain = position == 0 and name in _USUAL and name not in _PLURAL
    if use.weak is not None or (not none and (position == 0 or name in _USUAL)):
        return Value(Kind.TENSOR, optional=none, certain=certain, origin=origin, note=where)
    return UNKNOWN


def _uses(flow: Flow, scope: Scope, name: str) -> _Use:
    use = _Use()
    for load in scope.loads.get(name, ()):
        _note(flow, scope, use, load)
    return use


def _note(flow: Flow, scope: Scope, use: _Use, load: ast.Name) -> None:
    parent = flow.tree.parents[load]
    match parent:
        case ast.Attribute():
            if parent.attr in torch_api.TORCH_ONLY - _OF_OTHERS:
                use.strong = parent
            elif parent.attr in torch_api.ARRAY_LIKE | _OF_OTHERS:
                use.weak = parent
            elif not parent.attr.endswith("_"):
                use.against = parent
        case ast.Call():
            _note_call(flow, scope, use, load, parent)
        case ast.Subscript() if parent.value is load:
            if isinstance(parent.slice, ast.Constant) and isinstance(parent.slice.value, str):
                use.against = parent
            elif isinstance(parent.slice, ast.Tuple):
                use.weak = parent
        case ast.For() | ast.comprehension() if parent.iter is load:
            use.sequence = True
        case ast.Starred() | ast.keyword(arg=None):
            use.against = parent
        case ast.Compare():
            if _is_plain_comparison(parent):
                use.against = parent
        case ast.If() | ast.IfExp() | ast.While() | ast.BoolOp():
            use.sequence = True
        case ast.UnaryOp(op=ast.Not()):
            use.sequence = True
        case ast.BinOp(op=ast.MatMult()):
            use.strong = parent


def _is_plain_comparison(node: ast.Compare) -> bool:
    """With a string or a truth value, or a test of membership: not what is done with tensors."""
    others = [node.left, *node.comparators]
    if any(isinstance(one, ast.Constant) and isinstance(one.value, str | bool) for one in others):
        return True
    return any(isinstance(op, ast.In | ast.NotIn) for op in node.ops)


def _note_call(flow: Flow, scope: Scope, use: _Use, load: ast.Name, call: ast.Call) -> None:
    name = flow.names.qualified(call.func, scope) or ""
    if name in ("range", "int", "round"):
        use.number = use.number or name == "range"
    elif name in ("isinstance", "len", "list", "tuple", "zip", "enumerate", "callable", "str", "iter", "next", "sum"):
        use.sequence = True
    elif name.startswith("torch."):
        last = name.rpartition(".")[2]
        if name in torch_api.ON_CPU:
            use.sequence = True
        elif last in torch_api.FACTORIES:
            use.number = True
        elif last in ("cat", "stack", "concat", "hstack", "vstack", "as_tensor", "tensor", "is_tensor"):
            use.sequence = True
        elif call.args[:1] == [load] and torch_api.returns_tensor(name):
            use.strong = call
    elif isinstance(call.func, ast.Attribute) and call.args[:1] == [load]:
        base = call.func.value
        if isinstance(base, ast.Name) and base.id == "self" and flow.is_submodule(scope, call.func.attr):
            use.strong = call
