"""Names as the code spells them: what loops bind, and what their words tell."""

from __future__ import annotations

import ast
from collections.abc import Collection

from togi.lint.source.model import Source
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


def target_names(source: Source, loop: ast.AST) -> set[str]:
    """Names that a loop or a comprehension binds to what it goes through; none for ``while``."""
    parts = loop.generators if isinstance(loop, COMPREHENSIONS) else [loop]
    targets = [part.target for part in parts if isinstance(part, ast.For | ast.AsyncFor | ast.comprehension)]
    return {name.id for target in targets for name in source.walk(target, ast.Name)}


def is_own(node: ast.AST) -> bool:
    """``self.NAME``."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def mentions(source: Source, node: ast.AST, parts: Collection[str]) -> bool:
    """Whether an identifier or a string in ``node`` contains one of ``parts``, which are in lower case."""
    words = (getattr(inner, _WORDS[type(inner)]) for inner in source.walk(node, *_WORDS))
    return any(part in word.lower() for word in words if isinstance(word, str) for part in parts)


def decorators_mention(source: Source, function: ast.AST | None, parts: Collection[str]) -> bool:
    """Whether a decorator of a function does; a lambda has none."""
    return any(mentions(source, decorator, parts) for decorator in getattr(function, "decorator_list", ()))


def file_mentions(source: Source, parts: Collection[str]) -> bool:
    """Whether the file mentions one of ``parts`` anywhere but in a comment."""
    text = source.text.lower()
    return any(part in text for part in parts) and mentions(source, source.tree, parts)
