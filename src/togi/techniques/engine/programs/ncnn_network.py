"""A network of ncnn as its ``.param`` file describes it, and whether its weights are those that its sizes need.

ncnn believes the file: a convolution with fewer weights than its channels ask for reads, and writes, memory that is not
its own. Sizes are followed through the layers that convolutional networks are made of; behind any other layer they are
unknown, and nothing is checked there. So the engine counts as a program all the same (``Engine.native``).
Source: https://github.com/Tencent/ncnn/wiki/param-and-model-file-structure and the ``load_param`` of its layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_MAGIC = "7767517"
_SAME_SIZES = frozenset(
    "ReLU PReLU Sigmoid TanH Swish HardSwish HardSigmoid Clip ELU SELU GELU Mish Dropout BatchNorm Scale Split Noop "
    "UnaryOp".split()
)
_CHANNELS = {"BatchNorm": 0, "Scale": 0, "PReLU": 0}
"""Layers with weights for each channel, and which parameter says how many."""

Sizes = tuple[int | None, ...] | None
"""Channels, then rows and columns as far as they are known; None: nothing is."""


@dataclass(frozen=True)
class NcnnLayer:
    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: dict[int, int]
    """Of whole numbers; others do not decide about sizes."""

    def get(self, number: int, otherwise: int = 0) -> int:
        return self.parameters.get(number, otherwise)


def read_layers(text: str) -> list[NcnnLayer]:
    """Raises RuntimeError where it is not a network, or has other counts than it says."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    try:
        (magic,), (layers, blobs) = lines[0], map(int, lines[1])
        network = [_layer(words) for words in lines[2:]]
    except (ValueError, IndexError):
        raise RuntimeError("it is not a network of ncnn, or it is damaged") from None
    named = {name for layer in network for name in layer.outputs}
    if magic != _MAGIC or layers != len(network) or not len(named) <= blobs <= 2 * len(named) + 2:
        raise RuntimeError(f"it says {layers} layers and {blobs} values, and has {len(network)} and {len(named)}")
    return network


def _layer(words: Sequence[str]) -> NcnnLayer:
    kind, name, inputs, outputs = words[0], words[1], int(words[2]), int(words[3])
    if inputs < 0 or outputs < 0 or len(words) < 4 + inputs + outputs:
        raise ValueError("fewer names than it says")
    parameters = {}
    for word in words[4 + inputs + outputs :]:
        number, _, value = word.partition("=")
        if value.removeprefix("-").isascii() and value.removeprefix("-").isdigit():
            parameters[int(number)] = int(value)
    return NcnnLayer(
        kind, name, tuple(words[4 : 4 + inputs]), tuple(words[4 + inputs : 4 + inputs + outputs]), parameters
    )


def check_weights(layers: Sequence[NcnnLayer], inputs: Sequence[Sequence[int | None]]) -> None:
    """Check that each layer has as many weights as its inputs need. ``inputs``: sizes of the calls, with the batch.

    Raises RuntimeError.
    """
    known: dict[str, Sizes] = {f"in{i}": tuple(sizes[1:]) for i, sizes in enumerate(inputs)}
    for layer in layers:
        given = [known.get(name) for name in layer.inputs]
        if layer.kind == "Input":
            made = known.get(layer.outputs[0]) if layer.outputs else None
        else:
            made = _made(layer, given)
        known |= dict.fromkeys(layer.outputs, made)


def _made(layer: NcnnLayer, given: Sequence[Sizes]) -> Sizes:
    first = given[0] if given else None
    if "onvolution" in layer.kind:
        return _convolved(layer, first)
    if layer.kind == "InnerProduct":
        _check_inner_product(layer, first)
        return None if first is None else (first[0], layer.get(0)) if len(first) == 2 else (layer.get(0),)
    if layer.kind in _CHANNELS and first is not None:
        count = layer.get(_CHANNELS[layer.kind])
        if first[0] is not None and count != first[0] and not (layer.kind == "PReLU" and count == 1):
            raise _wrong(layer, count, first[0])
    if layer.kind in _SAME_SIZES:
        return first
    if layer.kind == "Pooling" and first is not None:
        return first[:1] if layer.get(4) else (first[0], *[None] * (len(first) - 1))
    if layer.kind == "Concat" and not layer.get(0) and all(sizes and sizes[0] is not None for sizes in given):
        return (sum(sizes[0] or 0 for sizes in given if sizes), *(first or ())[1:])
    if layer.kind == "BinaryOp" and len(set(given)) == 1:
        return first
    if layer.kind == "Flatten" and first is not None and None not in first:
        return (math.prod(size or 0 for size in first),)
    return None


def _convolved(layer: NcnnLayer, given: Sizes) -> Sizes:
    """Parameters 0: channels out, 1 and 11: the kernel, 6: its weights, 7: groups."""
    if layer.get(19):  # its weights are an input
        return None
    out, wide, groups = layer.get(0), layer.get(1), max(1, layer.get(7, 1))
    high = 1 if layer.kind.endswith("1D") else layer.get(11, wide)
    deep = layer.get(21, wide) if "3D" in layer.kind else 1
    size = out * wide * high * deep
    if min(out, wide, high, deep) < 1 or layer.get(6) < 1 or (layer.get(6) * groups) % size:
        raise _wrong(layer, layer.get(6), size)
    channels = layer.get(6) * groups // size
    if given is not None and given[0] is not None and given[0] != channels:
        raise _wrong(layer, channels, given[0])
    return (out, *[None] * (len(given) - 1 if given else 2))


def _check_inner_product(layer: NcnnLayer, given: Sizes) -> None:
    """Parameters 0: numbers out, 2: weights."""
    out, weights = layer.get(0), layer.get(2)
    if out < 1 or weights < 1 or weights % out:
        raise _wrong(layer, weights, out)
    if given is not None and None not in given and len(given) != 2:  # of two dimensions, rows are answered one by one
        needed = math.prod(size or 0 for size in given)
        if weights // out != needed:
            raise _wrong(layer, weights // out, needed)


def _wrong(layer: NcnnLayer, found: int, wanted: int) -> RuntimeError:
    return RuntimeError(
        f"its layer {layer.name} ({layer.kind}) has weights for {found} where {wanted} are needed: the file is "
        "damaged, and ncnn would read beyond them"
    )
