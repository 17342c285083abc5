"""Findings for people: in full, one line each, counted by rule, as tables, and as the diff that fixes would make."""

from __future__ import annotations

import difflib
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from togi.core.printable import one_line, printable
from togi.core.quantities import plural
from togi.core.record import Scalar
from togi.lint.finding import CheckResult, Finding, Note, Problem, Table
from togi.lint.notebooks import SUFFIX, read_notebook
from togi.lint.source_text import decode, decode_exactly
from togi.render.findings.lines import Line, excerpt, read_more

if TYPE_CHECKING:
    from rich.console import RenderableType

    from togi.lint.fix import FileChange

_MIN_WIDTH = 40
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def full(result: CheckResult, width: int) -> Iterator[Line]:
    """Every finding with its excerpt, then what could not be checked, notes, and a summary."""
    for finding in result.findings:
        yield headline(finding)
        yield from _details(finding, width)
        yield ()
    yield from _rest(result)


def concise(result: CheckResult) -> Iterator[Line]:
    """One line per finding."""
    for finding in result.findings:
        yield headline(finding)
    yield from _rest(result)


def statistics(result: CheckResult) -> Iterator[Line]:
    """Count the findings of each rule."""
    fixable = Counter(f.rule for f in result.findings if f.fix is not None and f.fix.safe)
    for rule, count in counts(result).items():
        files = len({f.place.path for f in result.findings if f.rule == rule and f.place is not None})
        mark = "[*] " if fixable[rule] == count else "[-] " if fixable[rule] else "    "
        where = f"  in {plural(files, 'file')}" if files else ""
        yield ((f"{count:>6} ", "bold"), (mark, "cyan"), (rule, "bold red"), (where, "dim"))
    yield summary(result)


def counts(result: CheckResult) -> dict[str, int]:
    """Findings by rule, the most frequent first."""
    counted = Counter(finding.rule for finding in result.findings)
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def headline(finding: Finding) -> Line:
    where = located(finding)
    fix = ((" [*]", "cyan"),) if finding.fix is not None and finding.fix.safe else ()
    count = ((f" ({finding.count} times)", "dim"),) if finding.count > 1 else ()
    return ((f"{where}: ", "bold"), (finding.rule, "bold red"), *fix, (f" {one_line(finding.message)}", ""), *count)


def located(finding: Finding) -> str:
    """``src/a.py:3:9``, ``n.ipynb:cell 2:3:9``, a layer's name, or ``subject``."""
    place = finding.place
    if place is None:
        return finding.layer or "subject"
    cell = f":cell {place.cell}" if place.cell is not None else ""
    return one_line(f"{place.path}{cell}:{place.line}:{place.column}")


def summary(result: CheckResult) -> Line:
    count, files = len(result.findings), plural(result.files, "file")
    safe = sum(f.fix is not None and f.fix.safe for f in result.findings)
    unsafe = sum(f.fix is not None and not f.fix.safe for f in result.findings)
    parts = [plural(count, "finding") if count else "Nothing found", f"in {files}" if result.files else ""]
    text = " ".join(part for part in parts if part)
    if result.fixed:
        text += f"; {result.fixed} fixed"
    if result.ignores_added:
        text += f"; {plural(result.ignores_added, 'ignore comment')} written"
    if safe:
        text += f"; {safe} can be fixed with --fix"
    if unsafe:
        text += f"; {unsafe} {'' if safe else 'can be fixed '}with --fix --unsafe-fixes"
    if result.suppressed:
        text += f"; {len(result.suppressed)} ignored"
    if result.problems:
        text += f"; {plural(len(result.problems), 'problem')}: not everything was checked"
    return ((f"{text}.", "bold" if count or result.problems else "green"),)


