"""TorchScript: the attributes that its calls assign, and its operators as a plain graph.

Behind it: ``torch._C._is_tracing`` and ``torch._C._dispatch_tls_is_dispatch_key_included`` (torch 2.9 to 2.15). When
they go: ``torch.jit.is_tracing``, which has no types, and ``torch.compiler.is_exporting``, which does not tell threads
apart.

Behind it: ``ScriptModule._c``, its methods' ``inlined_graph`` with the nodes of ``torch._C.Graph``, and
``make_fx`` and ``ProxyTorchDispatchMode`` of torch.fx.experimental.proxy_tensor (torch 2.9 to 2.15). When they go:
``ScriptModule.code`` names the assignments too; a module of TorchScript would be left to the engines that read it
themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, make_fx

from togi.torch_internals.modes import dispatch_modes
from togi.torch_internals.tensors import FakeTensorMode


def is_traced() -> bool:
    """Whether what runs now in this thread is recorded by ``torch.jit.trace``, or before autograd (``torch.export``,
    ``make_fx(pre_dispatch=True)``), whose mode is not among ``dispatch_modes``."""
    traced: bool = torch._C._is_tracing()
    return traced or torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PreDispatch)


def is_recorded() -> bool:
    """Whether what runs now in this thread is recorded (``torch.jit.trace``, ``torch.export``, ``make_fx``) or runs on
    fake tensors, where what torch does not see would become a constant.

    Not asked is ``torch.compiler.is_exporting()``, which is true in all threads while one of them exports.
    """
    return is_traced() or any(isinstance(mode, FakeTensorMode | ProxyTorchDispatchMode) for mode in dispatch_modes())


def holds_torchscript(module: nn.Module) -> bool:
    """Return whether it or a part of it is a ScriptModule."""
    return any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())


def assigned_attributes(module: nn.Module) -> list[str]:
    """Those that a call of a ScriptModule may assign, by their names below it; none for any other module."""
    own: Any = getattr(module, "_c", None) if isinstance(module, torch.jit.ScriptModule) else None
    if own is None or not own._has_method("forward"):
        return []
    graph = own._get_method("forward").inlined_graph  # a tuned part may stand in the module's ``forward``
    assignments = graph.findAllNodes("prim::SetAttr", True)
    return sorted({".".join([*_path(next(node.inputs())), node.s("name")]) for node in assignments})


def assigned_inside(module: nn.Module) -> list[str]:
    """The same of all TorchScript inside of a module."""
    if isinstance(module, torch.jit.ScriptModule):
        return assigned_attributes(module)
    return sorted({name for child in module.children() for name in assigned_inside(child)})


def _path(value: Any) -> Iterator[str]:
    """The names that lead from the module to a part of it."""
    node = value.node()
    if node.kind() == "prim::GetAttr":
        yield from _path(next(node.inputs()))
        yield node.s("name")


def attribute_of(owner: nn.Module, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """How an attribute of a module is read (None where it is not there yet) and written. TorchScript's own at once: by
    way of its Python class each takes a microsecond more, and streaming models do it in every call."""
    own = getattr(owner, "_c", None) if isinstance(owner, torch.jit.ScriptModule) else None
    if own is not None and own.hasattr(name):
        return partial(own.getattr, name), partial(own.setattr, name)
    return partial(getattr, owner, name, None), partial(setattr, owner, name)


def operators_of(call: Callable[..., Any], inputs: Sequence[Tensor]) -> fx.GraphModule:
    """A graph of the ATen operators that a call runs, the interpreter of TorchScript included: for the sizes of these
    inputs, and on the side of each branch that they take. Its parameters and buffers are those of the modules called.

    Raises RuntimeError and others where a value decides what runs.
    """
    with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
        call(*(tensor.clone() for tensor in inputs))  # compiles, which compares constants: no operator of the call
        return make_fx(call, pre_dispatch=True)(*inputs)
