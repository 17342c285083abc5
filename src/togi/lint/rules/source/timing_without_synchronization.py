"""The rule ``timing-without-synchronization``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.model import Source
from togi.lint.source.timing import TimedStretch, device_work, intervals, may_wait, on_cuda


class TimingWithoutSynchronization(SourceRule):
    """A measurement of GPU work that does not wait for it.

    What it reports: two readings of a clock (``time.time``, ``perf_counter``, ``timeit.default_timer``, ...) with work
    of a CUDA device between them and nothing that waits for the device.

    Why it costs: kernels are only queued when a call returns, so what is measured is the time to queue them. Decisions
    that rest on it are about the wrong thing.

    When it stays silent: something between the readings waits (``synchronize``, ``.item()``, ``.cpu()``, an event), or
    may do so (a function that the file does not show), and where nothing shows that the work is on a GPU.

    Example::

        start = time.perf_counter()
        model(x)
        elapsed = time.perf_counter() - start

    Use instead::

        torch.cuda.synchronize()
        start = time.perf_counter()
        model(x)
        torch.cuda.synchronize()
        elapsed = time.perf_counter() - start

    or ``torch.utils.benchmark.Timer``, which does this and warms up.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution
    """

    id = "timing-without-synchronization"

    def check(self, source: Source) -> Iterable[Finding]:
        unsynchronized: dict[ast.Call, tuple[TimedStretch, ast.expr]] = {}
        for interval in intervals(source):
            if not any(may_wait(source, call) for call in interval.calls):
                work = device_work(source, interval)
                if work is not None and on_cuda(source, work, interval):
                    unsynchronized.setdefault(interval.reading, (interval, work))
        for reading, (interval, queued) in unsynchronized.items():
            yield source.finding(
                self.id,
                reading,
                "the clock is read when the work is queued, not when the GPU has done it",
                f"call torch.cuda.synchronize() before this reading and before the one in line {interval.start.lineno}",
                evidence=f"{ast.unparse(queued)} in line {queued.lineno} only queues kernels",
            )
