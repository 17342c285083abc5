"""Code in the documentation names what there is: commands, their options, and what Python takes from togi.

Guides are run (test_guides.py); these pages also show forms of calls, and models that nobody has.
"""

from __future__ import annotations

import ast
import pydoc
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from togi.cli.app import COMMANDS
from togi.cli.program import app_of

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "benchmarks/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^ *```(\w*).*\n((?:.*\n)*?) *```$", re.MULTILINE)


def command_lines(page: str) -> Iterator[str]:
    """What stands after ``togi``, in blocks and in running text; a command over several lines as one."""
    for _, block in BLOCK.findall(page):
        joined = re.sub(r" *\\?\n +(?=[-\[])", " ", block)
        yield from re.findall(r"^ *(?:\$ )?togi ([a-z].*?)(?:\s#.*)?$", joined, re.MULTILINE)
    yield from (" ".join(line.split()) for line in re.findall(r"`togi ([a-z][^`]*)`", BLOCK.sub("", page)))


def unknown_options(page: str) -> list[str]:
    """Commands, and options of commands, that there are not."""
    known = {
        name: {"--help", "--debug", *(name for each in command.params for name in (*each.opts, *each.secondary_opts))}
        for name, command in get_command(app_of(COMMANDS)).commands.items()  # type: ignore[attr-defined]
    }
    found = []
    for line in command_lines(page):
        command, _, rest = re.split(r" (?:\||\|\||&&|;) |;", line)[0].partition(" ")
        if command == "run":  # what follows a script are its own options
            rest = re.sub(r"\.py\b.*", "", rest)
        options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest)
        found += [f"{command} {each}" for each in options if each not in known.get(command, ())]
        found += [] if command in known else [command]
    return found


def unknown_names(page: str) -> list[str]:
    """``togi.x`` in Python that is not there. Raises SyntaxError where it is no Python."""
    trees = [ast.parse(textwrap.dedent(block)) for language, block in BLOCK.findall(page) if language == "python"]
    names = {
        f"togi.{node.attr}"
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "togi"
    }
    return sorted(name for name in names if pydoc.locate(name) is None)


def test_what_is_not_there_is_found() -> None:
    page = """
`togi bench A B --fast`, `togi tun x`

```
$ togi tune model.py:f --out x.togi \\
    --effrt quick   # --not-this
togi verify NAME.togi [--subject SUBJECT]
                      [--sbject SUBJECT] || test --this
togi check --fix; togi doctor --json
```

```python
togi.tune(x)
togi.tun(x)
```
"""
    assert unknown_options(page) == ["tune --effrt", "verify --sbject", "bench --fast", "tun"]
    assert unknown_names(page) == ["togi.tun"]
    with pytest.raises(SyntaxError):
        unknown_names("```python\ntogi.tune(\n```\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_names_what_there_is(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert unknown_options(text) == []
    assert unknown_names(text) == []
