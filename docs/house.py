"""Draws the house for design.md: its rooms on the floors that their imports make, as docs/house.svg.

A room stands one floor above the highest room that it imports. Run ``python docs/house.py`` after a room was added or
imports another; tests/docs/test_house.py fails where that was forgotten.
"""

from __future__ import annotations

import functools
import html
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PICTURE, PAGE = ROOT / "docs/house.svg", ROOT / "docs/design.md"
ROW = re.compile(r"^\| `(\w+)(?:/|\.py)` \| (.+) \|$", re.MULTILINE)
"""Of the table of rooms in design.md, which says what each holds."""
ACROSS, WIDTH, HEIGHT, GAP = 3, 246, 50, 8
"""Boxes in a row, and their size in pixels."""
NEEDS_TORCH, WITHOUT_TORCH = "#eef1f5", "#e4f2e4"


def floors() -> list[list[str]]:
    """The rooms, from the highest floor down to ``core``."""
    imports = _imports()

    @functools.cache
    def floor(room: str) -> int:
        return 1 + max((floor(below) for below in imports[room]), default=-1)

    heights = {room: floor(room) for room in imports}
    return [sorted(room for room in imports if heights[room] == height) for height in sorted({*heights.values()})[::-1]]


def picture() -> str:
    """The text of docs/house.svg."""
    told = rooms()
    rows = [row for floor in floors() for row in (floor[i : i + ACROSS] for i in range(0, len(floor), ACROSS))]
    size = f"{ACROSS * (WIDTH + GAP) + GAP} {len(rows) * (HEIGHT + GAP) + GAP}"
    boxes = "".join(
        _box(room, told[room], GAP + i * (WIDTH + GAP), GAP + number * (HEIGHT + GAP))
        for number, row in enumerate(rows)
        for i, room in enumerate(row)
    )
    title = "The rooms of togi, each above all that it imports"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="12" '
        f'role="img" aria-label="{title}">\n<title>{title}</title>\n{boxes}</svg>\n'
    )


def rooms() -> dict[str, str]:
    """What each holds, by the table in design.md."""
    page = PAGE.read_text(encoding="utf-8")
    return dict(ROW.findall(page))


def _imports() -> Mapping[str, set[str]]:
    """By room, the other rooms that it imports. ``togi/__init__.py`` hands on public names and is none."""
    graph = grimp.build_graph("togi")
    imports: dict[str, set[str]] = {_room(module): set() for module in graph.modules if _room(module)}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            if _room(module) and _room(imported) not in ("", _room(module)):
                imports[_room(module)].add(_room(imported))
    return imports


def _room(module: str) -> str:
    room = module.partition(".")[2].partition(".")[0]
    return "" if room == "__main__" else room


def _box(room: str, holds: str, x: int, y: int) -> str:
    fill = NEEDS_TORCH if _asks_for_torch(room) else WITHOUT_TORCH
    caption = re.split(r"[;.]( |$)", holds.replace("`", ""))[0]
    lines = textwrap.wrap(caption, 42, max_lines=2, placeholder=" ...")
    spans = "".join(
        f'<text x="{x + 8}" y="{y + 31 + 14 * i}">{html.escape(line)}</text>\n' for i, line in enumerate(lines)
    )
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="4" fill="{fill}"/>\n'
        f'<text x="{x + 8}" y="{y + 16}" font-weight="bold">{room}</text>\n{spans}'
    )


def _asks_for_torch(room: str) -> bool:
    return any(re.search(r"^\s*(import|from) torch\b", text, re.MULTILINE) for text in _sources(room))


def _sources(room: str) -> Iterator[str]:
    folder = ROOT / "src/togi" / room
    files = folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]
    return (file.read_text(encoding="utf-8") for file in files)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
