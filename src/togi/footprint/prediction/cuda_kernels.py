"""Replaces, while a step runs on fake CPU tensors, what CUDA does by other kernels than the CPU.

Only what changes memory is replaced: fused attention (which keeps the log-sum-exp and not the matrix of weights),
dropout (which keeps one byte per element), and recurrent layers (one call with a reserve). The results have the right
shapes and no meaning.

Source: aten/src/ATen/native/transformers/cuda/{sdp_utils.cpp, attention.cu, attention_backward.cu}, flash_api.cpp,
aten/src/ATen/native/Dropout.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from togi.torch_internals.modes import FunctionObserver
from togi.torch_internals.operators import attention_of_operators

_FLASH_WIDTH = 256
"""Largest head dimension of flash attention."""
_FLASH_ROWS = 128
"""Its backward rounds the sequence to multiples of it."""
_EFFICIENT_ROWS = 32
"""Memory-efficient attention rounds the log-sum-exp to multiples of it."""
_RESERVE_STATES = 6
"""Values per hidden unit and time step that cuDNN keeps of a recurrent layer: four gates, the cell and the output of
an LSTM. Not documented by cuDNN; the error bar covers half and double of it."""


class CudaKernels(FunctionObserver):
    """A mode for the time of the run. Afterwards ``attention`` and ``reserve_bytes`` say what was replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.attention: dict[str, int] = {}
        """Backend -> calls."""
        self.reserve_bytes = 0
        """Guessed reserves of recurrent layers, all together."""

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return self._replacements().get(function, function)(*args, **kwargs)

    def _replacements(self) -> dict[Any, Callable[..., Any]]:
        return {
            functional.scaled_dot_product_attention: self._attention,
            torch.nn.functional.dropout: _dropout,
            torch.dropout: _native_dropout,
            torch.lstm: self._recurrent(torch.lstm),
            torch.gru: self._recurrent(torch.gru),
            torch.rnn_tanh: self._recurrent(torch.rnn_tanh),
            torch.rnn_relu: self._recurrent(torch.rnn_relu),
        }

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        backend = attention_backend(query, key, value, attn_mask, enable_gqa=enable_gqa)
        self.attention[backend] = self.attention.get(backend, 0) + 1
        if backend == "math":
            return _math_attention(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)  # the kernels take a bias
        output: Tensor = _FusedAttention.apply(query, key, value, attn_mask, backend)
        return output

    def _recurrent(self, func: Any) -> Callable[..., Any]:
        def run(given: Tensor, hidden: Any, weights: Any, *rest: Any) -> Any:
            if not isinstance(weights, list | tuple):  # packed sequences: (data, batch_sizes, hidden, weights, ...)
                return func(given, hidden, weights, *rest)
            _, layers, _, train, bidirectional, batch_first = rest
            states = hidden if isinstance(hidden, tuple | list) else (hidden,)
            reserve = _reserve(given, states[0], layers, bidirectional) if train else 0
            self.reserve_bytes += reserve * given.element_size()
            out = _Recurrent.apply(reserve, batch_first, 2 if bidirectional else 1, given, *states, *weights)
            return out

        return run


def attention_backend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, enable_gqa: bool = False
) -> str:
    """``flash``, ``efficient`` or ``math``: torch's choice on a device of compute capability 8.0 or above.

    Two of Hopper's own (cuDNN's attention, from 9.15.1 on) keep the same as flash attention.
    """
    if query.dim() != 4 or 0 in (*query.shape, *key.shape):
        return "math"
    half = query.dtype in (torch.float16, torch.bfloat16)
    widths = {query.shape[-1], key.shape[-1], value.shape[-1]}
    dense = all(t.stride(-1) == 1 for t in (query, key, value))
    if half and mask is None and len(widths) == 1 and max(widths) <= _FLASH_WIDTH and dense:
        return "flash"
    align = 8 if half else 4
    same_heads = query.shape[1] == key.shape[1] and not enable_gqa
    if same_heads and dense and (half or query.dtype == torch.float32) and all(w % align == 0 for w in widths):
        return "efficient"
    return "math"


class _FusedAttention(torch.autograd.Function):
    """Keeps query, key, value, the output, the log-sum-exp and the bias; backward makes the accumulators it needs."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, backend: str) -> Tensor:
        batch, heads, rows, _ = query.shape
        out = query.new_empty((batch, rows, heads, value.shape[-1])).transpose(1, 2)
        needed = any(t.requires_grad for t in (query, key, value))
        kept_rows = rows if backend == "flash" else _up(rows, _EFFICIENT_ROWS)
        lse = query.new_empty((batch, heads, kept_rows if needed or backend == "flash" else 0), dtype=torch.float32)
        ctx.backend = backend
        ctx.save_for_backward(query, key, value, bias, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        query, key, value, bias, _out, lse = ctx.saved_tensors
        batch, heads, rows, width = query.shape
        if ctx.backend == "flash":
            padded = _up(rows, _FLASH_ROWS)
            held = [lse.new_empty((batch, heads, padded)), lse.new_empty((batch, padded, heads, _up(width, 32)))]
            if key.shape[1] != heads:  # grouped queries: gradients of keys and values are summed over each group
                held += [torch.empty_like(query), torch.empty_like(query)]
        else:
            held = [torch.empty_like(lse)]
            if query.dtype != torch.float32:  # gradients are accumulated in 32 bits
                held += [query.new_empty(t.shape, dtype=torch.float32) for t in (query, key, value)]
        gradients = [_transposed_like(t) for t in (query, key, value)]
        del held
        return (*gradients, torch.empty_like(bias) if bias is not None and bias.requires_grad else None, None)


class _Recurrent(torch.autograd.Function):
    """One cuDNN call for all layers: output, last states, and the reserve that backward needs."""

    @staticmethod
    def forward(
        ctx: Any, reserve: int, batch_first: bool, directions: int, given: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        states = [tensor for tensor in rest[:2] if tensor.dim() == 3]  # one or two: weights and biases have fewer
        hidden_size = rest[0].shape[-1]
        reserved = given.new_empty(reserve)
        if batch_first:
            given = given.transpose(0, 1)
        out = given.new_empty((*given.shape[:2], directions * hidden_size))
        ctx.save_for_backward(given, out, reserved, *rest)
        ctx.batch_first = batch_first
        lasts = [torch.empty_like(state) for state in states]
        return (out.transpose(0, 1) if batch_first else out, *lasts)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        given, _out, _kept, *rest = ctx.saved_tensors
        for_given = torch.empty_like(given)
        for_rest = [torch.empty_like(tensor) if tensor.requires_grad else None for tensor in rest]
        return (None, None, None, for_given.transpose(0, 1) if ctx.batch_first else for_given, *for_rest)


def _reserve(given: Tensor, state: Tensor, layers: int, bidirectional: bool) -> int:
    steps = given.shape[0] * given.shape[1]
    return steps * state.shape[-1] * layers * (2 if bidirectional else 1) * _RESERVE_STATES


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.dropout_(input, p, training) if inplace else _native_dropout(input, p, training)


def _native_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    return torch.native_dropout(input, p, True)[0] if train and p > 0 else input


def _math_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, causal: bool, grouped: bool
) -> Tensor:
    answer: tuple[Tensor, Tensor] = attention_of_operators(
        query, key, value, mask, dropout_p, causal, enable_gqa=grouped
    )
    return answer[0]


def _transposed_like(tensor: Tensor) -> Tensor:
    """A gradient in the kernels' own order: (batch, rows, heads, width)."""
    batch, heads, rows, width = tensor.shape
    return tensor.new_empty((batch, rows, heads, width)).transpose(1, 2)


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
