"""Lines of styled text; findings' text made fit for its place; and the source round a finding, with a caret line below.

Messages quote source, which may hold anything. Lines cost nothing to make: rich is imported only for a terminal with
colour.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from togi.core.plain_files import read_plain
from togi.core.printable import printable
from togi.lint.finding import Place
from togi.lint.notebooks import SUFFIX, NotebookError, read_notebook
from togi.lint.source_text import UndecodableError, decode

if TYPE_CHECKING:
    from rich.console import Console


Line = tuple[tuple[str, str], ...]
"""Parts of one line with their rich style; an empty style is plain."""


def plain(line: Line) -> str:
    return printable("".join(part for part, _ in line).rstrip())


def plain_text(lines: Iterable[Line]) -> str:
    return "".join(f"{plain(line)}\n" for line in lines)


def exact_text(lines: Iterable[Line]) -> str:
    """Keep the spaces and carriage returns at the ends of lines, which a patch needs."""
    return "".join(f"{_patched(''.join(part for part, _ in line))}\n" for line in lines)


def _patched(line: str) -> str:
    text = line.rstrip("\r")
    return printable(text, keep="\t\f") + line[len(text) :]


def print_lines(console: Console, lines: Iterable[Line]) -> None:
    """Print on a terminal with its colours."""
    from rich.text import Text

    for line in lines:
        console.print(Text.assemble(*line), soft_wrap=True, highlight=False)


def sentence(text: str) -> str:
    """End it with a full stop, so that another sentence may follow."""
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def read_more(rule: str) -> str:
    """The command that prints the page of a rule."""
    return f"togi explain {rule}"


CONTEXT = 1
"""Lines shown before the first."""
_MAX_LINES = 6
"""Of a finding that spans many."""
_TAB = 4
_CUT = "..."


def excerpt(place: Place, width: int) -> list[Line]:
    """Empty where the file cannot be read (any more) or has no such line."""
    lines = source_lines(place.path, place.cell)
    if not 1 <= place.line <= len(lines):
        return []
    end_line = min(place.end_line or place.line, len(lines))
    last = min(end_line, place.line + _MAX_LINES - 1)
    gutter = len(str(last))
    shown: list[Line] = [_gutter("", gutter)]
    for number in range(max(1, place.line - CONTEXT), last + 1):
        start, end = _marked(place, number, end_line, lines[number - 1])
        text, caret = _fitted(lines[number - 1], start, end, max(width - gutter - 3, 20))
        shown.append((*_gutter(str(number), gutter), (text, "")))
        if caret:
            shown.append((*_gutter("", gutter), (caret, "bold red")))
    if last < end_line:
        shown.append((*_gutter("", gutter), (f"{_CUT} {end_line - last} more lines", "dim")))
    return shown


_given: dict[str, bytes] = {}
_LARGEST_BYTES = 100_000_000


@lru_cache(maxsize=8)
def _read(path: str) -> dict[int | None, Sequence[str]]:
    """The lines of a file, under None; of a notebook, those of each cell."""
    try:
        text = decode(_given[path] if path in _given else read_plain(path, _LARGEST_BYTES)).text
        if path.endswith(SUFFIX):
            return {cell.number: cell.code.split("\n") for cell in read_notebook(text).cells if cell.code}
    except (OSError, UndecodableError, NotebookError):
        return {}
    return {None: text.split("\n")} if text else {}


def source_lines(path: str, cell: int | None = None) -> Sequence[str]:
    """The lines of a file or of a notebook's cell; empty where they cannot be read."""
    return _read(path).get(cell, ())


def forget() -> None:
    """Read files again: they may have been changed."""
    _given.clear()
    _read.cache_clear()


def show_as(path: str, data: bytes) -> None:
    """Take ``data`` for what stands in ``path``: it came from standard input, and the file need not exist."""
    forget()
    _given[path] = data


def _gutter(number: str, width: int) -> Line:
    return ((f"{number:>{width}} | ", "blue"),)


def _marked(place: Place, number: int, end_line: int, line: str) -> tuple[int, int]:
    """The range of characters of line ``number`` that the finding covers; empty for context."""
    if number < place.line:
        return 0, 0
    indent = len(line) - len(line.lstrip())
    start = place.column - 1 if number == place.line else indent
    if place.end_column is None:
        start = max(start, indent)  # only the line is known
    end = place.end_column - 1 if number == end_line and place.end_column is not None else len(line.rstrip())
    return (start, max(end, start + 1)) if number == place.line or end > start else (0, 0)


def _fitted(line: str, start: int, end: int, width: int) -> tuple[str, str]:
    """The line and its carets in terminal columns, cut to ``width`` so that the start of the mark stays visible."""
    before, marked, after = (_visible(part) for part in (line[:start], line[start:end], line[end:]))
    text = before + marked + after
    indent, length = _cells(before), max(_cells(marked), 1)
    if _cells(text) > width:
        skip = max(0, min(len(before) - width // 3, len(text) - width + len(_CUT)))
        if skip:
            indent = indent - _cells(text[:skip]) + len(_CUT)
            text = _CUT + text[skip:]
        text = _clipped(text, width)
        length = max(1, min(length, width - indent))
    return text.rstrip(), " " * indent + "^" * length if end > start else ""


def _visible(text: str) -> str:
    """Tabs as spaces."""
    return printable(text.replace("\t", " " * _TAB))


def _cells(text: str) -> int:
    """Columns of the terminal: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _clipped(text: str, width: int) -> str:
    if _cells(text) <= width:
        return text
    text = text[:width]  # a line may have millions of characters
    while _cells(text) > width - len(_CUT):
        text = text[:-1]
    return text + _CUT
