"""The pages of an account of memory and of a CUDA memory snapshot.

Positions of the areas over time and of the boxes by module are computed here; templates draw them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from togi.core.backports import StrEnum
from togi.core.quantities import size
from togi.footprint.account.record import Account, Category, Holding
from togi.footprint.fit.result import FitResult
from togi.footprint.snapshot.record import DeviceAccount, SnapshotAccount
from togi.render import snapshot_text
from togi.render.html.axis import Tick, tick_label
from togi.render.html.document import document, fragment
from togi.render.memory_text import deletions

SHOWN = 40
"""Rows of a table; --json has them all."""
SHOWN_IN_NOTEBOOK = 12


def account_html(account: Account) -> str:
    """The same bytes for the same account."""
    boxes = icicle(account.holdings)
    return document(
        "account.html",
        title=account.subject or "memory",
        script="account.js",
        account=account,
        notes=_notes(account),
        timeline=timeline(account.timeline),
        boxes=boxes,
        depth=1 + max((box.level for box in boxes), default=0),
        css=css,
        shown=SHOWN,
    )


def account_fragment(account: Account) -> str:
    """Memory over time and the owners at the peak, for a notebook."""
    return fragment(
        "notebook_account.html",
        account=account,
        notes=_notes(account),
        timeline=timeline(account.timeline),
        css=css,
        shown=SHOWN_IN_NOTEBOOK,
    )


def fit_fragment(result: FitResult) -> str:
    """The verdict, and every plan between the fastest and the smallest, for a notebook."""
    front = sorted({*result.front}, key=lambda point: -point.peak_bytes)
    return fragment("notebook_fit.html", result=result, front=front)


def snapshot_html(account: SnapshotAccount) -> str:
    """The same bytes for the same account."""
    return document(
        "snapshot.html",
        title=Path(account.path).name,
        script="account.js",
        account=account,
        notes=[
            *account.notes,
            *(f"Device {device.device}: {note}" for device in account.devices for note in device.notes),
        ],
        timelines={device.device: shown for device in account.devices if (shown := _timeline(device))},
        text=snapshot_text,
        shown=SHOWN,
    )


def _notes(account: Account) -> list[str]:
    return [*(f"del {names} {saved}." for names, saved in deletions(account.held_names)), *account.notes]


def _timeline(device: DeviceAccount) -> TimelineChart | None:
    if device.history is None:
        return None
    unit = "ms, recorded" if device.history.timed else "events, recorded"
    return timeline(device.history.timeline, what="memory reserved, MiB", unit=unit)


_MIB = 2**20
_TICKS = 5
_NARROWEST = 0.15
"""Percent of the width below which a box cannot be seen, let alone hit."""
_NAMED = 2.0
"""Percent of the width from which a box holds its name."""


def css(category: StrEnum) -> str:
    """The class that colours a category in every figure."""
    return f"c-{re.sub(r'[^a-z]+', '-', category.value)}"


class Layers(Protocol):
    """Layers that are stacked: an account's categories, or a snapshot's."""

    @property
    def ms(self) -> Sequence[float]: ...

    @property
    def bytes(self) -> Mapping[Any, Sequence[int]]: ...


@dataclass(frozen=True)
class TimelineChart:
    """Stacked areas; the script reads a moment's values from ``data``."""

    what: str
    unit: str
    peak: str
    areas: list[tuple[str, str]]
    """Class and the points of its polygon, from the bottom to the top."""
    ticks: list[Tick]
    legend: list[tuple[str, str]]
    """Class and name."""
    data: str


