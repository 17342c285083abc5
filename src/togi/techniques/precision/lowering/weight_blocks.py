"""ONNX Runtime's products with weights of 8 or 4 bits in blocks (``MatMulNBits``)."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from togi.core.errors import Refused

_BLOCK = 128
"""Weights that share a scale. With 32 products took 10 to 25 % longer, at an error of 0.015 in place of 0.018."""
_LEAST_WEIGHTS = 1 << 16
"""Products with fewer stay in float32. On a VNNI CPU those of 128 x 128 took 1.1 to 1.6 times as long in 8 bits. Those
of 256 x 256 took 0.6 times as long with one row, and as long with many; those of 1024 x 1024 took 0.3 to 0.6 times."""
_IN_INT8 = 4
"""``accuracy_level``: activations are quantized by blocks as well, and multiplied in 8 bits."""


def quantize_large_products(prepared: Path, quantized: Path, *, bits: int) -> None:
    """Write the model with each product by a large constant in blocks. Raises Refused where there is none."""
    import onnx
    from onnxruntime.quantization.onnx_model import ONNXModel

    model = ONNXModel(onnx.load(prepared))
    model.replace_gemm_with_matmul()  # which alone is quantized
    sizes = {each.name: math.prod(each.dims) for each in model.model.graph.initializer}
    small = [node for node in model.model.graph.node if node.op_type == "MatMul" and not _is_large(node, sizes)]
    with _without_logging():
        quantizer = _quantizer(model.model, [node.name for node in small], bits)
        quantizer.process()
    if not any(node.op_type == "MatMulNBits" for node in quantizer.model.graph().node):
        raise Refused(f"no matrix product is by a constant of {_LEAST_WEIGHTS:,} or more numbers, where blocks pay")
    quantizer.model.save_model_to_file(str(quantized))


def _is_large(node: Any, sizes: dict[str, int]) -> bool:
    return sizes.get(node.input[1], 0) >= _LEAST_WEIGHTS


def _quantizer(model: Any, excluded: list[str], bits: int) -> Any:
    import onnxruntime

    try:
        from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
    except ImportError:  # called otherwise, and of 4 bits alone
        raise Refused(
            f"the installed onnxruntime {onnxruntime.__version__} has no products with weights of {bits} bits in "
            "blocks that are made this way: 1.22 and newer have"
        ) from None
    config = DefaultWeightOnlyQuantConfig(
        block_size=_BLOCK, is_symmetric=True, accuracy_level=_IN_INT8, op_types_to_quantize=("MatMul",), bits=bits
    )
    return MatMulNBitsQuantizer(model, nodes_to_exclude=excluded, algo_config=config)


@contextmanager
def _without_logging() -> Iterator[None]:
    """Importing it adds a handler to the root logger, and it logs every product."""
    disabled, handlers, level = logging.root.manager.disable, list(logging.root.handlers), logging.root.level
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
