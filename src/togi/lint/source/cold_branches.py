"""Tells branches that run rarely: every so many steps, for debugging, at the first step, on the way to an exception."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence

from togi.lint.source import torch_api
from togi.lint.source.syntax import last_name, position
from togi.lint.source.tree import Tree

Qualified = Callable[[ast.AST], str | None]
_COUNTERS = re.compile(
    r"^(i|j|k|n|it|idx|t|\w*(step|iter|epoch|count|batch_idx|batch_index|batch_num|batch_i|num_updates|_idx|niter)\w*)$"
)
_SWITCHES = re.compile(
    r"(^|_)(verbose|debug|log|logging|print|dump|plot|visuali[sz]e|viz|profile|dry_run|should_log|display|offload\w*)($|_)|^__debug__$"
)
_LISTENERS = re.compile(r"(^|_)(streamer|callback|writer|logger|recorder)$")
_CLOCKS = ("time.time", "time.perf_counter", "time.monotonic")


def rare_branch(tree: Tree, test: ast.expr, qualified: Qualified, loop_targets: frozenset[str]) -> bool | None:
    """Which branch of ``if test`` runs rarely: True for the body, False for the ``else``, None for neither."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = rare_branch(tree, test.operand, qualified, loop_targets)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        found = [rare_branch(tree, one, qualified, loop_targets) for one in test.values]
        if isinstance(test.op, ast.And):
            return True if True in found else None
        return False if False in found else True if True in found else None  # the last step, or every so many
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _comparison(tree, test, test.ops[0], qualified, loop_targets)
    if isinstance(test, ast.BinOp) and _is_periodic(tree, test, loop_targets):
        return False
    if _is_switch(test, qualified):
        return True
    told = _told(tree, test)
    return rare_branch(tree, told, qualified, loop_targets) if told is not None else None


def _told(tree: Tree, test: ast.expr) -> ast.expr | None:
    """What the flag ``test`` was set to, where one assignment of its scope sets it: ``last = step == steps``."""
    bindings = tree.scope(test).bindings.get(test.id, []) if isinstance(test, ast.Name) else []
    statement = tree.parents.get(bindings[0]) if len(bindings) == 1 else None
    set_before = isinstance(statement, ast.Assign) and position(statement) < position(test)
    return statement.value if set_before and isinstance(statement, ast.Assign) else None


def _comparison(
    tree: Tree, test: ast.Compare, op: ast.cmpop, qualified: Qualified, loop_targets: frozenset[str]
) -> bool | None:
    sides = (test.left, test.comparators[0])
    if any(_is_periodic(tree, side, loop_targets) for side in sides):
        return True if isinstance(op, ast.Eq) else False if isinstance(op, ast.NotEq | ast.Gt) else None
    if any(_mentions_clock(tree, side, qualified) for side in sides):
        return True
    if isinstance(op, ast.IsNot | ast.Is) and any(_is_listener(side) for side in sides):
        return isinstance(op, ast.IsNot)
    counter = any(_counts(side, loop_targets) for side in sides)
    if counter and isinstance(op, ast.Eq) and not any(_is_text(side) for side in sides):
        return True
    return True if counter and isinstance(op, ast.In) and _counts(test.left, loop_targets) else None


