"""The technique ``threads``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from togi.core.callers import MOST_THREADS
from togi.core.errors import Refused
from togi.core.records import Facts, Recipe, Stage
from togi.techniques.base import Applies, Options, Refuses, Technique

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate
    from togi.subject.training import TrainingStep

_LOST_WITH_THREADS = 0.7
"""Half of the threads leave 0.62 of the speed (a VGG-11 in OpenVINO on one of two cores: 0.53 and 0.62)."""


class Threads(Technique):
    """Run each call with another number of threads.

    What it does: tells engines how many threads to use; PyTorch's own count is set for the duration of a call
    and put back after it, in the calling thread alone.

    When it applies: on a CPU with several cores. Tried: one, half the cores, all of them.

    When it refuses: there is one core, or the model runs on a GPU.

    Claim: small models lose more time waiting for each other's threads than they gain; and the default is wrong where
    cores are hyperthreads or limited by a container. ``togi explain threads --prove`` measures it here.

    Source: https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html

    Cost and risk: none for the result (sums may round differently). The best number depends on what else runs.
    """

    id = "threads"
    stage = Stage.RUNTIME
    devices = frozenset({"cpu"})
    provides = frozenset({"threads"})
    conflicts = frozenset({"threads"})
    trains = True

    def applies(self, facts: Facts) -> Applies | Refuses:
        return Applies() if len(_counts(facts)) else Refuses("there is one core, so one thread is all there is")

    def options(self, facts: Facts) -> Sequence[Options]:
        return [{"count": count} for count in _counts(facts)] or [{"count": 1}]

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        count, used = _count(options), facts.machine.threads
        if facts.train and count > used:
            return 1.0  # a training was given its threads, mostly since others need the rest: not in the first recipe
        if facts.callers > 1 or (facts.latency_ms is not None and facts.latency_ms < 2):
            return 1.1 if count == 1 else 0.9  # several callers fill the cores without that
        return 1.1 if count > used else math.pow(count / used, _LOST_WITH_THREADS)

    def configure(self, candidate: Candidate, options: Options) -> Candidate:
        return candidate.with_(threads=_count(options))

    def apply_step(self, step: TrainingStep, options: Options) -> TrainingStep:
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(_count(options))
        return step.changed(lambda: torch.set_num_threads(before))

    def repro_setting(self, options: Options) -> str:
        return f"torch.set_num_threads({_count(options)})"

    def step_lines(self, options: Options, recipe: Recipe, facts: Facts) -> str:
        return self.repro_setting(options)

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        return with_threads(candidate, _count(options))


def with_threads(candidate: Candidate, count: int, *, at_most: bool = False) -> Candidate:
    """Each call with so many of PyTorch's threads; ``configure`` sets an engine's own. ``at_most``: or with its
    caller's, where those are fewer."""
    threads = no_more_threads if at_most else torch_threads
    if candidate.program is not None and not candidate.program.allocates_with_torch:
        return candidate
    return candidate.with_(contexts=(*candidate.contexts, lambda: threads(count)))


def torch_threads(count: int) -> AbstractContextManager[None]:
    """PyTorch's number of threads inside one operation, for the block, in the calling thread alone."""
    from togi.torch_internals.openmp import own_thread_count

    return own_thread_count(count)


def no_more_threads(count: int) -> AbstractContextManager[None]:
    """The same, or as many as there are, where those are fewer: a caller that may use one core has set one."""
    import torch

    return torch_threads(min(count, torch.get_num_threads()))


def _counts(facts: Facts) -> list[int]:
    """One, half and all of the cores, without the number that is used anyway."""
    cores = facts.machine.cpu_cores
    return [count for count in sorted({1, cores // 2, cores}) if count > 0 and count != facts.machine.threads]


def _count(options: Options) -> int:
    count = options.get("count")
    if type(count) is not int or not 1 <= count <= MOST_THREADS:
        raise Refused(f"count must be a positive number of threads up to {MOST_THREADS}, not {count!r}")
    return count
