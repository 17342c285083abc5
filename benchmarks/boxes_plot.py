"""docs/ops-memory.svg: extra memory against the number of anchors, from benchmarks/data/boxes.json.

python benchmarks/boxes_plot.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TARGET = HERE.parent / "docs" / "ops-memory.svg"
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 420, 80, 60, 40, 190
X_DECADES, Y_DECADES = (4.3, 6.7), (-1.0, 4.5)
COLOURS = {"eager": "#b3402e", "torch.compile": "#c08a1e", "togi": "#1f6f5c"}
FLOOR_BYTES = 2**20 / 10
"""What is below 0.1 MiB is drawn there: a resident set is counted in pages."""


def main() -> None:
    report = json.loads((HERE / "data" / "boxes.json").read_text(encoding="utf-8"))
    TARGET.write_text(
        "\n".join(["<svg " + HEAD + ">", *axes(), *curves(report["growth"]), "</svg>"]) + "\n", encoding="utf-8"
    )


HEAD = (
    f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13" '
    'role="img" aria-label="Extra memory against the number of anchors"'
)


def axes() -> list[str]:
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']
    for power in range(math.ceil(Y_DECADES[0]), math.floor(Y_DECADES[1]) + 1):
        y = place_y(10.0**power)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(text(LEFT - 8, y + 4, f"{10.0**power:g} MiB", "end"))
    for count in (31_250, 125_000, 500_000, 1_000_000, 4_000_000):
        parts.append(text(place_x(count), HEIGHT - BOTTOM + 20, f"{count:,}", "middle"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "anchors N (both scales logarithmic)", "middle"))
    parts.append(text(LEFT, 22, "Both directions with low-quality matches: memory beyond inputs and results", "start"))
    return parts


def curves(growth: list[dict[str, Any]]) -> list[str]:
    parts = []
    for way, colour in COLOURS.items():
        for boxes in sorted({row["m"] for row in growth if row["way"] == way}):
            rows = sorted((r for r in growth if r["way"] == way and r["m"] == boxes), key=lambda r: r["n"])
            points = [(place_x(r["n"]), place_y(max(r["extra_resident_bytes"], FLOOR_BYTES) / 2**20)) for r in rows]
            dash = "" if boxes == 500 else ' stroke-dasharray="5 4"'
            path = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
            x, y = points[-1]
            parts.append(text(x + 8, y + 4, f"{way}, M = {boxes:,}", "start", colour))
    return parts


def text(x: float, y: float, words: str, anchor: str, colour: str = "#333333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def place_x(count: float) -> float:
    return LEFT + (math.log10(count) - X_DECADES[0]) / (X_DECADES[1] - X_DECADES[0]) * (WIDTH - LEFT - RIGHT)


def place_y(mebibytes: float) -> float:
    share = (math.log10(mebibytes) - Y_DECADES[0]) / (Y_DECADES[1] - Y_DECADES[0])
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


if __name__ == "__main__":
    main()
