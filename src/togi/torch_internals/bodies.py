"""Python functions traced with the fake tensors of an exported graph.

Behind it: ``torch.fx.experimental.proxy_tensor.make_fx`` (torch 2.9 to 2.15), which follows such tensors with their
symbolic sizes, and ``ShapeEnv.ignore_fresh_unbacked_symbols``. When they go: operators with a Python body stay in
captured graphs, which engines outside of torch refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from togi.torch_internals.tensors import FakeTensor, tensors_of

_BY_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def traced_body(call: Callable[..., Any], values: Sequence[Any]) -> fx.GraphModule | None:
    """The ATen operators that ``call(*values)`` runs. None where values decide what runs or how large a result is, or
    where it holds tensors of its own.

    Args:
        values: fake tensors of one graph, and sizes.

    Raises whatever the function or the tracer raises.
    """
    fakes = [tensor for tensor in tensors_of(list(values)) if isinstance(tensor, FakeTensor)]
    if not fakes:
        return None
    mode = fakes[0].fake_mode
    sizes = mode.shape_env
    discarded = nullcontext() if sizes is None else sizes.ignore_fresh_unbacked_symbols()
    with mode, discarded, torch.no_grad():
        traced: fx.GraphModule = make_fx(call, pre_dispatch=True)(*values)
    nodes = list(traced.graph.nodes)
    if any(node.op in ("get_attr", "call_module") for node in nodes):
        return None
    tags = {tag for node in nodes if node.op == "call_function" for tag in getattr(node.target, "tags", ())}
    return None if tags & set(_BY_VALUES) else traced
