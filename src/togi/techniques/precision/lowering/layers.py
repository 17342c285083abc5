"""One quantized model of OpenVINO, whose layers are taken out of 8 bits and put back without calibrating again.

NNCF puts an operator that rounds (``FakeQuantize``) in front of what a layer reads. A layer that reads past it computes
in floating point, and so the same calibration serves for each layer alone, each layer kept, and all steps between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from togi.core.choices import OperatorKind
from togi.graph.candidate import Candidate
from togi.techniques.engine.programs.openvino import core
from togi.techniques.engine.programs.openvino_conversion import convert
from togi.techniques.engine.programs.openvino_library import openvino
from togi.techniques.precision.lowering.operator_kinds import kinds_of
from togi.techniques.precision.lowering.quantization import quantize_openvino

_ROUNDS = "FakeQuantize"
_MOVES_VALUES = frozenset({"Reshape", "Transpose", "Convert", "Squeeze", "Unsqueeze"})
"""Between what is rounded and the layer that reads it."""
_TIMED_S, _LEAST_TIMES = 0.1, 5
"""A time is the median of so many calls, for so long at least."""
_SETTINGS = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": 1}
"""One thread: its CPU time is the same next to other work within 5 %, where the time on the clock is not."""


class QuantizedLayers:
    """The convolutions and products of a candidate that have 8 bits where all have.

    Raises Refused as the conversion does.
    """

    def __init__(self, candidate: Candidate, *, transformer: bool, inputs: Sequence[Sequence[Tensor]]) -> None:
        """``inputs``: flat, by which errors are measured; the first are timed."""
        plain, self._order, _ = convert(candidate)
        self._feeds = [[tensor.detach().contiguous().numpy() for tensor in tensors] for tensors in inputs]
        self._names = [port.get_any_name() for port in plain.inputs]
        compiled = self._compiled(plain)
        self._right = [self._answer(compiled, feed) for feed in self._feeds]
        self.float32_ms = self._cpu_ms(compiled)
        self._model = quantize_openvino(
            plain, candidate, preset="performance", transformer=transformer, correct_biases=False, whole_weights=True
        )
        kinds = kinds_of(self._model)
        readers = {
            name: self._rounded(node) for node in self._model.get_ordered_ops() if (name := _name(node)) in kinds
        }
        self.kinds: dict[str, OperatorKind] = {name: kinds[name] for name, reads in readers.items() if reads}
        """By the layer's name, in the order in which they compute."""
        self._reads = {name: readers[name] for name in self.kinds}
        self._all = [
            (reader, node.output(0)) for node in self._model.get_ordered_ops() if node.get_type_name() == _ROUNDS
            for reader in node.output(0).get_target_inputs()
        ]  # fmt: skip

    def error_and_ms(self, *, kept: Iterable[str] = (), alone: str | None = None) -> tuple[float, float]:
        """The relative root-mean-square error of the worst output, and the CPU time of a call in milliseconds: with the
        layers ``kept`` in floating point; or of one ``alone`` in 8 bits."""
        if alone is not None:
            stays = {_place(reader) for reader, _ in self._reads[alone]}
            changed = [(reader, source) for reader, source in self._all if _place(reader) not in stays]
        else:
            changed = [each for name in kept for each in self._reads[name]]
        for reader, source in changed:
            reader.replace_source_output(source.get_node().input_value(0))
        try:
            compiled = self._compiled(self._model)
        finally:
            for reader, source in changed:
                reader.replace_source_output(source)
        found = [self._answer(compiled, feed) for feed in self._feeds]
        return _error(found, self._right), self._cpu_ms(compiled)

    def _compiled(self, model: Any) -> Any:
        return core().compile_model(model, "CPU", _SETTINGS)

    def _answer(self, compiled: Any, feed: Sequence[Any]) -> list[Any]:
        outputs = compiled(dict(zip(self._names, self._used(feed), strict=True))).to_tuple()
        return [np.array(outputs[place]) for place in self._order]

    def _used(self, feed: Sequence[Any]) -> list[Any]:
        """The arrays that the model takes: a conversion drops inputs that decide nothing."""
        return [feed[int(name.rpartition("_")[2])] for name in self._names]

    def _cpu_ms(self, compiled: Any) -> float:
        feed, times = self._feeds[0], list[float]()
        given = dict(zip(self._names, self._used(feed), strict=True))
        compiled(given)
        until = time.monotonic() + _TIMED_S
        while len(times) < _LEAST_TIMES or time.monotonic() < until:
            began = time.process_time()
            compiled(given)
            times.append(time.process_time() - began)
        return float(np.median(times)) * 1e3

    def _rounded(self, layer: Any) -> list[tuple[Any, Any]]:
        """Where what it reads is rounded: the input that reads it for this layer alone, and the output that is read."""
        found = []
        for number in range(layer.get_input_size()):
            source, moves = layer.input_value(number), list[Any]()
            while source.get_node().get_type_name() in _MOVES_VALUES:
                moves.append(source.get_node())
                source = moves[-1].input_value(0)
            if source.get_node().get_type_name() == _ROUNDS:
                found.append((_own_reader(layer.input(number), moves, source), source))
        return found


def _own_reader(reader: Any, moves: Sequence[Any], rounded: Any) -> Any:
    """The input that reads what is ``rounded``, for this ``reader`` alone: what ``moves`` the values in between is
    copied where others read it, too. ``moves``: from the reader on."""
    if any(len(node.output(0).get_target_inputs()) > 1 for node in moves):
        source, copies = rounded, list[Any]()
        for node in reversed(moves):
            inputs = [source, *(node.input_value(number) for number in range(1, node.get_input_size()))]
            make = getattr(openvino().opset15, node.get_type_name().lower())
            copies.append(make(*inputs, **node.get_attributes()))
            source = copies[-1].output(0)
        reader.replace_source_output(source)
        return copies[0].input(0)
    return moves[-1].input(0) if moves else reader


def _name(node: Any) -> str:
    return str(node.get_friendly_name())


def _place(reader: Any) -> tuple[str, int]:
    return _name(reader.get_node()), reader.get_index()


def _error(found: Sequence[Sequence[Any]], right: Sequence[Sequence[Any]]) -> float:
    worst = 0.0
    for place in range(len(right[0])):
        pairs = [(one[place].astype(np.float64), two[place]) for one, two in zip(found, right, strict=True)]
        square = sum(float(np.square(two, dtype=np.float64).sum()) for _, two in pairs)
        off = sum(float(np.square(one - two).sum()) for one, two in pairs)
        error = math.sqrt(off / square) if square else math.inf if off else 0.0
        worst = error if math.isnan(error) else max(worst, error)
    return worst
