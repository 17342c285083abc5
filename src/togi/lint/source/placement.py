"""Tells where tensors and models lie: names of CUDA devices, and functions that compute on the CPU alone."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from togi.lint.source.syntax import called_method, last_name
from togi.lint.source.value import Value, ValueKind

if TYPE_CHECKING:
    from togi.lint.source.model import Source

_MOVING = frozenset(
    "to cuda xpu npu mps hpu ipu to_empty prepare setup setup_module parallelize dispatch_model".split()
)
_MAY_MOVE = ("device", "cuda", "gpu", "accelerat", "fabric", "trainer", "engine", "deepspeed", "fsdp", "parallel")
"""Parts of names whose mention makes it uncertain that all stays on the CPU."""
_DEFAULTS = ("set_default_device", "set_default_tensor_type")


def mentions_cuda(source: Source, node: ast.AST) -> bool:
    """Whether a string in the expression names a CUDA device: ``"cuda"``, ``"cuda:0"``, ``f"cuda:{rank}"``."""
    return any(
        isinstance(part.value, str) and part.value.startswith("cuda") for part in source.walk(node, ast.Constant)
    )


def cuda_names(source: Source) -> set[str]:
    """Names and attributes that a string with ``cuda`` is assigned to, also as a default or by argparse."""
    names: set[str] = set()
    for node in source.nodes(ast.Assign, ast.AnnAssign):
        if node.value is not None and mentions_cuda(source, node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {last_name(target) for target in targets}
    for call in source.nodes(ast.Call):
        if called_method(call) == "add_argument" and mentions_cuda(source, call):
            flags = [str(arg.value) for arg in call.args if isinstance(arg, ast.Constant)]
            names |= {flag.lstrip("-").replace("-", "_") for flag in flags}
    for function in source.nodes(ast.FunctionDef):
        with_defaults = zip(reversed(function.args.args), reversed(function.args.defaults), strict=False)
        names |= {arg.arg for arg, default in with_defaults if mentions_cuda(source, default)}
    return names - {""}


def computes_on_cpu(source: Source, node: ast.AST, value: Value) -> bool:
    """Whether ``value`` at ``node`` is computed on the CPU, because nothing that computes there was ever moved.

    So it is where the same function (or the script) makes each model that it calls, moves nothing, names no device, and
    hands none of the models on: PyTorch makes models on the CPU, and they compute with tensors that lie next to them.
    """
    region = source.function(node) or source.tree
    if value.device is not None or any(name in source.text for name in _DEFAULTS) or _may_move(source, region):
        return False
    called = [call.func for call in source.walk(region, ast.Call) if source.value(call.func).kind is ValueKind.MODULE]
    return bool(called) and all(_is_made_here(source, region, func) for func in called)


def _may_move(source: Source, region: ast.AST) -> bool:
    names = {last_name(node).lower() for node in source.walk(region, ast.Name, ast.Attribute)}
    names |= {(keyword.arg or "device").lower() for keyword in source.walk(region, ast.keyword)}
    return not names.isdisjoint(_MOVING) or any(part in name for name in names for part in _MAY_MOVE)


def _is_made_here(source: Source, region: ast.AST, func: ast.expr) -> bool:
    """Whether the model that ``func`` names is made in ``region`` and stays in it."""
    model = source.value(func)
    maker = model.evidence.origin
    if not model.certain or not isinstance(maker, ast.Call) or not isinstance(func, ast.Name):
        return False
    if (source.function(maker) or source.tree) is not region:
        return False
    if isinstance(model.definition, ast.ClassDef) and _may_move(source, model.definition):
        return False
    return not any(_hands_on(source, use) for use in source.walk(region, ast.Name) if use.id == func.id)


def _hands_on(source: Source, use: ast.Name) -> bool:
    """``fit(model)``, ``return model``, ``self.model = model``: what others do with it, this function does not show."""
    above = source.parent(use)
    if isinstance(use.ctx, ast.Store):
        return False
    if isinstance(above, ast.Call) and above.func is not use:
        return not (source.qualified(above.func) or "").startswith("torch.")
    return not isinstance(above, ast.Call | ast.Attribute)
