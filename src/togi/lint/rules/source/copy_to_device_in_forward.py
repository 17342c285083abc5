"""The rule ``copy-to-device-in-forward``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source import torch_api
from togi.lint.source.call_sites import method_calls
from togi.lint.source.model import Source
from togi.lint.source.syntax import is_constant, last_name
from togi.lint.source.value import ValueKind, evidence_of, excerpt

_MOVES = ("to", "cuda", "type", "type_as", "xpu")


class CopyToDeviceInForward(SourceRule):
    """What was made on the CPU is moved to the device in ``forward``.

    What it reports: ``.to(device)``, ``.cuda()``, ``.type(...)`` and ``.type_as(x)``, in ``forward`` or what it calls,
    of a tensor that was made on the CPU: by ``torch.zeros``, ``torch.arange``, ... without ``device=``, or once in
    ``__init__`` and kept as a plain attribute.

    Why it costs: a copy from pageable memory waits for the device, in every pass, for values that the device could have
    filled in itself, or that could have moved once with the module.

    When it stays silent: an attribute that is moved once and kept (``self.table = self.table.to(x.device)``), inputs
    and everything whose place is not known, changes of dtype only, tensors made on the device, and what
    ``tensor-made-in-forward`` reports where it is made (``torch.tensor(...)``).

    Example::

        def forward(self, x):
            mask = torch.ones(x.shape[1]).to(x.device)
            return self.layers(x) * mask * self.scale.to(x.device)

    Use instead::

        def __init__(self):
            self.register_buffer("scale", torch.tensor([0.2, 0.3]))

        def forward(self, x):
            mask = torch.ones(x.shape[1], device=x.device)
            return self.layers(x) * mask * self.scale

    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#create-tensors-directly-on-the-target-device
    """

    id = "copy-to-device-in-forward"

    def check(self, source: Source) -> Iterable[Finding]:
        for call, method in method_calls(source, _MOVES):
            hot = source.hot(call)
            if hot is None or hot.function is None:
                continue
            before, after = source.value(method.value), source.value(call)
            factory = before.call
            if (
                before.kind is not ValueKind.TENSOR
                or before.device != "cpu"
                or factory is None
                or after.device == "cpu"
            ):
                continue
            if _stays_moved(source, call, method.value) or _is_empty(factory):
                continue
            here = source.function(factory) is source.function(call)
            if here and isinstance(factory.func, ast.Attribute) and factory.func.attr in torch_api.FROM_DATA:
                continue  # tensor-made-in-forward reports it
            yield source.finding(
                self.id,
                call,
                f"{excerpt(call, 40)} copies what was made on the CPU to the device in every pass",
                _remedy(factory, method.value, here),
                evidence=evidence_of(before, hot),
            )


def _stays_moved(source: Source, call: ast.Call, moved: ast.expr) -> bool:
    """``self.table = self.table.to(x.device)``: later passes find it there."""
    assign = source.parent(call)
    if not isinstance(moved, ast.Attribute) or not isinstance(assign, ast.Assign):
        return False
    return ast.unparse(moved) in map(ast.unparse, assign.targets)


def _is_empty(factory: ast.Call) -> bool:
    """``torch.tensor([])``, ``torch.zeros(0)``: nothing is copied."""
    first = factory.args[0] if factory.args else None
    sized = last_name(factory.func) in ("zeros", "ones", "empty", "rand", "randn")
    return (sized and is_constant(first, 0)) or (isinstance(first, ast.List | ast.Tuple) and not first.elts)


def _remedy(factory: ast.Call, moved: ast.expr, here: bool) -> str:
    if here:
        replacement = f"{excerpt(factory.func)}(..., device=x.device)"
        return f"make it there: {replacement} in line {factory.lineno}, x being an input"
    name = moved.attr if isinstance(moved, ast.Attribute) else excerpt(moved, 40)
    return f'keep it as a buffer, which moves with the module: self.register_buffer("{name}", ..., persistent=False)'
