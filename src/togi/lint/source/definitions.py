"""The classes and functions that a file defines: bases, methods, what ``self`` holds, and who calls whom."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cached_property

from togi.lint.source.names import Names
from togi.lint.source.syntax import argument
from togi.lint.source.tree import Function, Tree

Named = ast.FunctionDef | ast.AsyncFunctionDef
_MODULE_SUFFIXES = ("Module", "PreTrainedModel", "ModelMixin")
_DATASET_SUFFIXES = ("Dataset", "Sampler")
_AUTOGRAD_FUNCTIONS = frozenset(["torch.autograd.Function", "torch.autograd.function.Function"])
_PLAIN_BASES = frozenset(["object", "abc.ABC", "typing.Generic", "Generic", "typing.Protocol", "enum.Enum"])


class Classes:
    """The classes of one file."""

    def __init__(self, tree: Tree, names: Names) -> None:
        self._tree = tree
        self._names = names
        self._modules: dict[ast.ClassDef, bool] = {}
        self._bases: dict[ast.ClassDef, list[ast.ClassDef]] = {}
        self._methods: dict[ast.ClassDef, dict[str, Named]] = {}

    @cached_property
    def _by_name(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self._tree.nodes(ast.ClassDef) if isinstance(node, ast.ClassDef)}

    @cached_property
    def assigned(self) -> dict[ast.ClassDef, dict[str, list[ast.AST]]]:
        """Functions that store each ``self.NAME``, by class and name."""
        functions: dict[ast.ClassDef, dict[str, list[ast.AST]]] = defaultdict(lambda: defaultdict(list))
        for node in self._tree.nodes(ast.Attribute):
            if isinstance(node, ast.Attribute) and type(node.ctx) is ast.Store and isinstance(node.value, ast.Name):
                function = self._tree.function(node) if node.value.id == "self" else None
                owner = self._tree.class_of(function) if function else None
                if owner is not None and function is not None and function not in functions[owner][node.attr]:
                    functions[owner][node.attr].append(function)
        return functions

    def base_names(self, node: ast.ClassDef) -> list[str]:
        """Qualified names of the direct bases; for those of this file their bare name."""
        scope = self._tree.scope(node)
        names: list[str] = []
        for base in node.bases:
            base = base.value if isinstance(base, ast.Subscript) else base
            names.append(self._names.qualified(base, scope) or (base.id if isinstance(base, ast.Name) else ""))
        return names

    def bases(self, node: ast.ClassDef) -> list[ast.ClassDef]:
        """Direct bases defined in this file."""
        if node not in self._bases:
            bases = [self._by_name.get(name) for name in self.base_names(node)]
            self._bases[node] = [base for base in bases if base is not None and base is not node]
        return self._bases[node]

    def foreign_bases(self, node: ast.ClassDef) -> list[str]:
        """Bases, direct or not, that this file does not define."""
        names = [name for base in self.lineage(node) for name in self.base_names(base)]
        return [name for name in names if name not in self._by_name and name not in _PLAIN_BASES]

    def lineage(self, node: ast.ClassDef) -> list[ast.ClassDef]:
        """``node`` and its bases in this file, nearest first."""
        lineage = [node]
        for ancestor in lineage:
            lineage += [base for base in self.bases(ancestor) if base not in lineage]
        return lineage

    def is_module(self, node: ast.ClassDef) -> bool:
        """It derives from ``nn.Module``: directly, through a class of this file, or through an imported class whose
        name says so; or from some imported class while it defines ``forward``."""
        if node not in self._modules:
            self._modules[node] = False  # for classes that name themselves as base
            self._modules[node] = self._derives_from_module(node)
        return self._modules[node]

    def _derives_from_module(self, node: ast.ClassDef) -> bool:
        names = [name for name in self.base_names(node) if name]
        if any(name.startswith("torch.nn.") for name in names) or any(map(self.is_module, self.bases(node))):
            return True
        foreign = [name for name in names if name not in self._by_name and name != "object"]
        if any(name.endswith(_MODULE_SUFFIXES) and not name.startswith("torch.autograd") for name in foreign):
            return True
        forward = self.methods(node).get("forward")
        unknown = [name for name in foreign if not name.startswith(("torch.", "abc.", "typing."))]
        return bool(unknown) and forward is not None and bool(forward.args.args) and forward.args.args[0].arg == "self"

    def is_dataset(self, node: ast.ClassDef) -> bool:
        names = self.base_names(node)
        own = "__getitem__" in self.methods(node) and "forward" not in self.methods(node)
        return any(name.endswith(_DATASET_SUFFIXES) for name in names) or (own and not self.is_module(node))

    def is_autograd_function(self, node: ast.ClassDef) -> bool:
        return not _AUTOGRAD_FUNCTIONS.isdisjoint(self.base_names(node))

    def methods(self, node: ast.ClassDef) -> dict[str, Named]:
        if node not in self._methods:
            methods: dict[str, Named] = {}
            for statement in node.body:
                branches = [*statement.body, *statement.orelse] if isinstance(statement, ast.If) else [statement]
                methods.update({m.name: m for m in branches if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)})
            self._methods[node] = methods
        return self._methods[node]

    def method(self, node: ast.ClassDef, name: str) -> Named | None:
        """The method called ``name``, own or inherited within this file."""
        return next((self.methods(base)[name] for base in self.lineage(node) if name in self.methods(base)), None)


class CallGraph:
    """The call graph of one file: plain functions by name, methods through ``self.NAME(...)`` and ``super().NAME``."""

    def __init__(self, tree: Tree, names: Names, classes: Classes) -> None:
        self._tree = tree
        self._names = names
        self._classes = classes
        self._sites: dict[ast.AST, list[ast.Call]] = {}

    @cached_property
    def _by_name(self) -> dict[str, list[ast.Call]]:
        calls: dict[str, list[ast.Call]] = defaultdict(list)
        for call in self._tree.nodes(ast.Call):
            assert isinstance(call, ast.Call)
            if isinstance(call.func, ast.Name):
                calls[call.func.id].append(call)
            elif isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name | ast.Call):
                calls[call.func.attr].append(call)
        return calls

    def sites(self, function: Function) -> list[ast.Call]:
        """Calls of ``function`` in this file. None for lambdas."""
        if isinstance(function, ast.Lambda):
            return []
        if function not in self._sites:
            owner = self._tree.class_of(function)
            candidates = self._by_name.get(function.name, [])
            keep = self._of_method if owner is not None else self._of_function
            self._sites[function] = [call for call in candidates if keep(call, function, owner)]
        return self._sites[function]

    def _of_function(self, call: ast.Call, function: Named, owner: ast.ClassDef | None) -> bool:
        if not isinstance(call.func, ast.Name):
            return False
        return function in self._names.bindings(function.name, self._tree.scope(call))

    def _of_method(self, call: ast.Call, function: Named, owner: ast.ClassDef | None) -> bool:
        if not isinstance(call.func, ast.Attribute) or owner is None:
            return False
        caller = self._tree.function(call)
        while isinstance(caller, ast.Lambda) or (caller is not None and self._tree.class_of(caller) is None):
            caller = self._tree.function(caller)
        calling = self._tree.class_of(caller) if caller is not None else None
        base = call.func.value
        if isinstance(base, ast.Name) and base.id not in ("self", "cls"):
            return base.id == owner.name
        if calling is None or not (isinstance(base, ast.Name) or _is_super(base)):
            return False
        if _is_super(base):  # the next class in line, never the one that says super()
            return calling is not owner and owner in self._classes.lineage(calling)
        return owner in self._classes.lineage(calling) or calling in self._classes.lineage(owner)


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def passed_argument(call: ast.Call, function: Named, name: str, *, method: bool) -> ast.expr | None:
    """The expression that ``call`` passes for the parameter ``name``; None where it passes none that can be seen."""
    positional = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    position = positional.index(name) - method if name in positional else -1
    return argument(call, name, position if position >= 0 else None)
