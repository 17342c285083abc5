"""HTML that cannot be injected into: whatever is not markup already is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Markup | None


def element(tag: str, attributes: Mapping[str, str | None] | None = None, *children: Child) -> Markup:
    """``<tag ...>children</tag>``; plain strings are escaped, None is left out (an attribute or a child)."""
    given = "".join(f' {name}="{_escaped(value)}"' for name, value in (attributes or {}).items() if value is not None)
    return Markup(f"<{tag}{given}>{join(*children)}</{tag}>")


def join(*children: Child) -> Markup:
    return Markup(
        "".join(child if isinstance(child, Markup) else _escaped(child) for child in children if child is not None)
    )


def definitions(entries: dict[str, Child]) -> Markup:
    """A ``<dl>`` of the entries that say something."""
    said = ((name, value) for name, value in entries.items() if value)
    pairs = (element("div", None, element("dt", None, name), element("dd", None, value)) for name, value in said)
    return element("dl", None, *pairs)


def preformatted(text: str) -> Markup:
    return element("pre", {"tabindex": "0"}, text)


def copyable(text: str) -> Markup:
    """A command or code with a button that copies it."""
    button = element("button", {"class": "copy", "type": "button", "aria-label": "Copy"}, "copy")
    return element("div", {"class": "copyable"}, preformatted(text), button)


def _escaped(text: str) -> str:
    """Escaped, with control characters made visible as U+FFFD (HTML forbids them even as references)."""
    return escape(
        "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
    )
