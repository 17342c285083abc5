"""A docstring with headings as sections, and its reStructuredText as terminal text and as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rich.text import Text

_LITERAL = re.compile(r"::\n\n((?:[ \t]+.*(?:\n|\Z)|[ \t]*\n)+)")
_LIST = re.compile(r"^\s*[-*]\s", re.MULTILINE)


def split_docstring(text: str, headings: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The first paragraph on one line, and the text under each of ``headings`` that opens a paragraph.

    What stands before the first heading is found under ``""``. A heading with two colons opens a literal block, so its
    text starts with ``::``.
    """
    summary, _, rest = text.strip().partition("\n\n")
    opening = re.compile(rf"(?:\A|\n[ \t]*\n)({'|'.join(map(re.escape, headings))}):")
    before, *parts = opening.split(rest)
    sections = {"": _trimmed(before)} if before.strip() else {}
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        sections[heading] = ":" + _trimmed(body) if body.startswith(":") else _trimmed(body)
    return " ".join(summary.split()), sections


def prose(text: str) -> Text:
    """Paragraphs with their lines joined (lists and code keep theirs), ``code`` in colour."""
    return _code("\n\n".join(_joined(paragraph) for paragraph in text.split("\n\n")))


def markdown(body: str) -> str:
    """reStructuredText's literal blocks and double backquotes as Markdown's."""
    pieces, position = [], 0
    for block in _LITERAL.finditer(body):
        before = body[position : block.start()].rstrip()
        code = textwrap.dedent(block[1]).strip("\n")
        pieces.append(f"{inline_markdown(before)}{':' if before else ''}\n\n```python\n{code}\n```\n\n")
        position = block.end()
    return ("".join(pieces) + inline_markdown(body[position:])).strip()


def inline_markdown(text: str) -> str:
    return text.replace("``", "`")


def _trimmed(body: str) -> str:
    return body.strip("\n").strip(" ") if not body.startswith(("\n\n", "\n    ")) else body.strip("\n").rstrip()


def _joined(paragraph: str) -> str:
    return paragraph if _LIST.search(paragraph) or paragraph.startswith("    ") else " ".join(paragraph.split())


def _code(text: str) -> Text:
    styled = Text()
    for number, part in enumerate(text.split("``")):
        styled.append(part, style="cyan" if number % 2 else "")
    return styled
