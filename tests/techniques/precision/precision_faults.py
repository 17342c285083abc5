"""Faults planted into a file of ONNX Runtime in 8 bits, each by an edit of its constants.

Each stands for one that a quantizer, a converter or a kernel could have: a scale of another layer, a zero point that is
off by one, weights per tensor where they were per channel, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Edit = Callable[["QuantizedFile"], None]


class QuantizedFile:
    """The constants of a model between QuantizeLinear and DequantizeLinear, in the order in which they are used."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._constants = {each.name: each for each in model.graph.initializer}
        weights = [n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in self._constants]
        self.weights = [n for n in weights if len(self._constants[n.input[0]].dims) > 1]
        self.biases = [n for n in weights if len(self._constants[n.input[0]].dims) == 1]
        self.activations = [n for n in model.graph.node if n.op_type == "QuantizeLinear"]

    def array(self, name: str) -> Any:
        return numpy_helper.to_array(self._constants[name]).copy()

    def put(self, name: str, array: Any) -> None:
        kept = numpy_helper.to_array(self._constants[name])
        self._constants[name].CopyFrom(numpy_helper.from_array(np.asarray(array).astype(kept.dtype), name))

    def change(self, name: str, to: Callable[[Any], Any]) -> None:
        self.put(name, to(self.array(name)))

    def swap(self, one: str, other: str) -> None:
        first, second = self.array(one), self.array(other)
        self.put(one, second)
        self.put(other, first)

    def widest(self) -> Any:
        """The weights whose scales differ most from channel to channel."""
        return max(self.weights, key=lambda n: np.ptp(np.log(np.maximum(self.array(n.input[1]), 1e-9)), axis=None))


def activation(place: int, part: int, to: Callable[[Any], Any]) -> Edit:
    """Scale (1) or zero point (2) of an activation, where it is quantized and where it is read."""
    return lambda file: file.change(file.activations[place].input[part], to)


def weight(place: int, part: int, to: Callable[[Any], Any]) -> Edit:
    """Weights (0) or their scales (1)."""
    return lambda file: file.change(file.weights[place].input[part], to)


def bias(place: int, to: Callable[[Any], Any]) -> Edit:
    return lambda file: file.change(file.biases[place].input[0], to)


def _swapped_activations(file: QuantizedFile) -> None:
    scales = sorted({node.input[1] for node in file.activations}, key=lambda name: float(file.array(name)))
    file.swap(scales[0], scales[-1])


def _neighbouring_activations(file: QuantizedFile) -> None:
    one, other = (file.activations[place].input for place in (1, 2))
    file.swap(one[1], other[1])


def read_with(place: int, part: int, to: Callable[[Any], Any]) -> Edit:
    """What was quantized with one scale (1) or zero point (2) is read with another: of a branch, or of an older
    calibration."""

    def change(file: QuantizedFile) -> None:
        name = file.activations[place].input[part]
        values = file.array(name)
        other = numpy_helper.from_array(np.asarray(to(values)).astype(values.dtype), "another")
        file.model.graph.initializer.append(other)
        written = file.activations[place].output[0]
        reader = next(n for n in file.model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == written)
        reader.input[part] = "another"

    return change


def _per_tensor(file: QuantizedFile) -> None:
    """Rightly quantized once more, but with one scale for all channels of a layer."""
    for node in file.weights:
        values, scales = file.array(node.input[0]).astype(np.float32), file.array(node.input[1])
        full = values * scales.reshape(-1, *[1] * (values.ndim - 1))
        one = np.abs(full).max() / 127
        file.put(node.input[0], np.round(full / one))
        file.put(node.input[1], np.full_like(scales, one))


def _one_scale_for_all(file: QuantizedFile) -> None:
    node = file.widest()
    file.change(node.input[1], lambda scales: np.full_like(scales, scales.mean()))


def _swapped_channels(file: QuantizedFile) -> None:
    def swap(scales: Any) -> Any:
        low, high = scales.argmin(), scales.argmax()
        scales[[low, high]] = scales[[high, low]]
        return scales

    file.change(file.widest().input[1], swap)


def _clipped_channel(file: QuantizedFile) -> None:
    """The channel of the largest weights keeps the range of the others."""
    node = file.weights[0]
    scales = file.array(node.input[1])
    loudest, usual = scales.argmax(), np.median(scales)

    def clip(weights: Any) -> Any:
        full = weights[loudest] * scales[loudest]
        weights[loudest] = np.clip(np.round(full / usual), -127, 127)
        return weights

    file.change(node.input[0], clip)
    scales[loudest] = usual
    file.put(node.input[1], scales)


def _bits(kept: int) -> Callable[[Any], Any]:
    return lambda weights: (weights >> (8 - kept)) << (8 - kept)


def _largest(value: float) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        values[values.argmax()] = value
        return values

    return change


