"""Where autograd records and where it does not."""

from __future__ import annotations

import ast
from collections.abc import Callable

_OFF = ("torch.no_grad", "torch.inference_mode")


def sets_grad(node: ast.AST, qualified: Callable[[ast.AST], str | None]) -> bool | None:
    """What the context manager, decorator or call ``node`` does to autograd: False for off, True for on, else None."""
    call = node if isinstance(node, ast.Call) else None
    name = qualified(call.func if call else node) or ""
    if name in _OFF:
        off = _constant(call)
        return bool(off is False) if name == "torch.inference_mode" else False
    if name == "torch.enable_grad":
        return True
    if name in ("torch.set_grad_enabled", "torch._C._set_grad_enabled"):
        state = _constant(call)
        return state if isinstance(state, bool) else None
    if name.rpartition(".")[2] in ("no_grad", "inference_mode") and not name.startswith(("tensorflow", "paddle")):
        return False
    return None


def _constant(call: ast.Call | None) -> object:
    if call is None:
        return None
    first = [*call.args, *(keyword.value for keyword in call.keywords)][:1]
    return first[0].value if first and isinstance(first[0], ast.Constant) else None
