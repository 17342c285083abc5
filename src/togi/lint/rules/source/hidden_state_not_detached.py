"""The rule ``hidden-state-not-detached``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.loaders import is_test
from togi.lint.source.syntax import is_constant
from togi.lint.source.torch_api import TUPLE_MODULES
from togi.lint.source.value import Kind, excerpt

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_Loop = ast.For | ast.AsyncFor | ast.While
_CUTS = ("detach", "detach_", "no_grad", "inference_mode", "data", "stop_gradient")


class HiddenStateNotDetached(SourceRule):
    """A hidden state is carried from step to step together with its graph.

    What it reports: ``out, hidden = model(x, hidden)`` in a loop that calls ``backward()`` in each pass, where nothing
    in the loop detaches the state or starts it anew.

    Why it costs: each backward pass goes back through all steps before it, so time and memory grow with every step.
    Without ``retain_graph=True`` PyTorch raises in the second step: "Trying to backward through the graph a second
    time".

    When it stays silent: the state is detached, bound to something else or given to other code in the loop. A loop over
    time inside of the step. Models that the file does not show (they may detach inside), unless the loop retains its
    graph. Code under ``no_grad``, and files of tests.

    Example::

        hidden = model.start(batch_size)
        for x, y in loader:
            out, hidden = model(x, hidden)
            loss = criterion(out, y)
            loss.backward(retain_graph=True)
            optimizer.step()

    Use instead::

        hidden = model.start(batch_size)
        for x, y in loader:
            out, hidden = model(x, hidden.detach())
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()

    Source: https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
    """

    id = "hidden-state-not-detached"

    def check(self, source: Source) -> Iterable[Finding]:
        if ".backward(" not in source.text or is_test(source.path):
            return
        for assign, call, names in _carried(source):
            loop = _training_loop(source, assign)
            if loop is None or not _shows_no_cut(source, loop, call) or not source.records_grad(call):
                continue
            kept = sorted(name for name in names if _only_carried(source, loop, name))
            if kept:
                yield source.finding(
                    self.id,
                    assign,
                    f"{excerpt(call, 40)} continues the graph of all steps before, through {', '.join(kept)}",
                    f"detach it first: {kept[0]}.detach() (of a tuple, each tensor), or start it anew in each step",
                    evidence=f"the loop in line {loop.lineno} calls backward() in each pass and detaches nothing",
                )


def _carried(source: Source) -> Iterator[tuple[ast.Assign, ast.Call, set[str]]]:
    """Assignments ``..., h = model(..., h)`` with the names that go in and come out."""
    for node in source.nodes(ast.Assign):
        if isinstance(node.value, ast.Call) and len(node.targets) == 1:
            call = node.value
            out = {one.id for one in source.walk(node.targets[0], ast.Name)}
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            into = {name for one in given for name in _plain_names(one)}
            if out & into and source.value(call.func).kind is Kind.MODULE:
                yield node, call, out & into


def _plain_names(node: ast.expr) -> Iterator[str]:
    """``h``, ``(h, c)``; not ``h.detach()``."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Tuple | ast.List):
        for one in node.elts:
            yield from _plain_names(one)


def _training_loop(source: Source, node: ast.AST) -> _Loop | None:
    """The innermost loop around ``node`` with a ``backward()`` in it, if it is called in every pass."""
    for loop in source.loops(node):
        if isinstance(loop, _Loop):
            calls = [one for one in source.walk(loop, ast.Call) if getattr(one.func, "attr", "") == "backward"]
            if calls:
                return loop if any(source.loops(one)[:1] == (loop,) for one in calls) else None
    return None


def _shows_no_cut(source: Source, loop: _Loop, call: ast.Call) -> bool:
    """Whether the file shows that the model hands the state on as it is, or the loop that it must."""
    retains = any(one.arg == "retain_graph" and is_constant(one.value, True) for one in source.walk(loop, ast.keyword))
    model = source.value(call.func)
    if isinstance(model.definition, ast.ClassDef):
        read = (one.attr for one in source.walk(model.definition, ast.Attribute))
        return not any(name in _CUTS for name in read)
    recurrent = (model.qualified or "").rpartition(".")[2]
    return retains or (recurrent in TUPLE_MODULES and recurrent != "MultiheadAttention")


def _only_carried(source: Source, loop: _Loop, name: str) -> bool:
    """Whether the loop binds ``name`` by such calls alone, and changes it by no method."""
    for node in source.walk(loop, ast.Name):
        if node.id != name:
            continue
        above = source.parent(node)
        if isinstance(above, ast.Attribute) and above.attr in _CUTS:
            return False
        if isinstance(node.ctx, ast.Store) and not _is_carried_here(source, node, name):
            return False
        if isinstance(node.ctx, ast.Del):
            return False
    return True


def _is_carried_here(source: Source, node: ast.Name, name: str) -> bool:
    statement = source.index.statement(node)
    return any(assign is statement and name in names for assign, _, names in _carried(source))
