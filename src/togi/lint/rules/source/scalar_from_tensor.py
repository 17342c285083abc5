"""The rule ``scalar-from-tensor``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.inference import backward_calls
from togi.lint.source.placement import computes_on_cpu
from togi.lint.source.syntax import last_name
from togi.lint.source.value import Hot, Kind, Value, evidence_of, excerpt, receiver

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_MEASURES = re.compile(r"(^|_)(loss\w*|losses|acc\d?|accuracy|err[GD]?|kl|norm|iou|dice|psnr)($|_)")
_WORK = ("backward", "step")
_CONVERSIONS = ("float", "int", "bool", "complex")


class ScalarFromTensor(SourceRule):
    """A Python number is read out of a device tensor in hot code.

    What it reports: ``.item()``, ``.tolist()``, ``float(x)``, ``int(x)``, ``bool(x)``, ``complex(x)``, ``range(x)`` and
    slice bounds on a tensor that may lie on an accelerator, in ``forward``, in a training step, or in a loop over
    batches; ``.item()`` of something unknown that is named like a loss or a measure in a loop that trains.

    Why it costs: Python has to wait until the device has computed everything queued so far and has copied the number
    back. Until then it queues nothing, so the device runs dry after every such line. Under ``torch.compile`` each one
    breaks the graph or adds a guard.

    When it stays silent: below ``torch.cuda.synchronize()`` or another reading of the same tensor; NumPy arrays, Python
    numbers, sizes. Tensors known to lie on the CPU: batches as a DataLoader gives them, results of ``.cpu()``, what a
    function computes that makes its model and moves nothing. Code outside of hot places, and branches that run every so
    many steps.

    Example::

        for images, labels in loader:
            loss = criterion(model(images.to(device)), labels.to(device))
            loss.backward()
            total += loss.item()

    Use instead::

        total = torch.zeros((), device=device)
        for images, labels in loader:
            loss = criterion(model(images.to(device)), labels.to(device))
            loss.backward()
            total += loss.detach()
        total = total.item()

    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
    """

    id = "scalar-from-tensor"

    def check(self, source: Source) -> Iterable[Finding]:
        for node, tensor, what in _readings(source):
            hot = source.hot(node)
            if hot is None:
                continue
            value = source.value(tensor)
            if computes_on_cpu(source, node, value) or _after_wait(source, node, tensor):
                continue
            if value.on_device or _is_result_of_training(source, node, tensor, value, hot):
                message = f"{what} waits for the device to compute {excerpt(tensor, 40)}"
                yield source.finding(
                    self.id, node, message, _remedy(source, hot, node, tensor), evidence=evidence_of(value, hot)
                )


def _after_wait(source: Source, node: ast.AST, tensor: ast.expr) -> bool:
    """Below ``torch.cuda.synchronize()``, or another reading of the same tensor, with no work for the device in
    between: the number is there."""
    text = f"{ast.unparse(tensor)}.item"
    statement = source.index.statement(node)
    above = source.parent(statement) if statement is not None else None
    blocks = (getattr(above, name, None) for name in ("body", "orelse", "finalbody"))
    block = next((one for one in blocks if isinstance(one, list) and statement in one), [])
    for before in reversed(block[: block.index(statement)] if block else []):
        calls = source.walk(before, ast.Call)
        waits = any(last_name(call.func) == "synchronize" or ast.unparse(call.func) == text for call in calls)
        if waits and isinstance(before, ast.Expr | ast.Assign | ast.AugAssign):
            return True
        if any(source.value(call.func).kind is Kind.MODULE or last_name(call.func) in _WORK for call in calls):
            return False
    return False


def _is_result_of_training(source: Source, node: ast.AST, tensor: ast.expr, value: Value, hot: Hot) -> bool:
    """``.item()`` of something unknown that is named like a loss or a measure, in a loop that trains."""
    if value.kind is not Kind.UNKNOWN or not ast.unparse(node).endswith(".item()") or hot.loop is None:
        return False
    while isinstance(tensor, ast.Subscript):
        tensor = tensor.value
    name = last_name(tensor)
    return bool(_MEASURES.search(name)) and any(backward_calls(source, hot.loop))


def _readings(source: Source) -> Iterator[tuple[ast.AST, ast.expr, str]]:
    """What reads a number: the node, what it is read from, and how to call it."""
    for call in source.nodes(ast.Call):
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in ("item", "tolist") and not call.args:
            yield call, func.value, f"{excerpt(call)}"
        elif isinstance(func, ast.Name) and len(call.args) == 1 and func.id in _CONVERSIONS and not call.keywords:
            yield call, call.args[0], f"{func.id}() of a tensor"
        elif isinstance(func, ast.Name) and func.id == "range":
            yield from ((call, one, "range() of a tensor") for one in call.args)
    for node in source.nodes(ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None and not isinstance(bound, ast.Constant):
                yield bound, bound, "a slice bound out of a tensor"


def _remedy(source: Source, hot: Hot, node: ast.AST, tensor: ast.expr) -> str:
    text = receiver(tensor)
    if _gives_sizes_of_split(source, node):
        return (
            "split() takes its sizes as Python numbers: hand them over as a list from where the batch is made, or read "
            "them once per batch, before the layers"
        )
    if hot.loop is not None:
        return (
            f"keep it on the device (accumulate {text}.detach() in a tensor) and read the number once after the loop, "
            "or only every so many steps"
        )
    return f"go on computing with the tensor {text} (torch.where, clamp, masks, broadcasting) instead of a number"


def _gives_sizes_of_split(source: Source, node: ast.AST) -> bool:
    """Whether ``node``, or the name that it is bound to, is what a ``split`` in the same function cuts by."""
    function = source.function(node)
    if function is None:
        return False
    bound = {
        target.id
        for one in source.walk(function, ast.Assign)
        if one.value is node
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    splits = [one for one in source.walk(function, ast.Call) if _is_split(one)]
    given = [part for one in splits for argument in (*one.args, *one.keywords) for part in source.walk(argument)]
    return any(part is node or (isinstance(part, ast.Name) and part.id in bound) for part in given)


def _is_split(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("split", "split_with_sizes")
