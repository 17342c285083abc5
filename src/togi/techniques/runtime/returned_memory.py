"""The technique ``returned_memory``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from togi.core.errors import Refused
from togi.core.records import Facts, Recipe, Stage
from togi.techniques.base import Applies, Options, Refuses, StepTechnique

if TYPE_CHECKING:
    from togi.subject.training import TrainingStep


class ReturnedMemory(StepTechnique):
    """Give the memory that a step frees back to the system at once.

    What it does: tells the C library's ``malloc`` to take each block of 128 KiB and more from the system, and to give
    it back when it is freed (``M_MMAP_THRESHOLD``, which also ends that malloc raises this size by itself). By default
    it soon takes blocks of up to 32 MiB from its heap, where the holes that they leave stay resident.

    When it applies: on a CPU, under glibc, where a limit of memory was given (``--max-memory``), or it is named by
    ``--only``.

    When it refuses: another C library or a preloaded allocator serves the process, or the environment sets malloc.

    Claim: none that holds in general. On one core, which others used, a ViT-tiny of 4 pictures held 183 in place of 208
    MiB at 0.84 times the speed, and 147 in place of 174 MiB in two micro-batches (0.82). A network of 30 layers of
    16 MiB, of which torch's allocator had handed out 352 MiB at most, held 366 in place of 525 MiB, at half the speed.

    Source: mallopt(3)

    Cost and risk: the result is the same to the bit. Every page of a large tensor is faulted in again each time. Holes
    that are in the heap before are still filled first, and stay resident: use it from the start of a process. Once it
    is undone, malloc keeps freed blocks of up to 32 MiB, as in a process that has learned from blocks of that size.
    """

    id = "returned_memory"
    stage = Stage.RUNTIME
    provides = frozenset({"allocator"})
    conflicts = frozenset({"allocator"})
    speedup = 0.75
    saves_memory_alone = True
    step_to_the_bit = True

    def applies(self, facts: Facts) -> Applies | Refuses:
        return Applies()

    def expected_memory(self, facts: Facts, options: Options) -> float:
        return 0.85

    def apply_step(self, step: TrainingStep, options: Options) -> TrainingStep:
        from togi.measure.allocator import NOT_SET, keep_as_learned, return_freed_memory

        if not return_freed_memory():
            raise Refused(NOT_SET)
        return step.changed(keep_as_learned)

    def step_lines(self, options: Options, recipe: Recipe, facts: Facts) -> str:
        from togi.measure.allocator import lines_that_return

        return lines_that_return()
