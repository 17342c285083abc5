"""Why compiled code is not replayed as a CUDA graph: what Inductor tells of it.

Behind it: ``torch._inductor.compile_fx.cudagraphify``, the counter ``cudagraph_skips``, and log messages of
torch._inductor.{cudagraph_utils, cudagraph_trees, scheduler, utils} (torch 2.9 to 2.15). torch 2.9 logs them as
``perf_hints``, newer ones as ``cudagraphs``; why a graph was cut into parts is told since 2.11 at the level of
debugging only. When they go: no reason is known, and no note made.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

__all__ = ["GraphReport", "NotRecorded", "graphs_reported"]

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


@dataclass
class NotRecorded:
    """Something that is not replayed as a CUDA graph."""

    reason: str
    """In torch's words: ``mutated inputs (1 instances)``, ``cpu ops``."""
    stack: str = ""
    """The traceback of the operation as torch prints it, outermost line first; empty where torch gives none."""


@dataclass
class GraphReport:
    """What Inductor told inside ``graphs_reported``."""

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

    A mutated input is told at the first call, a size too many at the call that has it.
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
