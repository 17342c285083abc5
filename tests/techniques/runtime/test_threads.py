"""The number of threads holds for a call and no longer, and in the calling thread alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from togi.core.errors import Refused
from togi.techniques import Applies, Refuses, conformance
from togi.techniques.runtime.threads import Threads, torch_threads

THREADS = Threads()


class CountsThreads(nn.Module):
    def forward(self, x):
        return x + torch.get_num_threads()


def candidate():
    return conformance.candidate_of(CountsThreads(), [torch.zeros(2)])


def facts(cores, threads):
    found = candidate().facts
    machine = found.machine.model_copy(update={"cpu_cores": cores, "threads": threads})
    return found.model_copy(update={"machine": machine})


@pytest.mark.parametrize(
    ("cores", "threads", "counts"),
    [(8, 8, [1, 4]), (8, 4, [1, 8]), (2, 2, [1]), (2, 1, [2]), (16, 3, [1, 8, 16]), (1, 1, [])],
)
def test_one_half_and_all_cores_are_tried_but_not_what_is_used_anyway(cores, threads, counts):
    known = facts(cores, threads)
    assert isinstance(THREADS.applies(known), Applies if counts else Refuses)
    if counts:
        assert [options["count"] for options in THREADS.options(known)] == counts


def test_a_call_runs_with_the_count_and_the_old_one_comes_back():
    before = torch.get_num_threads()
    other = before + 1
    start = candidate()
    told = THREADS.configure(start, {"count": other})
    assert told.threads == other
    result = THREADS.apply(told, {"count": other})
    assert result.runnable()(torch.zeros(2)).tolist() == [other, other]
    assert torch.get_num_threads() == before


def test_the_old_count_comes_back_after_an_error():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    before = torch.get_num_threads()
    result = THREADS.apply(candidate().with_(module=Fails()), {"count": before + 1})
    with pytest.raises(ValueError, match="no"):
        result.runnable()(torch.zeros(2))
    assert torch.get_num_threads() == before


def test_a_thread_that_starts_during_a_call_has_the_number_of_the_process():
    before = torch.get_num_threads()
    torch.set_num_threads(before)  # of the process, and not of this thread alone
    known, called, seen = threading.Event(), threading.Event(), []

    def other():
        seen.append(torch.get_num_threads())
        known.set()
        called.wait(60)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    with torch_threads(before + 1):
        thread.start()
        assert known.wait(60)
        assert torch.get_num_threads() == before + 1
    called.set()
    thread.join(60)
    assert seen == [before, before]


OBEYED = """
import os
import torch
from togi.techniques.runtime.threads import torch_threads
from togi.torch_internals.openmp import end_openmp_threads

def running():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(5)
numbers, matrix = torch.randn(1 << 20), torch.randn(400, 400)
image, kernel = torch.randn(8, 16, 64, 64), torch.randn(32, 16, 3, 3)
before = running()
for operator in (
    numbers.sin, numbers.sum, lambda: matrix @ matrix, lambda: torch.nn.functional.conv2d(image, kernel),
    lambda: torch.nn.functional.linear(matrix, matrix, matrix[0]),
):
    for count in (1, 3, 1):
        with torch_threads(count):
            operator()
        assert running() - before == count - 1, (operator, count, running() - before)
        end_openmp_threads()
    operator()
    assert running() - before == 4, (operator, "after")
    end_openmp_threads()
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
def test_operators_of_every_library_start_as_many_threads_as_the_call_has():
    done = subprocess.run([sys.executable, "-c", OBEYED], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


FORKED = """
import os, signal
import torch
from togi.techniques.runtime.threads import torch_threads

numbers = torch.randn(1 << 20)
for own in (1, 3, 5):
    torch.set_num_threads(own)
    with torch_threads(3):
        numbers.sin()
    child = os.fork()
    if not child:
        signal.alarm(60)
        torch.set_num_threads(1)
        with torch_threads(3):
            numbers.sin()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, own
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="no fork of this kind here")
def test_a_process_that_is_forked_later_computes_with_the_count_too():
    """A worker of a DataLoader, say: it would wait for threads that did not come along."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_an_engine_with_threads_of_its_own_is_left_alone():
    start = candidate().with_(program=SimpleNamespace(allocates_with_torch=False))
    assert THREADS.apply(start, {"count": 1}).contexts == ()


@pytest.mark.parametrize("count", [0, -1, None, "2", True, 1.5])
def test_a_count_that_is_none_is_refused(count):
    with pytest.raises(Refused, match="positive"):
        THREADS.configure(candidate(), {"count": count})


def test_conformance():
    conformance.check(THREADS, [lambda: conformance.candidate_of(nn.Linear(2, 2), [torch.randn(1, 2)])])
