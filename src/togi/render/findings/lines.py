"""Lines of styled text, and text of findings made fit for its place: messages quote source, which may hold anything.

Lines cost nothing to make: rich is imported only for a terminal with colour.
"""

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


def sentence(text: str) -> str:
    """With a full stop, so that another sentence may follow."""
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def printable(text: str) -> str:
    """Control characters could rewrite a terminal's screen: they are replaced. Line breaks stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)


def one_line(text: str) -> str:
    return " ".join(printable(text).split("\n"))


def read_more(rule: str) -> str:
    """The command that prints the page of a rule."""
    return f"togi explain {rule}"
