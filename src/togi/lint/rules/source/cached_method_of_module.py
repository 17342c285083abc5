"""The rule ``cached-method-of-module``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.hints import annotated
from togi.lint.source.model import Source
from togi.lint.source.value import ValueKind

_CACHES = ("functools.lru_cache", "functools.cache")


class CachedMethodOfModule(SourceRule):
    """``lru_cache`` holds on to modules or tensors.

    What it reports: ``functools.lru_cache`` or ``functools.cache`` on a method of a module, and on functions with a
    parameter that is annotated as a tensor or a module.

    Why it costs: the cache belongs to the class and keeps every argument alive, ``self`` too: a module that was deleted
    keeps its parameters in memory, and the results stay on the device where they were made first. Tensors are compared
    by identity, so the same values in a new tensor are computed again, and kept again.

    When it stays silent: static and class methods and functions of numbers, strings and devices;
    ``functools.cached_property``, which lives and dies with its object.

    Example::

        class Attention(nn.Module):
            @functools.lru_cache(maxsize=None)
            def mask(self, size):
                return torch.ones(size, size, device=self.weight.device).tril()

    Use instead::

        @functools.lru_cache(maxsize=8)
        def mask(size, device):
            return torch.ones(size, size, device=device).tril()

    or a buffer that is made anew where the size changes.

    Source: https://docs.python.org/3/faq/programming.html#how-do-i-cache-method-calls
    """

    id = "cached-method-of-module"

    def check(self, source: Source) -> Iterable[Finding]:
        if "cache" not in source.text:
            return
        for function in source.nodes(ast.FunctionDef):
            cache = next((node for node in function.decorator_list if _is_cache(source, node)), None)
            contents = _held(source, function) if cache is not None else ""
            if cache is not None and contents:
                yield source.finding(
                    self.id,
                    cache,
                    f"the cache of {function.name} keeps {contents} alive that it was ever called with",
                    "cache a function of sizes and devices outside of the class, or keep the result as a buffer",
                )


def _is_cache(source: Source, decorator: ast.expr) -> bool:
    func = decorator.func if isinstance(decorator, ast.Call) else decorator
    return source.qualified(func) in _CACHES


def _held(source: Source, function: ast.FunctionDef) -> str:
    """What the cache of ``function`` holds on to: modules, tensors, or nothing."""
    owner = source.index.class_of(function)
    decorators = {source.qualified(decorator) for decorator in function.decorator_list}
    takes_self = bool(function.args.args) and decorators.isdisjoint(("staticmethod", "classmethod"))
    if owner is not None and takes_self and source.classes.is_module(owner):
        return "every module"
    scope = source.scope(function)
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    kinds = {
        annotated(parameter.annotation, lambda node: source.names.qualified(node, scope)).kind
        for parameter in parameters
    }
    return "every tensor" if ValueKind.TENSOR in kinds else "every module" if ValueKind.MODULE in kinds else ""
