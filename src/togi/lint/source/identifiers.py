"""Names as the code spells them: what binds them, and what their words tell."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from togi.lint.source.model import Source
from togi.lint.source.syntax import first_name
from togi.lint.source.tree import COMPREHENSIONS

_WORDS: dict[type[ast.AST], str] = {
    ast.Name: "id",
    ast.Attribute: "attr",
    ast.keyword: "arg",
    ast.arg: "arg",
    ast.Constant: "value",
    ast.FunctionDef: "name",
    ast.ClassDef: "name",
    ast.alias: "name",
    ast.ImportFrom: "module",
    ast.AsyncFunctionDef: "name",
}
"""Where each kind of node keeps its word."""


def imported_name(source: Source, node: ast.AST) -> str:
    """The dotted name that imports and builtins give an expression; empty where they give none.

    Quicker than ``Source.qualified``, which interprets the code to name the methods of what it knows.
    """
    return source.names.qualified(node, source.scope(node)) or ""


def bindings_of(source: Source, node: ast.expr) -> list[ast.AST]:
    """What binds the name at which an expression starts, in the scope that it comes from."""
    name = first_name(node)
    holder = source.names.holder(name, source.scope(node))
    return holder.bindings[name] if holder is not None else []


def target_names(source: Source, loop: ast.AST) -> set[str]:
    """Names that a loop or a comprehension binds to what it goes through; none for ``while``."""
    parts = loop.generators if isinstance(loop, COMPREHENSIONS) else [loop]
    targets = [part.target for part in parts if isinstance(part, ast.For | ast.AsyncFor | ast.comprehension)]
    return {name.id for target in targets for name in source.walk(target, ast.Name)}


def is_own(node: ast.AST) -> bool:
    """``self.NAME``."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def is_text(node: ast.AST) -> bool:
    """A string or an f-string."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def words(source: Source, node: ast.AST) -> Iterator[str]:
    """Identifiers and strings in ``node``."""
    for part in source.walk(node, *_WORDS):
        word = getattr(part, _WORDS[type(part)])
        if isinstance(word, str):
            yield word


def mentions(source: Source, node: ast.AST, parts: Collection[str]) -> bool:
    """Whether an identifier or a string in ``node`` contains one of ``parts``, which are in lower case."""
    return any(part in word.lower() for word in words(source, node) for part in parts)


def file_mentions(source: Source, parts: Collection[str]) -> bool:
    """Whether the file mentions one of ``parts`` anywhere but in a comment."""
    text = source.text.lower()
    return any(part in text for part in parts) and mentions(source, source.tree, parts)
