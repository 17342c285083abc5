"""Findings for people: ``path:line:column: rule message``, the excerpt, evidence, cost and remedy."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from togi.core.quantities import plural
from togi.lint.finding import Finding
from togi.lint.result import CheckResult, Note, Problem
from togi.render.findings.excerpt import excerpt
from togi.render.findings.lines import Line
from togi.render.findings.wording import one_line, printable

_MIN_WIDTH = 40


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
    found, files = len(result.findings), plural(result.files, "file")
    safe = sum(f.fix is not None and f.fix.safe for f in result.findings)
    unsafe = sum(f.fix is not None and not f.fix.safe for f in result.findings)
    parts = [plural(found, "finding") if found else "Nothing found", f"in {files}" if result.files else ""]
    text = " ".join(part for part in parts if part)
    if result.fixed:
        text += f"; {result.fixed} fixed"
    if safe:
        text += f"; {safe} can be fixed with --fix"
    if unsafe:
        text += f"; {unsafe} {'' if safe else 'can be fixed '}with --fix --unsafe-fixes"
    if result.suppressed:
        text += f"; {len(result.suppressed)} ignored"
    if result.problems:
        text += f"; {plural(len(result.problems), 'problem')}: not everything was checked"
    return ((f"{text}.", "bold" if found or result.problems else "green"),)


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
