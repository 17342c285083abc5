"""The rule ``nonexistent-function``."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator

from togi.lint.data.deprecated_names import GONE
from togi.lint.data.torch_names import behind_installed, torch_names
from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.compatibility import guarded, probed
from togi.lint.source.model import Source
from togi.lint.source.surroundings import climb

_PLUGINS = {"npu", "mlu", "hpu", "musa", "ipu", "xla", "dml", "maia", "sdaa", "gcu", "ptpu", "privateuseone", "vacc"}
"""Packages of other devices that add themselves to ``torch``."""
_ELSEWHERE = ("torch", "torch.nn", "torch.nn.functional", "torch.linalg", "torch.fft", "torch.special", "torch.optim")
_SEARCH = 10_000
"""Steps of comparing a name with all that a module has."""


class NonexistentFunction(SourceRule):
    """A name that PyTorch does not have.

    What it reports: attributes of PyTorch's public modules, and names imported from them, that torch 2.15 does not
    have: removed ones (``torch.rfft``, ``torch.onnx.dynamo_export``), invented ones (``torch.compiler.optimize``),
    misspelled ones (``torch.cuda.synchronise``), and settings of ``torch.backends`` that do not exist, whose assignment
    has no effect.

    Why it costs: the line raises AttributeError when it is reached, or, as an assignment, silently sets nothing.

    When it stays silent: under ``try``, ``hasattr`` or a test of the version; where the file sets the name itself or
    asks for it by ``getattr``; private names; annotations; ``torch.ops`` and other modules that make up attributes when
    asked; devices of plugins (``torch.npu``); and what follows a class or function (``torch.Tensor.foo``). Where a
    later torch than 2.15 is installed, only names known to be gone, or never to have existed, are reported.

    Example::

        model = torch.compiler.optimize(model)
        torch.backends.cudnn.benchmrk = True

    Use instead::

        model = torch.compile(model, mode="reduce-overhead")
        torch.backends.cudnn.benchmark = True

    Source: the names of the installed torch 2.15, read by ``togi.lint.data.torch_names``;
    https://docs.pytorch.org/docs/stable/torch.compiler_api.html
    """

    id = "nonexistent-function"

    def check(self, source: Source) -> Iterable[Finding]:
        if "torch" not in source.text:
            return
        absent = [*_absent_attributes(source), *_absent_imports(source)]
        assigned = {name for node, name in absent if _is_stored(node) and not name.startswith("torch.backends.")}
        for node, name in absent:
            silent = name in assigned or _annotates(source, node) or probed(source, name.rpartition(".")[2])
            if not silent and not guarded(source, node):
                source.index.budget.take(_SEARCH)
                yield source.finding(self.id, node, _message(node, name), _remedy(name))


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)


def _annotates(source: Source, node: ast.AST) -> bool:
    """Whether a name stands in an annotation, which most files never evaluate."""
    for above, child in climb(source, node):
        if isinstance(above, ast.stmt | ast.arg):
            return child in (getattr(above, "annotation", None), getattr(above, "returns", None))
    return False


def _message(node: ast.AST, name: str) -> str:
    version = torch_names().version
    if _is_stored(node):
        return f"torch {version} has no setting {name}: the assignment raises nothing and changes nothing"
    return f"torch {version} has no {name}"


def _remedy(name: str) -> str:
    if name in GONE:
        return f"use {GONE[name]}"
    module, _, last = name.rpartition(".")
    modules = torch_names().modules
    near = difflib.get_close_matches(last, modules.get(module, frozenset()), n=1, cutoff=0.75)
    if near:
        return f"did you mean {module}.{near[0]}?"
    home = next((place for place in _ELSEWHERE if last in modules[place]), None)
    return f"did you mean {home}.{last}?" if home else f"look for its successor in the documentation of {module}"


def _absent_attributes(source: Source) -> Iterator[tuple[ast.Attribute, str]]:
    roots = _roots(source)
    for node in source.nodes(ast.Attribute):
        if type(node.value) is ast.Name and node.value.id in roots and (base := source.qualified(node.value)):
            yield from _absent_in_chain(source, node, base)


def _roots(source: Source) -> set[str]:
    """Local names under which ``torch`` or something in it was imported."""
    aliases = [alias for node in source.nodes(ast.Import) for alias in node.names if alias.name.startswith("torch")]
    for node in source.nodes(ast.ImportFrom):
        if not node.level and (node.module or "").partition(".")[0] == "torch":
            aliases += node.names
    return {alias.asname or alias.name.partition(".")[0] for alias in aliases}


def _absent_in_chain(source: Source, node: ast.Attribute, module: str) -> Iterator[tuple[ast.Attribute, str]]:
    """The first attribute of a chain that its module lacks, as long as what came before are modules."""
    modules = torch_names().modules
    while module in modules:
        name = f"{module}.{node.attr}"
        if name not in modules:
            if _lacks(module, node.attr):
                yield node, name
            return
        above = source.parent(node)
        if not isinstance(above, ast.Attribute):
            return
        node, module = above, name


def _lacks(module: str, attribute: str) -> bool:
    """Whether a module of torch has no such attribute."""
    if f"{module}.{attribute}" in GONE:
        return True
    return (
        not behind_installed()
        and not attribute.startswith("_")
        and attribute not in torch_names().modules[module]
        and (module != "torch" or attribute not in _PLUGINS)
    )


def _absent_imports(source: Source) -> Iterator[tuple[ast.AST, str]]:
    for node in source.nodes(ast.ImportFrom):
        if node.level or not node.module or not node.module.startswith("torch"):
            continue
        if absent := _absent_module(node.module):
            yield node, absent
        else:
            names = ((alias, f"{node.module}.{alias.name}") for alias in node.names)
            yield from ((alias, name) for alias, name in names if _is_absent(name))
    for node in source.nodes(ast.Import):
        for alias in node.names:
            if absent := _absent_module(alias.name):
                yield alias, absent


def _is_absent(name: str) -> bool:
    """Whether a dotted name is neither a module of torch nor something in one."""
    module, _, last = name.rpartition(".")
    modules = torch_names().modules
    return name in GONE or (last != "*" and module in modules and name not in modules and _lacks(module, last))


def _absent_module(path: str) -> str | None:
    """The part of a module's path that does not exist, or None where all of it may."""
    parts = path.split(".")
    names = (".".join(parts[:count]) for count in range(2, len(parts) + 1))
    return next((name for name in names if _is_absent(name)), None)
