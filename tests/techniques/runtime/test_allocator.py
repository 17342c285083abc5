"""An allocator is preloaded where one is installed, and its absence is explained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from togi.core.errors import Refused
from togi.techniques import Applies, Refuses, conformance
from togi.techniques.runtime.allocator import Allocator

ALLOCATOR = Allocator()


def candidate(allocators):
    start = conformance.candidate_of(nn.Linear(2, 2), [torch.ones(1, 2)])
    machine = start.facts.machine.model_copy(update={"allocators": allocators})
    return start.with_(facts=start.facts.model_copy(update={"machine": machine}))


def test_where_none_is_installed_the_packages_are_named():
    decision = ALLOCATOR.applies(candidate({}).facts)
    assert isinstance(decision, Refuses)
    assert "libtcmalloc-minimal4" in decision.reason
    assert "libjemalloc2" in decision.reason


def test_each_installed_one_is_tried():
    facts = candidate({"jemalloc": "/lib/libjemalloc.so.2", "tcmalloc": "/lib/libtcmalloc.so.4", "other": "/x"}).facts
    assert isinstance(ALLOCATOR.applies(facts), Applies)
    assert [options["name"] for options in ALLOCATOR.options(facts)] == ["tcmalloc", "jemalloc"]


def test_the_library_is_put_before_what_is_preloaded_already(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/lib/one.so:/lib/libtcmalloc.so.4")
    facts = candidate({"tcmalloc": "/lib/libtcmalloc.so.4", "jemalloc": "/lib/libjemalloc.so.2"}).facts
    assert ALLOCATOR.environment(facts, {"name": "tcmalloc"}) == {"LD_PRELOAD": "/lib/libtcmalloc.so.4:/lib/one.so"}
    assert "MALLOC_CONF" in ALLOCATOR.environment(facts, {"name": "jemalloc"})


def test_a_process_without_it_is_refused():
    with pytest.raises(Refused, match="not started with LD_PRELOAD"):
        ALLOCATOR.apply(candidate({"tcmalloc": "/nowhere/libtcmalloc.so.4"}), {"name": "tcmalloc"})
    with pytest.raises(Refused, match="apt-get install libjemalloc2"):
        ALLOCATOR.apply(candidate({}), {"name": "jemalloc"})
    with pytest.raises(Refused, match="known are"):
        ALLOCATOR.apply(candidate({}), {"name": "malloc"})


def test_a_process_with_it_is_accepted():
    """Any library that this process has mapped stands in for one."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        mapped = next(line.split()[-1] for line in maps if "libtorch" in line)
    result = ALLOCATOR.apply(candidate({"mimalloc": mapped}), {"name": "mimalloc"})
    assert mapped in result.notes[-1]


def test_conformance():
    conformance.check(ALLOCATOR, [lambda: candidate({}), lambda: candidate({"tcmalloc": "/nowhere/libtcmalloc.so"})])
