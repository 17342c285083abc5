"""docs/lean-memory.svg: exact peaks of a best-IoU function against the number of anchors, plain and under togi.lean.

    python -m benchmarks.lean_growth               # measures (about a minute), writes data/lean_growth.json, draws
    python -m benchmarks.lean_growth --draw        # draws what was measured

torchvision's ``box_iou(anchors, boxes).max(1)`` with 500 boxes, budget 64 MiB. The peak is that of torch's allocator,
the result (12 bytes per anchor) included.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.figure import LEFT, WIDTH, Figure, curve, text

HERE = Path(__file__).parent
DATA = HERE / "data" / "lean_growth.json"
TARGET = HERE.parent / "docs" / "lean-memory.svg"
MIB = 1 << 20
BUDGET_BYTES = 64 * MIB
BOXES = 500
COUNTS = (15_625, 62_500, 250_000, 1_000_000, 4_000_000)
PLAIN_LIMIT_BYTES = 6 << 30
"""The plain function is run where nine N x M matrices are not larger than this."""
FIGURE = Figure(height=400, right=150, x_decades=(4.0, 6.8))
COLOURS = {"plain": "#b3402e", "togi.lean": "#1f6f5c", "result": "#777777"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="draw the figures that were measured before")
    if not parser.parse_args().draw:
        DATA.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    report = json.loads(DATA.read_text(encoding="utf-8"))
    FIGURE.save(TARGET, "Peak memory against the number of anchors", [*axes(), *curves(report["points"])])


def measured() -> dict[str, Any]:
    """Peaks of both, for every count."""
    import torch
    from torchvision.ops import box_iou

    import togi
    from togi.measure.memory import torch_allocator_peak_bytes

    def best(anchors: torch.Tensor, boxes: torch.Tensor) -> Any:
        return box_iou(anchors, boxes).max(1)

    lean = togi.lean(best, memory=BUDGET_BYTES)
    generator = torch.Generator().manual_seed(0)

    def boxes_of(count: int) -> torch.Tensor:
        corner = torch.rand(count, 2, generator=generator) * 800
        return torch.cat([corner, corner + torch.rand(count, 2, generator=generator) * 199 + 1], 1)

    points: list[dict[str, Any]] = []
    for count in COUNTS:
        given = boxes_of(count), boxes_of(BOXES)
        ways = {"togi.lean": lean} | ({"plain": best} if 36 * count * BOXES <= PLAIN_LIMIT_BYTES else {})
        lean(*given)  # decides at first
        for way, call in ways.items():
            peak = torch_allocator_peak_bytes(lambda call=call, given=given: (call(*given), None)[1])
            points.append({"way": way, "n": count, "peak_bytes": peak})
            print(f"{way}: {count:,} x {BOXES}: {(peak or 0) / MIB:,.2f} MiB", flush=True)
    return {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "budget_bytes": BUDGET_BYTES,
        "boxes": BOXES,
        "points": points,
    }


def axes() -> Iterable[str]:
    yield from FIGURE.grid()
    limit = FIGURE.y(BUDGET_BYTES / MIB)
    yield f'<path d="M{LEFT} {limit:.1f}H{WIDTH - FIGURE.right}" stroke="#333333" stroke-dasharray="2 3"/>'
    yield text(WIDTH - FIGURE.right + 8, limit + 4, "budget, 64 MiB", "start")
    yield from FIGURE.labels(COUNTS, "box_iou(anchors, boxes).max(1), M = 500: peak, result included")


def curves(points: list[dict[str, Any]]) -> Iterable[str]:
    results = [{"way": "result", "n": count, "peak_bytes": 12 * count} for count in COUNTS]
    for way, colour in COLOURS.items():
        rows = sorted((row for row in [*points, *results] if row["way"] == way), key=lambda row: row["n"])
        places = [(FIGURE.x(row["n"]), FIGURE.y(row["peak_bytes"] / MIB)) for row in rows]
        yield from curve(places, colour, dashed=way == "result", dots=way != "result")
        x, y = places[1] if way == "result" else places[-1]
        yield text(x + 8, y + (4 if way == "plain" else 18), way, "start", colour)


if __name__ == "__main__":
    main()
