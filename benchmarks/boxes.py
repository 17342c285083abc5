"""Boxes: togi.ops against eager torchvision and torch.compile of the same formula, in time and in memory.

    python benchmarks/boxes.py                     # both sizes and the growth, 7 to 10 minutes
    python benchmarks/boxes.py --only matrix       # the contests with that in their name ("growth" for the growth)

Everything takes turns in one process. Times are medians over the rounds. Memory is what a call needs beyond its
inputs and results, twice: the exact peak of torch's allocator, and how far the resident set rose (which also sees
what the kernel allocates by itself). Prints markdown, writes benchmarks/data/boxes.json.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision.ops as tv
from torch import Tensor
from torchvision.models.detection._utils import Matcher

from togi import ops
from togi.machine.describe import machine
from togi.measure.allocator import freed_memory_returned
from togi.measure.memory import peak_resident_bytes, torch_allocator_peak_bytes

SIZES = ((242_991, 500), (100_000, 2_000))
THRESHOLDS = (0.3, 0.7)
GROWTH = ((31_250, 500), (125_000, 500), (500_000, 500), (2_000_000, 500), (250_000, 5_000), (1_000_000, 5_000))
LARGEST = (4_000_000, 5_000)
MATRIX_LIMIT_BYTES = 700 << 20
"""In the growth, eager and compiled code run where one N x M matrix is not larger than this."""
FORMAT_VERSION = 1
DATA = Path(__file__).with_name("data") / "boxes.json"

Run = Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Ways to do the same thing; ``result_bytes`` of N and M is what they return."""

    name: str
    ways: dict[str, Run]
    result_bytes: Callable[[int, int], int]
    check: Callable[[Any, Any], bool]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a contest's name; the other figures in the file are kept")
    parser.add_argument("--size", type=int, choices=range(len(SIZES)), help="only the first or second size")
    options = parser.parse_args()
    sizes = SIZES if options.size is None else SIZES[options.size : options.size + 1]
    kept = json.loads(DATA.read_text(encoding="utf-8")) if options.only and DATA.exists() else {}
    chosen = [c.name for c in contests() if options.only in c.name]
    measured = [found for n, m in sizes for found in measure_size(n, m, options.rounds, chosen)]
    again = {(f["contest"], f["n"], f["m"]) for f in measured}
    earlier = [f for f in kept.get("sizes", []) if (f["contest"], f["n"], f["m"]) not in again]
    report: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "date": datetime.date.today().isoformat(),
        "machine": machine().model_dump(mode="json"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "backend": ops.backend().name,
        "sizes": [*earlier, *measured],
        "growth": list(measure_growth()) if options.only in ("", "growth") else kept.get("growth", []),
    }
    DATA.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def contests() -> Iterable[Contest]:
    """Best box per anchor, both directions with low-quality matches, and matrices."""
    yield Contest(
        name="best box per anchor",
        ways={
            "eager": lambda a, b: tv.box_iou(a, b).max(1),
            "torch.compile": torch.compile(lambda a, b: tv.box_iou(a, b).max(1), dynamic=False),
            "togi, tiles of torch": tiled(lambda a, b: ops.match_boxes(a, b)),
            "togi": lambda a, b: ops.match_boxes(a, b),
        },
        result_bytes=lambda n, _: 12 * n,
        check=lambda ours, theirs: torch.equal(ours.iou, theirs[0]) and torch.equal(ours.box, theirs[1]),
    )
    yield Contest(
        name="both directions, low-quality matches",
        ways={
            "eager": lambda a, b: Matcher(THRESHOLDS[1], THRESHOLDS[0], True)(tv.box_iou(b, a)),
            "torch.compile": torch.compile(both_directions, dynamic=False),
            "togi, tiles of torch": tiled(match_both),
            "togi": match_both,
        },
        result_bytes=lambda n, m: 13 * n + 12 * m,
        check=lambda ours, theirs: torch.equal(ours.matched_box(), theirs),
    )
    for name, ours, theirs in (("IoU", ops.box_iou, tv.box_iou), ("intersection", ops.box_intersection, intersection)):
        yield Contest(
            name=f"{name} matrix",
            ways={
                "fill": lambda a, b: torch.full((len(a), len(b)), 1.0),
                "eager": theirs,
                "torch.compile": torch.compile(theirs, dynamic=False),
                "togi": ours,
            },
            result_bytes=lambda n, m: 4 * n * m,
            check=torch.equal,
        )


def intersection(anchors: Tensor, boxes: Tensor) -> Tensor:
    """As the advice writes it (detectron2's pairwise_intersection)."""
    extent = torch.min(anchors[:, None, 2:], boxes[:, 2:]) - torch.max(anchors[:, None, :2], boxes[:, :2])
    return extent.clamp(min=0).prod(dim=2)


def match_both(anchors: Tensor, boxes: Tensor) -> ops.BoxMatches:
    return ops.match_boxes(anchors, boxes, thresholds=THRESHOLDS, low_quality=True)


def both_directions(anchors: Tensor, boxes: Tensor) -> tuple[Tensor, ...]:
    """What Matcher decides, as one function of tensors without indexing by masks, which would break the graph."""
    iou = tv.box_iou(boxes, anchors)
    best, index = iou.max(0)
    tied = (iou == iou.max(1, keepdim=True).values).any(0)
    level = torch.where(best < THRESHOLDS[0], -1, torch.where(best < THRESHOLDS[1], -2, index))
    return best, torch.where(tied, index, level)


