"""Callers that come at the same time, as the threads of a web server do."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

MOST_THREADS = 1024
"""More than a process of any machine has cores: a file that asks for more would only fill the memory."""


def _nothing() -> None:
    """Waits for nothing: calls are done when they return."""


class Callers:
    """Threads that stay, so that what a backend keeps for each thread is made once. Requests wait in one line, and
    whoever is free takes the next."""

    def __init__(
        self,
        count: int,
        *,
        enter: Callable[[], object] = _nothing,
        before: Callable[[], object] = _nothing,
        after: Callable[[], object] = _nothing,
    ) -> None:
        """
        Args:
            enter: run once in each of the threads.
            before: run by whoever asks for answers, before the first request.
            after: run in each thread once its requests are done, and by whoever wants to wait for the last one.
        """
        self.count = count
        self.before, self.after = before, after
        self._enter = enter
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._threads = ThreadPoolExecutor(self.count, "caller", self._enter)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def answer(self, request: Callable[[int], None], count: int) -> None:
        """``request(number)`` for each number below ``count``. Returns when all are answered; raises what one raised,
        after the others have ended what they were at."""
        if self._process != os.getpid():  # no thread comes along where a process is forked
            self._start()
        self.before()
        line = iter(range(count))  # shared: its ``next`` is one step of the interpreter

        def caller() -> None:
            try:
                for number in line:
                    request(number)
                self.after()
            except BaseException:
                for _ in line:  # nobody begins another
                    pass
                raise

        ended = [self._threads.submit(caller) for _ in range(min(self.count, count))]
        for each in [each.exception() for each in ended]:
            if each is not None:
                raise each
