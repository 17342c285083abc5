"""The technique ``expandable_segments``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from togi.core.errors import Refused
from togi.core.records import Facts, Stage
from togi.techniques.base import Applies, Options, Refuses, Technique

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
NEWER = "PYTORCH_ALLOC_CONF"
"""Torch reads some options of one, some of the other, and where one is not set all of the other
(c10/core/AllocatorConfig.h, c10/cuda/CUDAAllocatorConfig.h)."""
SETTING = "expandable_segments:True"


class ExpandableSegments(Technique):
    """Let torch's allocator on a GPU grow its segments instead of taking new ones.

    What it does: starts the process with ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``, besides what that
    variable, or ``PYTORCH_ALLOC_CONF``, its newer name, holds already. The caching allocator otherwise asks the device
    for a segment for each size that none of its free ones can hold, and what remains of these is often too small for
    the next: reserved, and of no use.

    When it applies: on a GPU under Linux.

    When it refuses: on other systems, where torch has no such segments; where the user has set the option; where the
    process was not started with it. Without --max-memory it is tried only if --only names it.

    Claim: less memory reserved by calls of many sizes, at the same speed. ``togi explain expandable_segments --prove``
    measures it on a GPU.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf

    Cost and risk: the result is the same to the bit. Mapping memory into a segment takes longer than taking a cached
    block. Other processes cannot be handed such memory (CUDA IPC). It cannot be part of an artifact: the program that
    loads it must be started with the same variable.
    """

    id = "expandable_segments"
    stage = Stage.RUNTIME
    devices = frozenset({"cuda"})
    saves_memory_alone = True

    def applies(self, facts: Facts) -> Applies | Refuses:
        if not facts.machine.os.startswith("Linux"):
            return Refuses("torch has expandable segments under Linux alone")
        for name, value in settings().items():
            if "expandable_segments" in value:
                return Refuses(f"{name}={value} is set here, and holds for every recipe")
        return Applies()

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 5.0  # a fresh process imports torch

    def environment(self, facts: Facts, options: Options) -> dict[str, str]:
        return {name: f"{value},{SETTING}" for name, value in settings().items()} or {VARIABLE: SETTING}

    def repro_setting(self, options: Options) -> str:
        return f"# run it with {VARIABLE}={SETTING}"

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        if not settings() or any(SETTING not in value.split(",") for value in settings().values()):
            raise Refused(f"this process was not started with {VARIABLE}={SETTING}")
        return candidate.noting(f"needs {VARIABLE}={SETTING}")


def settings() -> dict[str, str]:
    """The settings of the user, by variable."""
    values = {name: os.environ.get(name, "").strip(", ") for name in (VARIABLE, NEWER)}
    return {name: value for name, value in values.items() if value}