def timeline(layers: Layers, *, what: str = "memory alive, MiB", unit: str = "ms, watched") -> TimelineChart:
    """Categories that hold the most at the bottom; the top edge is everything alive."""
    order = sorted(layers.bytes, key=lambda category: -min(layers.bytes[category], default=0))
    totals = [sum(point) for point in zip(*layers.bytes.values(), strict=True)]
    top, last = max(totals, default=0) or 1, layers.ms[-1] or 1.0
    lower = [0] * len(totals)
    areas: list[tuple[str, str]] = []
    for category in order:
        upper = [below + here for below, here in zip(lower, layers.bytes[category], strict=True)]
        areas.append((css(category), _polygon(layers.ms, lower, upper, last, top)))
        lower = upper
    data = {"ms": layers.ms, "series": {c.value: layers.bytes[c] for c in reversed(order)}}
    return TimelineChart(
        what=what,
        unit=f"{last:,.0f} {unit}",
        peak=size(top),
        areas=areas,
        ticks=[Tick(round(tick / top * 100, 2), tick_label(tick / _MIB)) for tick in _ticks(top)],
        legend=[(css(category), category.value) for category in order],
        data=json.dumps(data, separators=(",", ":")),
    )


def _polygon(ms: Sequence[float], lower: Sequence[int], upper: Sequence[int], last: float, top: int) -> str:
    """A staircase there and back: memory changes at once."""
    edge: list[str] = []
    for bounds, forth in ((upper, True), (lower, False)):
        corners: list[tuple[float, float]] = []
        for number, when in enumerate(ms):
            y = round(100 - bounds[number] / top * 100, 2)
            if number:
                corners.append((round(when / last * 1000, 1), corners[-1][1]))
            corners.append((round(when / last * 1000, 1), y))
        edge += [f"{x},{y}" for x, y in (corners if forth else reversed(corners))]
    return " ".join(edge)


def _ticks(top: int) -> list[int]:
    """Round numbers of MiB below the top."""
    raw = top / _TICKS / _MIB
    step = next((f * 10**e for e in range(-4, 9) for f in (1, 2, 5) if f * 10**e >= raw), raw)
    return [round(number * step * _MIB) for number in range(1, _TICKS + 2) if number * step * _MIB <= top]


@dataclass
class ModuleNode:
    """A module with what it and everything below it holds."""

    name: str
    path: str
    bytes: int = 0
    by_category: dict[Category, int] = field(default_factory=dict)
    children: dict[str, ModuleNode] = field(default_factory=dict)

    def add(self, holding: Holding) -> None:
        self.bytes += holding.bytes
        self.by_category[holding.category] = self.by_category.get(holding.category, 0) + holding.bytes


def tree(holdings: Iterable[Holding]) -> ModuleNode:
    """The holdings under their modules; what belongs to none lies in the root."""
    root = ModuleNode("model", "")
    for holding in holdings:
        node = root
        node.add(holding)
        for name in filter(None, holding.module.split(".")):
            path = f"{node.path}.{name}" if node.path else name
            node = node.children.setdefault(name, ModuleNode(name, path))
            node.add(holding)
    return root


@dataclass(frozen=True)
class Box:
    """A module in the figure: percent of the width, and its level in the tree."""

    name: str
    hint: str
    css: str
    left: float
    width: float
    level: int


def icicle(holdings: Iterable[Holding]) -> list[Box]:
    """The peak by module as a flame graph that hangs down; empty where nothing belongs to a module."""
    root = tree(holdings)
    return list(_boxes(root, 0.0, 0, root.bytes)) if root.children and root.bytes else []


def _boxes(node: ModuleNode, left: float, level: int, whole: int) -> Iterator[Box]:
    width = 100 * node.bytes / whole
    if width < _NARROWEST:
        return
    parts = sorted(node.by_category.items(), key=lambda item: -item[1])
    held = "\n".join(f"{size(bytes)} {category.value}" for category, bytes in parts)
    yield Box(
        name=node.name if width > _NAMED else "",
        hint=f"{node.path or 'the whole peak'}: {size(node.bytes)}, {node.bytes / whole:.1%}\n{held}",
        css=css(parts[0][0]),
        left=round(left, 3),
        width=round(width, 3),
        level=level,
    )
    for child in sorted(node.children.values(), key=lambda child: -child.bytes):
        yield from _boxes(child, left, level + 1, whole)
        left += 100 * child.bytes / whole
