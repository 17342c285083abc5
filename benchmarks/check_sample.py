"""Findings of `togi check` in code that people wrote, judged by hand: a sample from timm, transformers and torchvision.

    python benchmarks/check_sample.py draw [--size 100]   # show the findings that wait for a verdict
    python benchmarks/check_sample.py share               # the share that was accepted, by rule

The sample has the same number of findings from every rule, as far as a rule has that many, so that frequent rules do
not drown the rare. transformers copies layers from model to model, so of a rule's findings on lines of the same text
only one is drawn. Within a rule it goes by the hash of the place: a random order that stays when other findings come or
go, so that verdicts stay too. The question is whether a maintainer who cares for performance would accept the report as
true and useful; verdicts, each with its reason, stand in ``benchmarks/data/check_sample.json``. Two shares are told:
that of the sample, and the same weighted by how often each rule fires.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import linecache
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from togi.lint.check_paths import check_paths
from togi.lint.finding import Finding

PACKAGES = ("timm", "transformers", "torchvision")
VERDICTS = Path(__file__).parent / "data" / "check_sample.json"
SEEDS = {"first": "2026-11-21", "second": "fresh", "third": "unseen"}
"""The first two samples showed what to mend, so only the third, as first drawn, says how good the rules are."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draw", "share"))
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--context", type=int, default=12)
    parser.add_argument("--sample", choices=SEEDS, default="third")
    options = parser.parse_args()
    findings = real_findings()
    sample = drawn(findings, options.size, SEEDS[options.sample])
    judged = {_key(entry): entry for entry in read_verdicts()}
    if options.what == "draw":
        for entry in sample:
            if _key(entry) not in judged:
                print(shown(entry, options.context))
        return
    verdicts = [judged[_key(entry)] for entry in sample if _key(entry) in judged]
    counts = Counter(finding.rule for finding in findings)
    print(table(verdicts, counts, len(sample)))


def real_findings() -> list[Finding]:
    return [f for f in check_paths([folder(name) for name in PACKAGES]).findings if f.place is not None]


def folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{name} is not installed: pip install {name}")
    return Path(spec.submodule_search_locations[0])


def drawn(findings: Iterable[Finding], size: int, seed: str) -> list[dict[str, Any]]:
    """``size`` findings, spread over the rules as evenly as their numbers allow."""
    by_rule: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for finding in findings:
        by_rule[finding.rule].append(_entry(finding))
    for rule, entries in by_rule.items():
        entries.sort(key=lambda entry: _order(entry, seed))
        by_rule[rule] = list({entry["text"]: entry for entry in reversed(entries)}.values())[::-1]
    return [e for rule, n in sorted(_shares(by_rule, size).items()) for e in by_rule[rule][:n]]


def _shares(by_rule: Mapping[str, Sequence[Any]], size: int) -> Counter[str]:
    """Findings to draw from each rule: one each in turn, as long as a rule has more."""
    shares: Counter[str] = Counter()
    while shares.total() < size and any(len(e) > shares[rule] for rule, e in by_rule.items()):
        for rule in sorted(by_rule, key=lambda rule: len(by_rule[rule])):
            if shares.total() < size and len(by_rule[rule]) > shares[rule]:
                shares[rule] += 1
    return shares


def _entry(finding: Finding) -> dict[str, Any]:
    assert finding.place is not None
    path = Path(finding.place.path)
    inside = path.parts[max(i for i, part in enumerate(path.parts) if part in PACKAGES) :]
    return {
        "rule": finding.rule,
        "path": "/".join(inside),
        "line": finding.place.line,
        "text": linecache.getline(finding.place.path, finding.place.line).strip(),
        "message": finding.message,
        "remedy": finding.remedy,
        "evidence": finding.evidence,
    }


def _key(entry: Mapping[str, Any]) -> tuple[str, str, int]:
    return entry["rule"], entry["path"], entry["line"]


def _order(entry: Mapping[str, Any], seed: str) -> str:
    return hashlib.sha256(f"{seed} {_key(entry)}".encode()).hexdigest()


def shown(entry: Mapping[str, Any], context: int) -> str:
    path = folder(PACKAGES[0]).parent / entry["path"]
    lines = path.read_text(encoding="utf-8").splitlines()
    first = max(0, entry["line"] - 1 - context)
    rows = [
        f"{'>' if n + 1 == entry['line'] else ' '}{n + 1:5} {line}"
        for n, line in enumerate(lines[first : entry["line"] + context // 2], first)
    ]
    head = f"\n=== {entry['rule']}  {entry['path']}:{entry['line']}\n{entry['message']}\n  remedy: {entry['remedy']}"
    return "\n".join([head, f"  evidence: {entry['evidence']}", *rows])


def read_verdicts() -> list[dict[str, Any]]:
    return list(json.loads(VERDICTS.read_text(encoding="utf-8"))["verdicts"]) if VERDICTS.exists() else []


def table(verdicts: Sequence[Mapping[str, Any]], counts: Mapping[str, int], size: int) -> str:
    rules: dict[str, list[bool]] = defaultdict(list)
    for entry in verdicts:
        rules[entry["rule"]].append(entry["accepted"])
    lines = ["| rule | findings | judged | accepted |", "|---|---|---|---|"]
    lines += [f"| {r} | {counts[r]} | {len(v)} | {sum(v)} |" for r, v in sorted(rules.items())]
    accepted = sum(sum(v) for v in rules.values())
    weight = sum(counts[rule] for rule in rules)
    weighted = sum(counts[rule] * sum(v) / len(v) for rule, v in rules.items()) / weight if weight else float("nan")
    lines.append(
        f"\n{accepted} of {len(verdicts)} judged findings accepted ({accepted / max(len(verdicts), 1):.2f}); weighted "
        f"by how often each rule fires {weighted:.2f}; {size - len(verdicts)} of the sample wait for a verdict"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
