"""``--diff``: what fixes would change, as a unified diff; a notebook's cell by cell."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from togi.lint.decode import decode, decode_exactly
from togi.lint.mend import Mended
from togi.lint.notebooks import SUFFIX, read_notebook
from togi.render.findings.lines import Line

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def diff(mended: Sequence[Mended]) -> Iterator[Line]:
    for one in mended:
        read = decode if one.file.shown.endswith(SUFFIX) else decode_exactly  # a patch must keep a file's line ends
        before, after = read(one.before).text, read(one.after).text
        if one.file.shown.endswith(SUFFIX):
            cells = zip(read_notebook(before).cells, read_notebook(after).cells, strict=True)
            for old, new in cells:
                yield from _diff(f"{one.file.shown}:cell {old.number}", old.code, new.code)
        else:
            yield from _diff(one.file.shown, before, after)


def _diff(name: str, before: str, after: str) -> Iterator[Line]:
    lines = difflib.unified_diff(_lines(before), _lines(after), name, name, lineterm="")
    for number, line in enumerate(lines):
        style = "bold" if number < 2 else _STYLES.get(line[:1], "")
        for part in line.split("\n"):
            yield ((part, style),)


def _lines(text: str) -> list[str]:
    """Without their ``\\n``, but with ``\\r``; a last line that has no end says so, as in every patch."""
    *lines, rest = text.split("\n")
    return [*lines, f"{rest}\n\\ No newline at end of file"] if rest else lines