def _rest(result: CheckResult) -> Iterator[Line]:
    for problem in result.problems:
        first, *more = printable(problem.message).split("\n")
        yield ((f"{_where(problem)}: ", "bold"), ("not checked: ", "yellow"), (first, ""))
        for line in more:  # a traceback of the subject's own
            yield ((f"    {line}", "dim"),)
    for note in result.notes:
        yield ((f"{_where(note)}: ", "bold"), ("note: ", "cyan"), (one_line(note.message), ""))
    yield summary(result)


def _details(finding: Finding, width: int) -> Iterator[Line]:
    if finding.place is not None:
        yield from excerpt(finding.place, width)
    if finding.place is not None and finding.layer:
        yield from _labelled("layer", finding.layer, width)
    yield from _labelled("seen", finding.evidence, width)
    if finding.cost is not None:
        known = "measured" if finding.cost.measured else "not measured"
        yield from _labelled("cost", f"{finding.cost.text} ({known})", width)
    yield from _labelled("instead", finding.remedy, width)
    if finding.fix is not None:
        option = "--fix" if finding.fix.safe else "--fix --unsafe-fixes"
        yield from _labelled("fix", f"{finding.fix.title} ({option})", width)
    yield from _labelled("more", read_more(finding.rule), width)


def _labelled(label: str, text: str, width: int) -> Iterator[Line]:
    if not text:
        return
    head = f"  = {label}: "
    for number, line in enumerate(_wrapped(text, max(width, _MIN_WIDTH) - len(head))):
        yield ((head if number == 0 else " " * len(head), "blue"), (line, ""))


def _wrapped(text: str, width: int) -> Sequence[str]:
    """Lines of ``text`` broken where needed; its own line breaks stay, because remedies hold code."""
    lines: list[str] = []
    for line in printable(text).split("\n"):
        lines += textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False, drop_whitespace=True) or [
            ""
        ]
    return lines


def _where(said: Problem | Note) -> str:
    cell = f":cell {said.cell}" if said.cell is not None else ""
    line = f":{said.line}" if said.line is not None else ""
    return one_line(f"{said.path}{cell}{line}")


def tables(result: CheckResult) -> RenderableType:
    """The tables that module and trace rules report besides findings, with rich."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for table in result.tables:
        parts += [Text(), Text(table.title, style="bold"), _table(table)]
    return Group(*parts)


def _table(table: Table) -> RenderableType:
    """Columns of numbers stand to the right."""
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, column in enumerate(table.columns):
        numeric = any(_is_number(row[number]) for row in table.rows)
        shown.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(_table_cell(value)) for value in row))
    return shown


def _is_number(value: Scalar) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _table_cell(value: Scalar) -> str:
    """Four digits are all that a prediction or a measurement is good for; counts are exact."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if _is_number(value) else str(value)


def diff(changes: Sequence[FileChange]) -> Iterator[Line]:
    """Show what fixes would change, as a unified diff; a notebook's cell by cell."""
    for change in changes:
        notebook = change.file.shown.endswith(SUFFIX)
        read = decode if notebook else decode_exactly  # a patch must keep a file's line ends
        before, after = read(change.before).text, read(change.after).text
        if notebook:
            cells = zip(read_notebook(before).cells, read_notebook(after).cells, strict=True)
            for old, new in cells:
                yield from _diff(f"{change.file.shown}:cell {old.number}", old.code, new.code)
        else:
            yield from _diff(change.file.shown, before, after)


def _diff(name: str, before: str, after: str) -> Iterator[Line]:
    lines = difflib.unified_diff(_diff_lines(before), _diff_lines(after), name, name, lineterm="")
    for number, line in enumerate(lines):
        style = "bold" if number < 2 else _DIFF_STYLES.get(line[:1], "")
        for part in line.split("\n"):
            yield ((part, style),)


def _diff_lines(text: str) -> list[str]:
    """Split lines, without their ``\\n``, but with ``\\r``; a last line that has no end says so, as in every patch."""
    *lines, rest = text.split("\n")
    return [*lines, f"{rest}\n\\ No newline at end of file"] if rest else lines
