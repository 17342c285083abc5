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
PROPERTIES = {"INFERENCE_PRECISION_HINT": PRECISION_KEY, "DYNAMIC_QUANTIZATION_GROUP_SIZE": ACTIVATION_GROUP_KEY}
"""Properties with which a model is compiled, and where it holds them."""


def written_properties(model: Any) -> dict[str, str]:
    """The properties that precision techniques wrote into the model."""
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
    """Within the block, what is imported finds no ``openvino_telemetry`` and uses its own stub. What was imported
    before is given that stub."""
    name = "openvino_telemetry"
    before = sys.modules.get(name)
    if before is None:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is None:
            sys.modules.pop(name, None)
    reporting = sys.modules.get("openvino.tools.ovc.telemetry_utils")
    if before is not None and reporting is not None:
        from openvino.tools.ovc import telemetry_stub

        vars(reporting)["tm"] = telemetry_stub
