"""The rule ``empty-cache-in-loop``."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.references import uses

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_NAMES = {f"torch.{device}.empty_cache" for device in ("cuda", "xpu", "mps", "mtia", "accelerator")} | {
    "torch.cuda.memory.empty_cache",
    "torch.accelerator.memory.empty_cache",
}
_BATCHES = ("loader", "batch", "chunk", "tile", "slice", "frame", "step", "prompt", "token", "patch")
_LOADS = ("load", "build", "create", "make", "from_pretrained", "get_model", "init", "del ")
_MODELS = ("del model", "del net", "del pipe", "from_pretrained(", "load_model(")
_SELDOM = ("%", "memory", "oom", "free", "thresh", "every", "interval", "low_vram", "offload")


class EmptyCacheInLoop(SourceRule):
    """``empty_cache`` in each pass of a loop over batches.

    What it reports: ``torch.cuda.empty_cache()`` (also of ``xpu``, ``mps``, ``accelerator``) that runs per batch, step
    or chunk, or in ``forward``.

    Why it costs: ``cudaFree`` waits for the whole device, and the next pass asks the driver for the same memory again
    (``cudaMalloc``, milliseconds). It does not lower the peak of this process: cached blocks are free for its tensors.

    When it stays silent: once per epoch or per model, every N steps, under a test of the free memory, in the handler of
    an out-of-memory error, and in loops that load or delete a model in each pass.

    Example::

        for images, labels in loader:
            train_step(images, labels)
            torch.cuda.empty_cache()

    Use instead::

        for images, labels in loader:
            train_step(images, labels)

    Where the cache is fragmented, set ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
    """

    id = "empty-cache-in-loop"

    def check(self, source: Source) -> Iterable[Finding]:
        for node, name in uses(source, _NAMES):
            call = source.parent(node)
            if not isinstance(call, ast.Call) or call.func is not node or _seldom(source, call):
                continue
            if reason := _often(source, call):
                yield source.finding(
                    self.id,
                    call,
                    f"{name}() gives the cached memory back in each pass, waits for the device, and has to ask for it "
                    "again",
                    "take it out of the loop: cached blocks serve the next tensors; against fragmentation set "
                    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                    evidence=reason,
                )


def _often(source: Source, call: ast.Call) -> str:
    if any(word in _body(loop) for loop in source.loops(call)[:1] for word in _MODELS):
        return ""
    if hot := source.hot(call):
        return hot.reason
    for loop in source.loops(call)[:1]:
        header = _header(loop)
        if "epoch" in header or any(word in _body(loop) for word in _LOADS):
            return ""
        if any(word in header for word in _BATCHES) or ".backward(" in _body(loop):
            return f"it runs in each pass of the loop in line {loop.lineno}"
    return ""


def _header(loop: ast.AST) -> str:
    if isinstance(loop, ast.For | ast.AsyncFor):
        return f"{ast.unparse(loop.target)} in {ast.unparse(loop.iter)}".lower()
    return ast.unparse(loop.test).lower() if isinstance(loop, ast.While) else ""


def _body(loop: ast.AST) -> str:
    """What the loop calls and deletes, without strings and nested functions' insides."""
    return "\n".join(ast.unparse(statement) for statement in getattr(loop, "body", []) if _simple(statement)).lower()


def _simple(statement: ast.stmt) -> bool:
    return not isinstance(statement, ast.FunctionDef | ast.ClassDef)


def _seldom(source: Source, call: ast.Call) -> bool:
    child: ast.AST = call
    for above in source.ancestors(call):
        if isinstance(above, ast.ExceptHandler):
            return True
        if isinstance(above, ast.If) and child is not above.test:
            test = ast.unparse(above.test).lower()
            if any(word in test for word in _SELDOM):
                return True
        if isinstance(above, ast.For | ast.While | ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        child = above
    return False
