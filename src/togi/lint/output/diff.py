"""``--diff``: what fixes would change, as a unified diff; a notebook's cell by cell."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from togi.lint.decode import decode
from togi.lint.mend import Mended
from togi.lint.notebooks import SUFFIX, read_notebook
from togi.lint.output.lines import Line

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def diff(mended: Sequence[Mended]) -> Iterator[Line]:
    for one in mended:
        before, after = decode(one.before).text, decode(one.after).text
        if one.file.shown.endswith(SUFFIX):
            cells = zip(read_notebook(before).cells, read_notebook(after).cells, strict=True)
            for old, new in cells:
                yield from _diff(f"{one.file.shown}:cell {old.number}", old.code, new.code)
        else:
            yield from _diff(one.file.shown, before, after)


def _diff(name: str, before: str, after: str) -> Iterator[Line]:
    lines = difflib.unified_diff(before.split("\n"), after.split("\n"), name, name, lineterm="")
    for number, line in enumerate(lines):
        style = "bold" if number < 2 else _STYLES.get(line[:1], "")
        yield ((line, style),)
