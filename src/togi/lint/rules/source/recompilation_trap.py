"""The rule ``recompilation-trap``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from togi.lint.finding import Finding
from togi.lint.rule import SourceRule
from togi.lint.source.compiled import compilation, compile_calls, is_compile, loop_names, names_in
from togi.lint.source.identifiers import is_own
from togi.lint.source.model import Source
from togi.lint.source.surroundings import statement_loops
from togi.lint.source.syntax import argument, arguments_of, is_constant
from togi.lint.source.value import ValueKind


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
        if "compile" in source.text:
            yield from self._numbers(source)
            yield from self._counters(source)
            yield from self._closures(source)

    def _numbers(self, source: Source) -> Iterator[Finding]:
        for call in source.nodes(ast.Call):
            changing = _changing_numbers(source, call)
            compiled = compilation(source, call.func) if changing else None
            if compiled is not None and not _is_dynamic(compiled):
                name = ast.unparse(changing[0])
                yield source.finding(
                    self.id,
                    call,
                    f"{ast.unparse(call.func)} is compiled, and {name} is another Python number in each call: it is "
                    "compiled again, for each value where the value must be known",
                    f"pass {name} as a tensor on the device (torch.arange(...) outside of the loop), or compile with "
                    "dynamic=True",
                    evidence=f"compiled in line {compiled.lineno}; {name} changes with the loop in line "
                    f"{source.loops(call)[0].lineno}",
                )

    def _counters(self, source: Source) -> Iterator[Finding]:
        for function in _compiled_functions(source):
            for node in source.walk(function, ast.AugAssign, ast.Assign):
                counter = _counter(node)
                if counter is not None and _starts_as_integer(source, counter):
                    name = ast.unparse(counter)
                    yield source.finding(
                        self.id,
                        node,
                        f"{name} is a Python number that changes in a compiled {function.name}: each value is "
                        "compiled for itself, until the limit",
                        f"count outside of {function.name}, or make it a tensor: register_buffer and {name}.add_(1)",
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
    """Arguments that are Python numbers, another one in each pass of a loop."""
    values = arguments_of(call)
    if not values or not isinstance(call.func, ast.Name | ast.Attribute):
        return []
    loops = [loop for loop in statement_loops(source, call) if not isinstance(loop, ast.AsyncFor)]
    if not loops:
        return []
    counters = {name for loop in loops if isinstance(loop, ast.For) for name in _counting_names(source, loop)}
    bound = {name for loop in loops for name in loop_names(source, loop)}
    return [
        value for value in values if _is_arithmetic_of(source, value, counters) or _is_number_of(source, value, bound)
    ]


def _counting_names(source: Source, loop: ast.For) -> set[str]:
    """The name that counts in ``for i in range(...)`` and ``for i, x in enumerate(...)``."""
    function = source.qualified(loop.iter.func) if isinstance(loop.iter, ast.Call) else None
    target = loop.target
    if function == "enumerate" and isinstance(target, ast.Tuple):
        target = target.elts[0]
    return {target.id} if function in ("range", "enumerate") and isinstance(target, ast.Name) else set()


def _is_arithmetic_of(source: Source, node: ast.expr, counters: set[str]) -> bool:
    parts = source.walk(node)
    arithmetic = all(isinstance(part, ast.Name | ast.BinOp | ast.UnaryOp | ast.Constant) for part in parts)
    return arithmetic and not counters.isdisjoint(names_in(source, node))


def _is_number_of(source: Source, node: ast.expr, bound: set[str]) -> bool:
    """A Python number that one pass of the loop makes: a counter of ``while``, a length, an item of a tensor."""
    yes_or_no = isinstance(node, ast.Compare | ast.BoolOp | ast.Constant)
    return not yes_or_no and bool(names_in(source, node) & bound) and source.value(node).kind is ValueKind.NUMBER


def _is_dynamic(compiled: ast.expr) -> bool:
    return isinstance(compiled, ast.Call) and is_constant(argument(compiled, "dynamic"), True)


def _compiled_functions(source: Source) -> Iterable[ast.FunctionDef]:
    """Functions under a decorator that compiles, and ``forward`` of classes an instance of which is compiled."""
    functions = [
        function
        for function in source.nodes(ast.FunctionDef)
        if any(is_compile(source, decorator) for decorator in function.decorator_list)
    ]
    for call in compile_calls(source):
        model = source.value(call.args[0])
        if model.kind is ValueKind.MODULE and isinstance(model.definition, ast.ClassDef):
            methods = (node for node in model.definition.body if isinstance(node, ast.FunctionDef))
            functions += [method for method in methods if method.name == "forward"]
    return dict.fromkeys(functions)


def _counter(node: ast.AugAssign | ast.Assign) -> ast.Attribute | None:
    """``self.n`` of ``self.n += 1`` and ``self.n = self.n + 1``."""
    match node:
        case ast.AugAssign(target=ast.Attribute() as counter, value=step):
            pass
        case ast.Assign(targets=[ast.Attribute() as counter, *_], value=ast.BinOp(left=before, right=step)):
            if ast.unparse(before) != ast.unparse(counter):
                return None
        case _:
            return None
    whole = isinstance(step, ast.Constant) and type(step.value) is int
    return counter if whole and is_own(counter) else None


def _starts_as_integer(source: Source, counter: ast.Attribute) -> bool:
    """Whether an attribute is given a whole number anywhere."""
    name = ast.unparse(counter)
    return any(
        isinstance(assign.value, ast.Constant) and type(assign.value.value) is int
        for assign in source.nodes(ast.Assign)
        if any(isinstance(target, ast.Attribute) and ast.unparse(target) == name for target in assign.targets)
    )
