"""Lines of styled text that cost nothing to make: rich is imported only for a terminal with colour."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Line = tuple[tuple[str, str], ...]
"""Parts of one line with their rich style; an empty style is plain."""


def plain(line: Line) -> str:
    return "".join(part for part, _ in line).rstrip()


def plain_text(lines: Iterable[Line]) -> str:
    return "".join(f"{plain(line)}\n" for line in lines)


def exact_text(lines: Iterable[Line]) -> str:
    """With the spaces and carriage returns at the ends of lines, which a patch needs."""
    return "".join("".join(part for part, _ in line) + "\n" for line in lines)


def print_lines(console: Console, lines: Iterable[Line]) -> None:
    """On a terminal with its colours."""
    from rich.text import Text

    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True, highlight=False)
