"""docs/ops-memory.svg: extra memory against the number of anchors, from benchmarks/data/boxes.json.

python -m benchmarks.boxes_plot
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure, curve, text

HERE = Path(__file__).parent
TARGET = HERE.parent / "docs" / "ops-memory.svg"
FIGURE = Figure(height=420, right=190, x_decades=(4.3, 6.7))
COUNTS = (31_250, 125_000, 500_000, 1_000_000, 4_000_000)
COLOURS = {"eager": "#b3402e", "torch.compile": "#c08a1e", "togi": "#1f6f5c"}
FLOOR_BYTES = 2**20 / 10
"""What is below 0.1 MiB is drawn there: a resident set is counted in pages."""


def main() -> None:
    report = json.loads((HERE / "data" / "boxes.json").read_text(encoding="utf-8"))
    title = "Both directions with low-quality matches: memory beyond inputs and results"
    parts = [*FIGURE.grid(), *FIGURE.labels(COUNTS, title), *curves(report["growth"])]
    FIGURE.save(TARGET, "Extra memory against the number of anchors", parts)


def curves(growth: list[dict[str, Any]]) -> Iterable[str]:
    for way, colour in COLOURS.items():
        for boxes in sorted({row["m"] for row in growth if row["way"] == way}):
            rows = sorted((r for r in growth if r["way"] == way and r["m"] == boxes), key=lambda r: r["n"])
            points = [(FIGURE.x(r["n"]), FIGURE.y(max(r["extra_resident_bytes"], FLOOR_BYTES) / 2**20)) for r in rows]
            yield from curve(points, colour, dashed=boxes != 500)
            x, y = points[-1]
            yield text(x + 8, y + 4, f"{way}, M = {boxes:,}", "start", colour)


if __name__ == "__main__":
    main()
