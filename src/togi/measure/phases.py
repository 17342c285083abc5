"""How long the phases of a training step take: forward, backward, the optimizer, and the rest."""

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
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from togi.torch_internals.modules import BACKWARD, FORWARD, OPTIMIZER, runs_compiled

REST = "the rest"
"""The loss, and what else a loop does: it drops gradients, clips, schedules."""


def phases_ms(
    run: Callable[[], object], module: nn.Module, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Milliseconds of one ``run`` on the CPU, by phase; their sum is the whole. ``clock``: seconds, monotonic.

    What is called within a phase belongs to it: a checkpointed block that is computed again in backward is backward. A
    compiled module gets no hooks, since it would be compiled anew: its forward pass is in the rest.
    """
    watch = _PhaseWatch(module, clock)
    with watch.following():
        began = clock()
        run()
        whole_s = clock() - began
    phases_s = {phase: spent_s for phase in (FORWARD, BACKWARD, OPTIMIZER) if (spent_s := watch.spent_s[phase])}
    return {name: 1e3 * spent for name, spent in {**phases_s, REST: whole_s - sum(phases_s.values())}.items()}


class _PhaseWatch:
    def __init__(self, module: nn.Module, clock: Callable[[], float]) -> None:
        self.spent_s = defaultdict[str, float](float)
        self._clock = clock
        self._parts = set() if runs_compiled(module) else set(module.modules())
        self._within: list[str] = []
        self._began = 0.0

    @contextmanager
    def following(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.callback(register_optimizer_step_pre_hook(lambda *_: self._enter(OPTIMIZER)).remove)
            stack.callback(register_optimizer_step_post_hook(lambda *_: self._leave()).remove)
            if self._parts:
                stack.callback(register_module_forward_pre_hook(self._module_begins).remove)
                stack.callback(register_module_forward_hook(self._module_ends, always_call=True).remove)
            for name in ("backward", "grad"):
                differentiate = self._as_backward(getattr(torch.autograd, name))
                stack.enter_context(patch.object(torch.autograd, name, differentiate))
            yield

    def _module_begins(self, module: nn.Module, _inputs: Any) -> None:
        if module in self._parts:
            self._enter(FORWARD)

    def _module_ends(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if module in self._parts:
            self._leave()

    def _as_backward(self, differentiate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(differentiate)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._enter(BACKWARD)
            try:
                return differentiate(*args, **kwargs)
            finally:
                self._leave()

        return timed

    def _enter(self, phase: str) -> None:
        if not self._within:
            self._began = self._clock()
        self._within.append(phase)

    def _leave(self) -> None:
        phase = self._within.pop()
        if not self._within:
            self.spent_s[phase] += self._clock() - self._began
