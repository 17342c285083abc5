"""The account of a snapshot as text and as HTML."""

from __future__ import annotations

import io

from rich.console import Console

from togi.footprint.snapshot.record import (
    AllocatorTimeline,
    DeviceAccount,
    HeldMemory,
    History,
    OutOfMemory,
    PoolSegments,
    SnapshotAccount,
    TimelineLayer,
    TraceEvent,
)
from togi.render.html import snapshot_html
from togi.render.snapshot_text import snapshot_text

MIB = 2**20
HOSTILE = "/tmp/<script>alert(1)</script>\x1b[31m.py:3 in f"


def account(line: str = "/home/a/train.py:31 in step") -> SnapshotAccount:
    moment = TraceEvent(event=2, ms=1.5, line=line)
    failure = OutOfMemory(
        moment=moment,
        requested_bytes=64 * MIB,
        device_free_bytes=10 * MIB,
        allocated_bytes=12 * MIB,
        reserved_bytes=20 * MIB,
    )
    history = History(
        events=5,
        timed=True,
        peak_allocated_bytes=12 * MIB,
        reserved_then_bytes=20 * MIB,
        peak=moment,
        peak_reserved_bytes=20 * MIB,
        peak_reserved=moment,
        earlier_bytes=2 * MIB,
        holdings=(
            HeldMemory(bytes=10 * MIB, blocks=1, line=line, pool="default", stream=0),
            HeldMemory(bytes=2 * MIB, blocks=None, line="(before the recorded history)"),
        ),
        out_of_memory=(failure,),
        timeline=AllocatorTimeline(
            ms=(0.0, 1.5), bytes={TimelineLayer.ALLOCATED: (2 * MIB, 12 * MIB), TimelineLayer.CACHED: (0, 8 * MIB)}
        ),
    )
    pool = PoolSegments(
        pool="default",
        stream=0,
        kind="large",
        segments=1,
        reserved_bytes=20 * MIB,
        allocated_bytes=10 * MIB,
        awaiting_free_bytes=0,
        free_bytes=10 * MIB,
        largest_free_bytes=9 * MIB,
    )
    device = DeviceAccount(
        device=0,
        allocated_bytes=10 * MIB,
        reserved_bytes=20 * MIB,
        largest_free_bytes=9 * MIB,
        pools=(pool,),
        alive=(HeldMemory(bytes=10 * MIB, blocks=1, line=line, pool="default", stream=0),),
        history=history,
    )
    return SnapshotAccount(path="/tmp/snapshot.pickle", file_bytes=1234, devices=(device,), notes=("know this",))


def text(of: SnapshotAccount) -> str:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    console.print(snapshot_text(of))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_text_says_peak_owners_failure_and_end() -> None:
    said = text(account())
    for part in (
        "Device 0: peak 12.0 MiB allocated at event 3 of 5",
        "20.0 MiB were reserved then, 8.00 MiB of it unused",
        "64.0 MiB asked for, 10.0 MiB free on the device",
        "train.py:31 in step",
        "(before the recorded history)",
        "largest free block 9.00 MiB",
        "know this",
    ):
        assert part in said


def test_html_is_one_file_with_timeline_and_the_same_each_time() -> None:
    page = snapshot_html(account())
    assert page == snapshot_html(account())
    assert "data-timeline" in page
    assert "reserved, not allocated" in page
    assert "64.0 MiB asked for" in page
    assert "http" not in page.split("</head>")[1].split("<script>")[0]


def test_names_from_the_file_are_never_markup() -> None:
    hostile = account(HOSTILE)
    assert "<script>alert" not in snapshot_html(hostile)
    assert "\x1b" not in text(hostile)


def test_nothing_on_any_device() -> None:
    empty = SnapshotAccount(path="a.pickle", file_bytes=9, devices=())
    assert "nothing was allocated" in text(empty)
    assert "<html" in snapshot_html(empty)
