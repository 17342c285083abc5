"""Memory that is watched and kept within: ``togi.within``, and the account of a snapshot of torch's allocator."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from benchmarks.gpu_parts.row import MIB, Row, attempt
from torch import Tensor

import togi
from togi.core.proven import MarkedPart
from togi.footprint.snapshot.account import snapshot_account
from togi.tiling.peak import peak_bytes

BUDGET = "48MiB"


def rows(device: str) -> Iterator[Row]:
    """A call is split until it keeps to its budget; a snapshot has the peak that torch tells, and who holds it."""
    yield attempt(
        "togi.within",
        f"split, at most {BUDGET}, equal to the call as a whole",
        kept_within,
        device,
        proves=(MarkedPart.WITHIN,),
    )
    yield attempt(
        "a snapshot of the allocator",
        "its peak is that of torch, and the lines that hold it are named",
        of_snapshot,
        device,
        proves=(MarkedPart.SNAPSHOT,),
    )


def kept_within(device: str) -> tuple[bool, str]:
    """Without the guard it takes eight times 16 MiB and more."""
    weight = torch.randn(256, 4096, device=device)
    x = torch.randn(4096, 256, device=device)

    def wide(rows: Tensor) -> Tensor:
        hidden = torch.relu(rows @ weight)
        return torch.tanh(hidden * 2).sum(1)

    with torch.no_grad():
        guarded = togi.within(BUDGET)(wide)
        expected = wide(x)
        found = guarded(x)
        whole, peak = peak_bytes(lambda: wide(x), device), peak_bytes(lambda: guarded(x), device)
    assert guarded.report is not None
    close = torch.allclose(found, expected, rtol=1e-4, atol=1e-3)
    told = f"{guarded.report.parts} parts, peak {peak / MIB:.1f} MiB instead of {whole / MIB:.1f}"
    return close and guarded.report.parts > 1 and peak <= 48 * MIB < whole, told + ("" if close else ", another answer")


def of_snapshot(device: str) -> tuple[bool | None, str]:
    if device == "cpu":
        return None, "torch takes snapshots of a device's allocator alone"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        torch.cuda.empty_cache()
        torch.cuda.memory._record_memory_history(max_entries=10_000)  # the documented way, with its underscore
        torch.cuda.reset_peak_memory_stats()
        try:
            kept = [torch.ones(MIB, device=device) for _ in range(6)]
            largest = torch.cat(kept) * 2
            del kept[3:], largest
            torch.cuda.synchronize()
            torch.cuda.memory._dump_snapshot(str(path))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        told = torch.cuda.max_memory_allocated()
        account = snapshot_account(path)
    history = account.devices[0].history
    if history is None:
        return False, "no history was found in it"
    named = sum(held.bytes for held in history.holdings if Path(__file__).name in held.line)
    figure = f"peak {history.peak_allocated_bytes / MIB:.1f} MiB, torch {told / MIB:.1f}, {named / MIB:.1f} by line"
    return history.peak_allocated_bytes == told and named >= 72 * MIB, figure
