"""Plain English, checked: a stop list, and limits on the length of sentences.

``python docs/prose.py`` checks the pages below docs/, those next to README.md, and every docstring and message in src/.
It prints ``path:line: finding`` and exits with 1 if it found something. ``python docs/prose.py PATH ...`` checks these
files. Pages in docs/rules are generated from docstrings, so they are checked there.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LONGEST = 45
"""Words in a sentence."""
MEAN = 20
"""Words in the sentences of a page, on average."""
MEAN_OF_ALL = 16
"""The same of all pages together."""
FEW = 8
"""A page of fewer sentences has no mean that says something."""
COMPARED = r"(?:long|fast|slow|small|larg|low|high|bett|oth)er\b|more\b|less\b|worse\b|one\b"
STOP = {
    rf"(?<!there )\b(?:is|are|was|were) no (?!{COMPARED})\w+": 'write "not a", or a verb',
    r"\bbeside\b": 'write "next to", "besides" or "with"',
    r"\bof before\b": 'write "earlier" or "former"',
    r"\b(?:is|are|was|were|be|been) (?:said(?! to)|told)\b": "name who reports, warns or raises",
    r", be it\b": 'write "even if"',
}
"""What reads like a translation, and what to write in its place."""
PARAGRAPH = re.compile(r"\n\s*\n|\n\s*(?:[-*]|\d+\.)\s|\n\s+\*{0,2}\w+:\s|\n=[ =]+")
"""Paragraphs, items, arguments and tables of a docstring are sentences of their own."""
GENERATED = re.compile(r"<!-- ([^:]*): generated .*?<!-- \1: end -->", re.DOTALL)
BREAK = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`\[*0-9])")


class Finding(NamedTuple):
    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Passage(NamedTuple):
    """A paragraph, an item, a cell of a table, a docstring or a message."""

    line: int
    text: str


def passages_of_page(text: str) -> Iterator[Passage]:
    """Everything but code, headings and tables that a program wrote."""
    text = GENERATED.sub(lambda found: "\n" * found[0].count("\n"), text)
    inside, paragraph, start = False, "", 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        code = line.lstrip().startswith("```")
        item = re.match(r"\s*(?:[-*]|\d+\.) ", line)
        other = inside or code or not line.strip() or line.lstrip().startswith(("#", "<!--", "![", "|"))
        if paragraph and (other or item):
            yield Passage(start, paragraph)
            paragraph = ""
        if code:
            inside = not inside
        elif line.startswith("|") and not inside:
            yield from (Passage(number, cell) for cell in re.split(r"(?<!\\)\|", line) if cell.strip(" -:"))
        elif not other:
            paragraph, start = f"{paragraph} {line}", start if paragraph else number


def passages_of_code(text: str) -> Iterator[tuple[Passage, bool]]:
    """Docstrings (true) and other texts (false); the parts of an f-string that are values become one word."""
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, documented)]
    bare = {id(line.value): line for body in bodies for line in body if isinstance(line, ast.Expr)}
    joined = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "x" for part in node.values]
            yield Passage(node.lineno, "".join(map(str, parts))), False
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in joined:
            yield Passage(node.lineno, node.value), id(node) in bare


def sentences(text: str) -> list[str]:
    """Sentences of three words and more."""
    return [part for part in BREAK.split(text.strip()) if len(part.split()) > 2]


def stopped(path: Path, passage: Passage) -> Iterator[Finding]:
    for pattern, advice in STOP.items():
        for found in re.finditer(pattern, re.sub(r"``?[^`]*``?", "`x`", " ".join(passage.text.split())), re.IGNORECASE):
            yield Finding(path, passage.line, f'"{found[0]}": {advice}')


def too_long(path: Path, passage: Passage) -> Iterator[Finding]:
    for sentence in sentences(passage.text):
        if (count := len(sentence.split())) > LONGEST:
            start = " ".join(sentence.split()[:6])
            yield Finding(path, passage.line, f'a sentence of {count} words ({LONGEST} at most): "{start} ..."')


def check_page(path: Path, text: str) -> Iterator[Finding]:
    for passage in passages_of_page(text):
        yield from stopped(path, passage)
        yield from too_long(path, passage)
    yield from wordy(path, words(text), MEAN)


def words(page: str) -> list[int]:
    """Of each sentence of a page."""
    return [len(sentence.split()) for passage in passages_of_page(page) for sentence in sentences(passage.text)]


def wordy(path: Path, lengths: list[int], most: int) -> Iterator[Finding]:
    if len(lengths) >= FEW and (mean := sum(lengths) / len(lengths)) > most:
        yield Finding(path, 1, f"{mean:.1f} words a sentence on average ({most} at most)")


def check_code(path: Path, text: str) -> Iterator[Finding]:
    for passage, documentation in passages_of_code(text):
        yield from stopped(path, passage)
        if documentation:
            for paragraph in PARAGRAPH.split(re.sub(r"(?m)^.*\S {3,}\S.*$", "", passage.text)):
                yield from too_long(path, Passage(passage.line, paragraph))


def check(path: Path) -> Iterator[Finding]:
    text = path.read_text(encoding="utf-8")
    return check_code(path, text) if path.suffix == ".py" else check_page(path, text)


def pages() -> list[Path]:
    below = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "rules"]
    names = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    return [*(ROOT / name for name in names), *sorted(below)]


def everything() -> Iterator[Finding]:
    for path in [*pages(), *sorted((ROOT / "src").rglob("*.py"))]:
        yield from check(path)
    lengths = [count for path in pages() for count in words(path.read_text(encoding="utf-8"))]
    yield from wordy(ROOT / "docs", lengths, MEAN_OF_ALL)


def main(paths: list[str]) -> int:
    found = [each for path in paths for each in check(Path(path))] if paths else list(everything())
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
