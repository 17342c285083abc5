"""Post-training quantization of an engine's own model form, from the candidate's calibration inputs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from togi.core.choices import OperatorKind
from togi.core.errors import Refused
from togi.core.instructions import saturates
from togi.graph.candidate import Candidate
from togi.subject.calibration import MOST
from togi.techniques.engine.programs.openvino_library import ACTIVATION_GROUP_KEY, no_telemetry, openvino
from togi.techniques.precision.lowering.operator_kinds import all_others, operators_to_keep
from togi.techniques.precision.lowering.ranges import percentile_ranges
from togi.techniques.precision.lowering.weight_blocks import quantize_large_products

_ACTIVATION_GROUP = 32
"""Activations that share a scale, which is OpenVINO's own choice on CPUs."""
_WEIGHT_GROUP = 128
"""Weights of 4 bits that share a scale."""
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
    fast_bias_correction: bool = True,
    correct_biases: bool = True,
    whole_weights: bool = False,
) -> Any:
    """The ``ov.Model`` with 8-bit convolutions and matrix products, but for those of the kinds to ``keep``; or only of
    the kind ``alone``.

    Args:
        fast_bias_correction: by one run of each layer alone; else layer after layer, with the errors of those before.
        correct_biases: else they stay as they are.
        whole_weights: they stay in floating point, behind operators that round them; else they are stored in 8 bits.

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
    advanced: dict[str, Any] = {"disable_bias_correction": not correct_biases}
    if saturates(machine.cpu_flags, machine.onednn_limit):
        advanced["overflow_fix"] = nncf.OverflowFix.ENABLE  # by itself NNCF halves the range of the first layer alone
    if whole_weights:
        advanced["backend_params"] = {"compress_weights": False}
    return nncf.quantize(
        model,
        nncf.Dataset(tensors, feeds),
        preset=nncf.QuantizationPreset(preset),
        model_type=nncf.ModelType.TRANSFORMER if transformer else None,
        subset_size=len(tensors),
        fast_bias_correction=fast_bias_correction,
        ignored_scope=nncf.IgnoredScope(names=left_out, validate=False) if left_out else None,
        advanced_parameters=nncf.AdvancedQuantizationParameters(**advanced),
    )


def compress_openvino(model: Any, _: Candidate, *, dynamic: bool, bits: int = 8) -> Any:
    """The ``ov.Model`` with weights of 8 bits, one scale a channel; or of 4 ``bits``, one scale for each 128 weights,
    but for the embedding and the last product. ``dynamic``: activations of matrix products are quantized while they
    run, else they stay in floating point.

    Raises Refused where no weight was compressed to so many bits.
    """
    with no_telemetry():
        import nncf
    nncf.set_log_level(logging.ERROR)
    if bits == 4:
        model = _compress_to_four_bits(model, nncf)
    else:
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
    stored = openvino().Type.i4 if bits == 4 else openvino().Type.i8
    if not any(node.get_element_type() == stored for node in model.get_ops() if node.get_output_size()):
        raise Refused(
            f"no weight was compressed to {bits} bits: none is a constant that convolutions or matrix products use"
            + (", and that divides into groups that share a scale" if bits == 4 else "")
        )
    model.set_rt_info(str(_ACTIVATION_GROUP if dynamic else 0), ACTIVATION_GROUP_KEY)
    return model


def _compress_to_four_bits(model: Any, nncf: ModuleType) -> Any:
    """A weight that does not divide into groups of 128 gets smaller groups, or stays at 8 bits."""
    if not hasattr(nncf, "GroupSizeFallbackMode"):
        raise Refused(
            f"the installed nncf {nncf.__version__} compresses to 4 bits only if every weight divides into groups of "
            "128: newer ones choose smaller groups where it does not"
        )
    return nncf.compress_weights(
        model,
        mode=nncf.CompressWeightsMode.INT4_SYM,
        group_size=_WEIGHT_GROUP,
        advanced_parameters=nncf.AdvancedCompressionParameters(
            group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST
        ),
    )


def quantize_onnx(path: Path, candidate: Candidate, *, how: str, percentile: bool = False, bits: int = 8) -> None:
    """Replaces the model at ``path`` by its quantized form. ``percentile``: fixed ranges of activations leave out their
    outermost values. ``bits``: of weights in blocks."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    if len(list(path.parent.iterdir())) > 1:
        raise Refused("its weights lie in a file of their own (over 2 GB), which is not quantized here")
    prepared, quantized = path.with_name("prepared.onnx"), path.with_name("quantized.onnx")
    quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
    _forget_shapes(prepared)
    seven_bits = saturates(candidate.facts.machine.cpu_flags)
    if how == "blocks":
        quantize_large_products(prepared, quantized, bits=bits)
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
        chosen: dict[str, Any] = {"op_types_to_quantize": _EIGHT_BIT_KERNELS}
        if how == "products":
            chosen = _products_alone(prepared)
        feeds: Iterable[dict[str, Any]] = _feeds(prepared, candidate)
        if percentile:
            given = list(feeds)
            found = percentile_ranges(prepared, given, chosen["op_types_to_quantize"])
            chosen["extra_options"] = {**chosen.get("extra_options", {}), "TensorQuantOverrides": found}
            feeds = given[:1]  # ONNX Runtime looks for ranges itself as well, which these stand in for
        quantization.quantize_static(
            prepared,
            quantized,
            _Reader(feeds),
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


def _feeds(path: Path, candidate: Candidate) -> Iterator[dict[str, Any]]:
    """Arrays by input of the model, for one calibration input after the other."""
    import onnx

    used = {node.name for node in onnx.load(path, load_external_data=False).graph.input}
    for tensors in calibration_tensors(candidate):
        named = ((f"input_{i}", tensor) for i, tensor in enumerate(tensors))
        yield {name: tensor.detach().contiguous().numpy() for name, tensor in named if name in used}


class _Reader:
    """Hands out one calibration input after the other (``CalibrationDataReader``)."""

    def __init__(self, feeds: Iterable[dict[str, Any]]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)

    def __iter__(self) -> _Reader:
        return self

    def __next__(self) -> dict[str, Any]:
        return next(self._feeds)
