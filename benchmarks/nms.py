"""Non-maximum suppression: togi.ops against torchvision, on the CPU. Prints markdown, writes benchmarks/data/nms.json.

    python benchmarks/nms.py                       # about a minute

Uniform boxes in a square (as dense as given), random scores; for batched_nms 80 classes. Both take turns; times are
medians. "equal": the same boxes, and the same scores in order (torchvision's batched_nms orders equal scores by
chance).
"""

from __future__ import annotations

import datetime
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision.ops as tv
from torch import Tensor

from togi import ops
from togi.machine.describe import machine

# (boxes, side of the square that they lie in): sparse scenes keep most boxes, dense ones few.
SIZES = ((1_000, 1_000), (10_000, 1_000), (10_000, 200), (50_000, 4_000))
THRESHOLD = 0.5
CLASSES = 80
ROUNDS = 3
FORMAT_VERSION = 1
DATA = Path(__file__).with_name("data") / "nms.json"


def main() -> None:
    print("| function | boxes | side | kept | torchvision, ms | togi, ms | times faster | equal |")
    print("| - | -: | -: | -: | -: | -: | -: | - |")
    found = [measure(name, count, side) for name in ("nms", "batched_nms") for count, side in SIZES]
    report = {
        "format_version": FORMAT_VERSION,
        "date": datetime.date.today().isoformat(),
        "machine": machine().model_dump(mode="json"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "backend": ops.backend().name,
        "runs": found,
    }
    DATA.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def measure(name: str, count: int, side: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(count)
    corner = torch.rand(count, 2, generator=generator) * side
    boxes = torch.cat([corner, corner + torch.rand(count, 2, generator=generator) * 99 + 1], 1)
    given: tuple[Tensor, ...] = (boxes, torch.rand(count, generator=generator))
    if name == "batched_nms":
        given = (*given, torch.randint(0, CLASSES, (count,), generator=generator))
    theirs, ours = getattr(tv, name), getattr(ops, name)
    expected, kept = theirs(*given, THRESHOLD), ours(*given, THRESHOLD)
    times: dict[str, list[float]] = {"torchvision": [], "togi": []}
    for _ in range(ROUNDS):
        times["torchvision"].append(time_once(theirs, *given, THRESHOLD))
        times["togi"].append(time_once(ours, *given, THRESHOLD))
    scores = given[1]
    equal = torch.equal(expected.sort().values, kept.sort().values) and torch.equal(scores[expected], scores[kept])
    medians = [statistics.median(times[who]) for who in ("torchvision", "togi")]
    ratio = medians[0] / medians[1]
    told = f"{medians[0] * 1e3:.2f} | {medians[1] * 1e3:.2f} | {ratio:.1f}"
    print(f"| {name} | {count:,} | {side:,} | {len(kept):,} | {told} | {'yes' if equal else 'no'} |", flush=True)
    return {"function": name, "boxes": count, "side": side, "kept": len(kept), "equal": equal, "times_s": times}


def time_once(run: Callable[..., Tensor], *given: Any) -> float:
    start = time.perf_counter()
    run(*given)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
