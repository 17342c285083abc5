"""Edits of a source that keep its formatting: replace an expression, add an argument or an import, rename.

Columns of the syntax tree count UTF-8 bytes from 0; those of an ``Edit`` count characters from 1.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from togi.lint.finding import Edit
from togi.lint.source.references import import_of
from togi.lint.source.syntax import argument, arguments_of, position

if TYPE_CHECKING:
    from togi.lint.source.model import Source


_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def replace(source: Source, node: ast.AST, text: str) -> Edit:
    """``text`` in place of a node."""
    line, column = start(source, node)
    end_line, end_column = end(source, node)
    return Edit(line=line, column=column, end_line=end_line, end_column=end_column, text=text)


def insert(line: int, column: int, text: str) -> Edit:
    """``text`` before the character at a place."""
    return Edit(line=line, column=column, end_line=line, end_column=column, text=text)


def add_argument(source: Source, call: ast.Call, text: str) -> Edit | None:
    """An argument after the last one, in the call's own style: on its own line where the others are.

    None where a bare generator expression is the only argument, which takes no second one without parentheses.
    """
    arguments = arguments_of(call)
    tokens = [token for token in _tokens(source, call) if token.type not in _LAYOUT]
    last, closing = tokens[-2], tokens[-1]
    only = arguments[0] if len(arguments) == 1 else None
    if isinstance(only, ast.GeneratorExp) and end(source, only) == end(source, call):
        return None
    if not arguments:
        return insert(*_place(closing.start), text)
    separator = _separator(source, last if last.string != "," else tokens[-3], call)
    if last.string == ",":
        if separator == " ":
            return insert(*_place(last.end), f" {text}")
        line = last.end[0]
        return insert(line, len(source.lines[line - 1]) + 1, f"{separator}{text},")
    line, column = _place(last.end)
    rest = source.lines[line - 1][column - 1 :]
    if separator != " " and rest.lstrip().startswith("#"):  # the comment stays with the argument that it is about
        return Edit(
            line=line, column=column, end_line=line, end_column=column + len(rest), text=f",{rest}{separator}{text}"
        )
    return insert(line, column, f",{separator}{text}")


def set_argument(source: Source, call: ast.Call, name: str, at: int, text: str) -> Edit | None:
    """``text`` for the parameter: in place of what is given for it, else added by name as ``add_argument`` does."""
    value = argument(call, name, at)
    return replace(source, value, text) if value is not None else add_argument(source, call, f"{name}={text}")


def add_import(source: Source, module: str) -> Edit | None:
    """``import module`` before the first import, or None where the module is imported so at the top already."""
    body = source.tree.body
    imports = [node for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    if any(_imports(node, module) for node in imports):
        return None
    first = next((node for node in imports if getattr(node, "module", None) != "__future__"), None)
    line = first.lineno if first is not None else (imports[-1].lineno + 1 if imports else 1)
    return insert(line, 1, f"import {module}\n")


def start(source: Source, node: ast.AST) -> tuple[int, int]:
    """Line and column, both from 1, of a node's first character."""
    place = source.place(node)
    return place.line, place.column


def end(source: Source, node: ast.AST) -> tuple[int, int]:
    """Line and column, both from 1, of the character after a node."""
    place = source.place(node)
    return place.end_line or place.line, place.end_column or place.column


def text_of(source: Source, node: ast.expr) -> str:
    """The source text of an expression, as it stands."""
    (line, column), (end_line, end_column) = start(source, node), end(source, node)
    lines = [*source.lines[line - 1 : end_line]]
    lines[-1] = lines[-1][: end_column - 1]
    lines[0] = lines[0][column - 1 :]
    return "\n".join(lines)


def _tokens(source: Source, call: ast.Call) -> Iterator[tokenize.TokenInfo]:
    """Tokens of a call, with lines and columns (from 0) of the file."""
    line, column = start(source, call)
    text = " " * (column - 1) + text_of(source, call)
    # Parentheses keep the blanks before the call from being read as indentation.
    reader = io.StringIO(f"(\n{text}\n)")
    inner = list(tokenize.generate_tokens(reader.readline))[1:]
    closing = max(index for index, token in enumerate(inner) if token.string == ")")
    for token in inner[:closing]:
        shift = line - 2
        yield token._replace(start=(token.start[0] + shift, token.start[1]), end=(token.end[0] + shift, token.end[1]))


def _separator(source: Source, last: tokenize.TokenInfo, call: ast.Call) -> str:
    """What stands between two arguments here: a blank, or a line break with the last argument's indentation."""
    values: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    latest = max(values, key=position)
    text = source.lines[latest.lineno - 1]
    indentation = text[: len(text) - len(text.lstrip())]
    owns_line = len(indentation.encode()) == latest.col_offset and latest.lineno != call.lineno
    return f"\n{indentation}" if owns_line and last.end[0] != call.end_lineno else " "


