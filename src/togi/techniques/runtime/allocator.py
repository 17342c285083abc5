"""The technique ``allocator``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from togi.core.errors import Refused
from togi.core.records import Facts, Recipe, Stage, Unused
from togi.machine.describe import DEBIAN_PACKAGES, installed_allocators
from togi.techniques.base import Applies, Options, Refuses, Technique

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate
    from togi.subject.training import TrainingStep

JEMALLOC_SETTINGS = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
"""From PyTorch's tuning guide, "Memory allocator"; without the decay times, so that memory does go back."""


class Allocator(Technique):
    """Run in a process with another memory allocator.

    What it does: preloads tcmalloc, jemalloc or mimalloc (``LD_PRELOAD``). The C library's allocator gives large blocks
    back to the system when they are freed and faults every page in again when they are next allocated; these keep them.

    When it applies: on a CPU under Linux, where one of the three is installed.

    When it refuses: none is installed (``apt-get install libtcmalloc-minimal4``, or ``libjemalloc2``), or the process
    was not started with it.

    Claim: less time for models with large activations. ``togi explain allocator --prove`` measures it here.

    Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html (switch memory allocator)

    Cost and risk: the result is the same to the bit. Freed memory stays with the process for longer. It cannot be part
    of an artifact: the program that loads it must be started with the same ``LD_PRELOAD``.
    """

    id = "allocator"
    stage = Stage.RUNTIME
    devices = frozenset({"cpu"})
    provides = frozenset({"allocator"})
    conflicts = frozenset({"allocator"})
    speedup = 1.05
    trains = True
    step_to_the_bit = True

    def applies(self, facts: Facts) -> Applies | Refuses:
        if not _supported(facts):
            packages = ", ".join(f"{package} ({name})" for name, package in DEBIAN_PACKAGES.items())
            reason = f"no faster allocator is installed here; Debian has them as {packages}"
            return Refuses(reason, Unused.NOT_INSTALLED)
        return Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        return [{"name": name} for name in _supported(facts)] or [{"name": "tcmalloc"}]

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 5.0  # a fresh process imports torch

    def environment(self, facts: Facts, options: Options) -> dict[str, str]:
        path = facts.machine.allocators.get(str(options.get("name")))
        if path is None:
            return {}
        others = [entry for entry in os.environ.get("LD_PRELOAD", "").split(":") if entry and entry != path]
        environment = {"LD_PRELOAD": ":".join([path, *others])}
        return environment | ({"MALLOC_CONF": JEMALLOC_SETTINGS} if options.get("name") == "jemalloc" else {})

    def repro_setting(self, options: Options) -> str:
        return f"# run it with LD_PRELOAD set to {options.get('name')}"

    def step_lines(self, options: Options, recipe: Recipe, facts: Facts) -> str:
        return self.repro_setting(options)

    def apply_step(self, step: TrainingStep, options: Options) -> TrainingStep:
        path = _checked(str(options.get("name")), installed_allocators())
        return step.changed(lambda: None, note=f"needs LD_PRELOAD={path}")

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        path = _checked(str(options.get("name")), candidate.facts.machine.allocators)
        return candidate.noting(f"needs LD_PRELOAD={path}")


def _checked(name: str, allocators: Mapping[str, str]) -> str:
    """Its path, which this process was started with. Raises Refused."""
    if name not in DEBIAN_PACKAGES:
        raise Refused(f"there is no allocator {name!r}; known are {', '.join(DEBIAN_PACKAGES)}")
    path = allocators.get(name)
    if path is None:
        raise Refused(f"{name} is not installed: apt-get install {DEBIAN_PACKAGES[name]}")
    # an artifact says where the library was where it was proven; verify preloads the one of this machine
    if not any(map(_preloaded, {path, installed_allocators().get(name, path)})):
        raise Refused(f"this process was not started with LD_PRELOAD={path}")
    return path


def _supported(facts: Facts) -> list[str]:
    return [name for name in DEBIAN_PACKAGES if name in facts.machine.allocators]


def _preloaded(path: str) -> bool:
    """Whether this process has the library mapped, under this name or the one a link leads to."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return os.path.basename(path) in maps or os.path.realpath(path) in maps
