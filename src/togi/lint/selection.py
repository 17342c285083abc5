"""Selection: which of a file's findings count, by selected rules, ignore comments and ``per-file-ignores``.

``# togi: ignore[rule, rule]`` covers the statement (or the head of a compound statement) it stands in, over all its
lines; alone on a line it covers the statement below. ``# togi: ignore-file[rule]`` covers the file, and without names
it silences all of it. Comments are found by Python's tokenizer: a string that looks like one is none.

What source and a run both say of one line is reported once: the source finding stays, with remedy and fix; how often it
happened, and what was seen, comes from the run.
"""

from __future__ import annotations

import functools
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from togi.core.errors import nearest
from togi.lint.finding import CheckResult, Cost, FileReport, Finding, Ignore, Note, Place, in_order
from togi.lint.patterns import matches
from togi.lint.rule import ALL, Kind, canonical, rule_kinds, rules_named, rules_of
from togi.lint.settings import CheckSettings

MARK = "togi:"
_COMMENT = re.compile(r"#\s*togi:\s*ignore(?P<file>-file)?\s*(?:\[(?P<rules>[^\]#]*)\])?", re.IGNORECASE)
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


@final
@dataclass
class Selected:
    findings: list[Finding] = field(default_factory=list)
    suppressed: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


@functools.lru_cache(maxsize=1000)
def selected_rules(select: tuple[str, ...] | None, ignore: tuple[str, ...], kind: Kind) -> frozenset[str]:
    """The ids of the rules of ``kind`` that run; ``select`` None means those that are on by default."""
    if select is None:
        wanted = frozenset(id for id, rule in rules_of(kind).items() if rule.default)
    else:
        wanted = frozenset(id for id in rules_named(select) if rule_kinds()[id] == kind)
    return wanted - rules_named(ignore)


def select(report: FileReport, path: Path, shown: str, settings: CheckSettings) -> Selected:
    """Sort the findings of one file into those that count and those that are silenced; note ignores without effect."""
    found = Selected()
    elsewhere = _ignored_here(path, settings)
    used: dict[int, set[str]] = {}
    for finding in report.findings:
        if finding.rule not in selected_rules(settings.select, settings.ignore, rule_kinds()[finding.rule]):
            continue
        number = _silencing(finding, report.ignores)
        if number is not None:
            used.setdefault(number, set()).update(_named(report.ignores[number], finding.rule) or {finding.rule})
        why = "ignore comment" if number is not None else "per-file-ignores" if finding.rule in elsewhere else ""
        if why:
            found.suppressed.append(finding.model_copy(update={"suppressed": why}))
        else:
            found.findings.append(finding)
    if report.ignores:
        wanted = (ALL,) if settings.select is None else settings.select
        everything = rules_named(wanted) - rules_named(settings.ignore) == set(rule_kinds())
        source = selected_rules(settings.select, settings.ignore, "source")
        for number, ignore in enumerate(report.ignores):
            silenced = used.get(number, set())
            found.notes += _notes(ignore, silenced, source - elsewhere, everything and not elsewhere, shown)
    return found


def _ignored_here(path: Path, settings: CheckSettings) -> frozenset[str]:
    names = [
        name
        for pattern, names in settings.per_file_ignores.items()
        if matches(path, settings.folder, pattern)
        for name in names
    ]
    return rules_named(names)


def _silencing(finding: Finding, ignores: Sequence[Ignore]) -> int | None:
    """The number of the comment that silences ``finding``, first of those that name its rule."""
    fitting = [number for number, ignore in enumerate(ignores) if _covers(ignore, finding)]
    return min(fitting, key=lambda number: (not ignores[number].rules, ignores[number].whole_file), default=None)


def _named(ignore: Ignore, rule: str) -> set[str]:
    """The rules by which the comment means ``rule``: itself, and those that see the same in source or in a run."""
    return {name for name in ignore.rules if name == rule or name in SAME.get(rule, ()) or rule in SAME.get(name, ())}


def _covers(ignore: Ignore, finding: Finding) -> bool:
    if ignore.rules and not _named(ignore, finding.rule):
        return False
    if ignore.whole_file:
        return True
    place = finding.place
    return place is not None and place.cell == ignore.cell and ignore.first <= place.line <= ignore.last


def _notes(ignore: Ignore, used: set[str], rules: frozenset[str], everything: bool, shown: str) -> list[Note]:
    """``rules`` are the source rules that count here; ``everything`` says that no rule of any kind is left out."""
    kinds = rule_kinds()
    unknown = [name for name in ignore.rules if name not in kinds]
    unused = [name for name in ignore.rules if name in rules and name not in used]
    messages = [f"the comment ignores '{name}', which is not a rule{nearest(name, kinds)}" for name in unknown]
    if unused:
        messages.append(f"the comment ignores {', '.join(unused)}, which finds nothing here: remove it")
    if not ignore.rules and not ignore.whole_file:
        mark = f"# togi: ignore[{', '.join(sorted(used))}]"
        if used:
            messages.append(f"the comment ignores every rule: say which, so that others still count: {mark}")
        elif everything:
            messages.append("the comment ignores every rule, and none finds anything here: remove it")
    return [Note(path=shown, message=message, line=ignore.line, cell=ignore.cell) for message in messages]


