"""Which of a file's findings count: selected rules, ignore comments, ``per-file-ignores``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from togi.core.errors import nearest
from togi.lint.finding import Finding
from togi.lint.names import expand, rule_kinds
from togi.lint.once import SAME
from togi.lint.patterns import matches
from togi.lint.result import FileReport, Ignore, Note
from togi.lint.rule import all_rules
from togi.lint.settings import CheckSettings


@dataclass
class Selected:
    findings: list[Finding] = field(default_factory=list)
    suppressed: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


@functools.lru_cache(maxsize=1000)
def selected_rules(select: tuple[str, ...] | None, ignore: tuple[str, ...]) -> frozenset[str]:
    """The ids of the rules that run; ``select`` None means those that are on by default."""
    wanted = expand(select) if select is not None else _on_by_default()
    return wanted - expand(ignore)


@functools.cache
def _on_by_default() -> frozenset[str]:
    return frozenset(rule.id for rule in all_rules().values() if rule.default)


def select(report: FileReport, path: Path, shown: str, settings: CheckSettings) -> Selected:
    """Sort the findings of one file into those that count and those that are silenced; note ignores without effect."""
    found = Selected()
    rules = selected_rules(settings.select, settings.ignore)
    elsewhere = _ignored_here(path, settings)
    used: dict[int, set[str]] = {}
    for finding in report.findings:
        if finding.rule not in rules:
            continue
        number = _silencing(finding, report.ignores)
        if number is not None:
            used.setdefault(number, set()).update(_named(report.ignores[number], finding.rule) or {finding.rule})
        why = "ignore comment" if number is not None else "per-file-ignores" if finding.rule in elsewhere else ""
        if why:
            found.suppressed.append(finding.model_copy(update={"suppressed": why}))
        else:
            found.findings.append(finding)
    for number, ignore in enumerate(report.ignores):
        found.notes += _notes(ignore, used.get(number, set()), rules - elsewhere, shown)
    return found


def _ignored_here(path: Path, settings: CheckSettings) -> frozenset[str]:
    names = [
        name
        for pattern, names in settings.per_file_ignores.items()
        if matches(path, settings.folder, [pattern])
        for name in names
    ]
    return expand(names)


def _silencing(finding: Finding, ignores: Sequence[Ignore]) -> int | None:
    """The number of the comment that speaks for ``finding``, first of those that name its rule."""
    fitting = [number for number, ignore in enumerate(ignores) if _speaks_for(ignore, finding)]
    return min(fitting, key=lambda number: (not ignores[number].rules, ignores[number].whole_file), default=None)


def _named(ignore: Ignore, rule: str) -> set[str]:
    """The rules by which the comment means ``rule``: itself, and those that see the same in source or in a run."""
    return {name for name in ignore.rules if name == rule or name in SAME.get(rule, ()) or rule in SAME.get(name, ())}


def _speaks_for(ignore: Ignore, finding: Finding) -> bool:
    if ignore.rules and not _named(ignore, finding.rule):
        return False
    if ignore.whole_file:
        return True
    place = finding.place
    return place is not None and place.cell == ignore.cell and ignore.first <= place.line <= ignore.last


def _notes(ignore: Ignore, used: set[str], rules: frozenset[str], shown: str) -> list[Note]:
    kinds = rule_kinds()
    unknown = [name for name in ignore.rules if name not in kinds]
    unused = [name for name in ignore.rules if name in rules and kinds[name] == "source" and name not in used]
    messages = [f"the comment ignores '{name}', which is no rule{nearest(name, kinds)}" for name in unknown]
    if unused:
        messages.append(f"the comment ignores {', '.join(unused)}, which finds nothing here: remove it")
    if not ignore.rules and not ignore.whole_file:
        mark = f"# togi: ignore[{', '.join(sorted(used))}]"
        if used:
            messages.append(f"the comment ignores every rule: say which, so that others still count: {mark}")
        elif rules >= _on_by_default():
            messages.append("the comment ignores every rule, and none finds anything here: remove it")
    return [Note(path=shown, message=message, line=ignore.line, cell=ignore.cell) for message in messages]
