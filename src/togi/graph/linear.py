"""Calls of a captured graph as linear algebra: convolutions, linear layers, scale and shift per channel.

All tensors that leave here are float64: folding and merging compute in it and round once, back to the model's dtype.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from togi.graph.edit import EditableGraph, arguments, call_name, is_call, same_form, set_arguments, shape

CONVOLUTIONS = {f"conv{n}d.{form}": n for n in (1, 2, 3) for form in ("default", "padding")}
TRANSPOSED = {"conv_transpose1d.default": 1, "conv_transpose2d.input": 2, "conv_transpose3d.input": 3}
BATCH_NORMS = ("batch_norm.default", "_native_batch_norm_legit_no_training.default")


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A convolution (spatial dimensions n >= 1), transposed convolution or linear layer (n = 0) with constant weights.

    ``weight`` is float64 ``[out, in / groups, *kernel]`` (transposed: ``[in, out / groups, *kernel]``), ``bias``
    float64 ``[out]``. ``padding`` is the zero padding on both sides.
    """

    node: Node
    source: Node
    weight: Tensor
    bias: Tensor
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False

    @property
    def spatial(self) -> int:
        return self.weight.dim() - 2

    @property
    def out_channels(self) -> int:
        return int(self.bias.numel())

    @property
    def channel_dim(self) -> int:
        """The dimension of the output's channels: 1 for convolutions, the last for linear layers."""
        return 1 if self.spatial else len(shape(self.node)) - 1

    def scaled(self, scale: Tensor, shift: Tensor) -> Linear:
        """The same followed by ``y * scale + shift`` per output channel (float64 ``[out]`` each)."""
        return replace(self, weight=self.weight * self._per_output(scale), bias=self.bias * scale + shift)

    def preceded(self, scale: Tensor, shift: Tensor) -> Linear:
        """The same applied to ``x * scale + shift`` per input channel (float64 ``[in]``). Exact without padding
        only."""
        per_group = self.weight.shape[0] // self.groups
        grid = (self.groups, -1)
        scale_in = scale.view(grid).repeat_interleave(per_group, 0)  # [out, in / groups]
        shift_in = shift.view(grid).repeat_interleave(per_group, 0)
        added = (self.weight.flatten(2).sum(2) if self.spatial else self.weight) * shift_in
        weight = self.weight * scale_in.reshape(*scale_in.shape, *[1] * self.spatial)
        return replace(self, weight=weight, bias=self.bias + added.sum(1))

    def _per_output(self, scale: Tensor) -> Tensor:
        ones = [1] * self.spatial
        if not self.transposed:
            return scale.view(-1, 1, *ones)
        per_input = self.weight.shape[0] // self.groups
        return scale.view(self.groups, -1).repeat_interleave(per_input, 0).view(self.weight.shape[0], -1, *ones)


def linear(graph: EditableGraph, node: Any) -> Linear | None:
    """The call as linear algebra, or None where it is none (the weight is a vector, the bias is broadcast), its weights
    are not constant, or its padding is not zeros."""
    if is_call(node, *CONVOLUTIONS, *TRANSPOSED, "convolution.default"):
        return _convolution(graph, node)
    if not is_call(node, "linear.default"):
        return None
    given = arguments(node)
    weights = _weights(graph, given)
    return weights and Linear(node=node, source=given["input"], weight=weights[0], bias=weights[1])


def _convolution(graph: EditableGraph, node: Node) -> Linear | None:
    given = arguments(node)
    name = call_name(node)
    transposed = name in TRANSPOSED or bool(given.get("transposed", False))
    weights = _weights(graph, given, transposed, given["groups"])
    if weights is None or len(shape(node)) != weights[0].dim():  # an unbatched input has no batch dimension
        return None
    spatial = weights[0].dim() - 2
    stride, dilation = (each(given[key], spatial) for key in ("stride", "dilation"))
    padding = _padding(given["padding"], weights[0].shape[2:], dilation)
    numbers = (*stride, *dilation, *(padding or ()), given["groups"])
    if padding is None or not all(type(number) is int for number in numbers):
        return None
    return Linear(
        node=node,
        source=given["input"],
        weight=weights[0],
        bias=weights[1],
        stride=stride,
        padding=padding,
        dilation=dilation,
        output_padding=each(given.get("output_padding", 0), spatial),
        groups=given["groups"],
        transposed=transposed,
    )


def _weights(
    graph: EditableGraph, given: dict[str, Any], transposed: bool = False, groups: int = 1
) -> tuple[Tensor, Tensor] | None:
    weight, bias = graph.constant(given["weight"]), graph.constant(given["bias"])
    if weight is None or not weight.is_floating_point() or (bias is None and given["bias"] is not None):
        return None
    if weight.dim() < 2:
        return None
    outputs = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and bias.shape != (outputs,):
        return None
    zeros = torch.zeros(outputs, dtype=torch.float64, device=weight.device)
    return weight.double(), zeros if bias is None else bias.double()


def each(value: Any, count: int) -> tuple[Any, ...]:
    """One value per spatial dimension: schemas allow one number for all."""
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    return values * count if len(values) == 1 else values


