"""The lists of options in docs/commands.md and in the docstring of togi.tune are those of the source."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_lists_of_options_are_those_of_the_source() -> None:
    for file, text in runpy.run_path(str(ROOT / "docs/options.py"))["written"]().items():
        assert file.read_text(encoding="utf-8") == text, f"{file} lists other options: run python docs/options.py"
        assert "--trial-memory SIZE" in text or "        trial_memory: " in text, f"{file} has no place for them"
