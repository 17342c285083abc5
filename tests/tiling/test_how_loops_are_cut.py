"""How a loop is cut: plain tiles, compiled ones, what is left over; compiled tiles sized by their own peaks; when."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import togi
from togi.measure.memory import torch_allocator_peak_bytes
from togi.tiling import compiled, plan, timing
from togi.tiling.program import Tiles


def compiled_body(*_args):
    raise AssertionError("only a name here")


def plain_body(*_args):
    raise AssertionError("only a name here")


@given(
    st.integers(1, 400),
    st.integers(1, 60),
    st.integers(1, 200),
    st.integers(1, 200),
    st.booleans(),
)
def test_tiles_cover_every_position_once_and_keep_to_their_sizes(length, plain, compiled, least, with_body):
    tiles = Tiles(plain=plain, compiled=compiled, least=least, body=compiled_body) if with_body else Tiles(plain=plain)
    cut = list(tiles.cut(length, plain_body))
    assert [offset for offset, _, _ in cut] == [sum(count for _, count, _ in cut[:i]) for i in range(len(cut))]
    assert sum(count for _, count, _ in cut) == length
    for _, count, body in cut:
        assert 1 <= count <= (compiled if body is compiled_body else plain)
        assert body is plain_body or (with_body and count >= min(least, compiled))


def nearest(x, y):
    return ((x[:, None] - y) ** 2).sum(-1).min(1)


def test_a_compiled_tile_is_sized_by_its_own_peak_and_serves_other_lengths():
    x, y = torch.randn(4_000, 3), torch.randn(1_000, 3)
    budget = 256 << 10
    call = togi.lean(nearest, memory=budget, compile=True)
    call(x, y)
    told = call.plan().loops[0]
    if "compiled:" not in told:
        pytest.skip(f"compiled code was not faster here: {told}")
    tiles = int(told.split()[0].replace(",", ""))
    fewest_plain_tiles = 4_000 * 1_000 * 3 * 4 / budget
    assert tiles < fewest_plain_tiles
    assert (torch_allocator_peak_bytes(lambda: call(x, y)) or 0) <= budget
    compilations = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for length in (3_999, 2_345, 701):
        found, expected = call(x[:length], y), nearest(x[:length], y)
        assert torch.allclose(found.values, expected.values, rtol=1e-5, atol=1e-6)
        assert (found.indices != expected.indices).sum() <= length / 1000
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compilations


@pytest.mark.parametrize("pair", [torch.cdist, lambda x, y: x @ y.T], ids=["cdist", "product"])
def test_a_tile_is_freed_before_the_next_one_is_made(pair):
    """A part kept alive beside the next tile took the budget exceeded by up to a tile."""
    x, y = torch.randn(245, 4), torch.randn(170, 4)
    budget = (192 << 10) + 245 * 170 * 4
    call = togi.lean(lambda x, y: pair(x, y).flip(1), memory=budget, compile=False)
    call(x, y)
    assert call.plan().strategy == "streamed"
    assert (torch_allocator_peak_bytes(lambda: call(x, y)) or 0) <= budget


def test_temporary_memory_of_an_operation_stays_within_the_budget_at_every_size():
    """``logsumexp`` over columns in tiles of columns copies its operand, which no model of results knows of."""
    x, y = torch.randn(221, 4), torch.randn(259, 4)
    budget = 64 << 10
    call = togi.lean(lambda x, y: (x @ y.T).logsumexp(0), memory=budget, compile=False)
    for rows, columns in ((221, 259), (150, 259), (221, 140), (90, 201)):
        given = x[:rows], y[:columns]
        found = call(*given)
        torch.testing.assert_close(found, (given[0] @ given[1].T).logsumexp(0), rtol=1e-5, atol=1e-5)
        del found
        assert call.plan().strategy == "streamed"
        peak = torch_allocator_peak_bytes(lambda given=given: call(*given)) or 0
        assert peak <= budget
        assert peak == call.plan().peak_after_bytes, "the plan gives what was measured"


def test_tiles_that_could_not_be_measured_are_measured_at_the_next_call():
    x, y = torch.randn(221, 4), torch.randn(259, 4)
    call = togi.lean(lambda x, y: (x @ y.T).logsumexp(0), memory=64 << 10, compile=False)
    call(x, y)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        call(x[:200], y)
    call(x[:200], y)
    assert (torch_allocator_peak_bytes(lambda: call(x[:200], y)) or 0) <= 64 << 10


@given(st.integers(1, 400), st.integers(1, 60), st.integers(0, 60), st.integers(1, 60), st.integers(1, 90))
def test_a_rehearsal_runs_every_kind_of_tile_before_and_after_the_accumulators_settle(
    length, plain, compiled, least, settled
):
    body = compiled_body if compiled else None
    tiles = Tiles(plain=plain, compiled=compiled, least=least, body=body)
    cut, seen = list(tiles.cut(length, plain_body)), list(tiles.samples(length, plain_body, settled))
    assert set(seen) <= set(cut)
    assert [one for one in cut if one[0] < settled] == [one for one in seen if one[0] < settled]
    assert {one[1:] for one in cut if one[0] >= settled} == {one[1:] for one in seen if one[0] >= settled}


def test_a_loop_is_compiled_after_running_as_long_as_compiling_takes(monkeypatch):
    pytest.importorskip("torch._inductor")
    x, y = torch.randn(2_000, 3), torch.randn(800, 3)
    call = togi.lean(nearest, memory=256 << 10)
    for _ in range(2):
        assert torch.equal(call(x, y).indices, nearest(x, y).indices)
    assert f"compiled once it has run for {compiled.compiling_costs_s():g} s" in call.plan().loops[0]
    monkeypatch.setattr(plan, "compiling_costs_s", lambda: 0.0)
    found = call(x, y)
    assert "compiled" in call.plan().loops[0]
    assert "once it has run" not in call.plan().loops[0]
    torch.testing.assert_close(found.values, nearest(x, y).values)


def test_compiling_is_taken_to_cost_less_once_a_process_has_compiled(monkeypatch):
    monkeypatch.setattr(compiled, "inductor_is_loaded", lambda: False)
    first = compiled.compiling_costs_s()
    monkeypatch.setattr(compiled, "inductor_is_loaded", lambda: True)
    assert 0 < compiled.compiling_costs_s() < first


def test_a_loop_is_compiled_where_a_library_copies_what_torch_compile_is_given(monkeypatch):
    """Importing Lightning does that, and a tensor of symbolic sizes cannot be copied."""
    compiling = torch.compile

    def copying(model, **kwargs):
        return compiling(model, **copy.deepcopy(kwargs))

    monkeypatch.setattr(torch, "compile", copying)
    call = togi.lean(nearest, memory=256 << 10, compile=True)
    call(torch.randn(4_000, 3), torch.randn(1_000, 3))
    assert "Error" not in call.plan().loops[0]


def test_compiled_code_is_not_rejected_because_the_machine_became_slower(monkeypatch):
    """Plain tiles were timed long before: they are timed again, in turns with the compiled ones."""
    call = togi.lean(nearest, memory=256 << 10, compile=False)
    call(torch.randn(2_000, 3), torch.randn(800, 3))
    ((way,),) = (kind.ways for kind in call._kinds.values())
    known = way.whole
    (fitted,) = known.fitted.values()
    (loop,) = fitted.program.tile_loops
    reads = [torch.randn(2_000, 3), torch.randn(800, 3)]

    class Twice(compiled._Compiled):
        def __init__(self, loop):
            super().__init__(loop)
            self.body = loop.body

        def sizes(self, *_):
            return [16], True

    monkeypatch.setattr(compiled, "_Compiled", Twice)
    monkeypatch.setattr(
        timing, "_per_position_s", lambda _loop, _reads, _tile, _count, body: 8.0 if body is None else 4.0
    )
    before = replace(known.choices[loop].plain, per_position_s=1.0)
    assert (
        compiled.with_compiled(loop, reads, before, fitted.weights, fitted.room_bytes).compiling == "compiled: 2.00 x"
    )