def _swapped_biases(file: QuantizedFile) -> None:
    """Of two layers with as many channels."""
    one, other = (node.input[0] for node in file.biases[:2])
    file.swap(one, other)


def _half_lost(weights: Any) -> Any:
    weights[::2] = 0
    return weights


def _nibbles_swapped(weights: Any) -> Any:
    raw = weights.view(np.uint8)
    return ((raw << 4) | (raw >> 4)).view(np.int8)


def _largest_flipped(weights: Any) -> Any:
    flat = weights.reshape(-1)
    for place in np.argsort(-np.abs(flat.astype(int)))[:3]:
        flat[place] = -flat[place]
    return weights


FAULTS: dict[str, Edit] = {
    "scales of two activations swapped": _swapped_activations,
    "scales of two activations in a row swapped": _neighbouring_activations,
    "read with another scale than written": read_with(1, 1, lambda s: s * 1.25),
    "the input's scale halved: its upper half is clipped": activation(0, 1, lambda s: s / 2),
    "the input's scale 32 times as large": activation(0, 1, lambda s: s * 32),
    "a hidden scale halved": activation(1, 1, lambda s: s / 2),
    "a hidden scale 64 times as large": activation(1, 1, lambda s: s * 64),
    "a scale rounded to a power of two": activation(1, 1, lambda s: 2.0 ** np.floor(np.log2(s))),
    "the last scale halved: large scores are clipped": activation(-1, 1, lambda s: s / 2),
    "a scale of zero": activation(1, 1, lambda s: s * 0),
    "an endless scale": activation(1, 1, lambda s: s * np.inf),
    "a scale that is no number": activation(1, 1, lambda s: s * np.nan),
    "a denormal scale": activation(1, 1, lambda s: s * 0 + 1e-40),
    "the input's zero point off by one": read_with(0, 2, lambda z: z + 1),
    "a hidden zero point off by one": read_with(1, 2, lambda z: z + 1),
    "a later zero point off by one": read_with(2, 2, lambda z: z + 1),
    "the scores' zero point off by one": read_with(-1, 2, lambda z: z + 1),
    "the scores read with twice their scale": read_with(-1, 1, lambda s: s * 2),
    "the scores' zero point lost": activation(-1, 2, lambda z: z * 0),
    "the zero point of signed numbers for a rectified activation": activation(1, 2, lambda z: z * 0 + 128),
    "weights per tensor for per channel": _per_tensor,
    "one scale for weights of all channels": _one_scale_for_all,
    "scales of two channels swapped": _swapped_channels,
    "scales of channels in reverse": lambda file: file.change(file.widest().input[1], lambda s: s[::-1]),
    "scales of channels one place on": lambda file: file.change(file.widest().input[1], lambda s: np.roll(s, 1)),
    "a clipped outlier channel": _clipped_channel,
    "a channel's scale is zero": weight(2, 1, _largest(0.0)),
    "a channel's scale is no number": weight(2, 1, _largest(np.nan)),
    "all scales of a layer halved": weight(1, 1, lambda s: s / 2),
    "all scales of a layer a tenth larger": weight(1, 1, lambda s: s * 1.1),
    "weights of 7 bits with scales of 8": weight(1, 0, lambda w: w // 2),
    "weights of 4 bits": weight(0, 0, _bits(4)),
    "weights of 2 bits": weight(-1, 0, _bits(2)),
    "weights rounded down": weight(0, 0, lambda w: np.maximum(w.astype(int) - 1, -128)),
    "signed weights read as unsigned": weight(1, 0, lambda w: w ^ -128),
    "nibbles of weights swapped": weight(1, 0, _nibbles_swapped),
    "the sign of the largest weights": weight(0, 0, _largest_flipped),
    "the sign of all weights of a layer": weight(2, 0, lambda w: np.maximum(-w.astype(int), -127)),
    "kernels turned round": weight(0, 0, lambda w: w[..., ::-1, ::-1]),
    "input channels of the first layer in reverse": weight(0, 0, lambda w: w[:, ::-1]),
    "output channels one place on": weight(0, 0, lambda w: np.roll(w, 1, 0)),
    "the last layer's classes one place on": weight(-1, 0, lambda w: np.roll(w, 1, int(w.shape[0] != 10))),
    "the last layer reads its features in reverse": weight(-1, 0, lambda w: np.flip(w, int(w.shape[0] == 10))),
    "weights of half of the channels lost": weight(0, 0, _half_lost),
    "a bias lost": bias(0, lambda b: b * 0),
    "a bias doubled": bias(0, lambda b: b * 2),
    "the sign of a bias": bias(0, lambda b: -b),
    "a bias at the end of its type": bias(0, _largest(2**31 - 1)),
    "biases one place on": bias(0, lambda b: np.roll(b, 1)),
    "biases of two layers swapped": _swapped_biases,
    "the last bias with another scale": bias(-1, lambda b: b * 32),
}  # fmt: skip