def _padding(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...] | None:
    if padding == "valid":
        return (0,) * len(kernel)
    if padding != "same":
        return each(padding, len(kernel))
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return None if any(total % 2 for total in totals) else tuple(total // 2 for total in totals)


def set_weights(graph: EditableGraph, old: Linear, new: Linear, key: Any = None) -> bool:
    """Give the call ``old.node`` the weights of ``new``, rounded to its dtype. False where they do not fit into it.

    Calls with the same ``key`` share their new tensors.
    """
    given = arguments(old.node)
    was = graph.constant(given["weight"])
    assert was is not None  # it is a Linear
    weight, bias = new.weight.to(was.dtype), new.bias.to(was.dtype)
    if not (weight.isfinite().all() and bias.isfinite().all()):
        return False
    if was.dim() == 4 and was.is_contiguous(memory_format=torch.channels_last) and not was.is_contiguous():
        weight = weight.contiguous(memory_format=torch.channels_last)
    key = old.node if key is None else key
    given["weight"] = graph.shared_constant((key, "weight"), lambda: weight, f"{old.node.name}_weight", old.node)
    given["bias"] = graph.shared_constant((key, "bias"), lambda: bias, f"{old.node.name}_bias", old.node)
    set_arguments(old.node, given)
    return True


@dataclass(frozen=True, kw_only=True)
class Affine:
    """``source * scale + shift`` per channel (float64 ``[channels]``, or ``[1]`` for all) along ``dim``."""

    node: Node
    source: Node
    scale: Tensor
    shift: Tensor
    dim: int | None
    """None: it is the same for all channels."""


def affine(graph: EditableGraph, node: Any) -> Affine | None:
    """A batch norm with running statistics, or multiplication, division, addition, subtraction by a constant."""
    if is_call(node, *BATCH_NORMS):
        return _batch_norm(graph, node)
    forms = itertools.product(("mul", "div", "add", "sub"), ("", "_"), ("Tensor", "Scalar"))
    if not is_call(node, *(f"{name}{place}.{kind}" for name, place, kind in forms)):
        return None
    return _arithmetic(graph, node, call_name(node).partition(".")[0].rstrip("_"))


def _batch_norm(graph: EditableGraph, node: Node) -> Affine | None:
    given = arguments(node)
    mean, var = graph.constant(given["running_mean"]), graph.constant(given["running_var"])
    if given.get("training", False) or mean is None or var is None or not isinstance(given["input"], Node):
        return None
    weight, bias = graph.constant(given["weight"]), graph.constant(given["bias"])
    if (weight is None) != (given["weight"] is None) or (bias is None) != (given["bias"] is None):
        return None  # computed weights
    scale = (var.double() + given["eps"]).rsqrt() * (1.0 if weight is None else weight.double())
    shift = (0.0 if bias is None else bias.double()) - mean.double() * scale
    if not (scale.isfinite().all() and shift.isfinite().all()):
        return None
    return Affine(node=node, source=given["input"], scale=scale, shift=shift, dim=1)


def _arithmetic(graph: EditableGraph, node: Node, name: str) -> Affine | None:
    given = arguments(node)
    source, other = given["self"], given["other"]
    if graph.constant(source) is not None and name in ("mul", "add") and given.get("alpha", 1) == 1:
        source, other = other, source
    if not isinstance(source, Node) or not same_form(node, source) or isinstance(given.get("alpha"), Node):
        return None
    constant = _per_channel(graph, other, len(shape(node)))
    if constant is None or type(given.get("alpha", 1)) not in (int, float):
        return None
    number, dim = constant
    one, zero = torch.ones_like(number), torch.zeros_like(number)
    number = number * given.get("alpha", 1)
    scale, shift = {
        "mul": (number, zero),
        "div": (1 / number, zero),
        "add": (one, number),
        "sub": (one, -number),
    }[name]
    if not (scale.isfinite().all() and shift.isfinite().all()):
        return None
    return Affine(node=node, source=source, scale=scale, shift=shift, dim=dim)


def _per_channel(graph: EditableGraph, other: Any, rank: int) -> tuple[Tensor, int | None] | None:
    """``(float64 [channels] or [1], dimension)`` of a constant that varies along one dimension at most."""
    if type(other) in (int, float):
        return torch.tensor([other], dtype=torch.float64), None
    tensor = graph.constant(other)
    if tensor is None or tensor.is_complex() or tensor.dim() > rank:
        return None
    wide = [dim for dim, size in enumerate(tensor.shape) if size != 1]
    if len(wide) > 1 or tensor.numel() == 0:
        return None
    return tensor.double().reshape(-1), (wide[0] + rank - tensor.dim() if wide else None)


def absorbed(before: Linear, after: Affine) -> Linear | None:
    """``before`` followed by ``after`` as one, or None where their channels are not the same dimension."""
    if after.dim is not None and after.dim != before.channel_dim:
        return None
    scale = after.scale.to(before.weight.device).expand(before.out_channels)
    return before.scaled(scale, after.shift.to(before.weight.device).expand(before.out_channels))
