"""Conditions that several engines have, each with one wording of its refusal; None where the condition is met."""

from __future__ import annotations

from togi.core.records import Facts
from togi.techniques.base import Refuses


def not_exportable(facts: Facts) -> Refuses | None:
    """For engines that start from ``torch.export``."""
    if facts.exportable:
        return None
    return Refuses(f"torch.export cannot capture this module: {facts.export_error or 'no reason was given'}")


def changes_buffers(facts: Facts, engine: str) -> Refuses | None:
    """For engines whose graph is a pure function: an updated buffer would stay at its first value, silently."""
    if not facts.buffers_change:
        return None
    return Refuses(
        f"the forward pass updates a buffer, and {engine} runs a graph without state: the update would be lost. "
        "Engines that keep buffers: eager, torch_compile without freezing."
    )


def no_compiler(facts: Facts) -> Refuses | None:
    """For engines that generate C++ on a CPU."""
    if facts.device != "cpu" or facts.machine.compiler is not None:
        return None
    return Refuses(
        "no C++ compiler was found, and the generated kernels must be compiled. Install one (apt-get install g++) "
        "or name it in the environment variable CXX."
    )


def first_refusal(*found: Refuses | None) -> Refuses | None:
    """The first condition that stands against it."""
    return next((refusal for refusal in found if refusal is not None), None)
