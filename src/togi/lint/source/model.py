"""The semantic model of one source file, which source rules ask.

One walk over the tree builds the indexes; names, values and hot places are worked out when a rule asks for them and
remembered. Nothing is executed or imported. What cannot be decided is ``UNKNOWN``, ``None``, and rules stay silent.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from togi.lint.finding import Finding, Fix, Place
from togi.lint.source.autograd import Autograd
from togi.lint.source.definitions import CallGraph, Classes
from togi.lint.source.flow import Flow
from togi.lint.source.hotness import Hotness
from togi.lint.source.interpreter.statements import interpret
from togi.lint.source.names import Names
from togi.lint.source.tree import FORMATTED, Function, Loop, Scope, Tree
from togi.lint.source.value import UNKNOWN, Hot, Value, ValueKind
from togi.lint.source_text import unify_line_ends

__all__ = ["UNKNOWN", "Hot", "Source", "Value", "ValueKind"]

_OWNERS = {
    ValueKind.TENSOR: "torch.Tensor",
    ValueKind.MODULE: "torch.nn.Module",
    ValueKind.OPTIMIZER: "torch.optim.Optimizer",
    ValueKind.DATALOADER: "torch.utils.data.DataLoader",
    ValueKind.NDARRAY: "numpy.ndarray",
}
_FRAMEWORKS = ("torch", "lightning", "transformers", "timm", "diffusers", "accelerat")
_TRAINING = (".backward(", ".zero_grad(", ".eval()")
"""What a file that is given its models and batches does with them, without a word of torch."""
_SIGNS = tuple(sign.encode() for sign in (*_FRAMEWORKS, *_TRAINING))


def concerns_torch(data: bytes) -> bool:
    """Whether a file of these bytes has anything to do with PyTorch; where not, no rule finds anything in it."""
    return any(sign in data for sign in _SIGNS)


class Source:
    """One parsed file. Make one with ``Source.parse``."""

    def __init__(self, path: str, text: str, tree: ast.Module, *, hot: Iterable[str] = (), judged: str = "") -> None:
        self.path = path
        """As findings name the file, which depends on where the user stands."""
        self.judged = judged or path
        """Its path in its project, whose folders tell what kind of file it is."""
        self.text = text
        self.tree = tree
        self.hot_functions = frozenset(hot)
        self.uses_torch = concerns_torch(text.encode(errors="replace"))
        """Where not, every value is unknown and nothing is hot."""

    @classmethod
    def parse(cls, text: str, path: str = "<unknown>", *, hot: Iterable[str] = (), judged: str = "") -> Source:
        """Parse ``text``. ``hot`` names functions that run often (``decode``, ``Model.decode``, ``package.decode``).

        Raises SyntaxError (also ValueError for null bytes, RecursionError and MemoryError for absurd nesting).
        """
        return cls(path, text, ast.parse(text, filename=path), hot=hot, judged=judged)

    @cached_property
    def lines(self) -> Sequence[str]:
        """Lines as Python's parser counts them."""
        return unify_line_ends(self.text).split("\n")

    @cached_property
    def index(self) -> Tree:
        return Tree(self.tree)

    @cached_property
    def names(self) -> Names:
        return Names(self.index)

    @cached_property
    def classes(self) -> Classes:
        return Classes(self.index, self.names)

    @cached_property
    def callers(self) -> CallGraph:
        return CallGraph(self.index, self.names, self.classes)

    @cached_property
    def flow(self) -> Flow:
        return Flow(self.index, self.names, self.classes, self.callers, interpret)

    @property
    def is_whole(self) -> bool:
        """Whether the rules that have run could ask for all values."""
        return "index" not in vars(self) or min(self.index.budget.left, self.index.interpreting.left) >= 0

    @cached_property
    def hotness(self) -> Hotness:
        return Hotness(self.flow, self.hot_functions, self.judged)

    @cached_property
    def autograd(self) -> Autograd:
        return Autograd(self.index, self.names, self.callers)

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[Any]:
        """All nodes of exactly these types, from an index."""
        return self.index.nodes(*kinds)

    def walk(self, node: ast.AST, *kinds: type[ast.AST]) -> list[Any]:
        """``node`` and what is below it, of exactly these types (all where none is named)."""
        return self.index.walk(node, *kinds)

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self.index.parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Parent, grandparent, ... up to the module."""
        return self.index.ancestors(node)

    def scope(self, node: ast.AST) -> Scope:
        """The module, class or function scope in which ``node`` is evaluated."""
        return self.index.scope(node)

    def function(self, node: ast.AST) -> Function | None:
        """The function (or lambda) whose body holds ``node``; None at module and class level."""
        return self.index.function(node)

    def loops(self, node: ast.AST) -> tuple[Loop, ...]:
        """Loops and comprehensions of the same function that repeat ``node``, innermost first."""
        return self.index.loops(node)

    def qualified(self, node: ast.AST) -> str | None:
        """Canonical dotted name of an expression.

        Through imports and aliases: ``torch.utils.data.DataLoader``, ``torch.nn.functional.relu``. Of a method on a
        known value, under its base class: ``torch.Tensor.item``, ``torch.nn.Module.eval``,
        ``torch.optim.Optimizer.zero_grad``, ``torch.utils.data.DataLoader.__iter__``. Builtins by their bare name
        (``print``) where nothing hides them. Names of relative imports start with a dot. None where it is not known.
        """
        name = self.names.qualified(node, self.scope(node))
        if name is not None or not isinstance(node, ast.Attribute) or not self.uses_torch:
            return name
        owner = _OWNERS.get(self.value(node.value).kind)
        return f"{owner}.{node.attr}" if owner else None

    def dotted(self, node: ast.AST) -> str:
        """The name that an import or a builtin gives to an expression; empty where none does."""
        return self.names.qualified(node, self.scope(node)) or ""

    def bindings(self, node: ast.AST) -> list[ast.AST]:
        """What binds a name, in the scope to which it belongs; empty for any other expression."""
        return self.names.bindings(node.id, self.scope(node)) if isinstance(node, ast.Name) else []

    def value(self, node: ast.AST) -> Value:
        """The abstract value of an expression at the place where it stands; UNKNOWN where undecidable."""
        return self.flow.value(node) if self.uses_torch else UNKNOWN

    def hot(self, node: ast.AST) -> Hot | None:
        """Why ``node`` runs often (per forward pass, batch or step), or None."""
        return self.hotness.hot(node) if self.uses_torch else None

    def records_grad(self, node: ast.AST) -> bool:
        """Whether autograd records at ``node``, as far as the file tells: no ``no_grad`` or ``inference_mode`` around
        it, on its function, or around every call of its function in this file."""
        return self.autograd.records(node)

    def finding(
        self, rule: str, node: ast.AST, message: str, remedy: str, *, evidence: str = "", fix: Fix | None = None
    ) -> Finding:
        """A finding of the rule with the id ``rule`` at ``node``.

        Without its fix inside an f-string or a t-string: quotes end it there, and before Python 3.12 the parts of an
        f-string have no true places.
        """
        if fix is not None and any(isinstance(above, FORMATTED) for above in self.ancestors(node)):
            fix = None
        return Finding(rule=rule, message=message, remedy=remedy, place=self.place(node), evidence=evidence, fix=fix)

    def place(self, node: ast.AST) -> Place:
        """The range of ``node`` with columns in characters, counted from 1."""
        line, end_line = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        return Place(
            path=self.path,
            line=line,
            column=self.column(line, node.col_offset),  # type: ignore[attr-defined]
            end_line=end_line,
            end_column=self.column(end_line, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def column(self, line: int, offset: int) -> int:
        """Characters, counted from 1, for a byte offset of the syntax tree."""
        if self.text.isascii():
            return offset + 1
        return len(self.lines[line - 1].encode()[:offset].decode(errors="replace")) + 1
