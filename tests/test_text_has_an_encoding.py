"""Text is read and written in a named encoding: without one Python takes that of the user's language."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "benchmarks", "examples")
SNIPPETS = ("corpus", "corpus_held_out", "snippets")
OPENERS = ("open", "fdopen", "read_text", "write_text")


def test_text_has_an_encoding() -> None:
    files = [file for folder in FOLDERS for file in (TOP / folder).rglob("*.py") if not {*file.parts} & {*SNIPPETS}]
    assert len(files) > 500
    found = [f"{file.relative_to(TOP)}:{line}" for file in files for line in without(file.read_bytes())]
    assert not found


def test_what_has_none_is_found() -> None:
    text = "open(p); open(p, 'w'); p.open(); p.open('a'); Path(p).open(); io.open(p); os.fdopen(3)"
    text += "; p.read_text(); p.write_text('x')"
    assert len([*without(text.encode())]) == 9
    right = "open(p, 'rb'); p.open('wb'); os.open(p, 0); os.fdopen(3, mode='rb'); Journal.open(p); p.read_text('ascii')"
    assert not [*without(f"{right}; p.write_text('x', encoding='utf-8'); open(p, encoding='utf-8')".encode())]


def without(code: bytes) -> Iterator[int]:
    """Lines of calls that open a file as text and name no encoding."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and _opens(node) and "encoding" not in {word.arg for word in node.keywords}:
            owner, _, name = ast.unparse(node.func).rpartition(".")
            positions = {"read_text": 0, "write_text": 1}
            of_a_class = owner.isidentifier() and owner[0].isupper()  # Journal.open(path) opens no text
            if name == "fdopen" or (name == "open" and owner != "os" and not of_a_class):
                missing = not any(is_binary(value) for value in [*node.args, *(word.value for word in node.keywords)])
            else:
                missing = name in positions and len(node.args) <= positions[name]
            if missing:
                yield node.lineno


def _opens(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in OPENERS


def is_binary(value: ast.expr) -> bool:
    mode = value.value if isinstance(value, ast.Constant) else None
    return isinstance(mode, str) and "b" in mode and {*mode} <= {*"rwaxbt+"}
