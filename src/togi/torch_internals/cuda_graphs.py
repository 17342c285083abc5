"""Inductor's reasons for not replaying compiled code as a CUDA graph. ``examined_graphs`` finds them by itself.

Behind it: ``torch._inductor.compile_fx.cudagraphify``, the counter ``cudagraph_skips``, and log messages of
torch._inductor.{cudagraph_utils, cudagraph_trees, scheduler, utils} (torch 2.9 to 2.15). torch 2.9 logs them as
``perf_hints``, newer ones as ``cudagraphs``; why a graph was cut into parts is logged since 2.11 at the level of
debugging only. When they go: no reason is known, and no note made.
For ``replays_by_itself``: ``get_compiler_config`` of what torch.compile returns, and ``Module._compiled_call_impl``.
When they go: a capture of such a function fails with what CUDA says.
For ``trees_in_turn``: ``cudagraph_trees.local`` and its two attributes, ``torch._C._is_key_in_tls`` (torch 2.9 to
2.13). When ``_initialize_tls`` goes, which tells newer ones: threads take turns that need not.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch

from togi.torch_internals.behind import callables_behind, parts_behind

__all__ = ["GraphReport", "NotRecorded", "graphs_reported", "replays_by_itself", "trees_in_turn"]

_PARTITIONS = "torch._inductor.scheduler.__cudagraphs"
_LOGGERS = (
    _PARTITIONS,
    "torch._inductor.cudagraph_trees.__cudagraphs",
    "torch._inductor.cudagraph_utils.__cudagraphs",
    "torch._inductor.cudagraph_utils.__perf_hints",
    "torch._inductor.utils.__perf_hints",
)
_DUE_TO = re.compile(r"(?:(?:skipping|disabling) cudagraphs? |cudagraph partition )due to ")
_SIZES = re.compile(r"We have observed (\d+ distinct sizes)")
_OPERATION = re.compile(r"    \S+: reason=(?P<reason>[^,]+)")
_OPERATION_STACK = " " * 9


def replays_by_itself(function: Any) -> bool:
    """Return whether it, or a module behind it, was compiled with Inductor's own CUDA graphs
    (``mode="reduce-overhead"``)."""
    parts = [*callables_behind(function), *parts_behind(function).values()]
    compiled = [owner for part in parts for owner in (part, getattr(part, "_compiled_call_impl", None))]
    askers = (getattr(owner, "get_compiler_config", None) for owner in compiled)
    configs = (ask() for ask in askers if callable(ask))
    return any(config.get("triton.cudagraphs", False) for config in configs if config is not None)


_trees = threading.RLock()


@contextmanager
def trees_in_turn() -> Iterator[bool]:
    """Inside, this thread may replay what Inductor recorded in another one; whether threads take turns for it.

    Before torch 2.14 a thread that neither imported Inductor nor belongs to autograd has no CUDA graph trees of its
    own, which is an assertion without a word (pytorch #123177), and all threads replay the graphs of the first one.
    """
    from torch._inductor import cudagraph_trees

    if hasattr(cudagraph_trees, "_initialize_tls"):  # 2.14: each thread records its own
        yield False
        return
    with _trees:
        local = cudagraph_trees.local
        if not hasattr(local, "tree_manager_containers") and not torch._C._is_key_in_tls("tree_manager_containers"):
            local.tree_manager_containers, local.tree_manager_locks = {}, defaultdict(threading.Lock)
        yield True


@dataclass
class NotRecorded:
    """Something that is not replayed as a CUDA graph."""

    reason: str
    """In torch's words: ``mutated inputs (1 instances)``, ``cpu ops``."""
    stack: str = ""
    """The traceback of the operation as torch prints it, outermost line first; empty where torch gives none."""


@dataclass
class GraphReport:
    """The messages of Inductor inside ``graphs_reported``."""

    parts: int = 0
    """Parts of compiled code that were handed over to be recorded. One whose inputs turn out to be mutated is not
    recorded after all."""
    skips: int = 0
    """Graphs that were skipped; torch does not give a reason for each."""
    reasons: list[NotRecorded] = field(default_factory=list)


@contextmanager
def graphs_reported(report: GraphReport) -> Iterator[None]:
    """Inside, what Inductor tells of CUDA graphs is added to ``report``. One thread at a time: what is compiled or
    called on others meanwhile is added as well.

    A mutated input is reported at the first call, a size too many at the call that has it.
    """
    import torch._inductor.compile_fx as compile_fx
    from torch._dynamo.utils import counters

    cudagraphify = compile_fx.cudagraphify

    def counted(*args: Any, **kwargs: Any) -> Any:
        report.parts += 1
        return cudagraphify(*args, **kwargs)

    listener = _Listener(report)
    partitions = logging.getLogger(_PARTITIONS)
    level, propagate = partitions.level, partitions.propagate
    skips = counters["inductor"]["cudagraph_skips"]
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(listener)
    partitions.setLevel(logging.DEBUG)
    partitions.propagate = False  # what was not asked for is not printed
    try:
        with patch.object(compile_fx, "cudagraphify", counted):
            yield
    finally:
        partitions.setLevel(level)
        partitions.propagate = propagate
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(listener)
        report.skips += counters["inductor"]["cudagraph_skips"] - skips


class _Listener(logging.Handler):
    def __init__(self, report: GraphReport) -> None:
        super().__init__()
        self.report = report

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if operation := _OPERATION.match(text):
            self.report.reasons.append(NotRecorded(operation["reason"]))
        elif record.name == _PARTITIONS:
            if text.startswith(_OPERATION_STACK) and self.report.reasons:
                self.report.reasons[-1].stack += f"{text.strip()}\n"
        elif record.levelno >= logging.WARNING:
            self.report.reasons.append(_read(text))


def _read(text: str) -> NotRecorded:
    """A warning of torch's. A reason that passes two of its functions has the same words before it twice."""
    if sizes := _SIZES.search(text):
        return NotRecorded(f"one graph is recorded for each of {sizes[1]}")
    reason, _, stack = _DUE_TO.sub("", text).partition("Found from")
    return NotRecorded(reason.strip().rstrip("."), stack.lstrip(" :\n"))
