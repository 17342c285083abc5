"""Watches the modules that a script calls: how often, how long, and with what.

Between calls nothing stays but counters. The arguments of the first call of each kind (sizes, dtypes, constants) are
copied, up to a limit for each module.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from togi.artifact.autocast import autocast
from togi.core.quantities import first_line, plural
from togi.machine.limits import available_bytes
from togi.program.calls import Form, Recorded
from togi.program.capture import of_one_structure, spread
from togi.script.conditions import TRAINED, ModuleCondition, inner_of, left_alone
from togi.script.hook import watch_outermost_calls
from togi.script.identity import identity_of
from togi.script.records import ModuleCalls, ModuleIdentity, ScriptReport
from togi.subject.inputs import Inputs
from togi.subject.prepare import training_parts
from togi.torch_internals.modes import dispatch_modes

_MOST_MODULES = 64
_MOST_KINDS = 64
"""Kinds of calls of one module that are told apart."""
_MOST_ITEMS = 16
"""Of an argument that is a list or a dict, which tell kinds of calls apart."""
_INPUTS_BYTES = 256 << 20
"""Of the copies for one module."""
_HELD_SHARE = 0.25
"""Of the free memory, for modules that the script itself may have dropped when it ends."""
_LEAST_SHARE = 0.05
"""Of the time of all modules: one that takes less is not worth tuning."""

_SHOWN_TENSORS = 2

_GRADIENTS = "it is called with gradients switched on: put torch.no_grad() or torch.inference_mode() round its calls"
_TRAINING = "it is called in training mode: call .eval() on it before"
_AUTOCAST = "it is called under torch.autocast ({}), where nothing can be proven: call it outside of that"
_UNUSUAL = "its inputs are tensors of a kind that cannot be kept for tuning"
_TOO_LARGE = f"its inputs are larger than {_INPUTS_BYTES >> 20} MiB, so none could be kept for tuning"
_NOT_HELD = "there was not enough memory to keep it until the script ended: tune it with 'togi tune file.py:factory'"
_SMALL = "it takes less than 5 % of the modules' time"


@dataclass
class CallTally:
    """The calls of one kind."""

    calls: int = 0
    seconds: float = 0.0
    form: Form | None = None
    """Where their arguments were kept."""
    reason: str = ""
    """Why they cannot be tuned."""


class WatchedModule:
    """One module with its calls."""

    def __init__(self, module: nn.Module, *, held: bool) -> None:
        """``held``: it is kept alive, to be tuned after the script has ended."""
        self.reference = weakref.ref(module)
        self.name = type(inner_of(module)).__name__
        self.tallies: dict[Any, CallTally] = {}
        self.others = CallTally()
        """Calls of more kinds than are told apart."""
        self.first = ModuleCondition.of(inner_of(module)) if held else None
        """Before its first call."""
        self.second: ModuleCondition | None = None
        """Before its second call: what a module makes in its first and keeps is not state."""
        self._held = module if held else None
        self._recorded = Recorded(_INPUTS_BYTES, 1)
        self._lock = threading.Lock()

    def tally(self, args: Any, kwargs: Mapping[str, Any]) -> CallTally:
        """Where a call that is about to be made is counted."""
        if self.second is None and self.tallies and self._held is not None:
            self.second = ModuleCondition.of(inner_of(self._held))
        kind = _kind(args, kwargs)
        found = self.tallies.get(kind)
        if found is None:
            with self._lock:
                found = self.tallies.get(kind) or self._new(kind, Inputs(args, dict(kwargs)))
        return found

    def _new(self, kind: Any, inputs: Inputs) -> CallTally:
        if len(self.tallies) >= _MOST_KINDS:
            return self.others
        made = self.tallies[kind] = CallTally()
        made.reason = self._why_not(inputs)
        if not made.reason and self._held is not None:
            made.form = self._recorded.see(inputs)
        return made

    def _why_not(self, inputs: Inputs) -> str:
        module, tensors = self.reference(), inputs.tensors()
        assert module is not None  # it is being called
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*tensors, *module.parameters())):
            return _GRADIENTS
        if next(training_parts(inner_of(module)), None) is not None:
            return _TRAINING
        if cast := autocast():
            return _AUTOCAST.format(cast)
        if dispatch_modes() or any(type(tensor) not in (Tensor, nn.Parameter) for tensor in tensors):
            return _UNUSUAL
        return ""

    @property
    def calls(self) -> int:
        return sum(tally.calls for tally in self._all())

    @property
    def seconds(self) -> float:
        return sum(tally.seconds for tally in self._all())

    def _all(self) -> Iterator[CallTally]:
        yield from self.tallies.values()
        yield self.others

    def _main_form(self) -> Form | None:
        """The form of calls that takes the longest, of those with kept arguments."""
        seconds: dict[Form, float] = {}
        for tally in self.tallies.values():
            if tally.form is not None and self._recorded.forms[tally.form]:
                seconds[tally.form] = seconds.get(tally.form, 0.0) + tally.seconds
        return max(seconds, key=lambda form: seconds[form], default=None)

    def samples(self) -> list[Inputs]:
        """A few calls of that form, of different sizes."""
        form = self._main_form()
        return [] if form is None else spread(of_one_structure(list(self._recorded.forms[form].values())))

    def called_with(self) -> str:
        """``float32 8x128, int64 8 (3 kinds)``."""
        form, samples = self._main_form(), self.samples()
        if form is None or not samples:
            return ""
        shapes = [
            f"{str(tensor.dtype).removeprefix('torch.')} {'x'.join(map(str, tensor.shape)) or 'scalar'}"
            for tensor in samples[0].tensors()
        ]
        more = ", ..." if len(shapes) > _SHOWN_TENSORS else ""
        sizes = sum(tally.form == form for tally in self.tallies.values())
        return f"{', '.join(shapes[:_SHOWN_TENSORS])}{more}{f' ({plural(sizes, "kind")})' if sizes > 1 else ''}"

    def why_not(self) -> str:
        """Why it cannot be tuned, after the script has ended; empty if it can."""
        if self.first is None:
            return _NOT_HELD
        module = self.live
        changed = ModuleCondition.of(module).changed_since(self.second or self.first)
        if changed == TRAINED:
            return changed
        if not self.samples():
            tallies = [tally for tally in self._all() if tally.calls]
            longest = max(tallies, key=lambda tally: tally.seconds, default=self.others)
            return longest.reason or _TOO_LARGE
        return left_alone(module) or changed

    @property
    def live(self) -> nn.Module:
        """The module that is tuned."""
        assert self._held is not None
        return inner_of(self._held)

    def identity(self) -> ModuleIdentity:
        """As it was before its first call."""
        assert self.first is not None
        return identity_of(self.live, self.first.settings, self.first.code)


class ScriptWatcher:
    """Watches all outermost calls from now on, in this process, until it is stopped."""

    def __init__(self) -> None:
        self.others = CallTally()
        """Calls of more modules than are told apart, and of those that are gone."""
        self._modules: dict[int, WatchedModule] = {}
        self._problems: dict[str, None] = {}
        self._lock = threading.Lock()
        self._left_bytes = _HELD_SHARE * (available_bytes() or 0)
        self._watching = True
        self._undo = watch_outermost_calls(self._call)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.stop)

    def stop(self) -> None:
        """From now on calls are made as if nobody had watched."""
        self._watching = False
        self._undo()

    def _call(self, module: nn.Module, args: Any, kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
        if not self._watching:
            return run(module, *args, **kwargs)
        tally = self._tally(module, args, kwargs)
        began = time.perf_counter()
        try:
            return run(module, *args, **kwargs)
        finally:
            seconds = time.perf_counter() - began
            if self._watching:  # a process that was forked inside of a call has a lock that nobody releases
                with self._lock:
                    tally.calls += 1
                    tally.seconds += seconds

    def _tally(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> CallTally:
        """Never raises: the script is to run as if it was alone."""
        try:
            if torch.jit.is_tracing() or torch.compiler.is_compiling() or vars(module).get("_is_replica"):
                return CallTally()  # what is traced is no call; a replica of data parallelism lives for one
            watched = self._modules.get(id(module))
            if watched is None or watched.reference() is not module:
                watched = self._first_call(module)
            return self.others if watched is None else watched.tally(args, kwargs)
        except Exception as error:  # foreign code: what the script's objects do when they are looked at
            self._problems[f"{type(module).__name__} could not be watched: {first_line(error)}"] = None
            return self.others

    def _first_call(self, module: nn.Module) -> WatchedModule | None:
        """None where there are too many."""
        with self._lock:
            earlier = self._modules.get(id(module))
            if earlier is not None and earlier.reference() is module:  # another thread was first
                return earlier
            if earlier is not None:
                self.others.calls += earlier.calls
                self.others.seconds += earlier.seconds
            elif len(self._modules) >= _MOST_MODULES:
                return None
            needed = _bytes_of(module)
            held = not self._modules or needed <= self._left_bytes
            self._left_bytes -= needed if held else 0
            made = self._modules[id(module)] = WatchedModule(module, held=held)
            return made

    def watched(self) -> list[WatchedModule]:
        """The modules that were called, the one that took the longest first."""
        return sorted((each for each in self._modules.values() if each.calls), key=lambda each: -each.seconds)

    def records(self, seconds: float) -> list[tuple[WatchedModule, ModuleCalls]]:
        """The modules with what is known of them, after the script has ended. ``seconds``: how long it took."""
        watched = self.watched()
        total = sum(each.seconds for each in watched)
        return [(each, self._record(each, seconds, total)) for each in watched]

    def report(self, script: str, seconds: float, records: list[tuple[WatchedModule, ModuleCalls]]) -> ScriptReport:
        modules, others = [record for _, record in records], self.others
        if others.calls:
            share = others.seconds / seconds if seconds else 0.0
            called = {"calls": others.calls, "seconds": others.seconds, "share": share}
            modules.append(ModuleCalls(module="others", **called, reason="togi does not tell more modules apart"))
        return ScriptReport(script=script, seconds=seconds, modules=tuple(modules), notes=tuple(self._problems))

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


def _bytes_of(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))


def _kind(args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What tells kinds of calls apart: a value to be compared, made in a microsecond for each argument."""
    cast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    return (torch.is_grad_enabled(), cast, *map(_kind_of, args), *((key, _kind_of(kwargs[key])) for key in kwargs))


def _kind_of(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.requires_grad
    if value is None or isinstance(value, bool | int | float | str):
        return type(value), value
    if isinstance(value, list | tuple):
        return (type(value), len(value), *map(_kind_of, value[:_MOST_ITEMS]))
    if isinstance(value, dict):
        items = list(value.items())[:_MOST_ITEMS]
        return (type(value), len(value), *((key, _kind_of(item)) for key, item in items))
    return type(value)
