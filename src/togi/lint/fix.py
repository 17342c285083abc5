"""Edits applied to text: whole fixes, none that overlap, everything else untouched."""

from __future__ import annotations

import re
from collections.abc import Iterable

from togi.lint.finding import Edit, Fix

_LINE_END = re.compile(r"\r\n|\r|\n")
Span = tuple[int, int]


def apply_fixes(text: str, fixes: Iterable[Fix]) -> tuple[str, int]:
    """``text`` after those of ``fixes`` that fit, and how many did.

    A fix is applied with all its edits or not at all. Where two overlap, or insert at the same place, the one that
    starts first is applied; the next round sees what became of the other. ``text`` keeps its line ends, and inserted
    lines get them too.
    """
    lines = _Lines(text)
    taken: list[tuple[Span, str]] = []
    count = 0
    for spans in sorted(filter(None, (lines.spans(fix) for fix in fixes))):
        if not any(_clash(new, old) for new, _ in spans for old, _ in taken):
            taken += spans
            count += 1
    for (start, end), replacement in sorted(taken, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text, count


class _Lines:
    """Where lines start in a text with any line ends."""

    def __init__(self, text: str) -> None:
        ends = [match.span() for match in _LINE_END.finditer(text)]
        self._starts = [0, *(end for _, end in ends)]
        self._stops = [*(start for start, _ in ends), len(text)]
        self._line_end = text[slice(*ends[0])] if ends else "\n"

    def spans(self, fix: Fix) -> list[tuple[Span, str]] | None:
        """The spans of a fix with their new text; None where it does not fit this text."""
        found: list[tuple[Span, str]] = []
        for edit in fix.edits:
            span = self._span(edit)
            if span is None or any(_overlap(span, other) for other, _ in found):
                return None
            found.append((span, edit.text.replace("\r\n", "\n").replace("\n", self._line_end)))
        return sorted(found) or None

    def _span(self, edit: Edit) -> Span | None:
        start, end = self._offset(edit.line, edit.column), self._offset(edit.end_line, edit.end_column)
        return (start, end) if start is not None and end is not None and start <= end else None

    def _offset(self, line: int, column: int) -> int | None:
        if not 1 <= line <= len(self._starts) or column < 1:
            return None
        offset = self._starts[line - 1] + column - 1
        return offset if offset <= self._stops[line - 1] else None


def _overlap(one: Span, other: Span) -> bool:
    """Within one fix: what lies side by side is fine, two insertions at one place are not."""
    return one == other or (one[0] < other[1] and other[0] < one[1])


def _clash(one: Span, other: Span) -> bool:
    """Between fixes: also what touches where one of them inserts, because the order of the two would matter."""
    if one[0] == one[1] or other[0] == other[1]:
        return one[0] <= other[1] and other[0] <= one[1]
    return one[0] < other[1] and other[0] < one[1]
