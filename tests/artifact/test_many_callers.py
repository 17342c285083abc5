"""A loaded artifact under a web server: started fast, many threads at once, and for long."""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.artifact.small_artifacts import RECIPES
from togi.artifact.load import FallbackWarning, OptimizedModule, load
from togi.measure.memory import mark_memory

CALLERS = 32
PART = 4000
"""Calls, after each of which memory is read."""
LEAK_BYTES = 42
"""A call: less than the smallest object that could be left behind by each."""


@pytest.fixture(params=RECIPES)
def optimized(request: pytest.FixtureRequest, artifact_of: Callable[[str], Path]) -> OptimizedModule:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        return load(artifact_of(request.param))


LOADING = """
import os, subprocess, sys
from togi.artifact.load import load

class Started(subprocess.Popen):
    def __init__(self, command="a copy of itself", *arguments, **options):
        assert command[1:] == ["--version"], f"it starts {command}"  # whether there is a compiler: milliseconds
        super().__init__(command, *arguments, **options)

subprocess.Popen = os.system = os.posix_spawn = os.fork = Started
for folder in sys.argv[1:]:
    print(load(folder).engine)
"""


def test_loading_starts_no_process(artifact_of: Callable[[str], Path], tmp_path: Path) -> None:
    """A server that is started again would wait for each of them: in a process that has compiled nothing, with nothing
    kept from earlier ones."""
    folders: dict[str, Path] = {}
    for engine in RECIPES:
        with suppress(pytest.skip.Exception):
            folders[engine] = artifact_of(engine)
    done = subprocess.run(
        [sys.executable, "-c", LOADING, *map(str, folders.values())],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout.split() == [*folders], done.stderr


def call_from_all(optimized: OptimizedModule, calls: int) -> None:
    """All callers make their first call at once, each with values and a size of its own, and compare what they get with
    what they got first while they hold another result; the first ones are compared with those of one caller alone."""
    given = [(torch.full((2 + i % 5, 8), float(i)), torch.full((2 + i % 5, 4), 0.5)) for i in range(CALLERS)]
    start = threading.Barrier(CALLERS)

    def caller(i: int) -> dict[str, torch.Tensor]:
        start.wait(timeout=60)
        first: dict[str, torch.Tensor] = optimized(*given[i])
        for _ in range(calls):
            found, held = optimized(*given[i]), optimized(*given[i])
            for name, wanted in first.items():
                torch.testing.assert_close(found[name], wanted)
                torch.testing.assert_close(held[name], wanted)
        return first

    with ThreadPoolExecutor(CALLERS) as pool:
        for each, found in zip(given, pool.map(caller, range(CALLERS)), strict=True):
            torch.testing.assert_close(found, optimized(*each))


def resident_bytes() -> int:
    return mark_memory().anonymous_bytes


def test_32_callers_get_what_one_gets(optimized: OptimizedModule) -> None:
    call_from_all(optimized, 5)


def test_memory_does_not_grow(optimized: OptimizedModule) -> None:
    """A result is 320 KiB; one in ten that is kept would be 16 MiB."""
    x, scale = torch.rand(16384, 8), torch.rand(16384, 4)

    def after(calls: int) -> int:
        for _ in range(calls):
            optimized(x, scale)
        return resident_bytes()

    before = after(100)
    assert after(500) - before < 8 << 20


def test_threads_that_come_and_go_leave_nothing(optimized: OptimizedModule) -> None:
    x, scale = torch.rand(16384, 8), torch.rand(16384, 4)

    def threads(count: int) -> int:
        for _ in range(count):
            thread = threading.Thread(target=optimized, args=(x, scale))
            thread.start()
            thread.join()
        return resident_bytes()

    held = [threads(100) for _ in range(4)]  # whatever leaks does so each time; arenas of malloc grow now and then
    assert min(after - before for before, after in itertools.pairwise(held)) < 8 << 20


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_memory_does_not_grow_in_many_calls(optimized: OptimizedModule) -> None:
    """What leaks does so in most parts: in some the allocator takes another arena, or uses up an old one."""
    x, scale = torch.rand(3, 8), torch.rand(3, 4)

    def after(calls: int) -> int:
        for _ in range(calls):
            optimized(x, scale)
        return resident_bytes()

    after(1000)
    held = [after(PART) for _ in range(6)]
    grown = [after - before for before, after in itertools.pairwise(held)]
    assert statistics.median(grown) < PART * LEAK_BYTES, grown
    assert sum(grown) < 2 << 20, grown
    call_from_all(optimized, 25)