def tiled(run: Run) -> Run:
    def call(anchors: Tensor, boxes: Tensor) -> Any:
        os.environ["TOGI_OPS_BACKEND"] = "tiled"
        try:
            return run(anchors, boxes)
        finally:
            del os.environ["TOGI_OPS_BACKEND"]

    return call


def make_boxes(count: int, seed: int) -> Tensor:
    """Uniform in 1000 x 1000, sides of 1 to 200: in no order, so that no tile of anchors can leave out any box."""
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * 800
    return torch.cat([corner, corner + torch.rand(count, 2, generator=generator) * 199 + 1], 1)


def measure_size(n: int, m: int, rounds: int, chosen: Sequence[str]) -> Iterable[dict[str, Any]]:
    anchors, boxes = make_boxes(n, 1), make_boxes(m, 2)
    for contest in contests():
        if contest.name not in chosen:
            continue
        results = contest.result_bytes(n, m)
        held: list[Any] = []
        memory = {"eager": extra_memory(contest.ways["eager"], anchors, boxes, results, together=True, held=held)}
        equal = contest.check(contest.ways["togi"](anchors, boxes), held.pop())
        others = {name: run for name, run in contest.ways.items() if name != "eager"}
        for run in others.values():
            run(anchors, boxes)  # compiles, warms up
        times = time_in_turns(contest.ways, anchors, boxes, rounds)
        memory |= {name: extra_memory(run, anchors, boxes, results) for name, run in others.items()}
        found = {
            "contest": contest.name,
            "n": n,
            "m": m,
            "equal": equal,
            "ways": {name: {"time_s": times[name], **memory[name]} for name in contest.ways},
        }
        print_contest(found)
        yield found


def time_in_turns(ways: dict[str, Run], anchors: Tensor, boxes: Tensor, rounds: int) -> dict[str, list[float]]:
    """Seconds per way and round. What is fast is called several times a round, and the round's median kept."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            calls = [time_once(run, anchors, boxes)]
            while sum(calls) < 0.3 and len(calls) < 7:
                calls.append(time_once(run, anchors, boxes))
            times[name].append(statistics.median(calls))
    return times


def time_once(run: Run, anchors: Tensor, boxes: Tensor) -> float:
    gc.collect()
    start = time.perf_counter()
    kept = run(anchors, boxes)
    took = time.perf_counter() - start
    del kept
    return took


def extra_memory(
    run: Run,
    anchors: Tensor,
    boxes: Tensor,
    result_bytes: int,
    *,
    together: bool = False,
    held: list[Any] | None = None,
) -> dict[str, int | None]:
    """Bytes at the peak of a call beyond inputs and results.

    Args:
        together: one call for both figures, for what takes seconds. The resident set then counts the profiler's record
            too: some hundred bytes per operation.
        held: gets the result.
    """
    resident = 0

    def call() -> None:
        result = run(anchors, boxes)
        if held is not None:
            held.append(result)

    def call_watched() -> None:
        nonlocal resident
        with freed_memory_returned():
            resident = peak_resident_bytes(call)

    if not together:
        call_watched()
    allocator = torch_allocator_peak_bytes(call_watched if together else call)
    return {
        "extra_allocator_bytes": None if allocator is None else allocator - result_bytes,
        "extra_resident_bytes": resident - result_bytes,
    }


def print_contest(found: dict[str, Any]) -> None:
    ours = statistics.median(found["ways"]["togi"]["time_s"])
    print(f"\n{found['contest']}, {found['n']:,} x {found['m']:,}; decisions equal to eager's: {found['equal']}\n")
    print("| way | ms | time / togi's | extra MiB (allocator) | extra MiB (resident) |\n|---|---|---|---|---|")
    for name, way in found["ways"].items():
        took = statistics.median(way["time_s"])
        memory = [mebibytes(way[f"extra_{kind}_bytes"]) for kind in ("allocator", "resident")]
        print(f"| {name} | {took * 1e3:.1f} | {took / ours:.2f} | {' | '.join(memory)} |", flush=True)


def mebibytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.2f}"


def measure_growth() -> Iterable[dict[str, Any]]:
    """Both directions, the harder of the two: time and memory over N and M."""
    both = next(c for c in contests() if c.name.startswith("both"))
    print("\n| N | M | way | s | pairs per s | extra MiB (resident) |\n|---|---|---|---|---|---|")
    for n, m in (*GROWTH, LARGEST):
        anchors, boxes = make_boxes(n, 1), make_boxes(m, 2)
        ways = ("togi", "torch.compile", "eager") if 4 * n * m <= MATRIX_LIMIT_BYTES else ("togi",)
        for way in ways:
            run = both.ways[way]
            run(anchors, boxes)
            took = min(time_once(run, anchors, boxes) for _ in range(3 if way == "togi" else 1))
            memory = extra_memory(run, anchors, boxes, both.result_bytes(n, m), together=way == "eager")
            rate = f"{n * m / took:.2e}"
            print(
                f"| {n:,} | {m:,} | {way} | {took:.4f} | {rate} | {mebibytes(memory['extra_resident_bytes'])} |",
                flush=True,
            )
            yield {"n": n, "m": m, "way": way, "time_s": took, **memory}


if __name__ == "__main__":
    main()
