"""docs/lean-memory.svg: exact peaks of a best-IoU function against the number of anchors, plain and under togi.lean.

    python benchmarks/lean_growth.py               # measures (about a minute), writes data/lean_growth.json, draws
    python benchmarks/lean_growth.py --draw        # draws what was measured

torchvision's ``box_iou(anchors, boxes).max(1)`` with 500 boxes, budget 64 MiB. The peak is that of torch's allocator,
the result (12 bytes per anchor) included.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DATA = HERE / "data" / "lean_growth.json"
TARGET = HERE.parent / "docs" / "lean-memory.svg"
MIB = 1 << 20
BUDGET_BYTES = 64 * MIB
BOXES = 500
COUNTS = (15_625, 62_500, 250_000, 1_000_000, 4_000_000)
PLAIN_LIMIT_BYTES = 6 << 30
"""The plain function is run where nine N x M matrices are not larger than this."""
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 400, 80, 60, 40, 150
X_DECADES, Y_DECADES = (4.0, 6.8), (-1.0, 4.5)
COLOURS = {"plain": "#b3402e", "togi.lean": "#1f6f5c", "result": "#777777"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="draw the figures that were measured before")
    if not parser.parse_args().draw:
        DATA.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    report = json.loads(DATA.read_text(encoding="utf-8"))
    TARGET.write_text(
        "\n".join(["<svg " + HEAD + ">", *axes(), *curves(report["points"]), "</svg>"]) + "\n", encoding="utf-8"
    )


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


HEAD = (
    f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13" '
    'role="img" aria-label="Peak memory against the number of anchors"'
)


def axes() -> list[str]:
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']
    for power in range(math.ceil(Y_DECADES[0]), math.floor(Y_DECADES[1]) + 1):
        y = place_y(10.0**power)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(text(LEFT - 8, y + 4, f"{10.0**power:g} MiB", "end"))
    limit = place_y(BUDGET_BYTES / MIB)
    parts.append(f'<path d="M{LEFT} {limit:.1f}H{WIDTH - RIGHT}" stroke="#333333" stroke-dasharray="2 3"/>')
    parts.append(text(WIDTH - RIGHT + 8, limit + 4, "budget, 64 MiB", "start"))
    parts += [text(place_x(count), HEIGHT - BOTTOM + 20, f"{count:,}", "middle") for count in COUNTS]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "anchors N (both scales logarithmic)", "middle"))
    parts.append(text(LEFT, 22, "box_iou(anchors, boxes).max(1), M = 500: peak, result included", "start"))
    return parts


def curves(points: list[dict[str, Any]]) -> list[str]:
    results = [{"way": "result", "n": count, "peak_bytes": 12 * count} for count in COUNTS]
    parts = []
    for way, colour in COLOURS.items():
        rows = sorted((row for row in [*points, *results] if row["way"] == way), key=lambda row: row["n"])
        places = [(place_x(row["n"]), place_y(row["peak_bytes"] / MIB)) for row in rows]
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="5 4"' if way == "result" else ""
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if way != "result":
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
        x, y = places[1] if way == "result" else places[-1]
        parts.append(text(x + 8, y + (4 if way == "plain" else 18), way, "start", colour))
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
