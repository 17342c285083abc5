"""Finds private torch APIs in Python source: names behind an underscore, however they are reached."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

TORCH_ATTRIBUTES = frozenset(
    {
        "_base",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_buffers",
        "_c",
        "_call_impl",
        "_cdata",
        "_compiled_call_impl",
        "_forward_hooks",
        "_forward_pre_hooks",
        "_modules",
        "_non_persistent_buffers_set",
        "_op",
        "_orig_mod",
        "_overloadpacket",
        "_parameters",
        "_schema",
        "_sequence_nr",
        "_typed_storage",
        "_version",
    }
)
"""Private attributes of torch's objects: reported also where a file has attributes of the same name for itself."""
_IMPORTERS = frozenset({"import_module", "__import__", "find_spec", "resolve_name", "pkgutil.resolve_name"})
_ACCESSORS = frozenset({"getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller"})
_STANDARD = frozenset({"_asdict", "_replace", "_fields", "_make", "_getframe", "_exit", "_missing_", "_current_frames"})
"""Names of the standard library that are public in spite of the underscore."""


@dataclass(frozen=True, kw_only=True)
class PrivateUse:
    """One private torch API in a file."""

    line: int
    name: str


def private_torch_uses(source: str, own: frozenset[str] = frozenset()) -> list[PrivateUse]:
    """Private torch APIs that ``source`` imports, reads, sets or names in ``getattr`` and ``import_module``.

    ``torch.ops`` is left out: underscores in operator names (``aten._softmax``) belong to the operator schema.
    An attribute ``x._name`` counts as torch's unless ``x`` is another package, or the file itself or ``own`` (names
    that the rest of the project defines) has ``_name``.
    """
    names = _Names(ast.parse(source))
    names.defined |= own
    found = {(line, name) for node in names.nodes for line, name in _uses(node, names)}
    return [PrivateUse(line=line, name=name) for line, name in sorted(found)]


def defined_names(source: str) -> set[str]:
    """Every function, class, variable and attribute of ``self`` that a file defines."""
    return _Names(ast.parse(source)).defined


class _Names:
    """What the names of a file stand for: dotted paths of imports and of their aliases; attributes it defines."""

    def __init__(self, tree: ast.Module) -> None:
        self.paths: dict[str, str] = {}
        self.defined: set[str] = set()
        self.nodes = [*ast.walk(tree)]
        for node in self.nodes:
            match node:
                case ast.Import():
                    for alias in node.names:
                        whole, _, _ = alias.name.partition(".")
                        self.paths[alias.asname or whole] = alias.name if alias.asname else whole
                case ast.ImportFrom():
                    for alias in node.names:
                        self.paths[alias.asname or alias.name] = f"{node.module or '.'}.{alias.name}"
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    self.defined.add(node.name)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    self.defined.add(name)
                case ast.Name(id=name, ctx=ast.Store()):
                    self.defined.add(name)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    self.defined.add(name)
        for node in self.nodes:  # a module under another name: aten = torch.ops.aten
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                path = self.path(node.value)
                if path:
                    self.paths.setdefault(node.targets[0].id, path)

    def path(self, node: ast.expr) -> str:
        """The dotted path behind an expression, "" when it does not start at an import."""
        match node:
            case ast.Name(id=name):
                return self.paths.get(name, "")
            case ast.Attribute(value=value, attr=attribute):
                before = self.path(value)
                return f"{before}.{attribute}" if before else ""
        return ""


def _uses(node: ast.AST, names: _Names) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Import():
            yield from ((node.lineno, a.name) for a in node.names if _private_path(a.name))
        case ast.ImportFrom(level=0):
            paths = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from ((node.lineno, path) for path in paths if _private_path(path))
        case ast.Attribute(value=value, attr=name) if _is_private(name):
            path = names.path(node)
            if path:
                if _private_path(path):
                    yield node.lineno, path
            elif _is_torch_attribute(value, name, names):
                yield node.lineno, f"...{name}"
        case ast.Call():
            yield from _named_in_text(node, names)
            if names.path(node.func).startswith("torch."):
                yield from (
                    (node.lineno, f"{names.path(node.func)}({k.arg}=)")
                    for k in node.keywords
                    if _is_private(k.arg or ".")
                )


def _named_in_text(call: ast.Call, names: _Names) -> Iterator[tuple[int, str]]:
    """``importlib.import_module("torch._dynamo")``, ``getattr(tensor, "_version")``."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if function in _IMPORTERS:
        yield from ((call.lineno, text) for text in texts if _private_path(text.replace(":", ".")))
    elif function in _ACCESSORS and texts:
        for name in texts[0].split("."):
            path = f"{names.path(call.args[0])}.{name}"
            if _is_private(name) and (_private_path(path) or _is_torch_attribute(call.args[0], name, names)):
                yield call.lineno, path.removeprefix(".") if _private_path(path) else f"...{name}"


_OTHER_LIBRARIES = {"ray"}
"""Modules that are handed on as arguments."""


def _is_torch_attribute(holder: ast.expr, name: str, names: _Names) -> bool:
    own = isinstance(holder, ast.Name) and holder.id in ("self", "cls")
    if getattr(holder, "attr", getattr(holder, "id", "")).lstrip("_") in _OTHER_LIBRARIES:
        return False
    if name in TORCH_ATTRIBUTES:
        return not (own and name in names.defined)
    return not own and name not in names.defined and name not in _STANDARD and not names.path(holder)


def _private_path(path: str) -> bool:
    parts = path.split(".")
    if parts[0] != "torch" or parts[1:2] == ["ops"]:
        return False
    return any(_is_private(part) for part in parts)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__")) and name != "_"
