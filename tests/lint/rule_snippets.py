"""Snippets of every source rule: ``snippets/RULE.py`` holds what it must find and what it must leave alone.

The snippets of a rule are the cells of one file, divided by lines ``# %%``. Each stands for a whole file, with
``import torch`` above it unless it imports anything. A finding starts on every line that ends with ``# expect: RULE``,
and on no other; a cell without such a line must be left alone. Longer programs, some of them held out while rules were
written, are in ``corpus`` and ``corpus_held_out``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "snippets"
_CELL = re.compile(r"^# %%\n", re.MULTILINE)
_IMPORT = re.compile(r"^(import|from)\s", re.MULTILINE)


class Snippet(NamedTuple):
    """One cell."""

    rule: str
    text: str

    @property
    def lines(self) -> list[int]:
        """Those on which a finding of the rule starts."""
        mark = f"# expect: {self.rule}"
        return [number for number, line in enumerate(self.text.splitlines(), start=1) if line.endswith(mark)]


def snippets(rule: str) -> list[Snippet]:
    """The snippets of the rule with this id."""
    text = (FOLDER / f"{rule.replace('-', '_')}.py").read_text(encoding="utf-8")
    before, *cells = _CELL.split(text)
    assert not before, "the file begins with a cell"
    return [Snippet(rule, _file(cell)) for cell in cells]


def _file(cell: str) -> str:
    text = cell.strip("\n") + "\n"
    return text if _IMPORT.search(text) else f"import torch\n\n{text}"
