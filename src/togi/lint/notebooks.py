"""Notebooks: code cells as one Python text, places in it as places in cells, and edits back into the cells' JSON.

Names flow from cell to cell in the order in which they stand. Magics and shell lines are blanked. A cell that is not
Python even so is left out with a problem; the others are checked. Only the JSON of changed cells is rewritten; every
other byte of the file stays.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from togi.lint.finding import Finding, Fix, Place
from togi.lint.source_text import syntax_error, unify_line_ends

SUFFIX = ".ipynb"
_PYTHON_CELL_MAGICS = frozenset(["%%time", "%%timeit", "%%capture", "%%prun", "%%memit", "%%mprun"])
_TIMED = re.compile(r"^(\s*)(%(?:time|timeit|prun|memit))(\s+)(?=[^\s-])")
_TARGETS = re.compile(r"[\w.,\s]+")
_HELP = re.compile(r"%{0,2}(?!\d)[\w*]+(?:\.(?!\d)[\w*]+|\[-?\d+\])*\?{1,2}")
"""``torch.add?``: as IPython takes it, and the whole line."""
_IN_CODE = re.compile(r"""#|'''|\"{3}|['"()\[\]{}]""")
_IN_STRING = {quote: re.compile(rf"\\.|{quote}") for quote in ("'", '"', "'''", '"""')}
_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class NotebookError(Exception):
    """The file is not a notebook that can be checked; the message says why and what to do."""


@dataclass(frozen=True)
class Cell:
    number: int
    """Counted from 1 over all cells, also those of prose."""
    code: str
    """As it stands, with ``\\n`` line ends."""
    python: str
    """With magics blanked, the same number of lines; empty lines where it is not Python."""
    first: int
    """Its first line in the joined text, from 1."""
    error: SyntaxError | None

    @property
    def lines(self) -> int:
        return self.python.count("\n") + 1


@dataclass(frozen=True)
class Notebook:
    cells: tuple[Cell, ...]
    """The code cells."""

    @cached_property
    def text(self) -> str:
        """All code cells, one below the other."""
        return "".join(f"{cell.python}\n" for cell in self.cells)

    def cell_at(self, line: int) -> Cell | None:
        """The cell of a line of ``text``."""
        number = bisect_right(self._firsts, line) - 1
        return self.cells[number] if number >= 0 and line < self._firsts[number] + self.cells[number].lines else None

    @cached_property
    def _firsts(self) -> list[int]:
        return [cell.first for cell in self.cells]

    def placed(self, finding: Finding) -> Finding:
        """Moves a finding from its place in ``text`` to that in its cell; drops a fix that leaves the cell."""
        place = finding.place
        cell = self.cell_at(place.line) if place is not None else None
        if place is None or cell is None:
            return finding
        moved = Place(
            path=place.path,
            line=place.line - cell.first + 1,
            column=place.column,
            end_line=None if place.end_line is None else place.end_line - cell.first + 1,
            end_column=place.end_column,
            cell=cell.number,
        )
        return finding.model_copy(update={"place": moved, "fix": finding.fix and _moved(finding.fix, cell)})


def read_notebook(text: str) -> Notebook:
    """Raises NotebookError for what is not a notebook of format 4 with Python code."""
    try:
        document = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:  # also of integers with thousands of digits
        raise NotebookError(f"is not JSON: {error}. A notebook is: save it again with Jupyter") from None
    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        raise NotebookError(
            "is not a notebook of format 4: it has no list of cells. Older ones are converted with "
            "'jupyter nbconvert --to notebook'"
        )
    if _language(document) not in ("python", "ipython", ""):
        return Notebook(())
    cells: list[Cell] = []
    first = 1
    for number, cell in enumerate(document["cells"], start=1):
        code = _code(cell)
        if code is not None:
            cells.append(_read_cell(number, code, first))
            first += cells[-1].lines
    return Notebook(tuple(cells))


def write_cells(text: str, changed: dict[int, str]) -> str:
    """The notebook's JSON with the code of the cells ``changed`` (by number) replaced, and nothing else touched."""
    pieces, position = [], 0
    for number, (start, end) in enumerate(_source_spans(text), start=1):
        if number in changed:
            pieces += [text[position:start], _as_json(changed[number], text[start:end])]
            position = end
    return "".join(pieces) + text[position:]


