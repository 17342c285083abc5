"""Which torch functions one forward pass calls, and how often.

Two observers, because each is blind somewhere (``torch_internals.modes``): functions are not seen inside TorchScript or
a composite such as multi-head attention, operators only under their decomposed name (``aten.convolution``,
``aten.addmm``), which is mapped back. A name's count is the larger of the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from togi.torch_internals.modes import DispatchObserver, FunctionObserver

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
    {
        "size",
        "dim",
        "stride",
        "numel",
        "is_contiguous",
        "is_floating_point",
        "detach",
        "data_ptr",
        "empty",
        "_set_grad_enabled",
        "device",
        "_assert_tensor_metadata",
        "storage_offset",
    }
)
"""Questions about a tensor, not work."""


def count_functions(call: Callable[[], Any]) -> dict[str, int]:
    """Run ``call`` once and count by name, most frequent first. Operators in place count under their plain name."""
    called, dispatched = _Called(), _Dispatched()
    with dispatched, called:
        call()
    names = called.counts | dispatched.counts  # a Counter's | takes the larger count
    return dict(names.most_common())


class _Called(FunctionObserver):
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
