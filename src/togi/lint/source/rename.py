"""Edits that put one dotted name in place of another, with the import statement where that is needed."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from togi.lint.finding import Edit
from togi.lint.source.edits import add_import, end, replace, text_of
from togi.lint.source.uses import import_of

if TYPE_CHECKING:
    from togi.lint.source.model import Source


def rename(source: Source, node: ast.Name | ast.Attribute, old: str, new: str) -> tuple[Edit, ...] | None:
    """Edits after which the expression ``node``, which stands for ``old``, stands for ``new``.

    None where that would take more than a rewriting of this place and of one import statement.
    """
    if isinstance(node, ast.Attribute):
        return _attribute(source, node, old, new)
    found = import_of(source, node, old)
    return _imported(source, node, *found, new=new) if found else None


def _attribute(source: Source, node: ast.Attribute, old: str, new: str) -> tuple[Edit, ...] | None:
    old_parent, _, old_last = old.rpartition(".")
    new_parent, _, new_last = new.rpartition(".")
    if old_parent == new_parent and node.attr == old_last:
        line, column = end(source, node)
        return (Edit(line=line, column=column - len(old_last), end_line=line, end_column=column, text=new_last),)
    spelled = text_of(source, node)
    if spelled == old or source.qualified(ast.Name(id="torch")) == "torch":
        import_ = add_import(source, "torch")
        return (replace(source, node, new), *((import_,) if import_ else ()))
    return None


def _imported(
    source: Source, node: ast.Name, statement: ast.ImportFrom, alias: ast.alias, *, new: str
) -> tuple[Edit, ...] | None:
    """``from old import name``: the import and every use of the name change together."""
    parent, _, last = new.rpartition(".")
    moved = statement.module != parent
    if moved and len(statement.names) > 1:
        return None
    edits = [replace(source, alias, f"{last} as {alias.asname}" if alias.asname else last)]
    if moved:
        edits = [_module(source, statement, parent), *edits]
    if alias.asname or last == alias.name:
        return tuple(edits)
    if source.names.holder(last, source.scope(node)) is not None:
        return None
    same = [use for use in source.nodes(ast.Name) if use.id == node.id]
    if any(not isinstance(use.ctx, ast.Load) for use in same):
        return None
    return (*edits, *(replace(source, use, last) for use in same))


def _module(source: Source, statement: ast.ImportFrom, module: str) -> Edit:
    line, column = source.place(statement).line, source.place(statement).column + len("from ")
    return Edit(line=line, column=column, end_line=line, end_column=column + len(statement.module or ""), text=module)
