"""ProofsByPart by device: on which kind of device each part of togi was run and found right, and when.

They stand in ``proven.json`` alone, with the day, the device and the figure. ``python -m benchmarks.gpu --docs`` writes
there what it finds on a device, and takes out again what fails there. What it finds on a CPU of a part that is made for
CUDA alone proves it without a device. ``togi explain`` shows the proofs of techniques, ``togi doctor`` and docs/gpu.md
all of them. A kind of device without a proof was never tried.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from togi.core.backports import StrEnum

NOT_YET = "not proven on a device yet"
DEVICES = ("cpu", "cuda")
WITHOUT = "without a device"
"""In place of the CPU, for parts that are made for CUDA alone: their tests passed with stand-ins for the device."""
FILE = Path(__file__).with_name("proven.json")
ProofsByPart = dict[str, dict[str, dict[str, str]]]
"""By part and kind of device: ``date``, ``device`` and ``figure``; ``speed``, where that was measured."""


class MarkedPart(StrEnum):
    """The parts of togi that depend on the device, besides techniques, which go by their ids."""

    OPS = "togi.ops in plain torch"
    NATIVE_OPS = "C++ kernels of togi.ops"
    TRITON_OPS = "Triton kernels of togi.ops (interpreted, and compiled for sm_80 and sm_90)"
    GRAPHS = "togi.graphs (policy and bookkeeping by a recorder)"
    LEAN = "togi.lean"
    WITHIN = "togi.within"
    FIT = "togi fit"
    ACCOUNT = "togi memory: the account of a run"
    SNAPSHOT = "togi memory on a CUDA snapshot (snapshots made up by the tests)"
    PREDICTION_FOR_CPU = "togi memory --predict for the CPU"
    PREDICTION_FOR_CUDA = "togi memory --predict for a GPU (a range)"
    CUDA_SEMANTICS = "togi check: what waits and copies on CUDA (simulated on the CPU)"
    CUDA_GRAPHS = "togi check: what keeps code from CUDA graphs (read off fake CUDA tensors)"
    MEASURED_TIMES = "togi check: times predicted from measured figures"
    DATA_SHEET_TIMES = "togi check: times predicted from data sheets"
    TURN = "timing of a turn"
    PEAK_MEMORY = "peak memory of a trial"

    @property
    def devices(self) -> tuple[str, ...]:
        """The kinds of device that it is made for."""
        if self in (MarkedPart.NATIVE_OPS, MarkedPart.PREDICTION_FOR_CPU):
            return ("cpu",)
        for_cuda_alone = (
            MarkedPart.TRITON_OPS,
            MarkedPart.SNAPSHOT,
            MarkedPart.PREDICTION_FOR_CUDA,
            MarkedPart.CUDA_SEMANTICS,
            MarkedPart.CUDA_GRAPHS,
            MarkedPart.DATA_SHEET_TIMES,
        )
        return ("cuda",) if self in for_cuda_alone else DEVICES


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One part of togi and what is known of it, by each kind of device that it is made for."""

    part: str
    days: dict[str, str | None]
    """When it was last found right there (ISO). None: nobody has tried."""

    @property
    def sentence(self) -> str:
        """``cpu: 2026-11-21; cuda: not proven on a device yet``, or ``without a device: 2026-11-21; ...``."""
        return "; ".join(f"{device}: {day or NOT_YET}" for device, day in self.days.items())


@cache
def proofs() -> ProofsByPart:
    """All that are known."""
    return read_proofs(FILE)


def read_proofs(path: Path) -> ProofsByPart:
    known: ProofsByPart = json.loads(path.read_text(encoding="utf-8"))
    return known


def as_text(known: ProofsByPart) -> str:
    """A JSON document with a line for each part, as ``proven.json`` holds it."""
    lines = (f" {json.dumps(part)}: {json.dumps(devices, ensure_ascii=False)}" for part, devices in known.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def mark_of(part: str, devices: Collection[str]) -> Mark:
    """The mark of a part that is made for ``devices``."""
    days = {device: proof["date"] for device, proof in proofs().get(part, {}).items()}
    without = {WITHOUT: days["cpu"]} if "cpu" in days and "cpu" not in devices else {}
    return Mark(part=part, days={**without, **{device: days.get(device) for device in DEVICES if device in devices}})


def with_rows(known: ProofsByPart, rows: Sequence[Mapping[str, Any]], device: str) -> ProofsByPart:
    """``known`` after a sweep of ``device``: a part is proven by the rows that name it under ``proves``, where one
    passed and none failed, on the day and the machine of the latest; one that failed is not proven there any longer.

    Whether it is right and whether it is fast are two questions: what rows that name it under ``speed_of`` found stands
    next to the mark of a proven part, and takes nothing from it.
    """
    after = {part: dict(devices) for part, devices in known.items()}
    for part in dict.fromkeys(part for row in rows for part in row.get("proves", ())):
        of_part = [row for row in rows if part in row.get("proves", ())]
        passed = [row for row in of_part if row["result"] == "pass"]
        if any(row["result"] == "fail" for row in of_part):
            after.get(part, {}).pop(device, None)
        elif passed:
            last = _latest(passed)
            figure = f"{last['row']}: {last['figure']}"
            after.setdefault(part, {})[device] = {"date": last["date"], "device": last["machine"], "figure": figure}
    for part in dict.fromkeys(part for row in rows for part in row.get("speed_of", ())):
        measured = [row for row in rows if part in row.get("speed_of", ()) and row["result"] != "skip"]
        if measured and device in after.get(part, {}):
            last = _latest(measured)
            doubt = "" if last["result"] == "pass" else "not as claimed: "
            after[part][device] = {**after[part][device], "speed": f"{doubt}{last['figure']}"}
    return {part: after[part] for part in sorted(after) if after[part]}


def _latest(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return sorted(rows, key=lambda row: row["date"])[-1]
