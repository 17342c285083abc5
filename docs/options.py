"""Writes what lists options, from where they are described: the tables of commands.md, and the docstring of togi.tune.

Run ``python docs/options.py`` after an option changed; tests/docs/test_options.py fails where that was forgotten.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from typer.main import get_command

from togi.cli.app import COMMANDS as NAMES
from togi.cli.program import app_of
from togi.core.settings import OPTIONS

ROOT = Path(__file__).parents[1]
COMMANDS, API = ROOT / "docs/commands.md", ROOT / "src/togi/api/tuning.py"
TABLES = re.compile(r"(?<=<!-- options, written by docs/options.py -->\n).*?(?=<!-- end of the options -->)", re.DOTALL)
ARGUMENTS = re.compile(r"(?<=    Other Parameters:\n).*?(?=\n    Raises:)", re.DOTALL)

PIPE = "\\|"


def written() -> dict[Path, str]:
    """The files as they should be."""
    return {COMMANDS: _with(COMMANDS, TABLES, _tables()), API: _with(API, ARGUMENTS, _arguments())}


def _with(file: Path, place: re.Pattern[str], text: str) -> str:
    return place.sub(lambda _: text, file.read_text(encoding="utf-8"), count=1)


def _tables() -> str:
    """What each command takes, after what all of them take."""
    rows = {name: _rows(command) for name, command in get_command(app_of(NAMES)).commands.items()}  # type: ignore[attr-defined]
    common = set.intersection(*map(set, rows.values()))
    tables = {"Every command": [row for flag, row in rows["tune"].items() if flag in common]}
    for name, own in rows.items():
        tables[f"togi {name}"] = [
            row for flag, row in own.items() if flag not in common or row not in rows["tune"].values()
        ]
    head = "| option | default | |\n|---|---|---|\n"
    return "".join(f"\n### {title}\n\n{head}{''.join(lines)}" for title, lines in tables.items() if lines) + "\n"


def _rows(command: Any) -> dict[str, str]:
    """By flag."""
    return {each.opts[0]: _row(each) for each in command.params if each.opts[0].startswith("--") and not each.hidden}


def _row(option: Any) -> str:
    value = "" if option.is_flag else f" {option.metavar}"
    default = "" if option.is_flag or option.default is None else getattr(option.default, "value", option.default)
    cells = (f"`{option.opts[0]}{value}`", "required" if option.required else str(default), option.help)
    return f"| {' | '.join(cell.replace('|', PIPE) for cell in cells)} |\n"


def _arguments() -> str:
    """Of togi.tune: its settings, as griffe reads the rest of a Google docstring."""
    lines = (f"{option.name}: {re.sub(r'--([a-z][a-z-]*)', _argument, option.help)}" for option in OPTIONS)
    return "".join(
        textwrap.fill(line, 120, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False) + "\n"
        for line in lines
    )


def _argument(flag: re.Match[str]) -> str:
    """As Python calls it."""
    return flag[1].replace("-", "_")


if __name__ == "__main__":
    for file, text in written().items():
        file.write_text(text, encoding="utf-8")
