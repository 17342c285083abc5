"""Finds models that are used without training them, and what surrounds their calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from togi.lint.source.hints import guessed
from togi.lint.source.hotness import STEPS
from togi.lint.source.loaders import assigned
from togi.lint.source.syntax import arguments_of, called_method, first_name, is_constant, last_name
from togi.lint.source.torch_api import MODEL_LIBRARIES, SAME_MODULE
from togi.lint.source.tree import COMPREHENSIONS, Function, Loop
from togi.lint.source.value import Value, ValueKind

if TYPE_CHECKING:
    from togi.lint.source.model import Source


INFERENCE_NAMES = re.compile(
    r"(^|_)(eval\w*|valid\w*|val|test|predict\w*|infer\w*|generate|sample|extract\w*|embed\w*|score|benchmark|accuracy|"
    r"measure\w*)($|_)",
    re.IGNORECASE,
)
_TRAINING_CALLS = frozenset(["backward", "zero_grad", "manual_backward", "autograd_grad"])
_SETTERS = re.compile(r"(eval_mode|set_eval|to_eval|switch_to_eval|inference_mode_on|for_inference)")
_TRAINS = re.compile(r"(^|_)(train\w*|fit|optimi[sz]e\w*|update\w*|learn)($|_)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Use:
    """One call of a model outside of modules and training."""

    call: ast.Call
    model: ast.expr
    value: Value
    loop: Loop | None
    """The innermost hot loop around it."""
    function: Function | None


def uses_of_models(source: Source) -> tuple[Use, ...]:
    """Calls of models (not of layers inside of a module, not of losses) in places that do not train."""
    if source not in _uses:  # more than one rule asks
        _uses[source] = tuple(_uses_of_models(source))
    return _uses[source]


_uses: WeakKeyDictionary[Source, tuple[Use, ...]] = WeakKeyDictionary()


def _uses_of_models(source: Source) -> Iterator[Use]:
    in_module: dict[Function | None, bool] = {}
    for call in source.nodes(ast.Call):
        func = call.func
        if not isinstance(func, ast.Name | ast.Attribute) or not (call.args or call.keywords):
            continue
        function = source.function(call)
        if function not in in_module:
            in_module[function] = _belongs_to_module(source, function)
        if in_module[function]:
            continue
        value = source.value(func)
        if value.kind is not ValueKind.MODULE or is_layer(value) or _is_function(func, value):
            continue
        hot = source.hot(call)
        loop = hot.loop if hot is not None else None
        if loop is not None and first_name(func) in _targets(source, loop):
            continue
        if not trains(source, loop or function or source.tree) and not _trained_later(source, loop, function):
            yield Use(call, func, value, loop, function)  # type: ignore[arg-type]


def is_layer(value: Value) -> bool:
    """A single layer, a loss or a metric, not a model."""
    name = value.qualified or ""
    if name.startswith("torchmetrics."):
        return True
    return name.startswith("torch.nn.") and value.definition is None and not name.endswith("Sequential")


def _is_function(func: ast.Name | ast.Attribute, value: Value) -> bool:
    """``f = torch.compile(g)`` of something unknown that is not named like a model."""
    return value.qualified == "torch.compile" and guessed(last_name(func)).kind is not ValueKind.MODULE


def mode_calls(source: Source, region: ast.AST) -> Iterator[ast.Call]:
    """``eval()``, ``train()`` and functions named after setting the mode."""
    for call in source.walk(region, ast.Call):
        name = last_name(call.func)
        if (name in ("eval", "train") and isinstance(call.func, ast.Attribute)) or _SETTERS.search(name):
            yield call


def sets_training(call: ast.Call) -> bool:
    """``model.train()``; not ``model.train(False)``, ``model.train(mode)``, ``trainer.train(data)``."""
    if called_method(call) != "train":
        return False
    arguments = arguments_of(call)
    return not arguments or is_constant(arguments[0], True)


def set_to_eval(source: Source, use: Use) -> bool:
    """Whether the model was put into ``eval`` mode, or comes so, where its name or attribute is bound or before."""
    if "from_pretrained" in (use.value.qualified or ""):
        return True
    owner = source.index.class_of(use.function) if use.function is not None else None
    region = owner or use.function or source.tree
    name = ast.unparse(use.model)
    for call in mode_calls(source, region):
        if sets_training(call) or not isinstance(call.func, ast.Attribute):
            continue
        if ast.unparse(_moved_from(call.func.value)) == name:
            return True
    return any(not sets_training(call) for maker in assigned(source, use.model) for call in mode_calls(source, maker))


def _moved_from(node: ast.expr) -> ast.expr:
    """``model`` of ``model.to(device).half()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAME_MODULE:
        node = node.func.value
    return node


