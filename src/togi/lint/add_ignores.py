"""Writes an ignore comment for every finding there is, so that only new ones are reported from now on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from togi.lint.finding import Edit, Finding, Fix
from togi.lint.fix import FixResult, rewrite_paths
from togi.lint.notebooks import without_magics
from togi.lint.selection import IgnoreMark, Statement, statements
from togi.lint.settings import Overrides
from togi.lint.source_text import syntax_error, unify_line_ends

_TITLE = "Add an ignore comment"


def add_ignores(
    paths: Sequence[str | Path], settings: Overrides | None = None, *, dry: bool = False, cache: bool = True
) -> FixResult:
    """Add one comment per statement, or its rules to the comment that is there (``dry``: write nothing)."""
    return rewrite_paths(paths, settings, ignore_comments_for, "ignores_added", dry=dry, cache=cache)


def ignore_comments_for(text: str, findings: Sequence[Finding]) -> Iterable[Fix]:
    """One fix per statement of ``text``, a file or the code of a notebook's cell, in which something was found."""
    lines = unify_line_ends(text)
    python = lines if syntax_error(lines) is None else without_magics(lines)
    places = [(finding.place.line, finding.rule) for finding in findings if finding.place is not None]
    for statement in statements(python):
        rules = sorted({rule for line, rule in places if statement.first <= line <= statement.last})
        if rules:
            yield Fix(title=_TITLE, edits=tuple(_edits(statement, rules, lines.split("\n"))))


def _edits(statement: Statement, rules: Sequence[str], lines: Sequence[str]) -> Iterator[Edit]:
    marks = [mark for mark in statement.marks if mark.rules and not mark.whole_file]
    if marks:
        yield _extended(marks[-1], rules)
        return
    line = lines[statement.last - 1]
    yield Edit(
        line=statement.last,
        column=len(line.rstrip()) + 1,
        end_line=statement.last,
        end_column=len(line) + 1,
        text=f"  # togi: ignore[{', '.join(rules)}]",
    )


def _extended(mark: IgnoreMark, rules: Sequence[str]) -> Edit:
    """The names that are there stay as they are written."""
    names = ", ".join(dict.fromkeys([*mark.rules, *rules]))
    return Edit(line=mark.line, column=mark.column, end_line=mark.line, end_column=mark.end_column, text=names)
