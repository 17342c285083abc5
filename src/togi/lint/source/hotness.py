"""Finds the places that run often: once per forward pass, batch or step.

Hot are ``forward`` of modules, steps of trainers (``training_step``), configured functions, loops over DataLoaders,
loops that call a module, ``backward()`` or an optimizer's ``step()`` in every turn, and the functions of the file that
are called from any of these. Not hot are constructors, representations, data preparation, tests, and branches that run
rarely (``cold_branches``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from togi.lint.source.budget import INTERPRETED
from togi.lint.source.cold_branches import RareBranches, fills_cache, returns_cached, runs_few_times
from togi.lint.source.flow import Flow
from togi.lint.source.syntax import last_name, position
from togi.lint.source.tree import COMPREHENSIONS, FUNCTIONS, LOOPS, Function, Loop, block_of, repeats
from togi.lint.source.value import Hot, ValueKind, excerpt, gives_batches

STEPS = frozenset(
    """training_step validation_step test_step predict_step compute_loss train_step eval_step val_step
    training_substep""".split()
)
_NEVER = re.compile(
    r"^(__init__|__new__|__repr__|__str__|extra_repr|__getitem__|__getitems__|__len__|__post_init__|__setstate__|setup|"
    r"reset_parameters|_?init_weights|_?reset_parameters|\w*collate\w*|configure_\w+|load_\w+|save_\w+|state_dict|"
    r"_load_from_state_dict|test_\w+|on_\w+_end|on_\w+_start|on_fit\w*|prepare_data|post_?process\w*|from_pretrained|"
    r"main|build_\w+|\w*warm_?up\w*|switch_to_deploy|fuse|export\w*|visuali[sz]e\w*|plot\w*|draw\w*)$"
)
_PREPARATION = re.compile(
    r"(^|/)(\w*transforms?|\w*augment\w*|datasets?|(\w+_)?processing\w*|feature_extraction_\w*|tokenization_\w*|collat\w*)"
    r"(/|\.py$|_)"
)
"""Files that prepare data, on the CPU by nature."""
_PREPARING = re.compile(r"(Transform|Augment\w*|Processor|FeatureExtractor|Tokenizer|Collator)$")
_CHECKS = re.compile(r"(check|assert|raise)")
_WARM_UP = re.compile(r"warm_?up", re.IGNORECASE)


_MAY_BE_RARE = {ast.Raise, ast.Assert, ast.ExceptHandler, ast.If, ast.IfExp, ast.BoolOp}
_Way = tuple[list[Loop], Function | None, bool]
"""The loops that repeat a place, its function, and whether something on the way makes it rare."""
_RARE: _Way = ([], None, True)


class Hotness:
    """Hot places of one file."""

    def __init__(self, flow: Flow, configured: frozenset[str], path: str) -> None:
        self._flow = flow
        self._tree = flow.tree
        self._classes = flow.classes
        self._configured = configured
        self._prepares_data = bool(_PREPARATION.search(path))
        self._functions: dict[ast.AST, str | None] = {}
        self._loops: dict[ast.AST, str | None] = {}
        self._ways: dict[ast.stmt, _Way] = {}
        self._skips: dict[ast.stmt, ast.stmt | None] = {}
        """By the first statement of a block, the one that skips the rest of the block most of the time."""

    def hot(self, node: ast.AST) -> Hot | None:
        """Why ``node`` runs often."""
        if self._prepares_data and not self._configured:
            return None
        loops, function, rare = self._climb(node)
        if rare:
            return None
        for loop in loops:
            reason = self.loop(loop)
            if reason is not None and self._may_be_hot(function):
                return Hot(reason, loop=loop)
        if function is not None:
            reason = self.function(function)
            if reason is not None:
                return Hot(reason, function=function)
        return None

    def _climb(self, node: ast.AST) -> _Way:
        """The loops that repeat ``node``, its function, and whether something on the way makes it rare."""
        loops: list[Loop] = []
        child = node
        while not isinstance(child, ast.stmt):
            above = self._tree.parents.get(child)
            if above is None:
                return loops, None, False
            if isinstance(above, ast.Lambda):
                return loops, above, False
            if self._is_rare(above, child):
                return _RARE
            if isinstance(above, LOOPS) and repeats(above, child):
                loops.append(above)
            child = above
        if child not in self._ways:
            self._ways[child] = self._climb_statements(child)
        around, function, rare = self._ways[child]
        return [*loops, *around], function, rare

    def _climb_statements(self, child: ast.AST) -> _Way:
        loops: list[Loop] = []
        once = False
        for above in self._tree.ancestors(child):
            if isinstance(child, ast.stmt):
                block = block_of(above, child)
                self._tree.budget.take(len(block) // 64)
                if self._passed_over(block, child):
                    return _RARE
                if isinstance(above, FUNCTIONS):
                    return loops, above, False
                if isinstance(above, ast.If | ast.ExceptHandler) and _leaves(block):
                    once = True
            if self._is_rare(above, child):
                return _RARE
            if isinstance(above, LOOPS):
                if not once and repeats(above, child):
                    loops.append(above)
                once = False
            child = above
        return loops, None, False

    def _is_rare(self, above: ast.AST, child: ast.AST) -> bool:
        if type(above) not in _MAY_BE_RARE:
            return False
        if isinstance(above, ast.Raise | ast.ExceptHandler):
            return True
        if isinstance(above, ast.Assert):
            return child is above.msg
        if isinstance(above, ast.If | ast.IfExp) and child is not above.test:
            rare = self._rare(above.test, above)
            body = above.body if isinstance(above.body, list) else [above.body]
            if rare is not None:
                return rare is (child in body)
            if not isinstance(above, ast.If):
                return child is above.body and fills_cache(self._tree, above)
            if _fails(block_of(above, child)):
                return True
            return child in above.body and (fills_cache(self._tree, above) or runs_few_times(self._tree, above))
        if isinstance(above, ast.BoolOp) and isinstance(above.op, ast.And):
            self._tree.budget.take(len(above.values))
            before = above.values[: above.values.index(child)] if child in above.values else []
            return any(self._rare(condition, above) is True for condition in before)
        return False

    def _rare(self, test: ast.expr, at: ast.AST) -> bool | None:
        self._tree.budget.take(INTERPRETED)
        scope = self._tree.scope(at)
        counters: set[str] = set()
        for loop in self._tree.loops(at):
            if isinstance(loop, ast.For | ast.AsyncFor):
                counters |= _counters(loop)
        branches = RareBranches(self._tree, lambda node: self._flow.names.qualified(node, scope), frozenset(counters))
        return branches.of(test)

    def _passed_over(self, block: Sequence[ast.stmt], child: ast.stmt) -> bool:
        """Whether an earlier statement of the block skips the rest most of the time: ``if step % n: continue``."""
        if not block:
            return False
        if block[0] not in self._skips:
            self._skips[block[0]] = next((s for s in block if self._skips_rest(s, block)), None)
        skip = self._skips[block[0]]
        return skip is not None and position(skip) < position(child)

    def _skips_rest(self, statement: ast.stmt, block: Sequence[ast.stmt]) -> bool:
        if not isinstance(statement, ast.If):
            return False
        leaves = isinstance(statement.body[-1], ast.Continue | ast.Return) and not statement.orelse
        if leaves and self._rare(statement.test, statement) is False:
            return True
        return returns_cached(self._tree, statement, block)

    def _may_be_hot(self, function: Function | None) -> bool:
        if function is None or isinstance(function, ast.Lambda):
            return True
        owner = self._tree.class_of(function)
        if function.name in ("main", "test") or function.name.startswith("load_"):
            return True
        return not _NEVER.match(function.name) and not (owner is not None and self._classes.is_dataset(owner))

    # Functions

    def function(self, function: Function) -> str | None:
        """Why ``function`` is called often."""
        if function not in self._functions:
            self._functions[function] = None  # for functions that call themselves
            self._functions[function] = self._function(function)
        return self._functions[function]

    def _function(self, function: Function) -> str | None:
        if isinstance(function, ast.Lambda):
            return self._through_outer(function)
        owner = self._tree.class_of(function)
        if self._is_configured(function, owner):
            return f"{function.name} is configured as hot"
        if _NEVER.match(function.name) or (owner is not None and self._classes.is_dataset(owner)):
            return None
        if owner is not None:
            reason = self._method(function, owner)
            if reason is not None:
                return reason
        elif self._tree.function(function) is not None:
            return self._through_outer(function)
        return self._through_calls(function)

    def _is_configured(self, function: ast.FunctionDef | ast.AsyncFunctionDef, owner: ast.ClassDef | None) -> bool:
        if not self._configured:
            return False
        full = f"{owner.name}.{function.name}" if owner is not None else function.name
        return any(name in (function.name, full) or name.endswith("." + full) for name in self._configured)

    def _method(self, function: ast.FunctionDef | ast.AsyncFunctionDef, owner: ast.ClassDef) -> str | None:
        name = f"{owner.name}.{function.name}"
        prepares = any(_PREPARING.search(base) for base in (owner.name, *self._classes.base_names(owner)))
        if prepares or "get_params" in self._classes.methods(owner):
            return None
        if self._classes.is_module(owner) and function.name in ("forward", "__call__"):
            return f"it runs in every call of {name}"
        if self._classes.is_autograd_function(owner) and function.name in ("forward", "backward"):
            return f"it runs in every call of {name}"
        if function.name in STEPS:
            return f"it runs in every {name}"
        return None

    def _through_outer(self, function: Function) -> str | None:
        above = self._tree.parents[function]
        if isinstance(function, ast.Lambda) and isinstance(above, ast.Call) and _CHECKS.search(ast.unparse(above.func)):
            return None  # the text of a check, made only where it fails
        hot = self.hot(function)
        return hot.reason if hot is not None else None

    def _through_calls(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str | None:
        for call in self._flow.callers.sites(function):
            hot = self.hot(call)
            if hot is not None:
                return f"{function.name} is called in line {call.lineno}, and {hot.reason}"
        return None

    # Loops

    def loop(self, loop: Loop) -> str | None:
        """Why ``loop`` is one over batches or steps."""
        if loop not in self._loops:
            self._loops[loop] = self._loop(loop)
        return self._loops[loop]

    def _loop(self, loop: Loop) -> str | None:
        iterated = iterated_by(loop)
        if iterated is not None:
            if any(_WARM_UP.search(last_name(node)) for node in self._tree.walk(iterated, ast.Name, ast.Attribute)):
                return None
            if gives_batches(self._flow.value(iterated)):
                return f"it runs for every batch of {excerpt(iterated, 40)} (loop in line {loop.lineno})"
        trigger = next(filter(None, map(self._trigger, direct_calls(loop))), None)
        return f"it runs in every turn of the loop in line {loop.lineno}, which calls {trigger}" if trigger else None

    def _trigger(self, call: ast.Call) -> str | None:
        func = call.func
        if isinstance(func, ast.Attribute):
            if func.attr == "backward":
                return "backward()"
            if func.attr == "step" and self._flow.value(func.value).kind is ValueKind.OPTIMIZER:
                return f"{excerpt(func, 40)}()"
        definition = self._flow.value(func).definition
        if isinstance(definition, ast.FunctionDef) and self._runs_module(definition):
            return f"{excerpt(func, 40)}(...), which runs a model"
        called = isinstance(func, ast.Name | ast.Attribute | ast.Subscript) and bool(call.args or call.keywords)
        return f"{excerpt(func, 40)}(...)" if called and self._flow.value(func).kind is ValueKind.MODULE else None

    def _runs_module(self, function: ast.FunctionDef) -> bool:
        """Whether a plain function calls a module once: not in a loop of its own, and not as its training."""
        if self._tree.class_of(function) is not None or not self._may_be_hot(function):
            return False
        if self._tree.walk(function, ast.For, ast.While):
            return False
        return any(
            isinstance(call.func, ast.Name) and call.args and self._flow.value(call.func).kind is ValueKind.MODULE
            for call in self._tree.walk(function, ast.Call)
        )


def direct_calls(loop: Loop) -> Iterator[ast.Call]:
    """Calls in every turn of ``loop``: not those in loops and functions inside it."""
    stack: list[ast.AST] = list(loop.body) if isinstance(loop, ast.For | ast.AsyncFor | ast.While) else _results(loop)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.FunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Call):
            yield node
        stack.extend(ast.iter_child_nodes(node))


def _results(loop: Loop) -> list[ast.AST]:
    if isinstance(loop, ast.DictComp):
        return [loop.key, loop.value]
    assert isinstance(loop, ast.ListComp | ast.SetComp | ast.GeneratorExp)
    return [loop.elt]


def iterated_by(loop: Loop) -> ast.expr | None:
    """What ``loop`` goes through; None for ``while``."""
    if isinstance(loop, ast.While):
        return None
    return loop.generators[0].iter if isinstance(loop, COMPREHENSIONS) else loop.iter


def _counters(loop: ast.For | ast.AsyncFor) -> set[str]:
    """Names that count the turns of ``loop``."""
    target = loop.target
    if isinstance(target, ast.Tuple) and isinstance(loop.iter, ast.Call) and target.elts:
        target = target.elts[0]
    return {target.id} if isinstance(target, ast.Name) else set()


def _fails(block: Sequence[ast.stmt]) -> bool:
    """Whether ``block`` ends with an exception or ``torch._assert(False, ...)``."""
    last = block[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and last.value.args:
        first = last.value.args[0]
        return isinstance(first, ast.Constant) and first.value is False and "assert" in ast.unparse(last.value.func)
    return isinstance(last, ast.Raise)


def _leaves(block: Sequence[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], ast.Break | ast.Return | ast.Raise)
