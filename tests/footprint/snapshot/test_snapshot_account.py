"""The account of a snapshot: peak, owners, fragmentation, failures, what is alive, and what the file does not know."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import togi
from togi.core.errors import TogiError
from togi.footprint.snapshot import snapshot_account
from togi.footprint.snapshot.record import DeviceAccount, History, SnapshotAccount

MIB = 2**20


def read(value: object, folder: Path, protocol: int = 4) -> SnapshotAccount:
    file = folder / "snapshot.pickle"
    file.write_bytes(pickle.dumps(value, protocol=protocol))
    return snapshot_account(file)


def only(account: SnapshotAccount) -> tuple[DeviceAccount, History]:
    (device,) = account.devices
    assert device.history is not None
    assert sum(held.bytes for held in device.history.holdings) == device.history.peak_allocated_bytes
    return device, device.history


def test_the_function_reads_it_too(training: dict[str, Any], tmp_path: Path) -> None:
    expected = read(training, tmp_path)
    for path in (tmp_path / "snapshot.pickle", str(tmp_path / "snapshot.pickle")):
        assert togi.memory(path) == expected
    with pytest.raises(TogiError, match="read and not run: train"):
        togi.memory(str(tmp_path / "snapshot.pickle"), train=True)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_training_that_ran_out_of_memory(training: dict[str, Any], tmp_path: Path, protocol: int) -> None:
    account = read(training, tmp_path, protocol)
    device, history = only(account)
    assert history.peak_allocated_bytes == account.peak_bytes == 14 * MIB
    assert (history.reserved_then_bytes, history.fragmentation_bytes) == (22 * MIB, 8 * MIB)
    assert (history.peak.event, history.peak.ms, history.peak.line) == (2, 0.5, "/home/a/train.py:40 in loss")
    assert [(held.line, held.bytes, held.blocks) for held in history.holdings] == [
        ("/home/a/train.py:31 in forward", 8 * MIB, 1),
        ("/home/a/train.py:40 in loss", 4 * MIB, 1),
        ("/home/a/train.py:7 in build", 2 * MIB, 1),
    ]
    (failure,) = history.out_of_memory
    assert (failure.requested_bytes, failure.device_free_bytes) == (64 * MIB, 10 * MIB)
    assert (failure.allocated_bytes, failure.reserved_bytes) == (14 * MIB, 22 * MIB)
    assert (device.allocated_bytes, device.reserved_bytes, device.largest_free_bytes) == (10 * MIB, 22 * MIB, 12 * MIB)
    assert [held.line for held in device.alive] == ["/home/a/train.py:31 in forward", "/home/a/train.py:7 in build"]
    assert account.allocator_settings["max_split_size"] == -1


def test_memory_freed_in_the_history_but_allocated_before_it_counts_until_then(making: Any, tmp_path: Path) -> None:
    making.event(0, "alloc", 1 * MIB, addr=MIB)
    making.event(0, "free_requested", 6 * MIB, addr=8 * MIB)
    making.event(0, "free_completed", 6 * MIB, addr=8 * MIB)
    making.event(0, "alloc", 2 * MIB, addr=8 * MIB)
    making.segment(0, MIB, [making.block(1 * MIB)])
    making.segment(0, 8 * MIB, [making.block(2 * MIB), making.block(4 * MIB, "inactive")])
    device, history = only(read(making.snapshot(), tmp_path))
    assert history.peak_allocated_bytes == 7 * MIB
    assert history.earlier_bytes == 6 * MIB
    assert [(held.bytes, held.blocks) for held in history.holdings] == [(6 * MIB, None), (1 * MIB, 1)]
    assert any("before the first recorded event" in note for note in device.notes)


def test_the_peak_may_be_the_state_before_the_first_event(making: Any, tmp_path: Path) -> None:
    making.event(0, "free_requested", 6 * MIB, addr=0)
    making.event(0, "alloc", 1 * MIB, addr=0)
    making.segment(0, 0, [making.block(1 * MIB), making.block(5 * MIB, "inactive")])
    _, history = only(read(making.snapshot(), tmp_path))
    assert (history.peak.event, history.peak_allocated_bytes) == (-1, 6 * MIB)


def test_frees_that_wait_for_another_stream(making: Any, tmp_path: Path) -> None:
    making.event(0, "alloc", 4 * MIB, addr=0, stream=7)
    making.event(0, "free_requested", 4 * MIB, addr=0, stream=7)
    making.event(0, "alloc", 1 * MIB, addr=8 * MIB)
    making.segment(0, 0, [making.block(4 * MIB, "active_pending_free")], stream=7)
    making.segment(0, 8 * MIB, [making.block(1 * MIB)])
    device, history = only(read(making.snapshot(), tmp_path))
    assert history.peak_allocated_bytes == 4 * MIB
    assert {pool.stream: pool.awaiting_free_bytes for pool in device.pools} == {7: 4 * MIB, 0: 0}
    assert device.allocated_bytes == MIB


def test_only_completed_frees_recorded(making: Any, tmp_path: Path) -> None:
    for number in range(3):
        making.event(0, "alloc", 1 * MIB, addr=number * MIB)
        making.event(0, "free_completed", 1 * MIB, addr=number * MIB)
    device, history = only(read(making.snapshot(), tmp_path))
    assert history.peak_allocated_bytes == MIB
    assert device.notes == ()


def test_frees_not_recorded_are_reported(making: Any, tmp_path: Path) -> None:
    for _ in range(3):
        making.event(0, "alloc", 1 * MIB, addr=0)
    making.segment(0, 0, [making.block(1 * MIB)])
    device, history = only(read(making.snapshot(), tmp_path))
    assert history.peak_allocated_bytes == MIB
    assert any("frees were not recorded" in note for note in device.notes)


def test_requests_are_rounded_as_the_allocator_does(making: Any, tmp_path: Path) -> None:
    making.event(0, "alloc", 513, addr=0)
    making.segment(0, 0, [making.block(1024)])
    _, history = only(read(making.snapshot(), tmp_path))
    assert history.peak_allocated_bytes == 1024


def test_blocks_larger_than_the_events_tell_are_noted(making: Any, tmp_path: Path) -> None:
    making.event(0, "alloc", 19 * MIB, addr=0)
    making.segment(0, 0, [making.block(20 * MIB)])
    device, _ = only(read(making.snapshot(), tmp_path))
    assert any("1,048,576 bytes more" in note for note in device.notes)


def test_expandable_segments_and_private_pools(making: Any, tmp_path: Path) -> None:
    making.event(0, "segment_map", 20 * MIB, addr=0, pool_id=(0, 3))
    making.event(0, "alloc", 5 * MIB, addr=0, pool_id=(0, 3))
    making.event(0, "segment_unmap", 10 * MIB, addr=10 * MIB, pool_id=(0, 3))
    blocks = [making.block(5 * MIB), making.block(5 * MIB, "inactive")]
    making.segment(0, 0, blocks, segment_pool_id=(0, 3), is_expandable=True)
    device, history = only(read(making.snapshot(), tmp_path))
    assert (history.peak_reserved_bytes, device.reserved_bytes) == (20 * MIB, 10 * MIB)
    assert [(held.pool, held.stream) for held in history.holdings] == [("private 0.3", 0)]


@pytest.mark.parametrize("recorded", [True, False])
def test_what_a_private_pool_holds_is_reported(making: Any, tmp_path: Path, recorded: bool) -> None:
    output = [making.frame("/home/a/model.py", 12, "forward")]
    if recorded:
        making.event(0, "alloc", 3 * MIB, output, addr=0, pool_id=(0, 3))
    making.segment(
        0, 0, [making.block(3 * MIB, frames=output), making.block(5 * MIB, "inactive")], segment_pool_id=(0, 3)
    )
    making.segment(0, 64 * MIB, [making.block(2 * MIB, "inactive")], segment_pool_id=(0, 3), stream=7)
    making.segment(0, 96 * MIB, [making.block(1 * MIB)])
    (device,) = read(making.snapshot(), tmp_path).devices
    (note,) = device.notes
    assert note.startswith(
        "the private 0.3 pool (of CUDA graphs, or a torch.cuda.MemPool) holds 10.0 MiB. 7.00 MiB of it"
    )
    assert note.endswith(": 3.00 MiB by /home/a/model.py:12 in forward")


def test_devices_are_told_apart(making: Any, tmp_path: Path) -> None:
    making.event(2, "alloc", 3 * MIB, addr=0)
    making.segment(1, 0, [making.block(1 * MIB)])
    making.segment(2, 0, [making.block(3 * MIB)])
    account = read(making.snapshot(), tmp_path)
    assert [(one.device, one.allocated_bytes, one.history is not None) for one in account.devices] == [
        (1, 1 * MIB, False),
        (2, 3 * MIB, True),
    ]


def test_pinned_host_memory_is_not_taken_for_a_device(training: dict[str, Any], tmp_path: Path) -> None:
    training["host_traces"] = [dict(entry) for entry in training["device_traces"][0]]
    training["host_segments"] = [{**segment, "device": 5} for segment in training["segments"]]
    account = read(training, tmp_path)
    device, history = only(account)
    assert (device.device, history.peak_allocated_bytes) == (0, 14 * MIB)
    assert any("pinned host memory" in note for note in account.notes)


@pytest.mark.parametrize("bare", [False, True])
def test_without_history_only_the_segments_are_reported(training: dict[str, Any], tmp_path: Path, bare: bool) -> None:
    training["device_traces"] = [[]]
    account = read(training["segments"] if bare else training, tmp_path)
    (device,) = account.devices
    assert device.history is None
    assert device.allocated_bytes == account.peak_bytes == 10 * MIB
    assert any("no history was recorded" in note for note in account.notes)


def test_older_entries_without_times_and_pools(training: dict[str, Any], tmp_path: Path) -> None:
    for entry in training["device_traces"][0]:
        del entry["time_us"], entry["pool_id"]
    _, history = only(read(training, tmp_path))
    assert not history.timed
    assert (history.peak.ms, history.holdings[0].pool) == (2.0, "")


def test_the_timeline_is_thin_and_keeps_the_peak(making: Any, tmp_path: Path) -> None:
    making.event(0, "segment_alloc", 64 * MIB, addr=0)
    for number in range(20_000):
        size = 9 * MIB if number == 12_345 else MIB
        making.event(0, "alloc", size, addr=0)
        making.event(0, "free_requested", size, addr=0)
    making.segment(0, 0, [making.block(64 * MIB, "inactive")])
    _, history = only(read(making.snapshot(), tmp_path))
    allocated, cached = history.timeline.bytes.values()
    assert len(history.timeline.ms) == len(allocated) == len(cached) < 2500
    assert max(allocated) == history.peak_allocated_bytes == 9 * MIB
    assert list(history.timeline.ms) == sorted(history.timeline.ms)
    assert allocated[-1] == 0
