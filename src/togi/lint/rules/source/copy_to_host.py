"""The rule ``copy-to-host``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.model import Source
from togi.lint.source.syntax import argument, is_constant
from togi.lint.source.uses_of_tensors import is_whole_output
from togi.lint.source.value import Hot, ValueKind, evidence_of, excerpt

_SIZES = re.compile(r"_thw\b|\b(\w+_)?(lengths|seqlens|lens|sizes|num_\w+|counts)\b")
"""A few integers that Python needs for shapes: one copy of them beats several readings."""


class CopyToHost(SourceRule):
    """A device tensor is copied to the CPU in hot code.

    What it reports: ``.cpu()``, ``.numpy()``, ``.to("cpu")`` and NumPy's functions on a tensor that may lie on an
    accelerator, in ``forward``, in a training step, or in a loop over batches.

    Why it costs: the copy waits for everything queued on the device, and Python waits for the copy. In ``forward`` the
    way back costs the same once more.

    When it stays silent: tensors that lie on the CPU, modules, copies with ``non_blocking=True``, copies outside of hot
    places or every so many steps, small tables of sizes (``grid_thw``, ``lengths``) that Python needs, code for a
    streamer or callback that somebody may hand in.

    Example::

        def forward(self, x):
            weights = np.clip(x.cpu().numpy(), 0, 1)
            return x * torch.from_numpy(weights).to(x.device)

    Use instead::

        def forward(self, x):
            return x * x.clamp(0, 1)

    Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    """

    id = "copy-to-host"

    def check(self, source: Source) -> Iterable[Finding]:
        for call, tensor in _copies(source):
            hot = source.hot(call)
            if hot is None:
                continue
            value = source.value(tensor)
            if value.on_device and not _SIZES.search(excerpt(tensor)):
                yield source.finding(
                    self.id,
                    call,
                    f"{excerpt(call, 40)} copies {excerpt(tensor, 40)} to the CPU and waits for it",
                    _remedy(source, hot, tensor),
                    evidence=evidence_of(value, hot),
                )


def _copies(source: Source) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Calls that may copy to the CPU, with what they copy."""
    for call in source.nodes(ast.Call):
        method = call.func
        if not isinstance(method, ast.Attribute):
            continue
        if (method.attr in ("cpu", "numpy") and not call.args) or (method.attr == "to" and _moves_to_cpu(source, call)):
            yield call, method.value
        elif call.args and source.dotted(method).startswith("numpy."):
            yield from ((call, operand) for operand in call.args[:2] if source.value(operand).kind is ValueKind.TENSOR)


def _moves_to_cpu(source: Source, call: ast.Call) -> bool:
    """``x.to("cpu")``, which waits; not with ``non_blocking=True``."""
    if is_constant(argument(call, "non_blocking"), True):
        return False
    targets = (*call.args[:1], argument(call, "device"))
    return any(target is not None and _is_cpu(source, target) for target in targets)


def _is_cpu(source: Source, node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == "cpu"
    named = isinstance(node, ast.Name) and "cpu" in node.id.lower()
    return (named or isinstance(node, ast.Call)) and source.value(node).device == "cpu"


def _remedy(source: Source, hot: Hot, tensor: ast.expr) -> str:
    text = excerpt(tensor, 40)
    if hot.loop is None:
        return f"do the rest with torch operations on {text}, on the device where it lies"
    if is_whole_output(source, tensor):
        return f'copy with {text}.to("cpu", non_blocking=True), and wait once: torch.cuda.synchronize() after the loop'
    return (
        f"collect {text} on the device and copy once after the loop; where it would not fit, copy into pinned "
        "memory with non_blocking=True and synchronize once at the end"
    )
