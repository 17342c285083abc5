"""Infers the parameters of a function from annotations, defaults, calls within the file, and use."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from togi.lint.source import torch_api
from togi.lint.source.definitions import passed_argument
from togi.lint.source.hints import annotated, guessed
from togi.lint.source.names import is_of_python_or_torch
from togi.lint.source.syntax import is_text
from togi.lint.source.tree import Function, Scope
from togi.lint.source.value import NUMBER, UNKNOWN, Environment, Evidence, Value, ValueKind, join_all

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
_TAKING_SEQUENCES = ("cat", "stack", "concat", "hstack", "vstack", "as_tensor", "tensor", "is_tensor")
_PLURAL = frozenset("inputs targets features images labels preds predictions tokens embeddings outputs".split())
"""Names that lists bear as well."""


@dataclass(slots=True)
class _ParameterUse:
    """The ways in which a function uses a parameter."""

    strong: ast.AST | None = None
    """As only a tensor is used; this node shows it."""
    weak: bool = False
    """As a tensor is used, and other things too."""
    against: bool = False
    """As no tensor is used."""
    number: bool = False
    sequence: bool = False


def parameters(flow: Flow, scope: Scope) -> Environment:
    """The environment in which the body of ``scope`` starts."""
    function = scope.node
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    environment: Environment = {}
    owner = flow.tree.class_of(function)
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    pairs = [*zip(plain, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    method = owner is not None and not _is_static(function) and bool(plain)
    for position, (arg, default) in enumerate(pairs):
        if position == 0 and method and owner is not None:
            environment[arg.arg] = flow.instance(owner)
        else:
            environment[arg.arg] = _parameter(flow, scope, arg, default, position - method)
    if arguments.vararg is not None:
        environment[arguments.vararg.arg] = Value(ValueKind.LIST)
    if arguments.kwarg is not None:
        environment[arguments.kwarg.arg] = Value(ValueKind.DICT)
    return environment


def _is_static(function: Function) -> bool:
    decorators = getattr(function, "decorator_list", [])
    return any(isinstance(node, ast.Name) and node.id == "staticmethod" for node in decorators)


def _parameter(flow: Flow, scope: Scope, arg: ast.arg, default: ast.expr | None, position: int) -> Value:
    where = f"is a parameter of {getattr(scope.node, 'name', 'a lambda')}"
    name = ast.Name(arg.arg)
    promised = annotated(arg.annotation, lambda node: flow.names.qualified(node, scope.outer or scope))
    may_be_none = isinstance(default, ast.Constant) and default.value is None
    if promised.kind is not ValueKind.UNKNOWN:
        note = f"{where}, annotated {ast.unparse(arg.annotation)}" if arg.annotation else where
        passed = _passed(flow, scope, arg.arg)
        device = passed.device if passed.kind is ValueKind.TENSOR else None
        optional = promised.optional or may_be_none
        return replace(promised, optional=optional, device=device, evidence=Evidence(name, note))
    if promised.evidence.note:
        return promised
    if isinstance(default, ast.Constant) and default.value is not None:
        kind = ValueKind.STRING if isinstance(default.value, str) else ValueKind.NUMBER
        return Value(kind, certain=False, evidence=Evidence(name, where))
    passed = _passed(flow, scope, arg.arg)
    if passed.kind not in (ValueKind.UNKNOWN, ValueKind.NONE):
        return replace(
            passed,
            optional=passed.optional or may_be_none,
            constant=None,
            call=None,
            evidence=Evidence(name, f"{where}, which is called with it", passed),
        )
    by_name = guessed(arg.arg)
    if by_name.kind is not ValueKind.UNKNOWN:
        return replace(by_name, evidence=replace(by_name.evidence, origin=name))
    return _by_use(flow, scope, arg.arg, position, optional=default is not None, where=where)


def _passed(flow: Flow, scope: Scope, name: str) -> Value:
    """Join over the calls in this file, as far as they have been worked out; a tensor among unknowns counts."""
    function = scope.node
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.name == "forward":
        return UNKNOWN
    if any(_may_change_arguments(flow, scope, decorator) for decorator in function.decorator_list):
        return UNKNOWN
    method = flow.tree.class_of(function) is not None and not _is_static(function)
    passed = [passed_argument(call, function, name, method=method) for call in flow.callers.sites(function)]
    values = [flow.values[node] for node in passed if node is not None and node in flow.values]
    informative = [value for value in values if value.kind is not ValueKind.UNKNOWN]
    if not informative:
        return UNKNOWN
    joined = join_all(informative)
    return joined if len(informative) == len(values) else replace(joined, certain=False)


def _may_change_arguments(flow: Flow, scope: Scope, decorator: ast.expr) -> bool:
    """Whether it is of another library than PyTorch: it may compile the function, which changes what arguments are."""
    func = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = flow.names.qualified(func, scope.outer or scope)
    return name is not None and not is_of_python_or_torch(name)


def _by_use(flow: Flow, scope: Scope, name: str, position: int, *, optional: bool, where: str) -> Value:
    function = scope.node
    assert not isinstance(function, ast.Module | ast.ClassDef)
    use = _ParameterUse()
    for load in scope.loads.get(name, ()):
        _note(flow, scope, use, load)
    if use.number and not use.strong:
        return replace(NUMBER, certain=False)
    origin = ast.Name(name)
    if use.strong is not None and not use.against:
        note = f"{where}, used as a tensor in line {getattr(use.strong, 'lineno', '?')}"
        return Value(ValueKind.TENSOR, optional=optional, evidence=Evidence(origin, note))
    if use.against or use.sequence or not flow.takes_tensors(function):
        return UNKNOWN
    certain = position == 0 and name in _USUAL and name not in _PLURAL
    if use.weak or (not optional and (position == 0 or name in _USUAL)):
        return Value(ValueKind.TENSOR, certain=certain, optional=optional, evidence=Evidence(origin, where))
    return UNKNOWN


def _note(flow: Flow, scope: Scope, use: _ParameterUse, load: ast.Name) -> None:
    parent = flow.tree.parents[load]
    match parent:
        case ast.Attribute():
            if parent.attr in torch_api.TORCH_ONLY - _OF_OTHERS:
                use.strong = parent
            elif parent.attr in torch_api.ARRAY_LIKE | _OF_OTHERS:
                use.weak = True
            elif not parent.attr.endswith("_"):
                use.against = True
        case ast.Call():
            _note_call(flow, scope, use, load, parent)
        case ast.Subscript() if parent.value is load:
            if is_text(parent.slice):
                use.against = True
            elif isinstance(parent.slice, ast.Tuple):
                use.weak = True
        case ast.For() | ast.comprehension() if parent.iter is load:
            use.sequence = True
        case ast.Starred() | ast.keyword(arg=None):
            use.against = True
        case ast.Compare():
            if _is_plain_comparison(parent):
                use.against = True
        case ast.If() | ast.IfExp() | ast.While() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
            use.sequence = True
        case ast.BinOp(op=ast.MatMult()):
            use.strong = parent


def _is_plain_comparison(node: ast.Compare) -> bool:
    """Whether it compares with a string or a truth value, or tests membership, which is not done with tensors."""
    operands = [node.left, *node.comparators]
    if any(isinstance(operand, ast.Constant) and isinstance(operand.value, str | bool) for operand in operands):
        return True
    return any(isinstance(op, ast.In | ast.NotIn) for op in node.ops)


def _note_call(flow: Flow, scope: Scope, use: _ParameterUse, load: ast.Name, call: ast.Call) -> None:
    name = flow.names.qualified(call.func, scope) or ""
    if name in ("range", "int", "round"):
        use.number = use.number or name == "range"
    elif name in ("isinstance", "len", "list", "tuple", "zip", "enumerate", "callable", "str", "iter", "next", "sum"):
        use.sequence = True
    elif name.startswith("torch."):
        last = name.rpartition(".")[2]
        if name in torch_api.ON_CPU or last in _TAKING_SEQUENCES:
            use.sequence = True
        elif last in torch_api.FACTORIES:
            use.number = True
        elif call.args[:1] == [load] and torch_api.returns_tensor(name):
            use.strong = call
    elif isinstance(call.func, ast.Attribute) and call.args[:1] == [load]:
        base = call.func.value
        if isinstance(base, ast.Name) and base.id == "self" and flow.is_submodule(scope, call.func.attr):
            use.strong = call
