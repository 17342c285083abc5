"""Callers that come at once: every request is answered once, and by whoever is free."""

from __future__ import annotations

import threading
import time

import pytest

from tests.artifact.forks import in_a_fork, needs_fork
from togi.core.callers import Callers


def test_every_request_is_answered_once_by_threads_that_stay() -> None:
    callers, answered, threads = Callers(4), list[int](), set[int]()

    def request(number: int) -> None:
        threads.add(threading.get_ident())
        answered.append(number)

    for _ in range(3):
        answered.clear()
        callers.answer(request, 50)
        assert sorted(answered) == list(range(50))
    assert len(threads) <= 4
    callers.answer(request, 0)
    assert len(answered) == 50


def test_all_of_them_are_there_at_once() -> None:
    together = threading.Barrier(3)
    Callers(3).answer(lambda _: together.wait(timeout=60) and None, 3)


def test_an_error_of_one_caller_is_raised_after_the_others_end_and_stops_new_calls() -> None:
    begun, ended, waiting = list[int](), list[int](), threading.Event()

    def request(number: int) -> None:
        begun.append(number)
        if number == 0:
            waiting.wait(60)
            raise ValueError("no")
        waiting.set()
        time.sleep(0.05)
        ended.append(number)

    with pytest.raises(ValueError, match="no"):
        Callers(2).answer(request, 10_000)
    assert len(begun) == len(ended) + 1 < 100


@needs_fork
def test_a_forked_process_has_callers_of_its_own() -> None:
    callers, answered = Callers(2), list[int]()

    def answer() -> bool:
        answered.clear()
        callers.answer(answered.append, 4)
        return sorted(answered) == [0, 1, 2, 3]

    together = threading.Barrier(2)
    callers.answer(lambda _: together.wait(timeout=60) and None, 2)  # both threads are there, and wait for work
    assert answer()
    assert in_a_fork(answer), "it waits for threads that it does not have"
    assert answer()