def _counts(node: ast.expr, loop_targets: frozenset[str]) -> bool:
    """``step``, ``step + 1``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return _counts(node.left, loop_targets) or _counts(node.right, loop_targets)
    return isinstance(node, ast.Name) and node.id in loop_targets


def runs_few_times(tree: Tree, node: ast.If) -> bool:
    """``if shown < 5: ...; shown += 1``: a branch that counts its own turns up to a limit."""
    compared = [one for one in tree.walk(node.test, ast.Compare) if isinstance(one.ops[0], ast.Lt | ast.LtE)]
    counted = {ast.unparse(one.target) for statement in node.body for one in tree.walk(statement, ast.AugAssign)}
    limited = {ast.unparse(one.left) for one in compared if isinstance(one.comparators[0], ast.Constant)}
    return bool(counted & limited)


def _is_listener(node: ast.expr) -> bool:
    """``streamer``, ``callback``, ``self.writer``: what somebody may hand in who wants to watch."""
    name = last_name(node)
    return bool(_LISTENERS.search(name))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_periodic(tree: Tree, node: ast.expr, loop_targets: frozenset[str]) -> bool:
    """``step % interval``, ``(i + 1) % args.log_every``."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)):
        return False
    names = [last_name(one) for one in tree.walk(node.left, ast.Name, ast.Attribute)]
    keys = [one.slice for one in tree.walk(node.left, ast.Subscript)]  # state["iter"] % interval
    names += [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    return any(name in loop_targets or (_COUNTERS.match(name) and len(name) > 2) for name in names)


def _mentions_clock(tree: Tree, node: ast.expr, qualified: Qualified) -> bool:
    read = [told for one in tree.walk(node, ast.Name) if (told := _told(tree, one)) is not None]
    return any(qualified(one.func) in _CLOCKS for part in (node, *read) for one in tree.walk(part, ast.Call))


def _is_switch(test: ast.expr, qualified: Qualified) -> bool:
    """A flag for debugging, or a test that is true only during export."""
    if isinstance(test, ast.Call):
        name = qualified(test.func) or ""
        last = test.func.attr if isinstance(test.func, ast.Attribute) else name
        if last == "isEnabledFor":
            return True
        if _SWITCHES.search(last) and not name.startswith("torch."):  # should_log(step)
            return True
        return name in torch_api.GUARDS or name.rpartition(".")[2] in torch_api.GUARDS or last in torch_api.GUARDS
    if isinstance(test, ast.Attribute):
        return bool(_SWITCHES.search(test.attr)) or test.attr in torch_api.GUARDS
    return isinstance(test, ast.Name) and bool(_SWITCHES.search(test.id))


def fills_cache(tree: Tree, node: ast.If | ast.IfExp) -> bool:
    """``if self.x is None or ...: self.x = ...``: what runs once, or when a size or a device changes."""
    tested = {ast.unparse(one) for one in _cache_tests(tree, node.test)}
    statement = node if isinstance(node, ast.If) else tree.statement(node)
    return bool(tested) and statement is not None and bool(tested & _stored(tree, [statement]))


def returns_cached(tree: Tree, node: ast.If, block: Sequence[ast.stmt]) -> bool:
    """``if self.x is not None: return``, and further down ``self.x = ...``: the rest runs once."""
    if not tree.walk(node, ast.Return):
        return False
    if any(_is_large_enough(tree, one) for one in tree.walk(node, ast.If)):
        return True
    tested = {ast.unparse(one) for one in tree.walk(node.test, ast.Attribute) if _is_own(one)}
    return bool(tested) and bool(tested & _stored(tree, block))


def _is_large_enough(tree: Tree, node: ast.If) -> bool:
    """``if table.size(1) >= n: return table``: the rest runs where the table has to grow."""
    match node:
        case ast.If(test=ast.Compare(left=left, ops=[ast.GtE() | ast.Gt()])):
            sized = {ast.unparse(owner) for one in tree.walk(left) if (owner := _sized(one)) is not None}
            given = [one.value for one in tree.walk(node, ast.Return) if one.value is not None]
            return any(ast.unparse(one) in sized for one in given)
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
    assigned = [one for statement in block for one in tree.walk(statement, ast.Assign)]
    targets = [target for one in assigned for target in one.targets]
    parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    stored = [part.value if isinstance(part, ast.Subscript) else part for part in parts]
    stored += [one for statement in block for one in _written(tree, statement)]
    return {ast.unparse(one) for one in stored if isinstance(one, ast.Attribute)}


def _written(tree: Tree, statement: ast.stmt) -> Iterator[ast.expr]:
    """``self.ready`` of ``self.ready.fill_(1)`` and ``self.ready.data.copy_(flag)``."""
    for call in tree.walk(statement, ast.Call):
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in ("fill_", "copy_", "zero_", "logical_or_"):
            yield (
                func.value.value if isinstance(func.value, ast.Attribute) and func.value.attr == "data" else func.value
            )


def _cache_tests(tree: Tree, test: ast.expr) -> Iterator[ast.expr]:
    """Attributes that ``test`` finds empty: ``self.x is None``, ``key not in self.cache``."""
    for one in tree.walk(test, ast.Compare, ast.Call):
        if isinstance(one, ast.Compare) and isinstance(
            one.ops[0], ast.Is | ast.NotIn | ast.Eq | ast.NotEq | ast.Gt | ast.Lt
        ):
            for side in (one.left, one.comparators[0]):
                yield from _with_owners(side)  # self.x.device != x.device
        elif isinstance(one, ast.Call):
            yield from _asked_for(one)
    flag = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
    if isinstance(flag, ast.Attribute) and _is_own(flag):  # if not self.moved: ...; self.moved = True
        yield flag


def _with_owners(node: ast.expr) -> Iterator[ast.expr]:
    """``self.x.device``, ``self.x``; of ``self.x.size(0)`` and ``self.x.shape[0]`` the same."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        if isinstance(node, ast.Attribute):
            yield node
        node = node.func if isinstance(node, ast.Call) else node.value


def _asked_for(call: ast.Call) -> Iterator[ast.expr]:
    """``hasattr(self, "x")``: ``self.x``."""
    match call:
        case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=str(name))]):
            yield ast.Attribute(owner, name)
