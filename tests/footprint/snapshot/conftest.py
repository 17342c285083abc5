"""Snapshots in the form of torch 2.9 to 2.15, made of plain dicts."""

from __future__ import annotations

from typing import Any

import pytest

MIB = 2**20


class Making:
    """Builds one snapshot; frames, tracebacks and words are shared between entries as torch shares them."""

    def __init__(self) -> None:
        self.traces: list[list[dict[str, Any]]] = []
        self.segments: list[dict[str, Any]] = []
        self.time_us = 1_700_000_000_000_000

    def frame(self, filename: str, line: int, name: str) -> dict[str, Any]:
        return {"filename": filename, "line": line, "name": name}

    def event(self, device: int, action: str, size: int, frames: list[Any] | None = None, **more: Any) -> None:
        while len(self.traces) <= device:
            self.traces.append([])
        self.time_us += 250
        entry = {"action": action, "size": size, "stream": 0, "time_us": self.time_us, "pool_id": (0, 0)}
        self.traces[device].append({**entry, **more, "frames": frames if frames is not None else []})

    def segment(self, device: int, address: int, blocks: list[dict[str, Any]], **more: Any) -> None:
        total = sum(block["size"] for block in blocks)
        allocated = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        self.segments.append(
            {
                "device": device,
                "address": address,
                "total_size": total,
                "allocated_size": allocated,
                "active_size": allocated,
                "requested_size": allocated,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": blocks,
                **more,
            }
        )

    def block(self, size: int, state: str = "active_allocated", frames: list[Any] | None = None) -> dict[str, Any]:
        return {"size": size, "requested_size": size, "state": state, "frames": frames if frames is not None else []}

    def snapshot(self) -> dict[str, Any]:
        return {
            "segments": self.segments,
            "device_traces": self.traces,
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False", "max_split_size": -1},
            "external_annotations": [],
        }


@pytest.fixture
def making() -> Making:
    return Making()


@pytest.fixture
def training(making: Making) -> dict[str, Any]:
    """2 MiB of weights from before the history; 8 MiB, then 4 MiB more: the peak; 64 MiB that do not fit."""
    torch = making.frame("/opt/lib/python3.12/site-packages/torch/nn/modules/linear.py", 125, "forward")
    native = making.frame("??", 0, "c10::cuda::malloc")
    first = [native, torch, making.frame("/home/a/train.py", 31, "forward")]
    second = [torch, making.frame("/home/a/train.py", 40, "loss"), making.frame("/home/a/train.py", 90, "main")]
    weights = [making.frame("/home/a/train.py", 7, "build")]
    making.event(0, "segment_alloc", 20 * MIB, first, addr=32 * MIB)
    making.event(0, "alloc", 8 * MIB, first, addr=32 * MIB)
    making.event(0, "alloc", 4 * MIB, second, addr=40 * MIB)
    making.event(0, "oom", 64 * MIB, second, device_free=10 * MIB)
    making.event(0, "free_requested", 4 * MIB, second, addr=40 * MIB)
    making.event(0, "free_completed", 4 * MIB, second, addr=40 * MIB)
    making.event(0, "snapshot", 0, [], addr=0)
    making.segment(0, 0, [making.block(2 * MIB, frames=weights)])
    making.segment(0, 32 * MIB, [making.block(8 * MIB, frames=first), making.block(12 * MIB, "inactive")])
    return making.snapshot()
