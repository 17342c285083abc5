"""The rule ``recompilation-trap``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.compiled import compilation, compile_calls, is_compile, loop_names, names_in
from togi.lint.source.syntax import argument, is_constant
from togi.lint.source.value import Kind

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_COUNTERS = {"range", "enumerate"}


class RecompilationTrap(SourceRule):
    """A compiled function that is compiled again because a Python number or a closure changes.

    What it reports: a compiled function that is called in a loop with the loop's counter, or another Python number that
    changes with it, as an argument; ``self.count += 1`` of a Python number in a ``forward`` that this file compiles; a
    lambda or a function over variables of the loop that is compiled in it.

    Why it costs: Python numbers are part of what a compiled function is specialised to. A number that is an argument
    costs a second compilation, and one for each value where it must be known (a branch, ``dropout(p)``,
    ``dynamic=False``). An integer attribute of a module costs one for each value: counted here (torch 2.15), 8 for 12
    calls, then eager for good.

    When it stays silent: the argument is a tensor, ``dynamic=True``, buffers, and loops over something else than
    numbers.

    Example::

        @torch.compile
        def noise(x, step): ...

        for step in range(1000):
            x = noise(x, step)

    Use instead::

        for step in torch.arange(1000, device=x.device):
            x = noise(x, step)

    Source: https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html (recompilations)
    """

    id = "recompilation-trap"

    def check(self, source: Source) -> Iterable[Finding]:
        yield from self._numbers(source)
        yield from self._counters(source)
        yield from self._closures(source)

    def _numbers(self, source: Source) -> Iterator[Finding]:
        if "torch.compile" not in source.text and "compile" not in source.text:
            return
        for call in source.nodes(ast.Call):
            changing = _changing_numbers(source, call)
            made = compilation(source, call.func) if changing else None
            if made is not None and not _is_dynamic(made):
                name = ast.unparse(changing[0])
                yield source.finding(
                    self.id,
                    call,
                    f"{ast.unparse(call.func)} is compiled, and {name} is another Python number in each call: it is "
                    "compiled again, for each value where the value must be known",
                    f"pass {name} as a tensor on the device (torch.arange(...) outside of the loop), or compile with "
                    "dynamic=True",
                    evidence=f"compiled in line {made.lineno}; {name} changes with the loop in line "
                    f"{source.loops(call)[0].lineno}",
                )

    def _counters(self, source: Source) -> Iterator[Finding]:
        for function in _compiled_forwards(source):
            for node in source.walk(function):
                counted = _counted(node)
                if counted is not None and _is_integer(source, counted):
                    target = ast.unparse(counted)
                    yield source.finding(
                        self.id,
                        node,
                        f"{target} is a Python number that changes in a compiled {function.name}: each value is "
                        "compiled for itself, until the limit",
                        f"count outside of {function.name}, or make it a tensor: register_buffer and {target}.add_(1)",
                    )

    def _closures(self, source: Source) -> Iterator[Finding]:
        for call in compile_calls(source):
            loops = source.loops(call)
            changing = names_in(source, call.args[0]) & loop_names(source, loops[0]) if loops else set()
            if changing and isinstance(call.args[0], ast.Lambda):
                yield source.finding(
                    self.id,
                    call,
                    f"a new lambda over {', '.join(sorted(changing))} is compiled in each pass of the loop",
                    "define and compile one function outside of the loop, and pass what changes as tensors",
                )


def _changing_numbers(source: Source, call: ast.Call) -> list[ast.expr]:
    """Arguments that are arithmetic of a loop's counter."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not arguments or not isinstance(call.func, ast.Name | ast.Attribute):
        return []
    loops = [loop for loop in source.loops(call) if isinstance(loop, ast.For | ast.While)]
    counters = {name for loop in loops if isinstance(loop, ast.For) for name in _counter(source, loop)}
    bound = {name for loop in loops for name in loop_names(source, loop)}
    return [
        arg
        for arg in arguments
        if loops and (_is_arithmetic_of(source, arg, counters) or _is_number_of(source, arg, bound))
    ]


def _counter(source: Source, loop: ast.For) -> set[str]:
    """The names that count in ``for i in range(...)`` and ``for i, x in enumerate(...)``."""
    if not isinstance(loop.iter, ast.Call) or source.qualified(loop.iter.func) not in _COUNTERS:
        return set()
    target = loop.target
    if source.qualified(loop.iter.func) == "enumerate" and isinstance(target, ast.Tuple):
        target = target.elts[0]
    return {target.id} if isinstance(target, ast.Name) else set()


def _is_arithmetic_of(source: Source, node: ast.expr, counters: set[str]) -> bool:
    parts = source.walk(node)
    allowed = (ast.Name, ast.BinOp, ast.UnaryOp, ast.Constant)
    return all(isinstance(part, allowed) for part in parts) and any(
        isinstance(part, ast.Name) and part.id in counters for part in parts
    )


def _is_number_of(source: Source, node: ast.expr, bound: set[str]) -> bool:
    """A Python number that one pass of the loop makes: a counter of ``while``, a length, an item of a tensor."""
    yes_or_no = isinstance(node, ast.Compare | ast.BoolOp | ast.Constant)
    return not yes_or_no and bool(names_in(source, node) & bound) and source.value(node).kind is Kind.NUMBER


def _is_dynamic(made: ast.expr) -> bool:
    return isinstance(made, ast.Call) and is_constant(argument(made, "dynamic"), True)


def _compiled_forwards(source: Source) -> Iterator[ast.FunctionDef]:
    """``forward`` where it is decorated, and of classes an instance of which is compiled in this file."""
    found = [one for one in source.nodes(ast.FunctionDef) if any(is_compile(source, d) for d in one.decorator_list)]
    for call in compile_calls(source):
        made = source.value(call.args[0])
        if made.kind is Kind.MODULE and isinstance(made.definition, ast.ClassDef):
            body = made.definition.body
            found += [one for one in body if isinstance(one, ast.FunctionDef) and one.name == "forward"]
    yield from dict.fromkeys(found)


def _counted(node: ast.AST) -> ast.Attribute | None:
    """``self.n`` of ``self.n += 1`` and ``self.n = self.n + 1``."""
    target: ast.expr
    step: ast.expr
    if isinstance(node, ast.AugAssign):
        target, step = node.target, node.value
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
        target, step = node.targets[0], node.value.right
        if ast.unparse(node.value.left) != ast.unparse(target):
            return None
    else:
        return None
    own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    whole = isinstance(step, ast.Constant) and type(step.value) is int
    return target if own and whole and isinstance(target, ast.Attribute) else None


def _is_integer(source: Source, target: ast.Attribute) -> bool:
    """Whether ``self.n`` starts as a Python integer."""
    starts = (other for other in source.nodes(ast.Assign) if any(_same(target, one) for one in other.targets))
    return any(isinstance(start.value, ast.Constant) and type(start.value.value) is int for start in starts)


def _same(one: ast.Attribute, other: ast.expr) -> bool:
    return isinstance(other, ast.Attribute) and ast.unparse(one) == ast.unparse(other)
