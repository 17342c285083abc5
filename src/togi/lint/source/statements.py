"""Abstract interpretation of one scope: statements."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from togi.lint.source.annotations import annotated
from togi.lint.source.calls import Calls
from togi.lint.source.grad import sets_grad
from togi.lint.source.guess import guessed_result
from togi.lint.source.join import Environment, join, join_all, join_environments
from togi.lint.source.narrowing import key, narrow
from togi.lint.source.parameters import parameters
from togi.lint.source.tree import FUNCTIONS
from togi.lint.source.value import UNKNOWN, Kind, Value

_PASSES = 3
_FOREIGN = (
    "sklearn.",
    "tensorflow.",
    "keras.",
    "jax.",
    "flax.",
    "xgboost.",
    "lightgbm.",
    "onnx",
    "openvino.",
    "gensim.",
)
"""Libraries that have models too."""


class Run(Calls):
    """One interpretation of one scope. ``self.env`` is None where control flow does not arrive."""

    def run(self) -> None:
        node = self.scope.node
        if isinstance(node, ast.Lambda):
            self.env = self._start()
            self.flow.returns[self.scope] = self.ev(node.body)
            return
        if isinstance(node, FUNCTIONS):
            self.env = self._start()
            for decorator in getattr(node, "decorator_list", ()):
                state = sets_grad(decorator, self.qualified)
                self.grad = self.grad if state is None else state
        self.block(node.body)
        if isinstance(node, FUNCTIONS):
            self.flow.returns[self.scope] = self._returned()

    def _start(self) -> Environment:
        return parameters(self.flow, self.scope)

    def _returned(self) -> Value:
        if self.yielded:
            return Value(Kind.LIST, element=join_all(self.yielded))
        return join_all(self.returned) if self.returned else Value(Kind.NONE)

    def block(self, statements: Sequence[ast.stmt]) -> None:
        handlers = self._handlers
        for statement in statements:
            if not self.alive:
                return
            handler = handlers.get(type(statement))
            if handler is not None:
                handler(self, statement)

    # Control flow. A branch starts from a copy of the environment; dead branches take no part in the join.

    def _branch(self, environment: Environment, statements: Sequence[ast.stmt]) -> Environment | None:
        self.env, self.alive = environment, True
        self.block(statements)
        return self.env if self.alive else None

    def _meet(self, ends: list[Environment | None]) -> None:
        living = [end for end in ends if end is not None]
        self.alive = bool(living)
        if living:
            self.env = living[0] if len(living) == 1 else join_environments(living)

    def if_(self, node: ast.If) -> None:
        self.ev(node.test)
        otherwise = dict(self.env)
        narrow(self.env, node.test, True, self.qualified)
        narrow(otherwise, node.test, False, self.qualified)
        then = self._branch(self.env, node.body)
        self._meet([then, self._branch(otherwise, node.orelse)])

    def for_(self, node: ast.For | ast.AsyncFor) -> None:
        iterated = self.ev(node.iter)
        element = self.element(iterated, node.iter)

        def turn() -> None:
            self.assign(node.target, element)
            self.block(node.body)

        self._loop(turn, node.orelse, always=False)

    def while_(self, node: ast.While) -> None:
        forever = isinstance(node.test, ast.Constant) and bool(node.test.value)

        def turn() -> None:
            self.ev(node.test)
            narrow(self.env, node.test, True, self.qualified)
            self.block(node.body)

        self._loop(turn, node.orelse, always=forever)

    def _loop(self, turn: Callable[[], None], orelse: Sequence[ast.stmt], *, always: bool) -> None:
        outer = self.breaks, self.continues
        entry = dict(self.env)
        exits: list[Environment | None] = []
        for _ in range(_PASSES):
            self.breaks, self.continues = [], []
            self.env, self.alive = dict(entry), True
            turn()
            ends = [*self.continues, *([self.env] if self.alive else [])]
            exits = [*self.breaks]
            joined = join_environments([entry, *(end for end in ends if end is not None)])
            if all(entry.get(name) == value for name, value in joined.items() if name in entry):
                entry = joined
                break
            entry = joined
        self.breaks, self.continues = outer
        if not always:
            exits.append(self._branch(entry, orelse))
        self._meet(exits)

    def break_(self, node: ast.Break) -> None:
        self.breaks.append(self.env)
        self.alive = False

    def continue_(self, node: ast.Continue) -> None:
        self.continues.append(self.env)
        self.alive = False

    def try_(self, node: ast.Try) -> None:
        before = dict(self.env)
        body = self._branch(self.env, node.body)
        halfway = join_environments([before, body]) if body is not None else before
        ends: list[Environment | None] = []
        for handler in node.handlers:
            environment = dict(halfway)
            if handler.name:
                environment[handler.name] = UNKNOWN
            ends.append(self._branch(environment, handler.body))
        ends.append(self._branch(body, node.orelse) if body is not None else None)
        self._meet(ends)
        if node.finalbody:
            alive, self.alive = self.alive, True
            self.block(node.finalbody)
            self.alive = self.alive and alive

    def with_(self, node: ast.With | ast.AsyncWith) -> None:
        grad = self.grad
        for item in node.items:
            value = self.ev(item.context_expr)
            state = sets_grad(item.context_expr, self.qualified)
            self.grad = self.grad if state is None else state
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value)
        self.block(node.body)
        self.grad = grad

    def match(self, node: ast.Match) -> None:
        self.ev(node.subject)
        ends: list[Environment | None] = [dict(self.env)]
        for case in node.cases:
            environment = dict(ends[0] or {})
            for one in ast.walk(case.pattern):
                name = getattr(one, "name", None) or getattr(one, "rest", None)
                if name:
                    environment[name] = UNKNOWN
            self.env, self.alive = environment, True
            if case.guard is not None:
                self.ev(case.guard)
            ends.append(self._branch(self.env, case.body))
        self._meet(ends)

    def return_(self, node: ast.Return) -> None:
        self.returned.append(self.ev(node.value) if node.value is not None else Value(Kind.NONE))
        self.alive = False

    def raise_(self, node: ast.Raise) -> None:
        for one in (node.exc, node.cause):
            if one is not None:
                self.ev(one)
        self.alive = False

    def assert_(self, node: ast.Assert) -> None:
        self.ev(node.test)
        if node.msg is not None:
            self.ev(node.msg)
        narrow(self.env, node.test, True, self.qualified)

    # Binding

    def assign_(self, node: ast.Assign) -> None:
        value = self.ev(node.value)
        for target in node.targets:
            self.assign(target, value)
            if value == UNKNOWN and isinstance(node.value, ast.Call) and not self._foreign(node.value.func):
                self._guess_result(target)

    def _foreign(self, func: ast.expr) -> bool:
        return (self.qualified(func) or "").startswith(_FOREIGN)

    def _guess_result(self, target: ast.expr) -> None:
        """``model, loader = build(options)``: only the names tell."""
        for one in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(one, ast.Name) and (value := guessed_result(one.id)) != UNKNOWN:
                self._assign_name(one.id, value)

    def annotated_assign(self, node: ast.AnnAssign) -> None:
        promised = annotated(node.annotation, self.qualified)
        value = self.ev(node.value) if node.value is not None else UNKNOWN
        if value.kind in (Kind.UNKNOWN, Kind.NONE) and promised.kind is not Kind.UNKNOWN:
            value = promised.but(optional=value.kind is Kind.NONE or promised.optional)
        if node.value is not None or isinstance(self.scope.node, ast.ClassDef):
            self.assign(node.target, value)

    def augmented(self, node: ast.AugAssign) -> None:
        before = self.read(node.target)
        self.values[node.target] = before
        self.assign(node.target, self.operation(node, node.op, before, self.ev(node.value), node.target, node.value))

    def delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            name = key(target)
            if name is not None:
                self.env.pop(name, None)
            else:
                self.read(target)

    def assign(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name():
                self._assign_name(target.id, value)
            case ast.Attribute():
                self._assign_attribute(target, value)
            case ast.Tuple() | ast.List():
                self._unpack(target.elts, value)
            case ast.Starred():
                self.assign(target.value, Value(Kind.LIST, element=value))
            case ast.Subscript():
                self._store_item(target, value)

    def _assign_name(self, name: str, value: Value) -> None:
        if name in self.scope.foreign:
            holder = self.flow.names.holder(name, self.scope)
            if holder is not None:
                self.flow.bind(holder, name, value)
        self.env[name] = value
        for known in [one for one in self.env if one.startswith(name + ".")] if name in self.dotted else ():
            del self.env[known]
        self.flow.bind(self.scope, name, value)

    def _assign_attribute(self, target: ast.Attribute, value: Value) -> None:
        owner = self.ev(target.value).definition
        name = key(target)
        if name is not None and isinstance(target.value, ast.Name):
            self.env[name] = value
            self.dotted.add(target.value.id)
        if isinstance(owner, ast.ClassDef):
            self.flow.keep(owner, target.attr, value)

    def _unpack(self, targets: list[ast.expr], value: Value) -> None:
        plain = not any(isinstance(one, ast.Starred) for one in targets)
        if value.items is not None and plain and len(value.items) == len(targets):
            for target, item in zip(targets, value.items, strict=True):
                self.assign(target, item)
            return
        element = self.element(value, None)
        for target in targets:
            self.assign(target, element)

    def _store_item(self, target: ast.Subscript, value: Value) -> None:
        container = self.ev(target.value)
        self.ev(target.slice)
        name = key(target.value)
        if name is not None and container.kind in (Kind.LIST, Kind.DICT):
            known = container.element
            self.env[name] = container.but(element=value if known is None else join(known, value))

    def define(self, node: Any) -> None:
        for decorator in node.decorator_list:
            self.ev(decorator)
        if isinstance(node, ast.ClassDef):
            self._assign_name(node.name, Value(Kind.CLASS, definition=node))
            return
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.ev(default)
        self._assign_name(node.name, Value(Kind.FUNCTION, definition=node))

    def expression(self, node: ast.Expr) -> None:
        value = self.ev(node.value)
        call = node.value
        if isinstance(call, ast.Call):
            state = sets_grad(call, self.qualified)
            self.grad = self.grad if state is None else state
            if isinstance(call.func, ast.Attribute):
                self._changed_in_place(call.func, call, value)

    def _changed_in_place(self, func: ast.Attribute, call: ast.Call, value: Value) -> None:
        """``model.to(device)`` as a statement moves the model itself; ``xs.append(x)`` tells what xs holds."""
        name = key(func.value)
        if name is None or (base := self.env.get(name)) is None:
            return
        if base.kind is Kind.MODULE and value.kind is Kind.MODULE and func.attr in ("to", "cuda", "cpu"):
            self.env[name] = value
            self.flow.bind(self.scope, name, value)
        elif base.kind is Kind.LIST and func.attr in ("append", "add", "appendleft") and call.args:
            item = self.values.get(call.args[0], UNKNOWN)
            self.env[name] = base.but(element=item if base.element is None else join(base.element, item))
        elif base.kind is Kind.TENSOR and func.attr.endswith("_") and value.kind is Kind.TENSOR:
            self.env[name] = base.but(graph=value.graph if func.attr != "requires_grad_" else True)

    _handlers: ClassVar[dict[type[ast.stmt], Callable[[Any, Any], None]]] = {
        ast.If: if_,
        ast.For: for_,
        ast.AsyncFor: for_,
        ast.While: while_,
        ast.Break: break_,
        ast.Continue: continue_,
        ast.Try: try_,
        ast.TryStar: try_,
        ast.With: with_,
        ast.AsyncWith: with_,
        ast.Match: match,
        ast.Return: return_,
        ast.Raise: raise_,
        ast.Assert: assert_,
        ast.Assign: assign_,
        ast.AnnAssign: annotated_assign,
        ast.AugAssign: augmented,
        ast.Delete: delete,
        ast.FunctionDef: define,
        ast.AsyncFunctionDef: define,
        ast.ClassDef: define,
        ast.Expr: expression,
    }
