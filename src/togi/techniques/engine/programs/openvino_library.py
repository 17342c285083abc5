"""OpenVINO itself, imported so that it sends nothing, and what its models are stored with."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

PRECISION_KEY = ["togi", "inference_precision"]
"""Where a precision technique writes ``bf16`` or ``f16`` into the model, so that it is stored with it."""
ACTIVATION_GROUP_KEY = ["togi", "dynamic_quantization_group_size"]
"""Where the technique that compresses weights writes how many activations share a scale: 0 leaves them in float."""
DENORMALS = "CPU_DENORMALS_OPTIMIZATION"
DENORMALS_KEY = ["togi", "denormals_optimization"]
"""Where ``YES`` is written if OpenVINO's own threads treat denormal numbers as zero."""
PROPERTIES = {
    "INFERENCE_PRECISION_HINT": PRECISION_KEY,
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": ACTIVATION_GROUP_KEY,
    DENORMALS: DENORMALS_KEY,
}
"""Properties with which a model is compiled, and where it holds them."""


def written_properties(model: Any) -> dict[str, str]:
    """The properties that techniques wrote into the model."""
    return {name: model.get_rt_info(key).value for name, key in PROPERTIES.items() if model.has_rt_info(key)}


def ask_for_bf16(model: Any, _: object) -> Any:
    """A pass of OpenVINO's models: what is in float32 is computed in bfloat16."""
    model.set_rt_info("bf16", PRECISION_KEY)
    return model


def openvino() -> ModuleType:
    """OpenVINO, imported so that it does not report each conversion to its makers, which it does by default."""
    with no_telemetry():
        return importlib.import_module("openvino")


@contextmanager
def no_telemetry() -> Iterator[None]:
    """Within the block, what is imported finds no ``openvino_telemetry`` and uses its own stub. If that was imported
    before, it sends nothing from now on."""
    name = "openvino_telemetry"
    missing = name not in sys.modules
    if missing:
        sys.modules[name] = None  # type: ignore[assignment]
    elif sys.modules[name] is not None:
        importlib.import_module(f"{name}.utils.sender").TelemetrySender.send = _send_nothing
    try:
        yield
    finally:
        if missing:
            sys.modules.pop(name, None)


def _send_nothing(*_: object) -> None:
    """In place of ``TelemetrySender.send``: whoever reports has taken hold of it long ago, each in another module."""
