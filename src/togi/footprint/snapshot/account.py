"""From a snapshot file to its account, in one pass over the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from togi.footprint.snapshot.file import SnapshotError, Window
from togi.footprint.snapshot.history import device_account
from togi.footprint.snapshot.lines import frame_of, users_line
from togi.footprint.snapshot.machine import Machine
from togi.footprint.snapshot.record import SnapshotAccount
from togi.footprint.snapshot.segments import DeviceSegments, block_of
from togi.footprint.snapshot.trace import Trace
from togi.footprint.snapshot.values import HANDED_OVER, Frame, Items, Mapping

_FRAME: Final = {"filename", "line", "name"}


def snapshot_account(path: str | Path) -> SnapshotAccount:
    """Peak, owners, fragmentation, failures and what is alive in the end, for each device.

    Reads what ``torch.cuda.memory._dump_snapshot`` wrote (torch 2.1 and later), and the bare list of
    ``torch.cuda.memory_snapshot()``. Nothing in the file is run. Raises SnapshotError.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            total_bytes = file.stat().st_size
            if not total_bytes:
                raise SnapshotError(f"{file} is empty: the process may have died before it wrote the snapshot")
            shapes = SnapshotShapes()
            value = Machine(Window(opened, total_bytes), shapes).run()
    except OSError as error:
        raise SnapshotError(f"{file} cannot be read: {error.strerror}") from None
    return _account(file, total_bytes, value, shapes)


class SnapshotShapes:
    """Recognises frames, blocks, segments and trace entries by their keys, and sums them up."""

    def __init__(self) -> None:
        self.segments: dict[int, dict[int, DeviceSegments]] = {}
        """By the identity of the list that they stand in, and by device."""
        self.traces: dict[int, Trace] = {}
        self._frames: dict[tuple[str, int, str], Frame] = {}
        self._holders: dict[int, Items] = {}

    def finished(self, mapping: Mapping, holder: Items | None) -> Any:
        if "action" in mapping and holder is not None:
            trace = self.traces.get(id(holder))
            if trace is None:
                trace = self.traces[self._known(holder)] = Trace()
            trace.event(mapping)
            return HANDED_OVER
        if mapping.keys() >= _FRAME:
            return self._frame(mapping)
        if "state" in mapping and "size" in mapping:
            return block_of(mapping)
        if "blocks" in mapping and "total_size" in mapping and holder is not None:
            devices = self.segments.setdefault(self._known(holder), {})
            devices.setdefault(int(mapping.get("device", 0)), DeviceSegments()).add(mapping)
            return HANDED_OVER
        return mapping

    def line_of(self, frames: list[Frame]) -> str:
        return users_line(frames)

    def _known(self, holder: Items) -> int:
        """The identity of a list, which is kept so that no other ever has the same one."""
        self._holders[id(holder)] = holder
        return id(holder)

    def _frame(self, mapping: Mapping) -> Frame:
        key = str(mapping["filename"]), int(mapping["line"]), str(mapping["name"])
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frames[key] = frame_of(*key)
        return frame


def _account(file: Path, total_bytes: int, value: Any, shapes: SnapshotShapes) -> SnapshotAccount:
    snapshot = {"segments": value} if type(value) is Items else value
    if not isinstance(snapshot, dict) or type(snapshot.get("segments")) is not Items:
        raise SnapshotError(
            f"{file} is a pickle of plain values, but no CUDA memory snapshot (it has no list 'segments'): "
            "torch.cuda.memory._dump_snapshot(FILE) writes one"
        )
    segments = shapes.segments.get(id(snapshot["segments"]), {})
    if snapshot["segments"]:
        raise SnapshotError(f"{file}: an item of 'segments' is no segment (it has no 'blocks' and 'total_size')")
    traces = _traces(file, snapshot, shapes)
    devices = sorted(segments.keys() | traces.keys())
    return SnapshotAccount(
        path=str(file),
        file_bytes=total_bytes,
        devices=tuple(device_account(one, segments.get(one, DeviceSegments()), traces.get(one)) for one in devices),
        allocator_settings=_settings(snapshot.get("allocator_settings")),
        notes=tuple(_notes(traces, shapes)),
    )


def _traces(file: Path, snapshot: dict[str, Any], shapes: SnapshotShapes) -> dict[int, Trace]:
    """By device: the position of its list."""
    lists = snapshot.get("device_traces") or []
    if type(lists) not in (Items, list) or any(type(one) is not Items or one for one in lists):
        raise SnapshotError(f"{file}: 'device_traces' is not a list of events for each device: is the file whole?")
    found = ((device, shapes.traces.get(id(one))) for device, one in enumerate(lists))
    return {device: trace for device, trace in found if trace is not None}


def _settings(settings: Any) -> dict[str, Any]:
    """As JSON has them."""
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str)) if isinstance(settings, dict) else {}
    return plain


def _notes(traces: dict[int, Trace], shapes: SnapshotShapes) -> list[str]:
    notes: list[str] = []
    if not traces:
        notes.append(
            "no history was recorded, so that there is no peak and no timeline: call "
            "torch.cuda.memory._record_memory_history() before the code in question"
        )
    host = sum(trace.events for trace in shapes.traces.values()) - sum(trace.events for trace in traces.values())
    if host:
        notes.append(f"{host:,} events of pinned host memory are left out: this is the account of the devices")
    return notes
