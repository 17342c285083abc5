"""Watches the modules that a script calls itself, in all its threads, until it ends."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from togi.core.quantities import first_line
from togi.machine.limits import available_bytes
from togi.script.report import ModuleCalls, ScriptReport
from togi.script.watched import CallTally, WatchedModule, bytes_by_device
from togi.torch_internals.cuda import wait_for_device
from togi.torch_internals.module_calls import watch_outermost_calls
from togi.torch_internals.modules import is_replica
from togi.torch_internals.script import is_recorded

_MOST_MODULES = 64
_MOST_DROPPED = 16
"""Modules of one class that the script drops after a call: more of it are not looked at."""
_USUAL_BYTES = 8 << 30
_KEPT_SHARE = 0.25
"""Of the free memory of a device, for modules that the script itself may have dropped when it ends."""
_LEAST_SHARE = 0.05
"""Of the time of all modules: one that takes less is not worth tuning."""


_NOT_USED = "{} is called with gradients switched on, which nothing uses: torch.no_grad() round its calls saves memory"
_OTHERS = "these are more than togi distinguishes, or the script drops them after a call"
_SMALL = "it takes less than 5 % of the modules' time"


class ScriptWatcher:
    """Watches all outermost calls from now on, in this process, until it is stopped."""

    def __init__(self, *, holds: bool = True) -> None:
        """``holds``: modules are held until the script has ended, to be tuned then; else none that it drops."""
        self.others = CallTally()
        """Calls of more modules than togi distinguishes, and of those that are gone."""
        self._modules: dict[int, WatchedModule] = {}
        self._ended: list[WatchedModule] = []
        """Of those that are gone, the ones that were more than a call."""
        self._gone: deque[int] = deque()
        """Identities of modules that the script dropped. Python says so at any time, so they are only noted."""
        self._dropped: Counter[type] = Counter()
        self._unwatched: set[int] = set()
        self._problems: dict[str, None] = {}
        self._lock = threading.Lock()
        self._holds = holds
        self._left_bytes: dict[torch.device, float] = {}
        self._keeps_on: set[torch.device] = set()
        self._watching = True
        self._left_out: dict[int, Iterator[bool]] = {}
        """By the identity of a module: its next calls, which are only counted."""
        self._undo = watch_outermost_calls(self._call, self._left_out)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.stop)

    def stop(self) -> None:
        """From now on calls are made as if nobody had watched."""
        self._watching = False
        self._undo()

    def _call(self, module: nn.Module, args: Any, kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
        if not self._watching:
            return run(module, *args, **kwargs)
        watched, tally = self._tally(module, args, kwargs)
        _wait()  # what was queued on a GPU before is none of its time
        began = time.perf_counter()
        try:
            return run(module, *args, **kwargs)
        finally:
            _wait()
            seconds = time.perf_counter() - began
            if self._watching:  # a process that was forked inside of a call has a lock that nobody releases
                with self._lock:
                    tally.calls += 1
                    tally.seconds += seconds
                if watched is not None and (left_out := watched.looked_at(seconds)) is not None:
                    self._left_out[id(module)] = left_out

    def _tally(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[WatchedModule | None, CallTally]:
        """The module, if it is watched, and where its call is counted. Never raises: the script is to run as if it was
        alone."""
        try:
            if is_recorded() or is_replica(module):
                return None, CallTally()  # what is recorded is no call; a replica of data parallelism lives for one
            watched = self._modules.get(id(module))
            if watched is None or watched.reference() is not module:
                watched = self._first_call(module)
            return (None, self.others) if watched is None else (watched, watched.tally(module, args, kwargs))
        except Exception as error:  # foreign code: what the script's objects do when they are looked at
            self._unwatched.add(id(module))
            self._problems[f"{type(module).__name__} could not be watched: {first_line(error)}"] = None
            return None, self.others

    def _first_call(self, module: nn.Module) -> WatchedModule | None:
        """None where it is not watched."""
        key = id(module)
        if key in self._unwatched or self._dropped[type(module)] >= _MOST_DROPPED:
            return None
        with self._lock:
            self._forget_gone()
            earlier = self._modules.get(key)
            if earlier is not None or len(self._modules) + len(self._ended) >= _MOST_MODULES:
                return earlier  # another thread was first
            kept = self._makes_room(bytes_by_device(module))

            def when_gone(_: Any) -> None:
                self._left_out.pop(key, None)
                self._gone.append(key)

            made = self._modules[key] = WatchedModule(module, kept=kept, holds=self._holds, when_gone=when_gone)
            return made

    def _makes_room(self, needed: Mapping[torch.device, int]) -> bool:
        """Whether a module is kept, which needs so many bytes of each device; they are counted then. Of each device a
        share of what was free is for those that are kept, and the first may take more if as much again stays free."""
        for device in needed:
            if device not in self._left_bytes:
                self._left_bytes[device] = _KEPT_SHARE * _free_bytes(device)
        if not all(
            count <= self._left_bytes[device] or (device not in self._keeps_on and count <= _free_bytes(device))
            for device, count in needed.items()
        ):
            return False
        for device, count in needed.items():
            self._left_bytes[device] -= count
            self._keeps_on.add(device)
        return True

    def _forget_gone(self) -> None:
        while self._gone:
            watched = self._modules.pop(self._gone.popleft(), None)
            if watched is None:
                continue
            self._dropped[watched.cls] += 1
            if watched.lasts:
                self._ended.append(watched)
            else:
                self.others.calls += watched.calls
                self.others.seconds += watched.seconds

    def watched(self) -> list[WatchedModule]:
        """The modules that were called, the one that took the longest first."""
        every = (*self._ended, *self._modules.values())
        return sorted((each for each in every if each.calls), key=lambda each: -each.seconds)

    def records(self, seconds: float) -> list[tuple[WatchedModule, ModuleCalls]]:
        """The modules with what is known of them, after the script has ended. ``seconds``: how long it took."""
        watched = self.watched()
        total = sum(each.seconds for each in watched)
        return [(each, self._record(each, seconds, total)) for each in watched]

    def report(self, script: str, seconds: float, records: list[tuple[WatchedModule, ModuleCalls]]) -> ScriptReport:
        modules, others = [record for _, record in records], self.others
        unused = [record.module for each, record in records if each.records_gradients and not record.reason]
        notes = [*self._problems, *(_NOT_USED.format(name) for name in dict.fromkeys(unused))]
        if others.calls:
            share = others.seconds / seconds if seconds else 0.0
            modules.append(
                ModuleCalls(module="others", calls=others.calls, seconds=others.seconds, share=share, reason=_OTHERS)
            )
        return ScriptReport(script=script, seconds=seconds, modules=tuple(modules), notes=tuple(notes))

    def _record(self, watched: WatchedModule, seconds: float, total: float) -> ModuleCalls:
        small = watched.seconds < _LEAST_SHARE * total
        return ModuleCalls(
            module=watched.name,
            calls=watched.calls,
            seconds=watched.seconds,
            share=watched.seconds / seconds if seconds else 0.0,
            called_with=watched.called_with(),
            reason=watched.why_not() or (_SMALL if small else ""),
        )


def _wait() -> None:
    """For a GPU. What has failed there is raised where the script meets it."""
    with suppress(RuntimeError):
        wait_for_device()


def _free_bytes(device: torch.device) -> float:
    """What can still be allocated there, with what torch holds for it and does not use."""
    if device.type == "meta":
        return math.inf
    backend: Any = getattr(torch, device.type, None)
    if hasattr(backend, "mem_get_info"):
        held_back = backend.memory_reserved(device) - backend.memory_allocated(device)
        return float(backend.mem_get_info(device)[0] + held_back)
    available = available_bytes()  # of the machine, whose memory other devices share
    return _USUAL_BYTES if available is None else available
