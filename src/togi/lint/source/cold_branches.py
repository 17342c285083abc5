"""Recognises branches that run rarely: every so many steps, for debugging, at the first step, before an exception."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from togi.lint.source import torch_api
from togi.lint.source.syntax import called_method, is_text, last_name, position
from togi.lint.source.tree import Tree

_COUNTERS = re.compile(
    r"^(i|j|k|n|it|idx|t|\w*(step|iter|epoch|count|batch_idx|batch_index|batch_num|batch_i|num_updates|_idx|niter)\w*)$"
)
_SWITCHES = re.compile(
    r"(^|_)(verbose|debug|log|logging|print|dump|plot|visuali[sz]e|viz|profile|dry_run|should_log|display|offload\w*)($|_)|^__debug__$"
)
_LISTENERS = re.compile(r"(^|_)(streamer|callback|writer|logger|recorder)$")
_CLOCKS = ("time.time", "time.perf_counter", "time.monotonic")


@dataclass(frozen=True, slots=True)
class RareBranches:
    """Tells which branch of a test runs rarely, for the tests at one place of a file."""

    tree: Tree
    qualified: Callable[[ast.AST], str | None]
    counters: frozenset[str]
    """Names that count the turns of the loops around."""

    def of(self, test: ast.expr) -> bool | None:
        """Which branch of ``if test`` runs rarely: True for the body, False for the ``else``, None for neither."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            branch = self.of(test.operand)
            return None if branch is None else not branch
        if isinstance(test, ast.BoolOp):
            branches = [self.of(part) for part in test.values]
            if isinstance(test.op, ast.And):
                return True if True in branches else None
            if False in branches:
                return False
            return True if True in branches else None  # the last step, or every so many
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self._comparison(test, test.ops[0])
        if self._is_periodic(test):
            return False
        if self._is_switch(test):
            return True
        flag = self._value_of_flag(test)
        return self.of(flag) if flag is not None else None

    def _comparison(self, test: ast.Compare, op: ast.cmpop) -> bool | None:
        sides = (test.left, test.comparators[0])
        if any(map(self._is_periodic, sides)):
            return True if isinstance(op, ast.Eq) else False if isinstance(op, ast.NotEq | ast.Gt) else None
        if any(map(self._mentions_clock, sides)):
            return True
        if isinstance(op, ast.IsNot | ast.Is) and any(_LISTENERS.search(last_name(side)) for side in sides):
            return isinstance(op, ast.IsNot)  # a streamer, a writer: what somebody may hand in who wants to watch
        if isinstance(op, ast.Eq) and any(map(self._counts, sides)) and not any(map(is_text, sides)):
            return True
        return True if isinstance(op, ast.In) and self._counts(test.left) else None

    def _value_of_flag(self, test: ast.expr) -> ast.expr | None:
        """What the flag ``test`` was set to, where one assignment of its scope sets it: ``last = step == steps``."""
        bindings = self.tree.scope(test).bindings.get(test.id, []) if isinstance(test, ast.Name) else []
        statement = self.tree.parents.get(bindings[0]) if len(bindings) == 1 else None
        if isinstance(statement, ast.Assign) and position(statement) < position(test):
            return statement.value
        return None

    def _counts(self, node: ast.expr) -> bool:
        """``step``, ``step + 1``."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            return self._counts(node.left) or self._counts(node.right)
        return isinstance(node, ast.Name) and node.id in self.counters

    def _is_periodic(self, node: ast.expr) -> bool:
        """``step % interval``, ``(i + 1) % args.log_every``."""
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)):
            return False
        names = [last_name(part) for part in self.tree.walk(node.left, ast.Name, ast.Attribute)]
        keys = [part.slice for part in self.tree.walk(node.left, ast.Subscript)]  # state["iter"] % interval
        names += [key.value for key in keys if is_text(key)]
        return any(name in self.counters or (_COUNTERS.match(name) and len(name) > 2) for name in names)

    def _mentions_clock(self, node: ast.expr) -> bool:
        flags = [flag for name in self.tree.walk(node, ast.Name) if (flag := self._value_of_flag(name)) is not None]
        return any(
            self.qualified(call.func) in _CLOCKS for part in (node, *flags) for call in self.tree.walk(part, ast.Call)
        )

    def _is_switch(self, test: ast.expr) -> bool:
        """A flag for debugging, or a test that is true only during export."""
        if isinstance(test, ast.Call):
            name = self.qualified(test.func) or ""
            last = called_method(test) or name
            if last == "isEnabledFor" or (_SWITCHES.search(last) and not name.startswith("torch.")):
                return True
            return bool(torch_api.GUARDS.search(name) or torch_api.GUARDS.search(last))
        last = last_name(test)
        return bool(_SWITCHES.search(last)) or (isinstance(test, ast.Attribute) and bool(torch_api.GUARDS.search(last)))


def runs_few_times(tree: Tree, node: ast.If) -> bool:
    """``if shown < 5: ...; shown += 1``: a branch that counts its own turns up to a limit."""
    limited = {
        ast.unparse(test.left)
        for test in tree.walk(node.test, ast.Compare)
        if isinstance(test.ops[0], ast.Lt | ast.LtE) and isinstance(test.comparators[0], ast.Constant)
    }
    counted = {ast.unparse(addition.target) for addition in _below(tree, node.body, ast.AugAssign)}
    return bool(counted & limited)


def fills_cache(tree: Tree, node: ast.If | ast.IfExp) -> bool:
    """``if self.x is None or ...: self.x = ...``: what runs once, or when a size or a device changes."""
    tested = set(map(ast.unparse, _cache_tests(tree, node.test)))
    statement = node if isinstance(node, ast.If) else tree.statement(node)
    return bool(tested) and statement is not None and bool(tested & _stored(tree, [statement]))


def returns_cached(tree: Tree, node: ast.If, block: Sequence[ast.stmt]) -> bool:
    """``if self.x is not None: return``, and further down ``self.x = ...``: the rest runs once."""
    if not tree.walk(node, ast.Return):
        return False
    if any(_is_large_enough(tree, test) for test in tree.walk(node, ast.If)):
        return True
    tested = {ast.unparse(attribute) for attribute in tree.walk(node.test, ast.Attribute) if _is_own(attribute)}
    return bool(tested) and bool(tested & _stored(tree, block))


def _is_large_enough(tree: Tree, node: ast.If) -> bool:
    """``if table.size(1) >= n: return table``: the rest runs where the table has to grow."""
    match node:
        case ast.If(test=ast.Compare(left=left, ops=[ast.GtE() | ast.Gt()])):
            sized = {ast.unparse(owner) for part in tree.walk(left) if (owner := _sized(part)) is not None}
            returned = [statement.value for statement in tree.walk(node, ast.Return) if statement.value is not None]
            return any(ast.unparse(value) in sized for value in returned)
    return False


def _sized(node: ast.AST) -> ast.expr | None:
    """``x`` of ``x.size(1)``, ``x.shape``, ``len(x)``."""
    match node:
        case ast.Attribute(value=owner, attr="size" | "shape") | ast.Call(func=ast.Name(id="len"), args=[owner]):
            return owner
    return None


def _is_own(node: ast.AST) -> bool:
    """``self.NAME``."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _stored(tree: Tree, block: Sequence[ast.stmt]) -> set[str]:
    """Attributes that ``block`` assigns, or assigns items of, or writes in place."""
    targets = [target for statement in _below(tree, block, ast.Assign) for target in statement.targets]
    parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    stored = [part.value if isinstance(part, ast.Subscript) else part for part in parts]
    for call in _below(tree, block, ast.Call):
        if called_method(call) in ("fill_", "copy_", "zero_", "logical_or_"):  # self.ready.data.copy_(flag)
            owner = call.func.value
            stored.append(owner.value if isinstance(owner, ast.Attribute) and owner.attr == "data" else owner)
    return {ast.unparse(node) for node in stored if isinstance(node, ast.Attribute)}


