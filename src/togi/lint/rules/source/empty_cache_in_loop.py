"""The rule ``empty-cache-in-loop``."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.identifiers import mentions
from togi.lint.source.model import Source
from togi.lint.source.references import calls_of
from togi.lint.source.surroundings import StatementLoop, climb
from togi.lint.source.syntax import last_name

_NAMES = {f"torch.{device}.empty_cache" for device in ("cuda", "xpu", "mps", "mtia", "accelerator")} | {
    "torch.cuda.memory.empty_cache",
    "torch.accelerator.memory.empty_cache",
}
_BATCHES = ("loader", "batch", "chunk", "tile", "slice", "frame", "step", "prompt", "token", "patch")
"""Parts of names that tell in the head of a loop what it goes through."""
_LOADS = ("load", "build", "create", "make", "from_pretrained", "get_model", "init")
_SELDOM = ("memory", "oom", "free", "thresh", "every", "interval", "low_vram", "offload")


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
        for call, name in calls_of(source, _NAMES):
            reason = "" if _is_rare(source, call) else _why_often(source, call)
            if reason:
                yield source.finding(
                    self.id,
                    call,
                    f"{name}() gives the cached memory back in each pass, waits for the device, and has to ask for it "
                    "again",
                    "take it out of the loop: cached blocks serve the next tensors; against fragmentation set "
                    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                    evidence=reason,
                )


def _is_rare(source: Source, call: ast.Call) -> bool:
    """In the handler of an error, every so many steps, or under a test of the memory."""
    for above, child in climb(source, call):
        if isinstance(above, ast.ExceptHandler):
            return True
        if isinstance(above, ast.If) and child is not above.test:
            periodic = any(isinstance(node.op, ast.Mod) for node in source.walk(above.test, ast.BinOp))
            if periodic or mentions(source, above.test, _SELDOM):
                return True
        if isinstance(above, ast.For | ast.While | ast.FunctionDef | ast.AsyncFunctionDef):
            return False
    return False


def _why_often(source: Source, call: ast.Call) -> str:
    loop = next(iter(source.loops(call)), None)
    body = _own_statements(loop)
    if _takes_turns_with_models(source, body):
        return ""
    if hot := source.hot(call):
        return hot.reason
    head = _head(loop)
    if _any_mentions(source, head, ("epoch",)) or _any_mentions(source, body, _LOADS) or _deletes(source, body):
        return ""
    trains = any(last_name(node.func) == "backward" for part in body for node in source.walk(part, ast.Call))
    if loop is not None and (trains or _any_mentions(source, head, _BATCHES)):
        return f"it runs in each pass of the loop in line {loop.lineno}"
    return ""


def _own_statements(loop: ast.AST | None) -> list[ast.stmt]:
    """The body of a loop, without the functions and classes that it defines."""
    body = loop.body if isinstance(loop, StatementLoop) else []
    return [statement for statement in body if not isinstance(statement, ast.FunctionDef | ast.ClassDef)]


def _head(loop: ast.AST | None) -> list[ast.expr]:
    if isinstance(loop, ast.For | ast.AsyncFor):
        return [loop.target, loop.iter]
    return [loop.test] if isinstance(loop, ast.While) else []


def _takes_turns_with_models(source: Source, body: list[ast.stmt]) -> bool:
    """Whether each pass of the loop loads a model or deletes one."""
    deleted = (target for statement in body for node in source.walk(statement, ast.Delete) for target in node.targets)
    if any(isinstance(target, ast.Name) and target.id.startswith(("model", "net", "pipe")) for target in deleted):
        return True
    called = (last_name(call.func) for statement in body for call in source.walk(statement, ast.Call))
    return any(name.endswith(("from_pretrained", "load_model")) for name in called)


def _deletes(source: Source, body: list[ast.stmt]) -> bool:
    return any(source.walk(statement, ast.Delete) for statement in body)


def _any_mentions(source: Source, nodes: Iterable[ast.AST], parts: Collection[str]) -> bool:
    return any(mentions(source, node, parts) for node in nodes)
