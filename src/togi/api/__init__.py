"""The public functions, and the one place that wires the parts."""

from __future__ import annotations

from togi.api.artifacts import export, load, sign
from togi.api.checking import check
from togi.api.comparing import bench, compare, verify
from togi.api.footprint import fit, memory, predict_memory
from togi.api.pricing import precision
from togi.api.studies import read_study, repro
from togi.api.tuning import optimize, restore, tune
from togi.render.display import show_results

__all__ = [
    "bench",
    "check",
    "compare",
    "export",
    "fit",
    "load",
    "memory",
    "optimize",
    "precision",
    "predict_memory",
    "read_study",
    "repro",
    "restore",
    "sign",
    "tune",
    "verify",
]

show_results()
