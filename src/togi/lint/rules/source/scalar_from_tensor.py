"""The rule ``scalar-from-tensor``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.call_sites import method_calls
from togi.lint.source.inference import backward_calls
from togi.lint.source.model import Source
from togi.lint.source.placement import computes_on_cpu
from togi.lint.source.surroundings import neighbours
from togi.lint.source.syntax import arguments_of, last_name
from togi.lint.source.value import Hot, Value, ValueKind, evidence_of, excerpt, receiver

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
        for node, tensor, how in _readings(source):
            hot = source.hot(node)
            if hot is None:
                continue
            value = source.value(tensor)
            if computes_on_cpu(source, node, value) or _comes_after_wait(source, node, tensor):
                continue
            if value.on_device or _is_result_of_training(source, node, tensor, value, hot):
                yield source.finding(
                    self.id,
                    node,
                    f"{how} waits for the device to compute {excerpt(tensor, 40)}",
                    _remedy(source, hot, node, tensor),
                    evidence=evidence_of(value, hot),
                )


def _readings(source: Source) -> Iterator[tuple[ast.AST, ast.expr, str]]:
    """What reads a number: the node, what it is read from, and how to call it."""
    for call in source.nodes(ast.Call):
        match call:
            case ast.Call(func=ast.Attribute(value=tensor, attr="item" | "tolist"), args=[]):
                yield call, tensor, excerpt(call)
            case ast.Call(func=ast.Name(id=name), args=[tensor], keywords=[]) if name in _CONVERSIONS:
                yield call, tensor, f"{name}() of a tensor"
            case ast.Call(func=ast.Name(id="range"), args=bounds):
                yield from ((call, bound, "range() of a tensor") for bound in bounds)
    for node in source.nodes(ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None and not isinstance(bound, ast.Constant):
                yield bound, bound, "a slice bound out of a tensor"


def _comes_after_wait(source: Source, node: ast.AST, tensor: ast.expr) -> bool:
    """Below ``torch.cuda.synchronize()``, or another reading of the same tensor, with no work for the device in
    between: the number is there."""
    reading = f"{ast.unparse(tensor)}.item"
    before, _ = neighbours(source, node)
    for statement in reversed(before):
        calls = source.walk(statement, ast.Call)
        waits = any(last_name(call.func) == "synchronize" or ast.unparse(call.func) == reading for call in calls)
        if waits and isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign):
            return True
        if any(source.value(call.func).kind is ValueKind.MODULE or last_name(call.func) in _WORK for call in calls):
            return False
    return False


def _is_result_of_training(source: Source, node: ast.AST, tensor: ast.expr, value: Value, hot: Hot) -> bool:
    """``.item()`` of something unknown that is named like a loss or a measure, in a loop that trains."""
    by_item = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item"
    if value.kind is not ValueKind.UNKNOWN or not by_item or hot.loop is None:
        return False
    while isinstance(tensor, ast.Subscript):
        tensor = tensor.value
    return bool(_MEASURES.search(last_name(tensor))) and any(backward_calls(source, hot.loop))


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
    assigns = (assign for assign in source.walk(function, ast.Assign) if assign.value is node)
    bound = {target.id for assign in assigns for target in assign.targets if isinstance(target, ast.Name)}
    splits = method_calls(source, ("split", "split_with_sizes"), within=function)
    parts = (part for call, _ in splits for size in arguments_of(call) for part in source.walk(size))
    return any(part is node or (isinstance(part, ast.Name) and part.id in bound) for part in parts)
