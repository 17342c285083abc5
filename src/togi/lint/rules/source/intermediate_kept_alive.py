"""The rule ``intermediate-kept-alive``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.broadcasts import PAIRS_OF_NUMBERS, StatementNeeds, allocates, peak, steps, takes_one_row
from togi.lint.source.identifiers import decorators_mention
from togi.lint.source.inference import is_layer
from togi.lint.source.model import Source
from togi.lint.source.syntax import is_constant
from togi.lint.source.value import ValueKind, excerpt

_PAIRING = frozenset("unsqueeze cdist outer ger pairwise_distances T mT t transpose".split())
"""Names without which, and without ``x[:, None]``, nothing is paired with anything."""
_INDICES = re.compile(r"((ind|idx|index|indices|mask|ids|position_embeddings)$|coords)")
_TABLES = re.compile(r"(__init__|rel|index|coord|anchor|grid|table|mask|embed|freq|rope|init_weight|reset)")
_COMPILERS = ("compile", "jit")

_WORTHWHILE = 0.9
"""What is left of the peak without the dead names, at most, to be worth a line."""


class _KeptTensor(NamedTuple):
    """A name that is bound to something large and outlives its last use."""

    name: str
    binding: StatementNeeds
    last: StatementNeeds
    """Where it is used last."""
    later: StatementNeeds
    """What runs then, and needs memory."""


class IntermediateKeptAlive(SourceRule):
    """A large intermediate stays alive past its last use.

    What it reports: names bound to broadcasts over pairs (N x M elements out of N and M) whose last use comes before
    the statement at which the function holds most, or before a model runs. Deleting them lowers that peak by a tenth or
    more. Once per function, where the first of them is bound.

    Why it costs: a name keeps its tensor's memory until the function returns, so the peak holds all of them at once.
    The intermediates of a ``box_iou`` as below, for 60,000 x 500 boxes, take 915 MiB at the peak with the names kept
    and 686 MiB with them deleted, as ``togi explain delete-intermediates --prove`` measures.

    When it stays silent: names deleted or bound anew, results that are in use where the peak is, comparisons and masks,
    and tables built once (relative positions, masks, anchors). Functions under ``torch.compile``, and functions that
    the file calls with one row only. Code of a training step (what autograd saves stays alive anyway), and everything
    that is not visibly a broadcast over pairs.

    Example::

        lt = torch.max(boxes1[:, None, :2], boxes2[:, :2])
        rb = torch.min(boxes1[:, None, 2:], boxes2[:, 2:])
        wh = (rb - lt).clamp(min=0)
        inter = wh[..., 0] * wh[..., 1]
        return inter / (area1[:, None] + area2 - inter)

    Use instead::

        lt = torch.max(boxes1[:, None, :2], boxes2[:, :2])
        rb = torch.min(boxes1[:, None, 2:], boxes2[:, 2:])
        wh = (rb - lt).clamp(min=0)
        del lt, rb
        inter = wh[..., 0] * wh[..., 1]
        del wh
        return inter / (area1[:, None] + area2 - inter)

    Or one function under ``torch.compile``, which never stores them, or ``togi.ops``, which works in tiles.

    Source: https://github.com/pytorch/vision/issues/7959
    """

    id = "intermediate-kept-alive"

    def check(self, source: Source) -> Iterable[Finding]:
        for function in source.nodes(ast.FunctionDef):
            if (
                not _may_pair(source, function)
                or _TABLES.search(function.name.lower())
                or decorators_mention(source, function, _COMPILERS)
            ):
                continue
            intermediates = sorted(_in_function(source, function), key=lambda dead: dead.binding.statement.lineno)
            if intermediates and not takes_one_row(source, function):
                yield self._report(source, intermediates)

    def _report(self, source: Source, intermediates: Sequence[_KeptTensor]) -> Finding:
        name, binding, last, later = intermediates[0]
        more = f" (so do {', '.join(dead.name for dead in intermediates[1:])})" if len(intermediates) > 1 else ""
        meanwhile = "computes others, where the function holds most" if later.temporary else "runs a model"
        return source.finding(
            self.id,
            binding.statement,
            f"{name}, a broadcast over pairs, is last used in line {last.statement.lineno} and stays alive while "
            f"line {later.statement.lineno} {meanwhile}{more}",
            f"write {_deletions(intermediates)}, or compute in one expression, in tiles (togi.ops) or in one function "
            "under torch.compile, so that nothing of it is stored",
            evidence=f"{excerpt(_expression(binding.statement), 60)} pairs every row of one operand with every row "
            "of the other",
        )


def _deletions(intermediates: Sequence[_KeptTensor]) -> str:
    """ "`del lt, rb` after line 7, `del wh` after line 8"."""
    names: dict[int, list[str]] = {}
    for name, _, last, _ in intermediates:
        names.setdefault(last.statement.end_lineno or last.statement.lineno, []).append(name)
    return ", ".join(f"`del {', '.join(dead)}` after line {line}" for line, dead in sorted(names.items()))


def _may_pair(source: Source, function: ast.FunctionDef) -> bool:
    """Whether anything in ``function`` could make a broadcast over pairs: asked first, since it costs little."""
    if not _PAIRING.isdisjoint(node.attr for node in source.walk(function, ast.Attribute)):
        return True
    if not _PAIRING.isdisjoint(node.id for node in source.walk(function, ast.Name)):
        return True
    indices = (node.slice for node in source.walk(function, ast.Subscript))
    return any(is_constant(part, None) for index in indices for part in getattr(index, "elts", [index]))


def _in_function(source: Source, function: ast.FunctionDef) -> Iterator[_KeptTensor]:
    for block in _blocks(function.body):
        if not source.records_grad(block[0]) or source.hot(block[0]) is None:
            yield from _in_block(source, block)


def _blocks(body: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """The block and those inside it."""
    yield body
    for statement in body:
        if isinstance(statement, ast.With | ast.For | ast.While | ast.If):
            yield from _blocks(statement.body)


def _in_block(source: Source, block: Sequence[ast.stmt]) -> Iterator[_KeptTensor]:
    done = steps(source, block)
    if not any(size for step in done for size in step.binds.values()):
        return
    at_peak = list(_at_peak(source, done))
    if source.records_grad(block[0]):  # what is multiplied stays alive for the backward pass, whatever is deleted
        yield from (dead for dead in at_peak if _helps_while_recording(source, dead.binding))
    else:
        yield from at_peak
        yield from _while_models_run(source, done, {dead.name for dead in at_peak})


def _helps_while_recording(source: Source, binding: StatementNeeds) -> bool:
    """Outside of what runs in training, a broadcast over pairs that can be seen."""
    return source.value(_expression(binding.statement)).large and source.hot(binding.statement) is None


def _at_peak(source: Source, done: Sequence[StatementNeeds]) -> Iterator[_KeptTensor]:
    """Names that are dead where the block holds most, if deleting them lowers what it holds at most."""
    highest = peak(done)
    if highest.step is None or peak(done, freed=True).units > _WORTHWHILE * highest.units:
        return
    for name, size in highest.alive.items():
        if _INDICES.search(name):
            continue
        binding, last = _only_binding(source, done, name), _last_use(source, done, name)
        if size and binding is not None and last is not None and _comes_before(last, highest.step):
            yield _KeptTensor(name, binding, last, highest.step)


def _while_models_run(source: Source, done: Sequence[StatementNeeds], apart_from: set[str]) -> Iterator[_KeptTensor]:
    """Names that are dead while a model runs."""
    for step in done:
        for name, size in step.binds.items():
            last = _last_use(source, done, name)
            if size < PAIRS_OF_NUMBERS or name in apart_from or last is None or last is step:
                continue
            later = (other for other in done if _comes_before(last, other) and _runs_model(source, other.statement))
            running = next(later, None)
            if running is not None and _only_binding(source, done, name) is step:
                yield _KeptTensor(name, step, last, running)


def _runs_model(source: Source, statement: ast.stmt) -> bool:
    called = (call.func for call in source.walk(statement, ast.Call) if isinstance(call.func, ast.Name | ast.Attribute))
    values = map(source.value, called)
    return any(value.kind is ValueKind.MODULE and not is_layer(value) for value in values)


def _expression(statement: ast.stmt) -> ast.expr:
    value = getattr(statement, "value", None)
    assert isinstance(value, ast.expr)
    return value


def _only_binding(source: Source, done: Sequence[StatementNeeds], name: str) -> StatementNeeds | None:
    """The statement that binds ``name`` to something large; None where another binds or deletes it."""
    binding = [step for step in done if name in _stored(source, step.statement)]
    return binding[0] if len(binding) == 1 and binding[0].binds.get(name) else None


def _stored(source: Source, statement: ast.stmt) -> set[str]:
    return {name.id for name in source.walk(statement, ast.Name) if not isinstance(name.ctx, ast.Load)}


def _last_use(source: Source, done: Sequence[StatementNeeds], name: str) -> StatementNeeds | None:
    """The last statement that uses ``name``, or what is a view of it."""
    names = {name}
    for step in done:
        if names & step.reads and isinstance(step.statement, ast.Assign) and not any(step.binds.values()):
            names |= _stored(source, step.statement) if _is_view(source, step.statement) else set()
    return next((step for step in reversed(done) if names & step.reads), None)


def _is_view(source: Source, statement: ast.Assign) -> bool:
    return not any(allocates(node) for node in source.walk(statement.value))


def _comes_before(step: StatementNeeds, other: StatementNeeds) -> bool:
    return step.statement.lineno < other.statement.lineno
