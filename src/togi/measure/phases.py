"""How long the phases of a training step take: forward, the loss, backward, the optimizer, and the rest."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from togi.core.records import PHASES
from togi.torch_internals.modules import calls_through, compiled_original, runs_compiled

FORWARD, LOSS, TOGETHER, BACKWARD, OPTIMIZER, REST = PHASES
"""The loss is all between a forward pass and the backward pass that follows. The third is what comes before backward
where no call of the module is seen. The rest is what else a loop does: it drops gradients, clips, schedules."""


def phases_ms(
    run: Callable[[], object], module: nn.Module, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Milliseconds of one ``run`` on the CPU, by phase; their sum is the whole. ``clock``: seconds, monotonic.

    What is called within a phase belongs to it: a checkpointed block that is computed again in backward is backward,
    and a loss that a model computes in its ``forward`` is forward. Nothing is compiled anew to be timed.
    """
    watch = _PhaseWatch(module, clock)
    with watch.following():
        began = clock()
        run()
        whole_s = clock() - began
    phases_s = {phase: spent_s for phase in PHASES if (spent_s := watch.spent_s[phase])}
    return {name: 1e3 * spent for name, spent in {**phases_s, REST: whole_s - sum(phases_s.values())}.items()}


class _PhaseWatch:
    def __init__(self, module: nn.Module, clock: Callable[[], float]) -> None:
        self.spent_s = defaultdict[str, float](float)
        self._clock = clock
        self._parts = dict.fromkeys(_callable_parts(module))
        self._within: list[str] = []
        self._began = 0.0
        """Of the phase that is running."""
        self._last, self._ended = "", 0.0
        """The phase before, and when it ended."""

    @contextmanager
    def following(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.callback(register_optimizer_step_pre_hook(lambda *_: self._enter(OPTIMIZER)).remove)
            stack.callback(register_optimizer_step_post_hook(lambda *_: self._leave()).remove)
            for part in self._parts:
                stack.enter_context(calls_through(part, functools.partial(self._timed, FORWARD)))
            for name in ("backward", "grad"):
                differentiate = self._timed(BACKWARD, getattr(torch.autograd, name))
                stack.enter_context(patch.object(torch.autograd, name, differentiate))
            self._ended = self._clock()
            yield

    def _timed(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call, updated=())  # what Dynamo notes on a compiled function is not ours
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._enter(phase)
            try:
                return call(*args, **kwargs)
            finally:
                self._leave()

        return timed

    def _enter(self, phase: str) -> None:
        if not self._within:
            self._began = self._clock()
            if phase == BACKWARD and (before := self._before_backward()):
                self.spent_s[before] += self._began - self._ended
        self._within.append(phase)

    def _before_backward(self) -> str:
        """The phase that ends where backward begins."""
        if self._last == FORWARD:
            return LOSS
        return "" if self.spent_s[FORWARD] else TOGETHER

    def _leave(self) -> None:
        phase = self._within.pop()
        if not self._within:
            self._last, self._ended = phase, self._clock()
            self.spent_s[phase] += self._ended - self._began


def _callable_parts(module: nn.Module) -> Iterator[nn.Module]:
    """The module and its parts, but for those inside of what runs compiled, and for what ``torch.compile`` wraps."""
    if compiled_original(module) is not None:
        return
    yield module
    if not runs_compiled(module):
        for child in module.children():
            yield from _callable_parts(child)