def _language(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        part = metadata.get(key)
        if isinstance(part, dict) and isinstance(part.get(name), str):
            return str(part[name]).lower()
    return ""


def _code(cell: Any) -> str | None:
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return None
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    return unify_line_ends(source) if isinstance(source, str) else ""


def _read_cell(number: int, code: str, first: int) -> Cell:
    error = syntax_error(code)
    if error is None:
        return Cell(number, code, code, first, None)
    python = without_magics(code)
    error = syntax_error(python)
    return Cell(number, code, python if error is None else "\n" * code.count("\n"), first, error)


def without_magics(code: str) -> str:
    """``code`` with the lines of IPython and of the shell as ``pass``; lines and columns of the rest stay."""
    lines = code.split("\n")
    start = next((number for number, line in enumerate(lines) if line.strip()), 0)
    head = lines[start].split()[:1]
    if head and head[0].startswith("%%"):
        if head[0] not in _PYTHON_CELL_MAGICS:
            return "\n" * (len(lines) - 1)
        lines[start] = ""
    return "\n".join(_blanked(lines))


class _Open(NamedTuple):
    """What of a statement is open at the end of a line, so that the next line goes on with it."""

    brackets: int = 0
    quote: str = ""
    """Of a string that has not ended."""
    continued: bool = False
    """The line ends with a backslash."""

    def after(self, line: str) -> _Open:
        """What is open at the end of the next line."""
        brackets, quote = self.brackets, self.quote
        continued = line.endswith("\\")
        position = 0
        while found := (_IN_STRING[quote] if quote else _IN_CODE).search(line, position):
            position, piece = found.end(), found[0]
            if quote:
                quote = "" if piece == quote else quote
            elif piece == "#":
                continued = False
                break
            elif piece in "([{":
                brackets += 1
            elif piece in ")]}":
                brackets = max(brackets - 1, 0)
            else:
                quote = piece
        return _Open(brackets, quote if len(quote) == 3 or continued else "", continued)


def _blanked(lines: list[str]) -> Iterator[str]:
    """Only where a statement may begin is a line one of IPython."""
    opened, nothing, magic = _Open(), _Open(), False
    for line in lines:
        new = line
        if magic:
            new = ""
        elif opened == nothing:
            new = _without_magic(line)
        magic = (magic or new != line) and line.rstrip().endswith("\\") and not _TIMED.match(line)
        opened = opened.after(new)
        yield new


def _without_magic(line: str) -> str:
    """``files = !ls`` assigns None; ``%matplotlib inline``, ``!ls`` and ``x?`` do nothing; ``%time f(x)`` calls it."""
    if timed := _TIMED.match(line):
        return f"{timed[1]}0;{' ' * (len(timed[2]) - 2)}{timed[3]}{line[timed.end() :]}"
    targets, equals, value = line.partition("=")
    if equals and value.lstrip().startswith(("%", "!")) and _TARGETS.fullmatch(targets):
        return f"{targets}={value[: len(value) - len(value.lstrip())]}None"
    code = line.lstrip()
    is_magic = code.startswith(("%", "!", "?")) or _HELP.fullmatch(code.rstrip())
    return f"{line[: len(line) - len(code)]}pass" if is_magic else line


def _moved(fix: Fix, cell: Cell) -> Fix | None:
    inside = range(cell.first, cell.first + cell.lines)
    if not all(edit.line in inside and edit.end_line in inside for edit in fix.edits):
        return None
    shift = cell.first - 1
    edits = (e.model_copy(update={"line": e.line - shift, "end_line": e.end_line - shift}) for e in fix.edits)
    return fix.model_copy(update={"edits": tuple(edits)})


def _source_spans(text: str) -> list[tuple[int, int]]:
    """Where the value of ``source`` of each cell stands in the JSON ``text``; an empty span where there is none."""
    cells = _members(text, _skip(text, int(text.startswith("\ufeff")))).get("cells")
    if cells is None:
        return []
    spans: list[tuple[int, int]] = []
    position = _skip(text, cells[0] + 1)
    while text[position] != "]":
        members = _members(text, position)
        spans.append(members.get("source", (position, position)))
        position = _after_comma(text, members[""][1])
    return spans


def _members(text: str, position: int) -> dict[str, tuple[int, int]]:
    """The span of each member's value of the JSON object at ``position``; that of the object itself under ``""``."""
    spans: dict[str, tuple[int, int]] = {}
    start, position = position, _skip(text, position + 1)
    while text[position] != "}":
        key, position = _DECODER.raw_decode(text, position)
        value = _skip(text, _skip(text, position) + 1)
        _, end = _DECODER.raw_decode(text, value)
        spans[key] = (value, end)
        position = _after_comma(text, end)
    spans[""] = (start, position + 1)
    return spans


def _skip(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match is not None else position


def _after_comma(text: str, position: int) -> int:
    position = _skip(text, position)
    return _skip(text, position + 1) if text[position] == "," else position


def _as_json(code: str, before: str) -> str:
    """``code`` in the form of the value that stood there: a string or a list of lines, with its white space."""
    ascii_only = before.isascii() and "\\u" in before
    if before.startswith('"'):
        return json.dumps(code, ensure_ascii=ascii_only)
    lines = [json.dumps(line, ensure_ascii=ascii_only) for line in code.splitlines(keepends=True)]
    between = _separators(before)
    if not lines:
        return "[]"
    return f"[{between[0]}" + f",{between[1]}".join(lines) + f"{between[2]}]"


def _separators(array: str) -> tuple[str, str, str]:
    """White space of a JSON array of strings: after the bracket, after a comma, before the closing bracket."""
    ends = [(1, 1)]
    position = _skip(array, 1)
    while array[position] != "]":
        _, end = _DECODER.raw_decode(array, position)
        ends.append((position, end))
        position = _after_comma(array, end)
    if len(ends) == 1:
        return "", " ", ""
    gaps = [array[before[1] : after[0]].lstrip(",") for before, after in pairwise(ends)]
    opening = gaps[0]
    return opening, gaps[1] if len(gaps) > 1 else (opening or " "), array[ends[-1][1] : -1]
