"""Post-training quantization of an engine's own model form, from the candidate's calibration inputs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from togi.core.choices import OperatorKind
from togi.core.errors import Refused
from togi.core.instructions import saturates
from togi.graph.candidate import Candidate
from togi.subject.calibration import MOST
from togi.techniques.engine.programs.openvino_library import ACTIVATION_GROUP_KEY, no_telemetry, openvino
from togi.techniques.precision.lowering.operator_kinds import all_others, operators_to_keep
from togi.techniques.precision.lowering.weight_blocks import quantize_large_products

_ACTIVATION_GROUP = 32
"""Activations that share a scale, which is OpenVINO's own choice on CPUs."""
_PRODUCTS = ["MatMul", "Gemm"]
"""What ONNX Runtime quantizes dynamically. By itself it would make ConvInteger of convolutions too, with one scale for
all of a picture: EfficientNet-Lite0 then agreed with itself on 55 of 100 pictures, and on 99 with products alone."""
_EIGHT_BIT_KERNELS = [
    "Add", "ArgMax", "AveragePool", "Clip", "Concat", "Conv", "Flatten", "Gather", "GatherElements", "Gemm",
    "GlobalAveragePool", "LeakyRelu", "MatMul", "MaxPool", "Mul", "Relu", "Reshape", "Resize", "Sigmoid", "Slice",
    "Softmax", "Split", "Squeeze", "Transpose", "Unsqueeze", "Where",
]  # fmt: skip
"""What ONNX Runtime computes in 8 bits on CPUs, or moves as they are. By itself it would quantize normalisations,
transposed convolutions and others as well, which then run in floating point between two conversions."""


def calibration_tensors(candidate: Candidate) -> list[list[Tensor]]:
    """Flat inputs to calibrate on: the user's, or the samples."""
    inputs = candidate.calibration or candidate.samples
    signature = candidate.signature
    return [signature.flatten_inputs(sample.args, sample.kwargs) for sample in inputs[:MOST]]


def quantize_openvino(
    model: Any,
    candidate: Candidate,
    *,
    preset: str,
    transformer: bool,
    keep: Sequence[OperatorKind] = (),
    alone: OperatorKind | None = None,
) -> Any:
    """The ``ov.Model`` with 8-bit convolutions and matrix products, but for those of the kinds to ``keep``; or only of
    the kind ``alone``.

    Raises Refused where there is none of a kind.
    """
    left_out = operators_to_keep(model, keep) if alone is None else all_others(model, alone)
    with no_telemetry():
        import nncf
    nncf.set_log_level(logging.ERROR)
    names = [port.get_any_name() for port in model.inputs]

    def feeds(tensors: list[Tensor]) -> dict[str, Any]:
        return {name: t.detach().contiguous().numpy() for name, t in zip(names, tensors, strict=True)}

    tensors = calibration_tensors(candidate)
    machine = candidate.facts.machine
    seven_bits = saturates(machine.cpu_flags, machine.onednn_limit)
    return nncf.quantize(
        model,
        nncf.Dataset(tensors, feeds),
        preset=nncf.QuantizationPreset(preset),
        model_type=nncf.ModelType.TRANSFORMER if transformer else None,
        subset_size=len(tensors),
        fast_bias_correction=True,
        ignored_scope=nncf.IgnoredScope(names=left_out, validate=False) if left_out else None,
        advanced_parameters=_overflow_fixed() if seven_bits else None,
    )


def compress_openvino(model: Any, _: Candidate, *, dynamic: bool) -> Any:
    """The ``ov.Model`` with weights of 8 bits, one scale a channel. ``dynamic``: activations of matrix products are
    quantized while they run, else they stay in floating point.

    Raises Refused where no weight is large enough to be compressed.
    """
    with no_telemetry():
        import nncf
    nncf.set_log_level(logging.ERROR)
    model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    if not any(node.get_element_type() == openvino().Type.i8 for node in model.get_ops() if node.get_output_size()):
        raise Refused("no weight was compressed: none is a constant that convolutions or matrix products use")
    model.set_rt_info(str(_ACTIVATION_GROUP if dynamic else 0), ACTIVATION_GROUP_KEY)
    return model


def _overflow_fixed() -> Any:
    """All weights in half of the range. By itself NNCF does that for the first layer alone."""
    import nncf

    return nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.ENABLE)


def quantize_onnx(path: Path, candidate: Candidate, *, how: str) -> None:
    """Replaces the model at ``path`` by its quantized form."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    if len(list(path.parent.iterdir())) > 1:
        raise Refused("its weights lie in a file of their own (over 2 GB), which is not quantized here")
    prepared, quantized = path.with_name("prepared.onnx"), path.with_name("quantized.onnx")
    quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
    _forget_shapes(prepared)
    seven_bits = saturates(candidate.facts.machine.cpu_flags)
    if how == "blocks":
        quantize_large_products(prepared, quantized)
    elif how == "dynamic":
        quantization.quantize_dynamic(
            prepared,
            quantized,
            op_types_to_quantize=_PRODUCTS,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            reduce_range=seven_bits,
        )
    else:
        chosen = _products_alone(prepared) if how == "products" else {"op_types_to_quantize": _EIGHT_BIT_KERNELS}
        quantization.quantize_static(
            prepared,
            quantized,
            _Reader(prepared, candidate),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            reduce_range=seven_bits,
            **chosen,
        )
    prepared.unlink()
    quantized.replace(path)


def _products_alone(path: Path) -> dict[str, Any]:
    """Products with weights, whose sums are not rounded to 8 bits again: attention and all between stay in floating
    point. ``MatMulConstBOnly`` would leave out products of two activations too, but not of this format."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights = {weight.name for weight in graph.initializer}
    of_activations = [n.name for n in graph.node if n.op_type in _PRODUCTS and n.input[1] not in weights]
    return {
        "op_types_to_quantize": ["Conv", *_PRODUCTS],
        "nodes_to_exclude": of_activations,
        "extra_options": {"OpTypesToExcludeOutputQuantization": _PRODUCTS},
    }


def _forget_shapes(path: Path) -> None:
    """Shapes of intermediate values, which the quantizer checks again after it transposed weights of Gemm. Nodes get
    names, by which they can be left out."""
    import onnx

    model = onnx.load(path)
    del model.graph.value_info[:]
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    onnx.save(model, path)


class _Reader:
    """Hands out one calibration input after the other (``CalibrationDataReader``)."""

    def __init__(self, path: Path, candidate: Candidate) -> None:
        import onnx

        self.used = {node.name for node in onnx.load(path, load_external_data=False).graph.input}
        self._feeds = self._all(calibration_tensors(candidate))

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)

    def __iter__(self) -> _Reader:
        return self

    def __next__(self) -> dict[str, Any]:
        return next(self._feeds)

    def _all(self, samples: list[list[Tensor]]) -> Iterator[dict[str, Any]]:
        for tensors in samples:
            feeds = {f"input_{i}": tensor.detach().contiguous().numpy() for i, tensor in enumerate(tensors)}
            yield {name: array for name, array in feeds.items() if name in self.used}
