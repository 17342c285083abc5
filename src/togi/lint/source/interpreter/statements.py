"""Interprets one scope statement by statement, without running it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from togi.lint.source.autograd import sets_grad
from togi.lint.source.budget import INTERPRETED
from togi.lint.source.flow import Flow
from togi.lint.source.hints import annotated, guessed_result
from togi.lint.source.interpreter.calls import call
from togi.lint.source.interpreter.expressions import EVALUATORS, operation, read
from togi.lint.source.interpreter.parameters import parameters
from togi.lint.source.interpreter.state import ScopeState, key, narrow
from togi.lint.source.syntax import arguments_of, last_name
from togi.lint.source.tree import FUNCTIONS, Scope
from togi.lint.source.value import (
    NONE,
    PERHAPS_BATCHES,
    UNKNOWN,
    UNSEEN_BATCHES,
    Environment,
    Value,
    ValueKind,
    element_of,
    gives_batches,
    iterate,
    join,
    join_all,
    join_environments,
    list_of,
)

_PASSES = 3
"""Turns of a loop that are interpreted, at most."""
_TRIES = tuple(getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name))  # the second: Python 3.11
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, *_TRIES, ast.Match)
"""Statements that copy all that is known."""
_FOREIGN = tuple("sklearn. tensorflow. keras. jax. flax. xgboost. lightgbm. onnx openvino. gensim.".split())
"""Libraries that have models too."""


def interpret(flow: Flow, scope: Scope) -> None:
    """Note in ``flow`` what every expression of ``scope`` is, what it binds, and what it returns."""
    state = ScopeState(flow, scope, _EVALUATORS)
    node = scope.node
    if isinstance(node, FUNCTIONS):
        state.env = parameters(flow, scope)
    if isinstance(node, ast.Lambda):
        flow.returns[scope] = state.evaluate(node.body)
        return
    if isinstance(node, FUNCTIONS):
        for decorator in node.decorator_list:
            state.set_recording(sets_grad(decorator, state.qualified))
    _block(state, node.body)
    if isinstance(node, FUNCTIONS):
        flow.returns[scope] = list_of(join_all(state.yielded)) if state.yielded else join_all(state.returned or [NONE])


def _block(state: ScopeState, statements: Sequence[ast.stmt]) -> None:
    for statement in statements:
        if not state.alive:
            return
        handler = _HANDLERS.get(type(statement))
        if handler is not None:
            state.flow.tree.interpreting.take(
                INTERPRETED + len(state.env) if isinstance(statement, _BRANCHES) else INTERPRETED
            )
            handler(state, statement)


# Control flow. A branch starts from a copy of the environment; dead branches take no part in the join.


def _branch(state: ScopeState, environment: Environment, statements: Sequence[ast.stmt]) -> Environment | None:
    state.env, state.alive = environment, True
    _block(state, statements)
    return state.env if state.alive else None


def _meet(state: ScopeState, ends: list[Environment | None]) -> None:
    living = [end for end in ends if end is not None]
    state.alive = bool(living)
    if living:
        state.env = living[0] if len(living) == 1 else join_environments(living)


def _if(state: ScopeState, node: ast.If) -> None:
    state.evaluate(node.test)
    otherwise = dict(state.env)
    narrow(state.env, node.test, True, state.qualified)
    narrow(otherwise, node.test, False, state.qualified)
    then = _branch(state, state.env, node.body)
    _meet(state, [then, _branch(state, otherwise, node.orelse)])


def _for(state: ScopeState, node: ast.For | ast.AsyncFor) -> None:
    iterated = state.evaluate(node.iter)
    if iterated == UNKNOWN and isinstance(node.iter, ast.Call) and _takes_batches(state, node.iter.args[:1]):
        state.values[node.iter] = iterated = UNSEEN_BATCHES  # for batch in logger.log_every(loader, 50)
    element = iterate(iterated)

    def turn() -> None:
        state.assign(node.target, element)
        _block(state, node.body)

    _loop(state, turn, node.orelse, always=False)


def _while(state: ScopeState, node: ast.While) -> None:
    forever = isinstance(node.test, ast.Constant) and bool(node.test.value)

    def turn() -> None:
        state.evaluate(node.test)
        narrow(state.env, node.test, True, state.qualified)
        _block(state, node.body)

    _loop(state, turn, node.orelse, always=forever)


def _loop(state: ScopeState, turn: Callable[[], None], orelse: Sequence[ast.stmt], *, always: bool) -> None:
    outer = state.breaks, state.continues
    entry = dict(state.env)
    exits: list[Environment | None] = []
    for _ in range(_PASSES):
        state.breaks, state.continues = [], []
        state.env, state.alive = dict(entry), True
        turn()
        ends = [*state.continues, *([state.env] if state.alive else [])]
        exits = state.breaks
        joined = join_environments([entry, *(end for end in ends if end is not None)])
        if all(joined[name] is value or joined[name] == value for name, value in entry.items()):
            entry = joined
            break
        entry = joined
    state.breaks, state.continues = outer
    if not always:
        exits.append(_branch(state, entry, orelse))
    _meet(state, exits)


def _break(state: ScopeState, _: ast.Break) -> None:
    state.breaks.append(state.env)
    state.alive = False


def _continue(state: ScopeState, _: ast.Continue) -> None:
    state.continues.append(state.env)
    state.alive = False


def _try(state: ScopeState, node: ast.Try) -> None:
    before = dict(state.env)
    body = _branch(state, state.env, node.body)
    halfway = join_environments([before, body]) if body is not None else before
    ends: list[Environment | None] = []
    for handler in node.handlers:
        environment = dict(halfway)
        if handler.name:
            environment[handler.name] = UNKNOWN
        ends.append(_branch(state, environment, handler.body))
    ends.append(_branch(state, body, node.orelse) if body is not None else None)
    _meet(state, ends)
    if node.finalbody:
        alive, state.alive = state.alive, True
        _block(state, node.finalbody)
        state.alive = state.alive and alive


def _with(state: ScopeState, node: ast.With | ast.AsyncWith) -> None:
    grad = state.grad
    for item in node.items:
        value = state.evaluate(item.context_expr)
        state.set_recording(sets_grad(item.context_expr, state.qualified))
        if item.optional_vars is not None:
            state.assign(item.optional_vars, value)
    _block(state, node.body)
    state.grad = grad


def _match(state: ScopeState, node: ast.Match) -> None:
    state.evaluate(node.subject)
    ends: list[Environment | None] = [dict(state.env)]
    for case in node.cases:
        environment = dict(ends[0] or {})
        for pattern in ast.walk(case.pattern):
            name = getattr(pattern, "name", None) or getattr(pattern, "rest", None)
            if name:
                environment[name] = UNKNOWN
        state.env, state.alive = environment, True
        if case.guard is not None:
            state.evaluate(case.guard)
        ends.append(_branch(state, state.env, case.body))
    _meet(state, ends)


def _return(state: ScopeState, node: ast.Return) -> None:
    state.returned.append(state.evaluate(node.value) if node.value is not None else NONE)
    state.alive = False


def _raise(state: ScopeState, node: ast.Raise) -> None:
    for raised in (node.exc, node.cause):
        if raised is not None:
            state.evaluate(raised)
    state.alive = False


def _assert(state: ScopeState, node: ast.Assert) -> None:
    state.evaluate(node.test)
    if node.msg is not None:
        state.evaluate(node.msg)
    narrow(state.env, node.test, True, state.qualified)


# Binding


def _assign(state: ScopeState, node: ast.Assign) -> None:
    value = state.evaluate(node.value)
    maker = state.qualified(node.value.func) if isinstance(node.value, ast.Call) else None
    for target in node.targets:
        if value == UNKNOWN and isinstance(node.value, ast.Call) and not (maker or "").startswith(_FOREIGN):
            _assign_by_name(state, target, node.value)
        else:
            state.assign(target, value)


def _assign_by_name(state: ScopeState, target: ast.expr, unknown: ast.Call) -> None:
    """``model, loader = build(options)``: only the names tell. A DataLoader that was given may come back changed."""
    may_wrap = _takes_batches(state, arguments_of(unknown))
    for name in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
        guess = guessed_result(last_name(name))
        if may_wrap and guess.kind in (ValueKind.DATALOADER, ValueKind.UNKNOWN):
            state.assign(name, UNSEEN_BATCHES if guess.kind is ValueKind.DATALOADER else PERHAPS_BATCHES)
        else:
            state.assign(name, guess if isinstance(name, ast.Name) else UNKNOWN)


def _takes_batches(state: ScopeState, arguments: Sequence[ast.expr]) -> bool:
    """``accelerator.prepare(model, loader)``: whether there is a DataLoader among them, which may be wrapped."""
    values = [state.values.get(arg.value if isinstance(arg, ast.Starred) else arg, UNKNOWN) for arg in arguments]
    elements = [element_of(value) for value in values]
    return any(map(gives_batches, values)) or any(e.batch or e.kind is ValueKind.DATALOADER for e in elements)


def _annotated_assign(state: ScopeState, node: ast.AnnAssign) -> None:
    promised = annotated(node.annotation, state.qualified)
    value = state.evaluate(node.value) if node.value is not None else UNKNOWN
    if value.kind in (ValueKind.UNKNOWN, ValueKind.NONE) and promised.kind is not ValueKind.UNKNOWN:
        value = replace(promised, optional=value.kind is ValueKind.NONE or promised.optional)
    if node.value is not None or isinstance(state.scope.node, ast.ClassDef):
        state.assign(node.target, value)


def _augmented_assign(state: ScopeState, node: ast.AugAssign) -> None:
    before = read(state, node.target)
    state.values[node.target] = before
    after = operation(state, node, before, state.evaluate(node.value))
    state.assign(node.target, after)


def _delete(state: ScopeState, node: ast.Delete) -> None:
    for target in node.targets:
        name = key(target)
        if name is not None:
            state.env.pop(name, None)
        else:
            read(state, target)


def _define(state: ScopeState, node: Any) -> None:
    for decorator in node.decorator_list:
        state.evaluate(decorator)
    if isinstance(node, ast.ClassDef):
        state.assign_name(node.name, Value(ValueKind.CLASS, definition=node))
        return
    for default in (*node.args.defaults, *node.args.kw_defaults):
        if default is not None:
            state.evaluate(default)
    state.assign_name(node.name, Value(ValueKind.FUNCTION, definition=node))


def _expression(state: ScopeState, node: ast.Expr) -> None:
    value = state.evaluate(node.value)
    call = node.value
    if isinstance(call, ast.Call):
        state.set_recording(sets_grad(call, state.qualified))
        if isinstance(call.func, ast.Attribute):
            _note_change_in_place(state, call.func, call, value)


def _note_change_in_place(state: ScopeState, func: ast.Attribute, call: ast.Call, value: Value) -> None:
    """``model.to(device)`` as a statement moves the model itself; ``xs.append(x)`` tells what xs holds."""
    name = key(func.value)
    if name is None or (base := state.env.get(name)) is None:
        return
    if base.kind is ValueKind.MODULE and value.kind is ValueKind.MODULE and func.attr in ("to", "cuda", "cpu"):
        state.env[name] = value
        state.flow.bind(state.scope, name, value)
    elif base.kind is ValueKind.LIST and func.attr in ("append", "add", "appendleft") and call.args:
        item = state.values.get(call.args[0], UNKNOWN)
        state.env[name] = replace(base, element=item if base.element is None else join(base.element, item))
    elif base.kind is ValueKind.TENSOR and func.attr.endswith("_") and value.kind is ValueKind.TENSOR:
        state.env[name] = replace(base, graph=value.graph if func.attr != "requires_grad_" else True)


_EVALUATORS = {**EVALUATORS, ast.Call: call}
_HANDLERS: Mapping[type[ast.stmt], Callable[[ScopeState, Any], None]] = {
    ast.If: _if,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.Break: _break,
    ast.Continue: _continue,
    **dict.fromkeys(_TRIES, _try),
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Match: _match,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.Assert: _assert,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated_assign,
    ast.AugAssign: _augmented_assign,
    ast.Delete: _delete,
    ast.FunctionDef: _define,
    ast.AsyncFunctionDef: _define,
    ast.ClassDef: _define,
    ast.Expr: _expression,
}
