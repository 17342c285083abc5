"""Fixes that rules offer, made of edits."""

from __future__ import annotations

import ast

from togi.lint.finding import Edit, Fix
from togi.lint.source.edits import end, insert
from togi.lint.source.model import Source


def fix(title: str, *edits: Edit | None, safe: bool = True) -> Fix | None:
    """A fix of all these edits; None where one of them cannot be made."""
    possible = tuple(edit for edit in edits if edit is not None)
    return Fix(title=title, edits=possible, safe=safe) if len(possible) == len(edits) else None


def append(source: Source, node: ast.expr, text: str) -> Edit:
    """``text`` directly after an expression: ``.detach()``."""
    return insert(*end(source, node), text)


def respell(source: Source, node: ast.Attribute, name: str) -> Edit:
    """``owner.NAME`` with another name."""
    line, column = end(source, node)
    return Edit(line=line, column=column - len(node.attr), end_line=line, end_column=column, text=name)


def replace_arguments(source: Source, call: ast.Call, text: str) -> Edit:
    """``text`` in place of the parentheses of a call and of what stands in them."""
    (line, column), (end_line, end_column) = end(source, call.func), end(source, call)
    return Edit(line=line, column=column, end_line=end_line, end_column=end_column, text=text)
