"""A figure of memory against a number, both logarithmic, as SVG: for docs/ops-memory.svg and docs/lean-memory.svg."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

LEFT, BOTTOM, TOP = 80, 60, 40
WIDTH = 720


@dataclass(frozen=True, kw_only=True)
class Figure:
    """``x_decades`` are of anchors, ``y_decades`` of MiB: powers of ten. ``right`` is the room for names of curves."""

    height: int
    right: int
    x_decades: tuple[float, float]
    y_decades: tuple[float, float] = (-1.0, 4.5)

    def x(self, count: float) -> float:
        low, high = self.x_decades
        return LEFT + (math.log10(count) - low) / (high - low) * (WIDTH - LEFT - self.right)

    def y(self, mebibytes: float) -> float:
        low, high = self.y_decades
        return self.height - BOTTOM - (math.log10(mebibytes) - low) / (high - low) * (self.height - BOTTOM - TOP)

    def grid(self) -> Iterable[str]:
        """White ground, and a line with its number of MiB for each power of ten."""
        yield f'<rect width="{WIDTH}" height="{self.height}" fill="#ffffff"/>'
        for power in range(math.ceil(self.y_decades[0]), math.floor(self.y_decades[1]) + 1):
            y = self.y(10.0**power)
            yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - self.right}" stroke="#dddddd"/>'
            yield text(LEFT - 8, y + 4, f"{10.0**power:g} MiB", "end")

    def labels(self, counts: Iterable[int], title: str) -> Iterable[str]:
        """Numbers of anchors below, and a title above."""
        for count in counts:
            yield text(self.x(count), self.height - BOTTOM + 20, f"{count:,}", "middle")
        middle = (LEFT + WIDTH - self.right) / 2
        yield text(middle, self.height - 14, "anchors N (both scales logarithmic)", "middle")
        yield text(LEFT, 22, title, "start")

    def save(self, path: Path, label: str, parts: Iterable[str]) -> None:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" font-family="sans-serif" '
            f'font-size="13" role="img" aria-label="{label}">'
        )
        path.write_text("\n".join([head, *parts, "</svg>"]) + "\n", encoding="utf-8")


def curve(points: Sequence[tuple[float, float]], colour: str, *, dashed: bool, dots: bool = True) -> Iterable[str]:
    path = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
    for x, y in points if dots else ():
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'


def text(x: float, y: float, words: str, anchor: str, colour: str = "#333333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'
