"""What a stretch of code asks of an accelerator, and whether it waits for it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from togi.lint.source.clocks import Interval
from togi.lint.source.loaders import cuda_names, mentions_cuda
from togi.lint.source.value import Kind

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_HARMLESS_BUILTINS = {
    "range",
    "enumerate",
    "len",
    "zip",
    "list",
    "tuple",
    "dict",
    "iter",
    "next",
    "isinstance",
    "min",
    "max",
}
_HARMLESS_METHODS = {
    "append",
    "extend",
    "step",
    "zero_grad",
    "backward",
    "train",
    "eval",
    "parameters",
    "items",
    "keys",
    "values",
    "get",
    "scale",
    "unscale_",
    "requires_grad_",
    "range_push",
    "range_pop",
    "record",
}
_WAITS = {"synchronize", "item", "cpu", "numpy", "tolist", "elapsed_time", "wait", "barrier", "mark_step", "query"}
_LOSSES = {"criterion", "loss_fn", "loss_func", "loss_function"}


def may_wait(source: Source, call: ast.Call) -> bool:
    """Whether a call waits for the device, or may do so because the file does not show what it does."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in _WAITS or _to_host(call):
        return True
    qualified = source.qualified(call.func) or ""
    if qualified in ("print", "float", "int", "bool", "str", "sum"):
        return any(source.value(arg).kind in (Kind.TENSOR, Kind.UNKNOWN) for arg in _parts(call))
    return not _harmless(source, call, name, qualified)


def _harmless(source: Source, call: ast.Call, name: str, qualified: str) -> bool:
    if qualified in _HARMLESS_BUILTINS or name in _HARMLESS_METHODS or name in _LOSSES:
        return True
    if qualified.startswith(("torch.", "time.", "tqdm", "math.")):
        return not qualified.startswith("torch.utils.benchmark")
    kind = source.value(call.func).kind
    owner = source.value(call.func.value).kind if isinstance(call.func, ast.Attribute) else Kind.UNKNOWN
    return kind is Kind.MODULE or owner in (Kind.TENSOR, Kind.OPTIMIZER)


def device_work(source: Source, interval: Interval) -> ast.expr | None:
    """The first call of a module, of ``backward`` or of an operation of tensors between two readings."""
    for call in interval.calls:
        if source.value(call.func).kind is Kind.MODULE or _is_backward(call):
            return call
        value = source.value(call)
        if value.kind is Kind.TENSOR and value.device == "cuda":
            return call
    span = range(interval.start.lineno, interval.reading.lineno + 1)
    product: ast.BinOp
    for product in source.nodes(ast.BinOp):
        if product.lineno in span and isinstance(product.op, ast.MatMult):
            value = source.value(product)
            if value.kind is Kind.TENSOR and value.device == "cuda":
                return product
    return None


def on_cuda(source: Source, work: ast.expr, interval: Interval) -> bool:
    """Whether the work is evidently on a CUDA device: its value says so, or the function puts things there."""
    involved = [work, *([work.func, *work.args] if isinstance(work, ast.Call) else [])]
    devices = {source.value(node).device for node in involved}
    if "cpu" in devices:
        return False
    return "cuda" in devices or _scope_moves_to_cuda(source, interval)


def _scope_moves_to_cuda(source: Source, interval: Interval) -> bool:
    """Whether the function (or the module's top level) moves something to a CUDA device."""
    scope, names = source.scope(interval.start), cuda_names(source)
    for call in source.nodes(ast.Call):
        if not isinstance(call.func, ast.Attribute) or source.scope(call) is not scope:
            continue
        if call.func.attr == "cuda":
            return True
        if call.func.attr == "to" and any(mentions_cuda(arg) or _name(arg) in names for arg in _parts(call)):
            return True
    return False


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _parts(call: ast.Call) -> list[ast.expr]:
    """Arguments, and what stands in braces in those that are f-strings."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    braces = [part.value for arg in given for part in ast.walk(arg) if isinstance(part, ast.FormattedValue)]
    return [*given, *braces]


def _to_host(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "to"
        and any(isinstance(arg, ast.Constant) and arg.value == "cpu" for arg in call.args)
    )


def _is_backward(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
