"""The rule ``copy-to-host``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.uses_of_tensors import is_whole_output
from togi.lint.source.value import Hot, Kind, evidence_of, excerpt

if TYPE_CHECKING:
    from togi.lint.source.model import Source

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
                message = f"{excerpt(call, 40)} copies {excerpt(tensor, 40)} to the CPU and waits for it"
                yield source.finding(
                    self.id, call, message, _remedy(source, hot, tensor), evidence=evidence_of(value, hot)
                )


def _copies(source: Source) -> Iterator[tuple[ast.Call, ast.expr]]:
    for call in source.nodes(ast.Call):
        func = call.func
        if not isinstance(func, ast.Attribute):
            continue
        if (func.attr in ("cpu", "numpy") and not call.args) or (
            func.attr == "to" and not _asynchronous(call) and any(_is_cpu(source, one) for one in _targets(call))
        ):
            yield call, func.value
        elif call.args and (source.names.qualified(func, source.scope(func)) or "").startswith("numpy."):
            yield from ((call, one) for one in call.args[:2] if source.value(one).kind is Kind.TENSOR)


def _targets(call: ast.Call) -> list[ast.expr]:
    return [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "device")]


def _is_cpu(source: Source, node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == "cpu"
    named = isinstance(node, ast.Name) and "cpu" in node.id.lower()
    return (named or isinstance(node, ast.Call)) and source.value(node).device == "cpu"


def _asynchronous(call: ast.Call) -> bool:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "non_blocking"]
    return any(isinstance(one, ast.Constant) and one.value is True for one in given)


def _remedy(source: Source, hot: Hot, tensor: ast.expr) -> str:
    text = excerpt(tensor, 40)
    if hot.loop is not None and is_whole_output(source, tensor):
        return f'copy with {text}.to("cpu", non_blocking=True), and wait once: torch.cuda.synchronize() after the loop'
    if hot.loop is not None:
        return (
            f"collect {text} on the device and copy once after the loop; where it would not fit, copy into pinned "
            "memory with non_blocking=True and synchronize once at the end"
        )
    return f"do the rest with torch operations on {text}, on the device where it lies"
