"""OpenVINO itself, imported so that it sends nothing, and what its models are stored with."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

PRECISION_KEY = ["togi", "inference_precision"]
"""Where a precision technique writes ``bf16`` or ``f16`` into the model, so that it is stored with it."""


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
