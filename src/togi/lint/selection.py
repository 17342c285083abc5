"""Selects the findings of a file that count, by selected rules, ignore comments and ``per-file-ignores``.

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
from itertools import chain
from pathlib import Path

from togi.core.errors import nearest
from togi.lint.finding import CheckResult, Cost, FileReport, Finding, Ignore, Note, Place, in_order
from togi.lint.patterns import matches
from togi.lint.rule import ALL, Kind, canonical, rule_kinds, rules_named, rules_of
from togi.lint.settings import CheckSettings

MARK = "togi:"
_COMMENT = re.compile(r"#\s*togi:\s*ignore(?P<file>-file)?\s*(?:\[(?P<rules>[^\]#]*)\])?", re.IGNORECASE)
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


@dataclass
class Selected:
    """The findings of a file that count, those that are silenced, and notes on its ignore comments."""

    findings: list[Finding] = field(default_factory=list)
    suppressed: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def together(files: Iterable[Selected]) -> CheckResult:
    """All of them as one result."""
    chosen = list(files)
    return CheckResult(
        findings=in_order(list(chain.from_iterable(file.findings for file in chosen))),
        suppressed=in_order(list(chain.from_iterable(file.suppressed for file in chosen))),
        notes=tuple(chain.from_iterable(file.notes for file in chosen)),
    )


@functools.lru_cache(maxsize=1000)
def selected_rules(select: tuple[str, ...] | None, ignore: tuple[str, ...], kind: Kind) -> frozenset[str]:
    """The ids of the rules of ``kind`` that run; ``select`` None means those that are on by default."""
    if select is None:
        chosen = frozenset(id for id, rule in rules_of(kind).items() if rule.default)
    else:
        chosen = frozenset(id for id in rules_named(select) if rule_kinds()[id] == kind)
    return chosen - rules_named(ignore)


def select(report: FileReport, path: Path, shown: str, settings: CheckSettings) -> Selected:
    """Sort the findings of one file into those that count and those that are silenced; note ignores without effect."""
    selected = Selected()
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
            selected.suppressed.append(finding.model_copy(update={"suppressed": why}))
        else:
            selected.findings.append(finding)
    if report.ignores:
        names = (ALL,) if settings.select is None else settings.select
        everything = rules_named(names) - rules_named(settings.ignore) == set(rule_kinds())
        source = selected_rules(settings.select, settings.ignore, "source")
        for number, ignore in enumerate(report.ignores):
            silenced = used.get(number, set())
            selected.notes += _notes(ignore, silenced, source - elsewhere, everything and not elsewhere, shown)
    return selected


def _ignored_here(path: Path, settings: CheckSettings) -> frozenset[str]:
    patterns = settings.per_file_ignores.items()
    return rules_named(name for pattern, names in patterns if matches(path, settings.folder, pattern) for name in names)


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


@dataclass(frozen=True)
class IgnoreMark:
    """``# togi: ignore[...]`` as it is written, with the place of the names between its brackets."""

    rules: tuple[str, ...]
    whole_file: bool
    line: int
    column: int
    end_column: int


@dataclass(frozen=True)
class Statement:
    """A statement, or the head of a compound one: its lines, inclusive, and the marks in it and alone above it."""

    first: int
    last: int
    marks: tuple[IgnoreMark, ...]


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
    marks: list[IgnoreMark] = []
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


def _mark(match: re.Match[str], line: int, column: int) -> IgnoreMark:
    names = (name.strip() for name in (match["rules"] or "").split(","))
    start, end = (column + position + 1 for position in match.span("rules"))
    return IgnoreMark(tuple(name for name in names if name), match["file"] is not None, line, start, end)


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
    of_source = (*result.findings, *result.suppressed)
    merged = {id(run) for run in runs if any(_same(finding, run) for finding in of_source)}
    separate = [_with_runs(finding, runs) for finding in result.findings if id(finding) not in merged]
    return result.model_copy(
        update={
            "findings": in_order(separate),
            "suppressed": in_order([_with_runs(finding, runs) for finding in result.suppressed]),
            "problems": tuple(dict.fromkeys(result.problems)),
            "notes": tuple(dict.fromkeys(result.notes)),
        }
    )


def _same(source: Finding, run: Finding) -> bool:
    return (
        source.rule in SAME[run.rule]
        and source.place is not None
        and run.place is not None
        and Path(source.place.path).resolve() == Path(run.place.path).resolve()
        and _overlap(source.place, run.place)
    )


def _overlap(first: Place, second: Place) -> bool:
    return (first.line, first.column) < _end(second) and (second.line, second.column) < _end(first)


def _end(place: Place) -> tuple[float, float]:
    """The end of a place; the end of the line where it has none."""
    return place.end_line or place.line, place.end_column or float("inf")


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


def _both(first: Cost | None, second: Cost | None) -> Cost | None:
    if first is None or second is None:
        return first or second
    return first.model_copy(update={"text": f"{first.text}; {second.text}", "bytes": first.bytes or second.bytes})