def _place(spot: tuple[int, int]) -> tuple[int, int]:
    return spot[0], spot[1] + 1


def _imports(node: ast.stmt, module: str) -> bool:
    return isinstance(node, ast.Import) and any(
        alias.asname is None and f"{alias.name}.".startswith(f"{module}.") for alias in node.names
    )


def rename(source: Source, node: ast.Name | ast.Attribute, old: str, new: str) -> tuple[Edit, ...] | None:
    """Edits after which the expression ``node``, which stands for ``old``, stands for ``new``.

    None where that would take more than a rewriting of this place and of one import statement, or where the file
    names ``old`` in a string (as ``mock.patch`` takes it).
    """
    if not isinstance(node.ctx, ast.Load) or _is_quoted(source, old):
        return None
    if isinstance(node, ast.Attribute):
        return _attribute(source, node, old, new)
    binding = import_of(source, node, old)
    return _imported(source, node, *binding, new=new) if binding else None


def rename_module(source: Source, statement: ast.ImportFrom, module: str) -> Edit | None:
    """``from module import ...`` in place of the module that a statement names.

    None where others may import the names from this file, or where the module's name does not follow ``from`` at once.
    """
    names = {alias.asname or alias.name for alias in statement.names}
    if _is_exported(source, names):
        return None
    line, column = source.place(statement).line, source.place(statement).column + len("from ")
    old = statement.module or ""
    if not source.lines[line - 1][column - 1 :].startswith(f"{old} "):
        return None
    return Edit(line=line, column=column, end_line=line, end_column=column + len(old), text=module)


def _is_exported(source: Source, names: set[str]) -> bool:
    """Whether names stand in a package's ``__init__.py``, or in ``__all__``."""
    if PurePath(source.path).name == "__init__.py":
        return True
    listed = source.index.scopes[source.tree].bindings.get("__all__", [])
    statements = filter(None, map(source.index.statement, listed))
    texts = {text.value for statement in statements for text in source.walk(statement, ast.Constant)}
    return not names.isdisjoint(texts)


def _is_quoted(source: Source, old: str) -> bool:
    """Whether a string of the file is this name, or that of its module."""
    names = (old, old.rpartition(".")[0])
    return any("." in name and name in source.index.texts for name in names)


def _attribute(source: Source, node: ast.Attribute, old: str, new: str) -> tuple[Edit, ...] | None:
    old_parent, _, old_last = old.rpartition(".")
    new_parent, _, new_last = new.rpartition(".")
    if old_parent == new_parent and node.attr == old_last:
        line, column = end(source, node)
        return (Edit(line=line, column=column - len(old_last), end_line=line, end_column=column, text=new_last),)
    if node.lineno != node.end_lineno:  # a comment may stand between its parts
        return None
    root = new.partition(".")[0]
    if source.names.qualified(ast.Name(id=root), source.scope(node)) == root:
        return (replace(source, node, new),)
    if text_of(source, node) != old or source.names.holder(root, source.scope(node)) is not None:
        return None
    import_ = add_import(source, root)
    # Without an import at the top of the file another one would land above its docstring.
    has_imports = any(isinstance(statement, ast.Import | ast.ImportFrom) for statement in source.tree.body)
    return (replace(source, node, new), import_) if import_ and has_imports else None


def _imported(
    source: Source, node: ast.Name, statement: ast.ImportFrom, alias: ast.alias, *, new: str
) -> tuple[Edit, ...] | None:
    """``from old import name``: the import and every use of the name change together."""
    old = f"{statement.module}.{alias.name}"
    parent, _, last = new.rpartition(".")
    moved = statement.module != parent
    if (moved and len(statement.names) > 1) or _is_exported(source, {alias.asname or alias.name}):
        return None
    edits = [replace(source, alias, f"{last} as {alias.asname}" if alias.asname else last)]
    if moved:
        module = rename_module(source, statement, parent)
        if module is None:
            return None
        edits = [module, *edits]
    if alias.asname or last == alias.name:
        return tuple(edits)
    same = [use for use in source.nodes(ast.Name) if use.id == node.id]
    if any(_means_another(source, use, old, last) for use in same):
        return None
    return (*edits, *(replace(source, use, last) for use in same))


def _means_another(source: Source, use: ast.Name, old: str, last: str) -> bool:
    """Whether a name stands for something else than the import, or would after it is renamed."""
    return source.qualified(use) != old or source.names.holder(last, source.scope(use)) is not None