def _belongs_to_module(source: Source, function: Function | None) -> bool:
    """Whether it is a method of a module or of a class with foreign bases, a step of a trainer, or nested in one."""
    while function is not None:
        owner = source.index.class_of(function)
        name = getattr(function, "name", "")
        if owner is not None and (source.classes.is_module(owner) or name in STEPS or source.classes.is_dataset(owner)):
            return True
        if owner is not None and source.classes.foreign_bases(owner):
            return True  # the base decides when it is called, and under what
        function = source.function(function)
    return False


def trains(source: Source, region: ast.AST) -> bool:
    """Whether something in ``region`` computes gradients or steps an optimizer."""
    for call in source.walk(region, ast.Call):
        func = call.func
        name = last_name(func)
        if name in _TRAINING_CALLS or (isinstance(func, ast.Name) and _TRAINS.search(name)):
            return True
        if name == "grad" and "autograd" in ast.unparse(func):
            return True
        if name == "step" and isinstance(func, ast.Attribute) and source.value(func.value).kind is ValueKind.OPTIMIZER:
            return True
    return False


def _trained_later(source: Source, loop: ast.AST | None, function: Function | None) -> bool:
    """Whether ``backward()`` after the loop reaches what the loop collects."""
    if loop is None:
        return False
    bound = {node.id for node in source.walk(loop, ast.Name)}
    return any(
        bound & names
        for call, names in backward_calls(source, function or source.tree)
        if call.lineno > (loop.end_lineno or 0)  # type: ignore[attr-defined]
    )


def backward_calls(source: Source, region: ast.AST) -> Iterator[tuple[ast.Call, set[str]]]:
    """Calls of ``backward`` with the names from which they start."""
    for call in source.walk(region, ast.Call):
        if called_method(call) in ("backward", "manual_backward"):
            yield call, set(map(ast.unparse, source.walk(call, ast.Name, ast.Attribute)))


def _targets(source: Source, loop: ast.AST) -> set[str]:
    generators = loop.generators if isinstance(loop, COMPREHENSIONS) else [loop]
    targets = [getattr(generator, "target", None) for generator in generators]
    return {node.id for target in targets if target is not None for node in source.walk(target, ast.Name)}


_LAYERS = re.compile(
    r"^torch\.nn\.(modules\.\w+\.)?(\w*Dropout\w*|\w*BatchNorm\w*|Transformer\w*|RReLU)$|"
    r"^torch\.nn\.functional\.\w*dropout\w*$"
)


def depends_on_mode(source: Source, value: Value) -> bool:
    """Whether the model, made in this file, has a layer with a training mode, as far as the file shows."""
    if (value.qualified or "").startswith(MODEL_LIBRARIES):
        return True
    maker = value.definition if isinstance(value.definition, ast.ClassDef) else value.evidence.origin
    return isinstance(maker, ast.ClassDef | ast.Call) and _holds_layer(source, maker, set())


def _holds_layer(source: Source, node: ast.AST, visited: set[ast.AST]) -> bool:
    if node in visited:
        return False
    visited.add(node)
    bases = source.classes.bases(node) if isinstance(node, ast.ClassDef) else []
    if any(_holds_layer(source, base, visited) for base in bases):
        return True
    for call in source.walk(node, ast.Call):
        if not _without_effect(call):
            name = source.dotted(call.func)
            if _LAYERS.match(name) or name.startswith(MODEL_LIBRARIES):
                return True
            definition = source.value(call.func).definition
            if isinstance(definition, ast.ClassDef) and _holds_layer(source, definition, visited):
                return True
    return False


def _without_effect(call: ast.Call) -> bool:
    """``nn.Dropout(0.0)``."""
    arguments = arguments_of(call)
    return len(arguments) == 1 and is_constant(arguments[0], 0, 0.0)
