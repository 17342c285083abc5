"""TorchFix and `togi check` compared, on snippets for each rule of both.

    python -m benchmarks.check_torchfix [--json benchmarks/data/check_torchfix.json]

Needs TorchFix (`pip install torchfix`), all of whose rules are switched on. The snippets are our own, after the
semantics of TorchFix 0.7.0's rules and, below, for what togi reports beyond them: the invalid snippets of each of its
rules. A tool finds a snippet when it reports any rule on it. Exits with 1 when TorchFix finds a performance problem
that togi does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.lint.rule_snippets import snippets
from togi.lint.rule import SourceRule, all_rules
from togi.lint.source.model import Source


@dataclass(frozen=True)
class Case:
    """One of TorchFix's rules and code that breaks it."""

    code: str
    what: str
    text: str
    performance: bool = False
    why_not: str = ""
    """Why togi leaves it to others, where it does."""


CASES = (
    Case("TOR401", "DataLoader without workers", "from torch.utils.data import DataLoader\n\nDataLoader(d)\n", True),
    Case(
        "TOR401",
        "DataLoader with num_workers=0",
        "import torch\n\ntorch.utils.data.DataLoader(d, batch_size=4, num_workers=0)\n",
        True,
    ),
    Case(
        "TOR401",
        "DataLoader with 0 workers by position",
        "from torch.utils.data import DataLoader\n\nDataLoader(d, 4, True, None, None, 0)\n",
        True,
    ),
    Case("TOR001", "removed function", "import torch\n\ntorch.symeig(a)\n"),
    Case("TOR004", "import of a removed function", "from torch import lstsq\n\nlstsq(a, b)\n"),
    Case("TOR101", "deprecated function", "import torch\n\ntorch.ger(a, b)\n"),
    Case("TOR103", "import of a deprecated function", "from functorch import vmap\n\nvmap(f)(x)\n"),
    Case("TOR002", "misspelled requires_grad", "import torch\n\np.require_grad = False\n"),
    Case(
        "TOR003",
        "checkpoint without use_reentrant",
        "from torch.utils.checkpoint import checkpoint\n\ncheckpoint(f, x)\n",
    ),
    Case("TOR102", "torch.load without weights_only", "import torch\n\ntorch.load(path)\n"),
    Case(
        "TOR104",
        "private default_collate",
        "import torch\n\ntorch.utils.data._utils.collate.default_collate(batch)\n",
    ),
    Case(
        "TOR105",
        "import of private default_collate",
        "from torch.utils.data._utils.collate import default_collate\n\ndefault_collate(batch)\n",
    ),
    Case("TOR106", "log(1 + x)", "import torch\n\ntorch.log(1 + x)\n"),
    Case("TOR107", "exp(x) - 1", "import torch\n\ntorch.exp(x) - 1\n"),
    Case(
        "TOR201",
        "torchvision's pretrained=True",
        "from torchvision.models import resnet18\n\nresnet18(pretrained=True)\n",
        why_not="an argument's name: neither speed nor memory",
    ),
    Case(
        "TOR202",
        "torchvision's v2.ToTensor",
        "from torchvision.transforms import v2\n\nv2.ToTensor()\n",
    ),
    Case(
        "TOR203",
        "import torchvision.models as models",
        "import torchvision.models as models\n\nmodels.resnet18()\n",
        why_not="style of an import",
    ),
    Case(
        "TOR901",
        "torch.library.Library in PyTorch's tests",
        "import torch\n\ntorch.library.Library('mine', 'DEF')\n",
        why_not="for PyTorch's own tests",
    ),
)


def torchfix_codes(text: str) -> list[str]:
    """Codes that TorchFix reports, every rule of it switched on, through the interface of its flake8 plugin."""
    from torchfix.torchfix import TorchChecker

    violations = TorchChecker(None, text.splitlines(keepends=True)).run()
    return sorted({message.split()[0] for _, _, message, _ in violations})


def togi_rules(text: str) -> list[str]:
    """Rules that togi reports, every source rule of it switched on."""
    source = Source.parse(text, "snippet.py")
    rules = [rule for rule in all_rules().values() if isinstance(rule, SourceRule)]
    return sorted({finding.rule for rule in rules for finding in rule.check(source)})


def compared(cases: tuple[Case, ...]) -> list[dict[str, Any]]:
    return [{**asdict(case), "torchfix": torchfix_codes(case.text), "togi": togi_rules(case.text)} for case in cases]


def beyond() -> list[dict[str, Any]]:
    """For each of togi's rules, the number of its snippets with a finding on which TorchFix reports anything."""
    rules = [rule for rule in all_rules().values() if isinstance(rule, SourceRule)]
    return [
        {
            "rule": rule.id,
            "snippets": len(texts),
            "torchfix": sum(bool(torchfix_codes(text)) for text in texts),
            "togi": sum(rule.id in togi_rules(text) for text in texts),
        }
        for rule in rules
        for texts in [[snippet.text for snippet in snippets(rule.id) if snippet.lines]]
    ]


def table(rows: list[dict[str, Any]], further: list[dict[str, Any]]) -> str:
    lines = ["| TorchFix's rule | about | TorchFix | togi |", "|---|---|---|---|"]
    for row in rows:
        ours = ", ".join(row["togi"]) or f"no ({row['why_not'] or 'missed'})"
        performance = " (performance)" if row["performance"] else ""
        lines.append(f"| {row['code']}{performance} | {row['what']} | {', '.join(row['torchfix']) or 'no'} | {ours} |")
    lines += ["", "| togi's rule | snippets | TorchFix reports anything | togi finds |", "|---|---|---|---|"]
    lines += [f"| {row['rule']} | {row['snippets']} | {row['torchfix']} | {row['togi']} |" for row in further]
    nothing = sum(not row["torchfix"] for row in further)
    return "\n".join([*lines, "", f"Of {len(further)} rules, TorchFix reports nothing on the snippets of {nothing}."])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    rows, further = compared(CASES), beyond()
    print(f"TorchFix {version('torchfix')}\n\n{table(rows, further)}")
    if options.json:
        figures = {"torchfix": version("torchfix"), "cases": rows, "beyond": further}
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    missed = [row["what"] for row in rows if row["performance"] and row["torchfix"] and not row["togi"]]
    if missed:
        print(f"\nmissed performance problems: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
