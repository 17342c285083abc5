"""What calls set for the whole process is put back, in whatever order calls of several programs overlap."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from togi.techniques import conformance
from togi.techniques.precision.tf32 import Tf32
from togi.techniques.switches import ProcessWide, switched_on

BASE = "base"


@contextmanager
def setting_to(backend: SimpleNamespace, value: str) -> Iterator[None]:
    before, backend.value = backend.value, value
    yield
    backend.value = before


def test_programs_that_overlap_put_back_what_was_there_before_both() -> None:
    backend = SimpleNamespace(flag=False)
    first, second = (ProcessWide(partial(switched_on, backend, "flag"), setting="test: flag")() for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert backend.flag is True, "the second call still runs"
    second.__exit__(None, None, None)
    assert backend.flag is False


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=12))
def test_the_newest_call_that_runs_decides(steps: list[tuple[str, int]]) -> None:
    backend = SimpleNamespace(value=BASE)
    programs = {name: ProcessWide(partial(setting_to, backend, name), setting="test", value=name) for name in "abc"}
    running: list[tuple[str, AbstractContextManager[None]]] = []
    for name, at in steps:
        if at < len(running):
            running.pop(at)[1].__exit__(None, None, None)
        else:
            running.append((name, programs[name]()))
            running[-1][1].__enter__()
        assert backend.value == (running[-1][0] if running else BASE)
    for _, call in running:
        call.__exit__(None, None, None)
    assert backend.value == BASE


def test_calls_of_one_value_set_and_put_back_once() -> None:
    told: list[str] = []
    both_inside = threading.Barrier(2)

    @contextmanager
    def setting() -> Iterator[None]:
        told.append("set")
        yield
        told.append("put back")

    shared = ProcessWide(setting, setting="test: once")

    def call() -> None:
        with shared():
            both_inside.wait(10)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == ["set", "put back"]
    with pytest.raises(KeyError), shared():
        raise KeyError
    assert told == ["set", "put back"] * 2


def test_what_cannot_be_set_leaves_the_others_as_they_were() -> None:
    backend = SimpleNamespace(value=BASE)

    @contextmanager
    def refused() -> Iterator[None]:
        raise RuntimeError("no such kernel")
        yield

    one = ProcessWide(partial(setting_to, backend, "one"), setting="test: refused", value="one")
    other = ProcessWide(refused, setting="test: refused", value="other")
    with one():
        with pytest.raises(RuntimeError, match="no such kernel"), other():
            pass
        assert backend.value == "one"
    assert backend.value == BASE


def test_two_artifacts_in_tf32_leave_the_precision_as_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    made = [conformance.candidate_of(nn.Linear(4, 4), [torch.randn(2, 4)]) for _ in range(2)]
    first, second = (Tf32().apply(candidate, {}).contexts[-1]() for candidate in made)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == "high"
    second.__exit__(None, None, None)
    assert torch.get_float32_matmul_precision() == before
