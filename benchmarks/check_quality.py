"""Precision and recall of the source rules of `togi check` on the labelled corpus.

    python benchmarks/check_quality.py [--rule RULE ...] [--json benchmarks/data/check_quality.json]

A snippet is a Python file that is never executed. Its first line says why it is, or is not, to be reported; findings
that must come are marked on their line:

    # expect: RULE            a finding of RULE starts on this line
    # expect: RULE+3          on this line or one of the three below (a loop, a call over several lines)
    # expect: RULE|OTHER      either rule may say it
    # expect: RULE, OTHER     both
    # allow: RULE             may come, need not

Every finding of every rule counts, whatever folder the snippet lies in: one that is not expected is a false positive.
Two findings of one rule on one line count once. Rules were written with `tests/lint/corpus` in sight and without
`tests/lint/corpus_held_out`, so the second half tells more.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from togi.lint.check_file import check_text

CORPUS = Path(__file__).parents[1] / "tests" / "lint"
HALVES = {"development": CORPUS / "corpus", "held out": CORPUS / "corpus_held_out"}
_MARK = re.compile(r"# (expect|allow): ([^#]*)")


@dataclass(frozen=True)
class Expected:
    """A finding of one of ``rules`` that starts on a line from ``first`` to ``last``; it counts for ``rules[0]``."""

    rules: tuple[str, ...]
    first: int
    last: int
    required: bool = True

    def covers(self, rule: str, line: int) -> bool:
        return rule in self.rules and self.first <= line <= self.last


@dataclass(frozen=True)
class Snippet:
    path: Path
    rule: str
    positive: bool
    text: str
    expected: tuple[Expected, ...]

    @property
    def name(self) -> str:
        return f"{self.rule}/{self.path.stem}"


@dataclass
class Score:
    """Counts by rule, and what was missed or wrongly reported."""

    found: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    misses: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    snippets: int = 0
    negatives: int = 0

    def total(self) -> tuple[int, int, int]:
        return self.found.total(), self.missed.total(), self.wrong.total()


def snippets(folder: Path) -> list[Snippet]:
    return [_snippet(path) for path in sorted(folder.rglob("*.py"))]


def _snippet(path: Path) -> Snippet:
    text = path.read_text(encoding="utf-8")
    return Snippet(path, path.parent.name, path.stem.startswith("pos_"), text, tuple(labels(text)))


def labels(text: str) -> Iterable[Expected]:
    for number, line in enumerate(text.splitlines(), start=1):
        for mark in _MARK.finditer(line):
            for item in mark[2].split(","):
                names, _, below = item.strip().partition("+")
                rules = tuple(name.strip() for name in names.split("|"))
                yield Expected(rules, number, number + int(below or 0), mark[1] == "expect")


def score(corpus: Sequence[Snippet], only: Sequence[str] = ()) -> Score:
    """``only`` keeps the labels and findings of these rules."""
    result = Score(snippets=len(corpus), negatives=sum(not snippet.positive for snippet in corpus))
    for snippet in corpus:
        _add(result, snippet, only)
    return result


def _add(result: Score, snippet: Snippet, only: Sequence[str]) -> None:
    report = check_text(snippet.text, str(snippet.path))
    result.problems += [f"{snippet.name}: {problem.message}" for problem in report.problems]
    findings = {(f.rule, f.place.line): f.message for f in report.findings if f.place is not None}
    expectations = [e for e in snippet.expected if not only or set(only) & set(e.rules)]
    for expected in (e for e in expectations if e.required):
        hit = any(expected.covers(*key) for key in findings)
        (result.found if hit else result.missed)[expected.rules[0]] += 1
        if not hit:
            result.misses.append(_miss("missed", snippet, expected.rules[0], expected.first))
    for (rule, line), message in findings.items():
        if (not only or rule in only) and not any(e.covers(rule, line) for e in snippet.expected):
            result.wrong[rule] += 1
            result.misses.append({**_miss("wrong", snippet, rule, line), "message": message})


def _miss(kind: str, snippet: Snippet, rule: str, line: int) -> dict[str, Any]:
    return {"kind": kind, "rule": rule, "snippet": snippet.name, "line": line, "why": snippet.text.splitlines()[0][2:]}


def ratio(part: int, missing: int) -> float | None:
    """``part / (part + rest)``; None for 0/0."""
    return part / (part + missing) if part + missing else None


def wilson_low(part: int, missing: int) -> float | None:
    """Lower end of Wilson's 95 % interval (JASA 22, 1927): what the size of the sample allows to say."""
    n = part + missing
    if not n:
        return None
    z, p = 1.96, part / n
    return (p + z * z / (2 * n) - z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))) / (1 + z * z / n)


def as_dict(result: Score) -> dict[str, Any]:
    rules = sorted({*result.found, *result.missed, *result.wrong})
    found, missed, wrong = result.total()
    return {
        "snippets": result.snippets,
        "negatives": result.negatives,
        "total": _figures(found, missed, wrong),
        "rules": {r: _figures(result.found[r], result.missed[r], result.wrong[r]) for r in rules},
        "misses": result.misses,
        "problems": result.problems,
    }


def _figures(found: int, missed: int, wrong: int) -> dict[str, Any]:
    return {
        "found": found,
        "missed": missed,
        "wrong": wrong,
        "recall": ratio(found, missed),
        "precision": ratio(found, wrong),
        "recall_low": wilson_low(found, missed),
        "precision_low": wilson_low(found, wrong),
    }


def table(halves: dict[str, dict[str, Any]]) -> str:
    """Markdown: a line per rule, the halves side by side."""
    lines = [
        "| rule | " + " | ".join(f"{name}: expected | recall | precision" for name in halves) + " |",
        "|---|" + "---|" * 3 * len(halves),
    ]
    for rule in sorted({rule for half in halves.values() for rule in half["rules"]}):
        empty = _figures(0, 0, 0)
        lines.append(f"| {rule} |" + "".join(_cells(half["rules"].get(rule, empty)) for half in halves.values()))
    lines.append("| **total** |" + "".join(_cells(half["total"]) for half in halves.values()))
    return "\n".join(lines)


def _cells(figures: dict[str, Any]) -> str:
    recall, precision = (_text(figures[key]) for key in ("recall", "precision"))
    return f" {figures['found'] + figures['missed']} | {recall} | {precision} |"


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rule", action="append", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--list-held-out", action="store_true", help="list what failed there too: not for rule authors")
    options = parser.parse_args()
    halves = {name: as_dict(score(snippets(folder), options.rule)) for name, folder in HALVES.items()}
    if not options.list_held_out:
        halves["held out"]["misses"] = []
    print(table(halves))
    for name, half in halves.items():
        total = half["total"]
        print(
            f"\n{name}: {half['snippets']} snippets, {half['negatives']} of them negatives; recall "
            f"{_text(total['recall'])} (at least {_text(total['recall_low'])} with 95 % confidence), precision "
            f"{_text(total['precision'])} (at least {_text(total['precision_low'])})"
        )
        for miss in half["misses"]:
            print(f"  {miss['kind']:6} {miss['rule']:34} {miss['snippet']}:{miss['line']}  {miss.get('message', '')}")
        for problem in half["problems"]:
            print(f"  problem {problem}")
    if options.json:
        record = {"date": datetime.date.today().isoformat(), "halves": halves}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
