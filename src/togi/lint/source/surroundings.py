"""What stands around a node: its block, the loops that repeat it, the function and the class that hold it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from togi.lint.source.hotness import iterated_by
from togi.lint.source.model import Source
from togi.lint.source.tree import LOOPS, block_of
from togi.lint.source.value import gives_batches

StatementLoop = ast.For | ast.AsyncFor | ast.While
"""A loop that is a statement, not a comprehension."""


def climb(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """What holds ``node``, innermost first, each with the child through which it does."""
    child = node
    for above in source.ancestors(node):
        yield above, child
        child = above


def neighbours(source: Source, node: ast.AST) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements before and after the one that holds ``node``, of the same block."""
    statement = source.index.statement(node)
    above = source.parent(statement) if statement is not None else None
    block = list(block_of(above, statement)) if above is not None and statement is not None else []
    if not block or statement is None:
        return [], []
    place = block.index(statement)
    return block[:place], block[place + 1 :]


def statement_loops(source: Source, node: ast.AST) -> Iterator[StatementLoop]:
    """Loops that repeat ``node``, innermost first, without comprehensions."""
    return (loop for loop in source.loops(node) if isinstance(loop, StatementLoop))


def over_batches(source: Source, loop: ast.AST | None) -> bool:
    """Whether a loop goes through the batches of a DataLoader."""
    iterated = iterated_by(loop) if isinstance(loop, LOOPS) else None
    return iterated is not None and gives_batches(source.value(iterated))


def class_around(source: Source, node: ast.AST) -> ast.ClassDef | None:
    """The class in a method of which ``node`` stands."""
    function = source.function(node)
    return source.index.class_of(function) if function is not None else None


def function_name(source: Source, node: ast.AST) -> str:
    """The name of the function that holds ``node``; empty outside of functions, and in a lambda."""
    return getattr(source.function(node), "name", "")