def _below(tree: Tree, block: Sequence[ast.stmt], kind: type[ast.AST]) -> Iterator[Any]:
    return chain.from_iterable(tree.walk(statement, kind) for statement in block)


def _cache_tests(tree: Tree, test: ast.expr) -> Iterator[ast.expr]:
    """Attributes that ``test`` finds empty: ``self.x is None``, ``key not in self.cache``."""
    for comparison in tree.walk(test, ast.Compare):
        if isinstance(comparison.ops[0], ast.Is | ast.NotIn | ast.Eq | ast.NotEq | ast.Gt | ast.Lt):
            for side in (comparison.left, comparison.comparators[0]):
                yield from _with_owners(side)  # self.x.device != x.device
    for call in tree.walk(test, ast.Call):
        match call:
            case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=str(name))]):
                yield ast.Attribute(owner, name)
    flag = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    if isinstance(flag, ast.Attribute) and _is_own(flag):  # if not self.moved: ...; self.moved = True
        yield flag


def _with_owners(node: ast.expr) -> Iterator[ast.expr]:
    """``self.x.device``, ``self.x``; of ``self.x.size(0)`` and ``self.x.shape[0]`` the same."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        if isinstance(node, ast.Attribute):
            yield node
        node = node.func if isinstance(node, ast.Call) else node.value
