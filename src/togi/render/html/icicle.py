"""The peak by module, as a flame graph that hangs down: every row is one level of the module's tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from togi.core.quantities import size
from togi.footprint.account.record import Category, Holding
from togi.render.html.markup import Markup, element
from togi.render.html.timeline import css

_NARROWEST = 0.15
"""Percent of the width below which a box cannot be seen, let alone hit."""


@dataclass
class Node:
    """A module with what it and everything below it holds."""

    name: str
    path: str
    bytes: int = 0
    by_category: dict[Category, int] = field(default_factory=dict)
    children: dict[str, Node] = field(default_factory=dict)

    def add(self, holding: Holding) -> None:
        self.bytes += holding.bytes
        self.by_category[holding.category] = self.by_category.get(holding.category, 0) + holding.bytes


def tree(holdings: Iterable[Holding]) -> Node:
    """The holdings under their modules; what belongs to none lies in the root."""
    root = Node("model", "")
    for holding in holdings:
        node = root
        node.add(holding)
        for name in filter(None, holding.module.split(".")):
            path = f"{node.path}.{name}" if node.path else name
            node = node.children.setdefault(name, Node(name, path))
            node.add(holding)
    return root


def icicle(holdings: Iterable[Holding]) -> Markup | None:
    """None where nothing belongs to a module."""
    root = tree(holdings)
    if not root.children or not root.bytes:
        return None
    boxes = list(_boxes(root, 0.0, 0, root.bytes))
    depth = 1 + max(level for level, _ in boxes)
    style = f"height:{depth * 1.6:.1f}rem"
    return element("figure", {"class": "icicle", "style": style}, *(box for _, box in boxes))


def _boxes(node: Node, left: float, level: int, whole: int) -> Iterator[tuple[int, Markup]]:
    width = 100 * node.bytes / whole
    if width < _NARROWEST:
        return
    yield level, _box(node, left, level, width, whole)
    for child in sorted(node.children.values(), key=lambda child: -child.bytes):
        yield from _boxes(child, left, level + 1, whole)
        left += 100 * child.bytes / whole


def _box(node: Node, left: float, level: int, width: float, whole: int) -> Markup:
    main = max(node.by_category, key=node.by_category.__getitem__)
    parts = sorted(node.by_category.items(), key=lambda item: -item[1])
    held = "\n".join(f"{size(bytes)} {category.value}" for category, bytes in parts)
    hint = f"{node.path or 'the whole peak'}: {size(node.bytes)}, {node.bytes / whole:.1%}\n{held}"
    attributes = {
        "class": f"box {css(main)}",
        "style": f"left:{left:.3f}%;width:{width:.3f}%;top:{level * 1.6:.1f}rem",
        "data-hint": hint,
        "tabindex": "0",
        "aria-label": hint.replace("\n", ", "),
    }
    return element("div", attributes, node.name if width > 2 else "")
