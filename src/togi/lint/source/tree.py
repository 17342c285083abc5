"""The syntax tree with what the standard library leaves out: parents, nodes by type, scopes."""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from togi.lint.source.budget import StepBudget

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FORMATTED = tuple(getattr(ast, name) for name in ("JoinedStr", "TemplateStr") if hasattr(ast, name))
"""Strings with expressions in them; the second since Python 3.14."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Loop = ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(eq=False, slots=True)
class Scope:
    """A module, class or function. Comprehensions belong to the scope that holds them."""

    node: ast.Module | ast.ClassDef | Function
    outer: Scope | None
    bindings: dict[str, list[ast.AST]] = field(default_factory=dict)
    """What binds each name here: Name (stored), arg, alias, FunctionDef, ClassDef, ExceptHandler, MatchAs."""
    loads: dict[str, list[ast.Name]] = field(default_factory=dict)
    """Where each name is read here."""
    foreign: set[str] = field(default_factory=set)
    """Names declared ``global`` or ``nonlocal``."""

    def bind(self, name: str, node: ast.AST) -> None:
        self.bindings.setdefault(name, []).append(node)


class Tree:
    """Indexes over one parsed file, built in a single walk."""

    def __init__(self, module: ast.Module) -> None:
        self.module = module
        self.budget = StepBudget()
        self.interpreting = StepBudget()
        """One of its own: where values cannot be known, rules that ask for none still find what they look for."""
        self.by_type: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        """Nodes in the order of the source, children before parents."""
        self._order: list[ast.AST] = []
        self._function_of: dict[ast.AST, Function | None] = {}
        self._scope_of: dict[ast.AST, Scope] = {}
        self._positions_by_type: dict[type[ast.AST], list[int]] = {}
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scopes: dict[ast.AST, Scope] = {module: Scope(module, None)}
        self._walk()

    def _walk(self) -> None:
        by_type, parents, order, fields = self.by_type, self.parents, self._order, _FIELDS
        module = self.scopes[self.module]
        stack: list[tuple[ast.AST, Scope]] = [(self.module, module)]
        pop, push = stack.pop, stack.append
        while stack:
            node, scope = pop()
            kind = type(node)
            by_type[kind].append(node)
            order.append(node)
            if kind is ast.Name:  # the most frequent of all
                if type(node.ctx) is ast.Load:  # type: ignore[attr-defined]
                    scope.loads.setdefault(node.id, []).append(node)  # type: ignore[attr-defined, arg-type]
                else:
                    scope.bind(node.id, node)  # type: ignore[attr-defined]
                continue
            inner = self._binding(node, scope) if kind in _BINDING else scope
            for name in fields[kind]:
                child = getattr(node, name, None)
                if child is None:
                    continue
                if type(child) is list:
                    for item in child:
                        if item is not None:
                            parents[item] = node
                            push((item, inner if name == "body" else scope))
                else:
                    parents[child] = node
                    push((child, inner if name in ("body", "args") else scope))
        for nodes in by_type.values():
            nodes.reverse()
        order.reverse()

    def _binding(self, node: ast.AST, scope: Scope) -> Scope:
        """Notes what ``node`` binds; the scope of its body."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                scope.bind(node.name, node)
                return self._open(node, scope)
            case ast.Lambda():
                return self._open(node, scope)
            case ast.arg():
                scope.bind(node.arg, node)
            case ast.Global() | ast.Nonlocal():
                scope.foreign.update(node.names)
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    scope.bind(alias.asname or alias.name.partition(".")[0], alias)
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
                if node.name:
                    scope.bind(node.name, node)
            case ast.MatchMapping():
                if node.rest:
                    scope.bind(node.rest, node)
        return scope

    def _open(self, node: ast.ClassDef | Function, scope: Scope) -> Scope:
        self.scopes[node] = inner = Scope(node, scope)
        return inner

    @cached_property
    def attributes(self) -> dict[str, list[ast.Attribute]]:
        """Attributes by their name, for a rule that looks for a few of them."""
        by_name: dict[str, list[ast.Attribute]] = defaultdict(list)
        for node in self.by_type.get(ast.Attribute, ()):
            assert isinstance(node, ast.Attribute)
            by_name[node.attr].append(node)
        return by_name

    @cached_property
    def texts(self) -> frozenset[str]:
        """Every string of the file."""
        constants = (node for node in self.by_type.get(ast.Constant, ()) if isinstance(node, ast.Constant))
        return frozenset(node.value for node in constants if isinstance(node.value, str))

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        nodes = [self.by_type.get(kind, ()) for kind in kinds]
        self.budget.take(sum(map(len, nodes)) // 4)
        return chain.from_iterable(nodes)

    @cached_property
    def _positions(self) -> dict[ast.AST, int]:
        return dict(zip(self._order, range(len(self._order)), strict=True))

    def walk(self, node: ast.AST, *kinds: type[ast.AST]) -> list[Any]:
        """``node`` and what is below it, of exactly these types (all where none is named), children before parents.

        A subtree is a stretch of the file's order, so this costs no walk. Contexts and operators are left out.
        """
        last = self._positions[node]
        first = self._positions[self._first_below(node)]
        if not kinds:
            self.budget.take(last - first + 1)
            return self._order[first : last + 1]
        nodes: list[Any] = []
        for kind in kinds:
            positions = self._positions_by_type.get(kind)
            if positions is None:
                positions = [self._positions[item] for item in self.by_type.get(kind, ())]
                self._positions_by_type[kind] = positions
            nodes += self.by_type.get(kind, [])[bisect_left(positions, first) : bisect_right(positions, last)]
        self.budget.take(2 * len(nodes) + 1)
        return nodes

    def _first_below(self, node: ast.AST) -> ast.AST:
        """The first node of a subtree in the file's order: the leaf where always the first child is taken."""
        child: ast.AST | None = node
        while child is not None:
            node, child = child, _first_child(child)
        return node

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        parents, take = self.parents, self.budget.take
        while (node := parents.get(node)) is not None:  # type: ignore[assignment]
            take(1)
            yield node

    def scope(self, node: ast.AST) -> Scope:
        """The scope in which ``node`` is evaluated (decorators and defaults: the one outside the function)."""
        known, scopes, parents = self._scope_of, self.scopes, self.parents
        path: list[ast.AST] = []
        scope: Scope | None = None
        while scope is None:
            scope = known.get(node)
            if scope is None:
                path.append(node)
                above = parents.get(node)
                if above is None or (above in scopes and _inside(node, above)):
                    scope = scopes[above or self.module]
                else:
                    node = above
        known.update(dict.fromkeys(path, scope))  # what was passed on the way up lies in the same scope
        return scope

    def function(self, node: ast.AST) -> Function | None:
        """The function whose body holds ``node``."""
        known, parents = self._function_of, self.parents
        path: list[ast.AST] = []
        function: Function | None = None
        while node not in known:
            path.append(node)
            above = parents.get(node)
            if isinstance(above, FUNCTIONS) and _inside(node, above):
                function = above
                break
            if above is None:
                break
            node = above
        else:
            function = known[node]
        known.update(dict.fromkeys(path, function))  # what was passed on the way up lies in the same function
        return function

    def class_of(self, function: ast.AST) -> ast.ClassDef | None:
        """The class of which ``function`` is a method."""
        above = self.parents.get(function)
        while isinstance(above, ast.If | ast.Try | ast.With):
            above = self.parents.get(above)
        return above if isinstance(above, ast.ClassDef) else None

    def loops(self, node: ast.AST) -> tuple[Loop, ...]:
        """Loops and comprehensions of the same function that repeat ``node``, innermost first."""
        loops: list[Loop] = []
        child = node
        for above in self.ancestors(node):
            if isinstance(above, FUNCTIONS) and _inside(child, above):
                break
            if isinstance(above, LOOPS) and repeats(above, child):
                loops.append(above)
            child = above
        return tuple(loops)

    def statement(self, node: ast.AST) -> ast.stmt | None:
        if isinstance(node, ast.stmt):
            return node
        return next((above for above in self.ancestors(node) if isinstance(above, ast.stmt)), None)


def _inside(child: ast.AST, scope: ast.AST) -> bool:
    if isinstance(scope, ast.Lambda):
        return child is scope.body
    if isinstance(scope, ast.Module):
        return True
    return isinstance(child, ast.stmt | ast.excepthandler)


def block_of(above: ast.AST, child: ast.AST) -> Sequence[ast.stmt]:
    """The statements of ``above`` among which ``child`` stands; empty where it is not one of them."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(above, name, None)
        if isinstance(block, list) and child in block:
            return block
    return ()


def repeats(loop: Loop, child: ast.AST) -> bool:
    """Whether ``loop`` runs ``child``, which lies directly in it, more than once."""
    if isinstance(loop, ast.While):
        return child not in loop.orelse
    if isinstance(loop, ast.For | ast.AsyncFor):
        return child is not loop.iter and child not in loop.orelse
    return True


_LEAVES = {
    ast.Constant,
    ast.Name,
    ast.Global,
    ast.Nonlocal,
    ast.alias,
    ast.Pass,
    ast.Break,
    ast.Continue,
    ast.MatchSingleton,
}
_NOT_NODES = frozenset(
    """ctx op ops attr arg name level module kind type_comment type_ignores is_async simple conversion rest
    kwd_attrs str""".split()
)
"""Fields that hold strings, numbers, or nodes without content (contexts, operators). ``str``: Python 3.14."""


def _first_child(node: ast.AST) -> ast.AST | None:
    for name in _FIELDS[type(node)]:
        child = getattr(node, name, None)
        if type(child) is list:
            child = next((item for item in child if item is not None), None)
        if child is not None:
            return child  # type: ignore[no-any-return]
    return None


def _children(kind: type[ast.AST]) -> tuple[str, ...]:
    if kind in _LEAVES:
        return ()
    return tuple(name for name in kind._fields if name not in _NOT_NODES)


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        self[kind] = fields = _children(kind)
        return fields


_FIELDS = _Fields()
_BINDING = {
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.arg,
    ast.Global,
    ast.Nonlocal,
    ast.Import,
    ast.ImportFrom,
    ast.ExceptHandler,
    ast.MatchAs,
    ast.MatchStar,
    ast.MatchMapping,
}
