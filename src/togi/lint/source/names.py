"""Resolves names through imports, aliases and builtins."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Sequence

from togi.lint.source.tree import Scope, Tree

BUILTINS = frozenset(dir(builtins))
_PYTHON_AND_TORCH = frozenset([*sys.stdlib_module_names, "torch"])
_ALIASES = {
    "torch.autograd.grad_mode.no_grad": "torch.no_grad",
    "torch.autograd.no_grad": "torch.no_grad",
    "torch.autograd.inference_mode": "torch.inference_mode",
    "torch.autograd.grad_mode.inference_mode": "torch.inference_mode",
    "torch.autograd.set_grad_enabled": "torch.set_grad_enabled",
    "torch.autograd.grad_mode.set_grad_enabled": "torch.set_grad_enabled",
    "torch.nn.modules.Module": "torch.nn.Module",
    "torch.nn.modules.module.Module": "torch.nn.Module",
    "torch.nn.parameter.Parameter": "torch.nn.Parameter",
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.utils.data.dataset.Dataset": "torch.utils.data.Dataset",
    "torch.tensor.Tensor": "torch.Tensor",
    "torch._tensor.Tensor": "torch.Tensor",
}


def is_of_python_or_torch(name: str) -> bool:
    """Whether the dotted ``name`` is a builtin, or of a module of Python or PyTorch: what it does is known."""
    return name in BUILTINS or name.partition(".")[0] in _PYTHON_AND_TORCH


class Names:
    """Resolves names of one file through imports. Relative imports resolve to names that start with dots."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._known: dict[tuple[Scope, str], tuple[Scope | None, str | None]] = {}
        self._imports: dict[tuple[Scope, str], str | None] = {}
        aliases = [node for node in tree.nodes(ast.alias) if isinstance(node, ast.alias)]
        self._imported = {alias.asname or alias.name.partition(".")[0] for alias in aliases}

    def holder(self, name: str, scope: Scope) -> Scope | None:
        """The scope that binds ``name`` as seen from ``scope``; None for builtins and unknown names."""
        return self._look_up(name, scope)[0]

    def bindings(self, name: str, scope: Scope) -> list[ast.AST]:
        """What binds ``name`` as seen from ``scope``."""
        holder = self.holder(name, scope)
        return holder.bindings[name] if holder is not None else []

    def qualified(self, node: ast.AST, scope: Scope) -> str | None:
        """Dotted name of a Name or Attribute chain that starts at an import or a builtin."""
        root = node
        while type(root) is ast.Attribute:
            root = root.value
        # Asked tens of thousands of times for a file, and nearly all names are neither imported nor builtins.
        if type(root) is not ast.Name or not (root.id in self._imported or (root is node and root.id in BUILTINS)):
            return None
        holder, base = self._look_up(root.id, scope)
        if base is None:
            return root.id if holder is None and root is node and root.id in BUILTINS else None
        attributes: list[str] = []
        while type(node) is ast.Attribute:
            attributes.append(node.attr)
            node = node.value
        name = ".".join((base, *reversed(attributes)))
        return _ALIASES.get(name, name)

    def _look_up(self, name: str, scope: Scope) -> tuple[Scope | None, str | None]:
        key = (scope, name)
        if key not in self._known:
            holder = self._holder(name, scope)
            if holder is not None and (holder, name) not in self._imports:
                self._imports[holder, name] = self._import(holder.bindings[name])
            self._known[key] = holder, self._imports[holder, name] if holder is not None else None
        return self._known[key]

    def _holder(self, name: str, scope: Scope) -> Scope | None:
        outer: Scope | None = scope
        while outer is not None:
            visible = outer is scope or not isinstance(outer.node, ast.ClassDef)
            if visible and name in outer.bindings and name not in outer.foreign:
                return outer
            outer = outer.outer
        return None

    def _import(self, bindings: Sequence[ast.AST]) -> str | None:
        aliases = [node for node in bindings if isinstance(node, ast.alias)]
        if not aliases:
            return None
        if any(not isinstance(node, ast.alias) and not self._stands_in(node) for node in bindings):
            return None
        origins = [self._origin(alias) for alias in aliases]
        return next((origin for origin in origins if origin.startswith("torch")), origins[0])

    def _stands_in(self, node: ast.AST) -> bool:
        """``try: import x / except ImportError: x = None`` (or a class or function of the same name)."""
        return any(isinstance(above, ast.ExceptHandler | ast.If | ast.Try) for above in self._tree.ancestors(node))

    def _origin(self, alias: ast.alias) -> str:
        statement = self._tree.parents[alias]
        if isinstance(statement, ast.ImportFrom):
            return "." * statement.level + ".".join(filter(None, (statement.module, alias.name)))
        return alias.name if alias.asname else alias.name.partition(".")[0]
