"""Denormals are flushed during a call and only then; a model that is known to meet none is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from togi.techniques import Applies, conformance, technique
from togi.techniques.runtime.flush_denormal import FlushDenormal, flushing
from togi.torch_internals import openmp

FLUSH = FlushDenormal()
ROOT = Path(__file__).parents[3]
SMALLEST = torch.tensor([1], dtype=torch.int32).view(torch.float32)


class Decays(nn.Module):
    """A filter whose state falls below the smallest normal number."""

    def forward(self, x):
        return x + x * 1e-30 * 1e-12


def flushes():
    return bool(((SMALLEST * 1.0).view(torch.int32) == 0).item())


def test_the_mode_holds_for_the_block_and_nests():
    assert not flushes()
    with flushing():
        assert flushes()
        with flushing():
            assert flushes()
        assert flushes()
    assert not flushes()


def test_the_mode_ends_with_an_error():
    with pytest.raises(ValueError, match="no"), flushing():
        raise ValueError("no")
    assert not flushes()


def test_it_refuses_where_there_is_nothing_to_flush():
    facts = conformance.candidate_of(Decays(), [torch.ones(3)]).facts
    assert FLUSH.applies(facts.model_copy(update={"denormals": True})) == Applies()
    answer = FLUSH.applies(facts.model_copy(update={"denormals": False}))
    assert "nothing to flush" in answer.reason


def test_a_call_is_made_in_the_mode():
    class Asks(Decays):
        def forward(self, x):
            self.flushed = flushes()
            return super().forward(x)

    start = conformance.candidate_of(Asks(), [torch.ones(3)])
    result = FLUSH.apply(FLUSH.configure(start, {}), {})
    result.runnable()(torch.ones(3))
    assert start.module.flushed
    assert not flushes()


WORKERS = """
import os
import torch
from tests.techniques.runtime.test_flush_denormal import FLUSH, conformance, nn
from togi.techniques.runtime.threads import Threads
from togi.torch_internals.openmp import end_openmp_threads

def share():
    smallest = torch.ones(1 << 20, dtype=torch.int32).view(torch.float32)
    return float(((smallest * 1.0).view(torch.int32) == 0).double().mean())

def running():
    return len(os.listdir("/proc/self/task"))

class Asks(nn.Module):
    def forward(self, x):
        self.flushed = share()
        return x

flush, threads = (FLUSH, {}), (Threads(), {"count": 5})
for steps in ([flush], [flush, threads], [threads, flush]):
    for workers in (True, False):
        torch.set_num_threads(3)
        candidate = conformance.candidate_of(Asks(), [torch.ones(3)])
        assert share() == 0
        if not workers:
            end_openmp_threads()
        before = running()
        for step, options in steps:
            candidate = step.configure(candidate, options)
        for step, options in steps:
            candidate = step.apply(candidate, options)
        assert running() == before, "a process that loads it may still fork"
        for _ in range(2):
            candidate.runnable()(torch.ones(3))
            assert candidate.module.flushed == 1, candidate.module.flushed
            for count in (5, 3):
                torch.set_num_threads(count)
                assert share() == 0, share()
candidate.runnable()(torch.ones(3))
child = os.fork()
if not child:
    os._exit(0 if share() == 0 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
def test_workers_flush_during_a_call_and_not_after_it():
    """They start with the mode of the thread that starts them, and keep it: whether they start before or in the call,
    they have that of the call in it, and their own after it. A process that forks later computes in its child."""
    done = subprocess.run([sys.executable, "-c", WORKERS], capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stderr


class Shrinks(nn.Module):
    """Its answer is denormal throughout."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1e-30]))

    def forward(self, x):
        return x * self.scale


LARGE = torch.full((1 << 20,), 1e-10)
"""Enough for several threads."""
SETTINGS = {"onnxruntime": "session.set_denormal_as_zero", "openvino": "CPU_DENORMALS_OPTIMIZATION"}


def with_engine(engine, *steps):
    candidate = conformance.candidate_of(Shrinks(), [LARGE]).with_(threads=4)
    every = [
        (technique(engine), {"spinning": False} if engine == "onnxruntime" else {}),
        *((step, {}) for step in steps),
    ]
    for step, options in every:
        candidate = step.configure(candidate, options)
    for step, options in every:
        candidate = step.apply(candidate, options)
    return candidate


def nonzero(call):
    with torch.no_grad():
        return int((call(LARGE) != 0).sum())


@pytest.mark.parametrize("engine", SETTINGS)
def test_the_threads_of_an_engine_flush_by_its_own_setting(engine, tmp_path):
    """Also those of a saved artifact that is loaded again, and those of a model that is gone, which the next one may
    take over. The thread that loads it does not, and other models of the process do not."""
    pytest.importorskip(engine)
    assert nonzero(with_engine(engine).runnable()) == len(LARGE)
    flushed = with_engine(engine, FLUSH)
    assert not flushes()
    assert nonzero(flushed.runnable()) == 0
    assert SETTINGS[engine] in flushed.program.interface().settings
    meta = flushed.program.save(tmp_path)
    loaded = technique(engine).load(tmp_path, meta, flushed.signature, 4)
    assert not flushes()
    assert nonzero(FLUSH.apply(flushed.with_(program=loaded, contexts=()), {}).runnable()) == 0
    assert SETTINGS[engine] in loaded.interface().settings
    assert nonzero(with_engine(engine).runnable()) == len(LARGE)
    del flushed, loaded
    other = with_engine(engine)
    assert nonzero(other.runnable()) == len(LARGE)
    assert SETTINGS[engine] not in other.program.interface().settings
    assert not flushes()


FIRST = """
from tests.techniques.runtime.test_flush_denormal import FLUSH, flushes, flushing, with_engine

with_engine("onnxruntime", FLUSH)
assert not flushes(), "the first session of a process sets it in the thread that opens it"
with flushing():
    with_engine("onnxruntime")
    assert flushes()
"""


@pytest.mark.thorough
def test_the_first_session_of_a_process_leaves_its_thread_as_it_was():
    pytest.importorskip("onnxruntime")
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_an_engine_with_threads_of_its_own_shares_no_mode(monkeypatch):
    def fails(_):
        raise AssertionError("it asked PyTorch's threads")

    monkeypatch.setattr(openmp, "share_floating_point_mode", fails)
    start = conformance.candidate_of(Decays(), [torch.ones(3)]).with_(threads=4)
    applied = FLUSH.apply(start.with_(program=SimpleNamespace(allocates_with_torch=False)), {})
    with applied.contexts[0]():
        assert flushes()


def test_conformance():
    conformance.check(
        FLUSH,
        [
            lambda: conformance.candidate_of(Decays(), [torch.ones(3)]),
            lambda: conformance.candidate_of(nn.Linear(2, 2), [torch.ones(1, 2)]),
        ],
    )