@final
@dataclass(frozen=True)
class Mark:
    """``# togi: ignore[...]`` as it is written, with the place of the names between its brackets."""

    rules: tuple[str, ...]
    whole_file: bool
    line: int
    column: int
    end_column: int


@final
@dataclass(frozen=True)
class Statement:
    """A statement, or the head of a compound one: its lines, inclusive, and the marks in it and alone above it."""

    first: int
    last: int
    marks: tuple[Mark, ...]


def ignore_comments(text: str) -> tuple[Ignore, ...]:
    """The ignore comments of Python source that can be parsed."""
    if MARK not in text.lower():
        return ()
    return tuple(
        Ignore(
            rules=tuple(dict.fromkeys(canonical(name) for name in mark.rules)),
            line=mark.line,
            first=min(statement.first, mark.line),
            last=max(statement.last, mark.line),
            whole_file=mark.whole_file,
        )
        for statement in statements(text)
        for mark in statement.marks
    )


def statements(text: str) -> Iterator[Statement]:
    """The statements of Python source that can be parsed; marks behind the last one stand in one without code."""
    marks: list[Mark] = []
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            marks += (_mark(match, *token.start) for match in _COMMENT.finditer(token.string))
        elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            last = token.start[0]
            if first or marks:
                yield Statement(first or marks[0].line, last, tuple(marks))
            marks, first = [], 0
        elif token.type not in _NO_CODE and not first:
            first = token.start[0]


def _mark(match: re.Match[str], line: int, column: int) -> Mark:
    names = (name.strip() for name in (match["rules"] or "").split(","))
    start, end = (column + position + 1 for position in match.span("rules"))
    return Mark(tuple(name for name in names if name), match["file"] is not None, line, start, end)


_WAITS = (
    "blocking-transfer",
    "branch-on-tensor",
    "copy-to-device-in-forward",
    "copy-to-host",
    "data-dependent-shape",
    "scalar-from-tensor",
    "tensor-in-print",
    "tensor-made-in-forward",
)
SAME = {"synchronization": _WAITS, "data-dependent-op": ("data-dependent-shape",)}
"""Source rules by the trace rule that sees the same in a run."""


def deduplicate(result: CheckResult) -> CheckResult:
    """Trace findings go into source findings at the same place, also into silenced ones; equal texts appear once."""
    runs = [finding for finding in result.findings if finding.rule in SAME]
    merged = {id(run) for run in runs if any(_same(one, run) for one in _of_source(result))}
    kept = [_with_runs(one, runs) for one in result.findings if id(one) not in merged]
    return result.model_copy(
        update={
            "findings": in_order(kept),
            "suppressed": in_order([_with_runs(one, runs) for one in result.suppressed]),
            "problems": tuple(dict.fromkeys(result.problems)),
            "notes": tuple(dict.fromkeys(result.notes)),
        }
    )


def _of_source(result: CheckResult) -> Iterable[Finding]:
    return (*result.findings, *result.suppressed)


def _same(source: Finding, run: Finding) -> bool:
    return (
        source.rule in SAME[run.rule]
        and source.place is not None
        and run.place is not None
        and Path(source.place.path).resolve() == Path(run.place.path).resolve()
        and _overlap(source.place, run.place)
    )


def _overlap(one: Place, other: Place) -> bool:
    return _begin(one) < _end(other) and _begin(other) < _end(one)


def _begin(place: Place) -> tuple[int, int]:
    return place.line, place.column


def _end(place: Place) -> tuple[float, float]:
    """Without an end: the end of the line."""
    line = place.end_line or place.line
    return line, place.end_column or float("inf")


def _with_runs(source: Finding, runs: Sequence[Finding]) -> Finding:
    for run in runs:
        if _same(source, run):
            source = source.model_copy(
                update={
                    "evidence": "\n".join(text for text in (source.evidence, f"{run.rule}: {run.evidence}") if text),
                    "count": max(source.count, run.count),
                    "layer": source.layer or run.layer,
                    "cost": _both(source.cost, run.cost),
                }
            )
    return source


def _both(one: Cost | None, other: Cost | None) -> Cost | None:
    if one is None or other is None:
        return one or other
    return one.model_copy(update={"text": f"{one.text}; {other.text}", "bytes": one.bytes or other.bytes})
