"""Snippets of every source rule: ``snippets/RULE.py`` holds what it must find and what it must leave alone.

``invalid``: every line on which a finding starts ends with ``# here``, and no other line does. ``valid``: nothing is
found, also in what looks alike. Each stands for a whole file, with ``import torch`` above it unless it imports
anything. Longer programs, some of them held out while rules were written, are in ``corpus`` and ``corpus_held_out``.
"""

from __future__ import annotations

import re
import runpy
import textwrap
from pathlib import Path

FOLDER = Path(__file__).parent / "snippets"


def snippets(rule: str, sort: str) -> list[str]:
    """The files of one sort (``valid``, ``invalid``) for the rule with this id."""
    snippets_of = runpy.run_path(str(FOLDER / f"{rule.replace('-', '_')}.py"))
    return [_file(snippet) for snippet in snippets_of[sort]]


def _file(snippet: str) -> str:
    text = textwrap.dedent(snippet).strip("\n") + "\n"
    return text if re.search(r"^(import|from)\s", text, re.MULTILINE) else f"import torch\n\n{text}"
