"""The rule ``data-dependent-shape``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.model import Source
from togi.lint.source.syntax import argument, last_name
from togi.lint.source.value import UNKNOWN, Value, ValueKind, evidence_of, excerpt

_INDEX = "index"
_MASK = "keep a mask of fixed size (torch.where, masked_fill), or bound it: torch.nonzero_static(..., size=n)"
_REMEDIES = {
    "nonzero": _MASK,
    "argwhere": _MASK,
    "where": "keep the mask and use torch.where(mask, a, b), or bound the count: torch.nonzero_static(..., size=n)",
    "masked_select": "keep the full size: multiply by the mask, masked_fill, or torch.where(mask, x, 0)",
    "unique": "sort or scatter_add with fixed sizes, or find the distinct values once, before the data is moved",
    "unique_consecutive": "mark the changes with a mask (x[1:] != x[:-1]) instead of collecting them",
    "bincount": "use torch.zeros(n, device=...).scatter_add_(0, x, ones) with a number of bins that Python knows",
    "repeat_interleave": "pass output_size= (the total that Python knows), so that it need not be read from the device",
    "one_hot": "pass num_classes=, so that the largest class need not be read from the device",
    _INDEX: "keep the full size: torch.where(mask, x, 0), masked_fill, or weights of zero and one in the reduction",
}


class DataDependentShape(SourceRule):
    """An operation whose result's size depends on the values of a device tensor.

    What it reports: ``nonzero``, ``argwhere``, one-argument ``where``, ``masked_select``, indexing with a boolean mask,
    ``unique``, ``bincount``, ``one_hot`` without ``num_classes`` and ``repeat_interleave`` by a tensor without
    ``output_size``, in ``forward``, in a training step, or in a loop over batches.

    Why it costs: to allocate the result, Python needs to know its size, so it waits for the device to count. CUDA
    graphs cannot record it, and ``torch.compile`` breaks the graph or recompiles.

    When it stays silent: tensors on the CPU, NumPy arrays, integer and slice indices, writing a number through a mask
    (``x[mask] = 0``), ``nonzero_static``, and code outside of hot places.

    Example::

        def forward(self, x, valid: torch.BoolTensor):
            return self.head(x[valid]).mean()

    Use instead::

        def forward(self, x, valid: torch.BoolTensor):
            y = self.head(x).squeeze(-1)
            return torch.where(valid, y, 0).sum() / valid.sum()

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nonzero.html
    """

    id = "data-dependent-shape"

    def check(self, source: Source) -> Iterable[Finding]:
        for node, operation, value in (*_called(source), *_masked(source)):
            hot = source.hot(node)
            if hot is not None:
                how = "indexing with a mask" if operation == _INDEX else operation
                yield source.finding(
                    self.id,
                    node,
                    f"{how} waits for the device: the size of {excerpt(node, 40)} depends on its values",
                    _REMEDIES[operation],
                    evidence=evidence_of(value, hot),
                )


def _called(source: Source) -> Iterator[tuple[ast.expr, str, Value]]:
    """Hot calls of functions and methods among ``_REMEDIES``, with the value of the device tensor."""
    for call in source.nodes(ast.Call):
        name = last_name(call.func)
        if name not in _REMEDIES or source.hot(call) is None:
            continue
        function = source.dotted(call.func)
        if function in (f"torch.{name}", "torch.nn.functional.one_hot") and call.args:
            tensor, options = source.value(call.args[0]), call.args[1:]
        elif (
            not function
            and isinstance(call.func, ast.Attribute)
            and source.value(call.func.value).kind is ValueKind.TENSOR
        ):
            tensor, options = source.value(call.func.value), call.args
        else:
            continue
        if tensor.device != "cpu" and _depends_on_values(source, call, name, options):
            yield call, name, tensor


def _depends_on_values(source: Source, call: ast.Call, name: str, options: Sequence[ast.expr]) -> bool:
    """Whether the size of the result depends on values; ``rest`` is what is given besides the tensor."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if name == "where":
        return not options and not keywords.keys() - {"condition"}
    if name == "one_hot":
        return not options and "num_classes" not in keywords
    if name == "repeat_interleave":
        repeats = options[0] if options else argument(call, "repeats")
        return repeats is not None and source.value(repeats).on_device and "output_size" not in keywords
    return True


def _masked(source: Source) -> Iterator[tuple[ast.expr, str, Value]]:
    """Device tensors indexed by a mask: ``x[mask]``, ``x[mask] = y``."""
    for node in source.nodes(ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        indices = [part for part in parts if not isinstance(part, ast.Constant | ast.Slice)]
        if not indices or source.hot(node) is None:
            continue
        tensor = source.value(node.value)
        if not tensor.on_device or not any(_is_mask(source, index) for index in indices):
            continue
        if isinstance(node.ctx, ast.Load) or (isinstance(node.ctx, ast.Store) and _stored(source, node).on_device):
            yield node, _INDEX, tensor


def _is_mask(source: Source, node: ast.expr) -> bool:
    value = source.value(node)
    if value.kind is not ValueKind.TENSOR or (value.device == "cpu" and not value.cause_is_batch):
        return False
    named = isinstance(node, ast.Name) and (node.id == "mask" or node.id.endswith("_mask"))
    return value.dtype == "bool" or (named and value.dtype is None)


def _stored(source: Source, node: ast.Subscript) -> Value:
    """What is written through the mask: a number, or a tensor without dimensions, fills and does not wait."""
    statement = source.parent(node)
    value = source.value(statement.value) if isinstance(statement, ast.Assign) else UNKNOWN
    return UNKNOWN if value.scalar else value
