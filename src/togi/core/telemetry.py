"""Telemetry of the libraries that togi imports: switched off, unless the user's environment switches it on."""

from __future__ import annotations

import os

OFF = {
    "ORT_DISABLE_TELEMETRY": "1",  # else ONNX Runtime 1.32 sends a device id, and keeps it in the home folder
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Variables that these libraries read when they are imported. OpenVINO and NNCF read none: see
``programs/openvino_library``."""


def switch_off() -> None:
    """Switch it off for this process and those that it starts. ``import togi`` calls it: each library reads its
    variable once."""
    for name, value in OFF.items():
        os.environ.setdefault(name, value)
