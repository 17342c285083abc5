"""The names that a Python file defines, read from its syntax: checked before any of the user's code runs."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from togi.core.errors import SubjectError, UnknownNameError, nearest

_BLOCKS = (ast.If, ast.Try, ast.With, ast.For, ast.While)


def check_factory(path: Path, factory: str, text: str) -> None:
    """That the file can be parsed and binds ``factory`` at its top level.

    Raises SubjectError for a syntax error, UnknownNameError with the nearest name for a name that is not there. A file
    whose names cannot be known from its syntax (``import *``, a module ``__getattr__``) passes.
    """
    tree = _parse(path, text)
    names = set(_bound(tree.body))
    if factory in names or "*" in names or "__getattr__" in names:
        return
    offered = factories(path)
    near = nearest(factory, names)
    listed = (
        f" It has {', '.join(offered)}." if offered else " It has no function that could be called without arguments."
    )
    raise UnknownNameError(f"{text}: {path} has no '{factory}'{near or '.'}{listed}")


def check_package(target: str, factory: str, text: str, *, zoos: Iterable[str]) -> None:
    """Find the module's source without importing anything, not even its parents, and check it as ``check_factory``.

    ``zoos``: other names that may be meant. Raises as ``check_factory``.
    """
    search: Sequence[str] | None = None
    *parents, last = target.split(".")
    for depth, part in enumerate([*parents, last], start=1):
        name = ".".join(target.split(".")[:depth])
        module = _find(name, search)
        if module is None:
            siblings = [file.stem for folder in search or () for file in Path(folder).glob("[!_]*")]
            near = nearest(part, zoos if depth == 1 else siblings)
            raise SubjectError(
                f"{text}: there is no module '{name}'{near or '.'} Install its package here, or run in its folder."
            )
        search = module.submodule_search_locations
        if search is None and depth <= len(parents):
            raise SubjectError(f"{text}: '{name}' is a module, not a package: it has no '{last}' inside.")
    if module is not None and module.origin and module.origin.endswith(".py"):
        check_factory(Path(module.origin), factory, text)


def _find(name: str, search: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    """``importlib.util.find_spec`` for one level: that function would import the parent packages."""
    if search is not None:
        return importlib.machinery.PathFinder.find_spec(name, search)
    local = importlib.machinery.PathFinder.find_spec(name, [str(Path.cwd())])
    if local is not None:
        return local
    loaded = sys.modules.get(name)
    try:
        return loaded.__spec__ if loaded is not None else importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def factories(path: Path) -> list[str]:
    """Public top-level functions that can be called without arguments, in order."""
    tree = ast.parse(path.read_bytes())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"))
    return [node.name for node in functions if not _required(node.args)]


def _parse(path: Path, text: str) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        where = f"{path}:{error.lineno}"
        raise SubjectError(f"{text}: {where}: {error.msg}: {(error.text or '').strip()}") from error
    except (OSError, ValueError) as error:
        raise SubjectError(f"{text}: {path} cannot be read as Python: {error}") from error


def _required(arguments: ast.arguments) -> bool:
    positional = len(arguments.posonlyargs) + len(arguments.args) > len(arguments.defaults)
    return positional or any(default is None for default in arguments.kw_defaults)


def _bound(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that these statements bind, also inside if, try, with and loops; ``*`` for a star import."""
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, _BLOCKS):
            yield from _bound(_inside(node))
        yield from _assigned(node)


def _inside(node: ast.stmt) -> Iterator[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        yield from getattr(node, name, [])
    for handler in getattr(node, "handlers", []):
        yield from handler.body


def _assigned(node: ast.stmt) -> Iterator[str]:
    targets: list[ast.expr] = list(node.targets) if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign | ast.For):
        targets.append(node.target)
    for target in targets:
        yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))
