"""The syntax tree with what the standard library leaves out: parents, nodes by type, scopes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
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
        self.by_type: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scopes: dict[ast.AST, Scope] = {module: Scope(module, None)}
        self._walk()

    def _walk(self) -> None:
        by_type, parents, fields = self.by_type, self.parents, _FIELDS
        module = self.scopes[self.module]
        stack: list[tuple[ast.AST, Scope]] = [(self.module, module)]
        pop, push = stack.pop, stack.append
        while stack:
            node, scope = pop()
            kind = type(node)
            by_type[kind].append(node)
            inner = self._special(node, scope) if kind in _SPECIAL else scope
            for name in fields[kind]:
                child = getattr(node, name, None)
                if child is None:
                    continue
                if type(child) is list:
                    for one in child:
                        if one is not None:
                            parents[one] = node
                            push((one, inner if name == "body" else scope))
                else:
                    parents[child] = node
                    push((child, inner if name in ("body", "args") else scope))
        for nodes in by_type.values():
            nodes.reverse()

    def _special(self, node: ast.AST, scope: Scope) -> Scope:
        """Notes what ``node`` binds; the scope of its body."""
        match node:
            case ast.Name():
                if type(node.ctx) is ast.Load:
                    scope.loads.setdefault(node.id, []).append(node)
                else:
                    scope.bind(node.id, node)
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

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return chain.from_iterable(self.by_type.get(kind, ()) for kind in kinds)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        parents = self.parents
        while (node := parents.get(node)) is not None:  # type: ignore[assignment]
            yield node

    def scope(self, node: ast.AST) -> Scope:
        """The scope in which ``node`` is evaluated (decorators and defaults: the one outside the function)."""
        child = node
        for above in self.ancestors(node):
            if above in self.scopes and _inside(child, above):
                return self.scopes[above]
            child = above
        return self.scopes[self.module]

    def function(self, node: ast.AST) -> Function | None:
        """The function whose body holds ``node``."""
        child = node
        for above in self.ancestors(node):
            if isinstance(above, FUNCTIONS) and _inside(child, above):
                return above
            child = above
        return None

    def class_of(self, function: ast.AST) -> ast.ClassDef | None:
        """The class of which ``function`` is a method."""
        above = self.parents.get(function)
        while isinstance(above, ast.If | ast.Try | ast.With):
            above = self.parents.get(above)
        return above if isinstance(above, ast.ClassDef) else None

    def loops(self, node: ast.AST) -> tuple[Loop, ...]:
        """Loops and comprehensions of the same function that repeat ``node``, innermost first."""
        found: list[Loop] = []
        child = node
        for above in self.ancestors(node):
            if isinstance(above, FUNCTIONS) and _inside(child, above):
                break
            if isinstance(above, LOOPS) and _repeats(above, child):
                found.append(above)
            child = above
        return tuple(found)

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


def _repeats(loop: Loop, child: ast.AST) -> bool:
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
_NOT_NODES = {
    "ctx",
    "op",
    "ops",
    "attr",
    "arg",
    "name",
    "level",
    "module",
    "kind",
    "type_comment",
    "type_ignores",
    "is_async",
    "simple",
    "conversion",
    "rest",
    "kwd_attrs",
}  # fields that hold strings, numbers, or nodes without content (contexts, operators)


def _children(kind: type[ast.AST]) -> tuple[str, ...]:
    if kind in _LEAVES:
        return ()
    return tuple(name for name in kind._fields if name not in _NOT_NODES)


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        self[kind] = fields = _children(kind)
        return fields


_FIELDS = _Fields()
_SPECIAL = {
    ast.Name,
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
