"""``--statistics``: how often each rule found something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from togi.lint.result import CheckResult
from togi.render.findings.lines import Line
from togi.render.findings.text import summary


def counts(result: CheckResult) -> dict[str, int]:
    """Findings by rule, the most frequent first."""
    counted = Counter(finding.rule for finding in result.findings)
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def statistics(result: CheckResult) -> Iterator[Line]:
    fixable = Counter(f.rule for f in result.findings if f.fix is not None and f.fix.safe)
    files = {
        rule: len({f.place.path for f in result.findings if f.rule == rule and f.place is not None})
        for rule in counts(result)
    }
    for rule, count in counts(result).items():
        mark = "[*] " if fixable[rule] == count else "[-] " if fixable[rule] else "    "
        where = f"  in {files[rule]} file{'' if files[rule] == 1 else 's'}" if files[rule] else ""
        yield ((f"{count:>6} ", "bold"), (mark, "cyan"), (rule, "bold red"), (where, "dim"))
    yield summary(result)
