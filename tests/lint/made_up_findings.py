"""A result with every kind of finding, for the tests of output."""

from __future__ import annotations

import os
from pathlib import Path

from togi.lint.finding import CheckResult, Cost, Edit, Finding, Fix, Note, Place, Problem, Table

LETTER = os.fsdecode("ä".encode())
"""In a file's name, as this process knows it: where names are not UTF-8, as characters that stand for two bytes."""
SHOWN = LETTER if LETTER.isprintable() else "\N{REPLACEMENT CHARACTER}" * len(LETTER)
SOURCE = "import torch\nfor x in loader:\n\ttotal += loss.item()  # \x1b[2J\n"


def made_up_result(folder: Path) -> CheckResult:
    """Its files are written into ``folder``, which must be the working folder."""
    (folder / "src, a").mkdir(exist_ok=True)
    path = f"src, a/tr{LETTER}in:1.py"
    (folder / path).write_text(SOURCE, encoding="utf-8")
    edit = Edit(line=3, column=11, end_line=3, end_column=22, text="loss.detach()")
    finding = Finding(
        rule="torchscript",
        message="100% of\nsteps wait: here",
        remedy="write total += loss.detach()\nand read it once",
        place=Place(path=path, line=3, column=11, end_line=3, end_column=22),
        evidence="loss comes from \x1b[31mmodel(x)",
        cost=Cost(text="1.3 x slower", measured=True),
        fix=Fix(title="Keep it on the device", edits=(edit,)),
    )
    layer = Finding(rule="bias-before-norm", message="has a bias.", remedy="bias=False", layer="layer1.0.conv", count=8)
    cell = Place(path="n.ipynb", line=2, column=1, end_line=2, end_column=3, cell=4)
    return CheckResult(
        findings=(
            finding,
            finding.model_copy(update={"place": finding.place and finding.place.model_copy(update={"end_line": 9})}),
            Finding(rule="unsafe-load", message="m", remedy="r", place=cell, fix=finding.fix),
            Finding(rule="unsafe-load", message="m", remedy="r", place=Place(path="/else where/b.py", line=1)),
            layer,
        ),
        suppressed=(finding.model_copy(update={"suppressed": "ignore comment"}),),
        problems=(
            Problem(path="bad.py", message="is no Python: x", line=3),
            Problem(path="n.ipynb", message="m", cell=2),
        ),
        notes=(Note(path=path, message="unused", line=1),),
        tables=(Table(title="Cost", columns=("layer", "ms"), rows=(("a", 1.23456), ("b", None))),),
        files=3,
    )
