"""The rule ``hidden-state-not-detached``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.compiled import names_in
from togi.lint.source.gradients import training_loop
from togi.lint.source.loaders import is_test
from togi.lint.source.model import Source
from togi.lint.source.surroundings import StatementLoop
from togi.lint.source.syntax import arguments_of, is_constant
from togi.lint.source.torch_api import TUPLE_MODULES
from togi.lint.source.value import ValueKind, excerpt

_CUTS = ("detach", "detach_", "no_grad", "inference_mode", "data", "stop_gradient")
_RECURRENT = TUPLE_MODULES - {"MultiheadAttention"}


class _Carried(NamedTuple):
    """An assignment ``..., h = model(..., h)``."""

    assign: ast.Assign
    call: ast.Call
    names: set[str]
    """Those that go in and come out."""


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
        carried = list(_carried(source))
        for assign, call, names in carried:
            loop = _loop_of_steps(source, assign)
            if loop is None or not _shows_no_cut(source, loop, call) or not source.records_grad(call):
                continue
            states = sorted(name for name in names if _is_only_carried(source, loop, name, carried))
            if states:
                yield source.finding(
                    self.id,
                    assign,
                    f"{excerpt(call, 40)} continues the graph of all steps before, through {', '.join(states)}",
                    f"detach it first: {states[0]}.detach() (of a tuple, each tensor), or start it anew in each step",
                    evidence=f"the loop in line {loop.lineno} calls backward() in each pass and detaches nothing",
                )


def _carried(source: Source) -> Iterator[_Carried]:
    for assign in source.nodes(ast.Assign):
        if isinstance(assign.value, ast.Call) and len(assign.targets) == 1:
            inputs = {name for argument in arguments_of(assign.value) for name in _plain_names(argument)}
            names = inputs & names_in(source, assign.targets[0])
            if names and source.value(assign.value.func).kind is ValueKind.MODULE:
                yield _Carried(assign, assign.value, names)


def _plain_names(node: ast.expr) -> Iterator[str]:
    """``h``, ``(h, c)``; not ``h.detach()``."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Tuple | ast.List):
        for element in node.elts:
            yield from _plain_names(element)


def _loop_of_steps(source: Source, node: ast.AST) -> StatementLoop | None:
    """The innermost loop around ``node`` with a ``backward()`` in it, if it is called in every pass."""
    loop, calls = training_loop(source, node) or (None, [])
    return loop if any(source.loops(call)[:1] == (loop,) for call in calls) else None


def _shows_no_cut(source: Source, loop: StatementLoop, call: ast.Call) -> bool:
    """Whether the file shows that the model hands the state on as it is, or the loop that it must."""
    model = source.value(call.func)
    if isinstance(model.definition, ast.ClassDef):
        return not any(node.attr in _CUTS for node in source.walk(model.definition, ast.Attribute))
    if (model.qualified or "").rpartition(".")[2] in _RECURRENT:
        return True
    keywords = source.walk(loop, ast.keyword)
    return any(word.arg == "retain_graph" and is_constant(word.value, True) for word in keywords)


def _is_only_carried(source: Source, loop: StatementLoop, name: str, carried: Sequence[_Carried]) -> bool:
    """Whether the loop binds ``name`` by such calls alone, and cuts its graph nowhere."""
    binding = {assign for assign, _, names in carried if name in names}
    for node in source.walk(loop, ast.Name):
        if node.id != name:
            continue
        above = source.parent(node)
        if isinstance(node.ctx, ast.Del) or (isinstance(above, ast.Attribute) and above.attr in _CUTS):
            return False
        if isinstance(node.ctx, ast.Store) and source.index.statement(node) not in binding:
            return False
    return True
