import os
import threading
import time

import pytest

from togi.measure.threads import spread_threads, spread_while_running

several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@several
def test_no_thread_stays_pinned(monkeypatch):
    moves, real = [], os.sched_setaffinity
    monkeypatch.setattr(os, "sched_setaffinity", lambda tid, cores: (moves.append((tid, set(cores))), real(tid, cores)))
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        spread_threads()
        allowed = os.sched_getaffinity(0)
        assert os.sched_getaffinity(thread.native_id) == allowed
    finally:
        stop.set()
        thread.join()
    first = {tid: cores for tid, cores in reversed(moves) if len(cores) == 1}
    assert {len(cores) for cores in first.values()} == {1}
    assert len(set.union(*first.values())) >= 2, "the threads went to different cores"


@several
def test_a_thread_that_an_engine_pinned_is_left_alone():
    stop, started, core = threading.Event(), threading.Event(), min(os.sched_getaffinity(0))

    def pinned():
        os.sched_setaffinity(0, {core})
        started.set()
        stop.wait()

    thread = threading.Thread(target=pinned)
    thread.start()
    started.wait()
    try:
        spread_threads()
        assert os.sched_getaffinity(thread.native_id) == {core}
    finally:
        stop.set()
        thread.join()


def test_nothing_happens_where_the_system_has_no_such_call(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity")
    before = os.sched_getaffinity(0)
    spread_threads()
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("lasts_s", "spread"), [(0.0, 0), (0.2, 1)])
def test_what_lasts_is_spread_once_it_runs(lasts_s, spread):
    calls, before = [], threading.active_count()
    with spread_while_running(0.05, lambda: calls.append(1)):
        time.sleep(lasts_s)
    assert len(calls) == spread
    assert threading.active_count() == before
