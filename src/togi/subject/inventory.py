"""An inventory of a module: layers by class, parameters, and what one forward pass calls and computes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from togi.torch_internals.modes import DispatchObserver, FunctionObserver
from togi.torch_internals.tensors import tensors_of

_LAYERS = ("torch.nn.modules.", "torch.ao.nn.", "torch.nn.quant")


def class_name(module: nn.Module) -> str:
    """The class as its author wrote it: TorchScript modules remember it."""
    return str(getattr(module, "original_name", "") or type(module).__name__)


def count_modules(module: nn.Module) -> dict[str, int]:
    """Modules by class, most frequent first. A subclass of a torch.nn layer counts as that layer too."""
    counts: Counter[str] = Counter()
    for part in module.modules():
        name = class_name(part)
        counts[name] += 1
        layer = _layer(type(part))
        if layer is not None and layer != name:
            counts[layer] += 1
    return dict(counts.most_common())


def _layer(cls: type) -> str | None:
    """The nearest public torch.nn class among the class and its ancestors; Module itself says nothing."""
    for base in cls.__mro__:
        if base.__module__.startswith(_LAYERS) and not base.__name__.startswith("_") and base is not nn.Module:
            return base.__name__
    return None


def parameter_facts(module: nn.Module) -> dict[str, Any]:
    """``parameters``, ``parameter_bytes``, ``parameter_dtypes`` of Facts. Each once, however many layers share it."""
    parameters = list(module.parameters())
    return {
        "parameters": sum(p.numel() for p in parameters),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "parameter_dtypes": tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
    }


def shared_parameters(module: nn.Module) -> list[str]:
    """``"encoder.weight = decoder.weight"`` for every parameter that stands in several places."""
    places: defaultdict[int, list[str]] = defaultdict(list)
    for owner_name, owner in module.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            places[id(parameter)].append(f"{owner_name}.{name}".removeprefix("."))
    return [" = ".join(names) for names in places.values() if len(names) > 1]


_MAPPED = {
    "addmm": "linear",
    "native_batch_norm": "batch_norm",
    "_native_batch_norm_legit_no_training": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "_batch_norm_no_update": "batch_norm",
    "_batch_norm_with_update": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "native_dropout": "dropout",
    "_unsafe_view": "view",
    "_to_copy": "to",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_cudnn_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math": "scaled_dot_product_attention",
    "max_pool2d_with_indices": "max_pool2d",
    "_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "mkldnn_rnn_layer": "lstm",
    "upsample_bilinear2d": "interpolate",
    "upsample_nearest2d": "interpolate",
}
"""Operator -> the function that Python code calls for it. Those not listed keep their name."""

_SILENT = frozenset(
    (
        "size dim stride numel is_contiguous is_floating_point detach data_ptr empty "
        "_set_grad_enabled device _assert_tensor_metadata storage_offset"
    ).split()
)
"""Questions about a tensor, not work."""


def count_functions(call: Callable[[], Any]) -> dict[str, int]:
    """Run ``call`` once and count by name, most frequent first. Operators in place count under their plain name.

    Two observers, because each is blind somewhere (``torch_internals.modes``): functions are not seen inside
    TorchScript or a composite such as multi-head attention, operators only under their decomposed name
    (``aten.convolution``, ``aten.addmm``), which is mapped back. A name's count is the larger of the two.
    """
    called, dispatched = _FunctionCounter(), _Dispatched()
    with dispatched, called:
        call()
    names = called.counts | dispatched.counts  # a Counter's | takes the larger count
    return dict(names.most_common())


class _FunctionCounter(FunctionObserver):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if name := _plain(getattr(function, "__name__", "")):
            self.counts[name] += 1
        return function(*args, **kwargs)


class _Dispatched(DispatchObserver):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        name = _plain(operator.overloadpacket.__name__)
        if name == "convolution":
            self.counts[_convolution(args)] += 1
        elif name:
            self.counts[_MAPPED.get(name, name)] += 1
        return operator(*args, **kwargs)


def _plain(name: str) -> str:
    """``__iadd__``, ``__radd__``, ``add_``, ``add.Tensor`` -> ``add``; empty for attributes and questions."""
    name = name.partition(".")[0]
    if name.startswith("__") and name.endswith("__"):
        name = name.strip("_")
        if name in ("get", "set", "getitem", "setitem", "len", "repr", "format", "bool", "contains", "hash"):
            return ""
        if name[:1] in "ri" and name[1:] in ("add", "sub", "mul", "truediv", "matmul", "pow", "floordiv"):
            name = name[1:]
        name = {"truediv": "div"}.get(name, name)
    elif name.endswith("_"):
        name = name.rstrip("_")
    return "" if name in _SILENT else name


def _convolution(args: Sequence[Any]) -> str:
    """``convolution(input, weight, bias, stride, padding, dilation, transposed, ...)`` -> ``conv2d``."""
    weight = args[1] if len(args) > 1 and isinstance(args[1], Tensor) else None
    dims = weight.dim() - 2 if weight is not None else 2
    transposed = bool(args[6]) if len(args) > 6 else False
    return f"conv_transpose{dims}d" if transposed else f"conv{dims}d"


class WinogradFlops(DispatchObserver):
    """Counts the operations of dense 3x3 convolutions of stride 1, as ``torch.utils.flop_counter`` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        result = operator(*args, **kwargs)
        if operator is torch.ops.aten.convolution.default:
            _, weight, _, stride, _, dilation, transposed, _, groups = args
            if (*weight.shape[2:], *stride, *dilation, transposed, groups) == (3, 3, 1, 1, 1, 1, False, 1):
                self.flops += 2 * result.numel() * weight[0].numel()
        return result


def meets_denormals(call: Callable[[], Any]) -> bool:
    """Run ``call`` once: does an operator read or write a denormal number, in float32 or float64?"""
    met = _Denormals()
    with met:
        call()
    return met.found


class _Denormals(DispatchObserver):
    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self.found = self.found or _any_denormal((args, kwargs))
        result = operator(*args, **kwargs)
        self.found = self.found or _any_denormal(result)
        return result


def _any_denormal(values: Any) -> bool:
    return any(
        tensor.layout is torch.strided and tensor.dtype in (torch.float32, torch.float64) and _has_denormal(tensor)
        for tensor in tensors_of(values)
    )


def _has_denormal(tensor: Tensor) -> bool:
    """Most tensors hold nothing that small, not even a zero: one pass without a copy tells."""
    tiny = torch.finfo(tensor.dtype).tiny
    if tensor.numel() == 0 or torch.linalg.vector_norm(tensor, -math.inf) >= tiny:
        return False
    return bool(((tensor != 0) & (tensor.abs() < tiny)).any())
