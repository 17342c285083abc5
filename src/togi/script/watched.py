"""One module that a script calls: how often, how long, with what, and whether an artifact could stand for it.

Between calls nothing stays but counters. The arguments of the first call of each kind (sizes, dtypes, constants) are
copied, up to a limit.
"""

from __future__ import annotations

import itertools
import operator
import random
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from togi.artifact.autocast import autocast
from togi.core.quantities import plural
from togi.script.conditions import TRAINED, ModuleCondition, inner_of, left_alone
from togi.subject.identity import code_hash
from togi.subject.inputs import Inputs
from togi.subject.prepare import training_parts
from togi.torch_internals.modes import dispatch_modes
from togi.torch_internals.modules import compiled_original, in_training

if TYPE_CHECKING:
    from togi.script.records import ModuleIdentity

_MOST_KINDS = 64
"""Kinds of calls of one module that togi distinguishes."""
_MOST_ITEMS = 16
"""Of an argument that is a list or a dict, which tell kinds of calls apart."""
_INPUTS_BYTES = 128 << 20
"""Of the copies for one module."""
_SIZES_KEPT, _FIRST_KEPT = 6, 3
"""Of one form: of many sizes the first few and the last few, since a cache that grows should be seen short and long."""
_SHORT_S = 2e-4
"""Looking at a call takes some microseconds: more than a few percent of one that takes less than this. Of such calls
the first ``_ALL_OF`` are looked at, then one in ``_ONE_IN``, and the others are only counted."""
_ALL_OF, _ONE_IN = 1000, 32

_SHOWN_TENSORS = 2
_MODES = 3
"""Of a kind of calls the first are modes, and the others say what it is called with."""

_GRADIENTS = "its inputs require gradients, which an engine does not compute"
_TRAINING = "it is called in training mode: call .eval() on it before"
_AUTOCAST = "it is called under torch.autocast ({}), where nothing can be proven: call it outside of that"
_UNUSUAL = "its inputs are tensors of a kind that cannot be kept for tuning"
_TOO_LARGE = f"its inputs are larger than {_INPUTS_BYTES >> 20} MiB, so none could be kept for tuning"
_NOT_KEPT = "there was not enough memory to keep it until the script ended: tune it with 'togi tune file.py:factory'"
_GONE = "the script drops it after one call"


@dataclass
class CallTally:
    """The calls of one kind."""

    calls: int = 0
    seconds: float = 0.0
    form: Hashable = None
    """What they have in common with calls of other sizes; None where nothing can be tuned on them."""
    reason: str = ""
    """Why they cannot be tuned."""


class WatchedModule:
    """One module with its calls."""

    def __init__(self, module: nn.Module, *, kept: bool, holds: bool, when_gone: Callable[[Any], None]) -> None:
        """``kept``: there is room for it until the script has ended. ``holds``: it is then tuned, and so held until
        then; else what is known of it is for a report alone."""
        self.reference = weakref.ref(module, when_gone)
        self.cls = type(module)
        original = compiled_original(module)
        self.name = type(inner_of(module) if original is None else original).__name__
        self.tallies: dict[Any, CallTally] = {}
        self.others = CallTally()
        """Calls of more kinds than togi distinguishes."""
        self.records_gradients = False
        """Some calls are made with gradients switched on, and its weights require them."""
        self.first = ModuleCondition.of(inner_of(module)) if kept else None
        """Before its first call."""
        self._code = code_hash(inner_of(module)) if kept and holds else ""
        """Before its first call, for what is tuned."""
        self.second: ModuleCondition | None = None
        """Before its second call: what a module makes in its first and keeps is not state."""
        self.lasts = bool(bytes_by_device(module))  # not so ``nn.Softmax(1)(x)``, which makes one for each call
        self._holds = kept and holds
        self._held = module if self._holds and self.lasts else None
        self._kept: dict[Hashable, dict[Hashable, Inputs]] = {}
        """Copies of the arguments of one call of each kind, by form. Their structures are read after the script has
        ended: what reads them takes long to import."""
        self._left_bytes = _INPUTS_BYTES
        self._lock = threading.Lock()
        self._looked_at = 0
        self._later = CallTally()
        """The calls that were looked at after the first ones."""
        self._counted_before = self._gap = 0
        self._left_out: Iterator[bool] = iter(())
        """Of the calls that were only counted those before the last gap, and this gap, with what is left of it."""
        self._gaps = random.Random(0)  # not one call in a fixed number: calls may come in a pattern

    def looked_at(self, seconds: float) -> Iterator[bool] | None:
        """One call was looked at, and took so long. As many of the next ones as what is returned yields are only
        counted; None where all are looked at."""
        with self._lock:
            self._looked_at += 1
            if self._looked_at <= _ALL_OF:
                return None
            self._later.calls += 1
            self._later.seconds += seconds
            if self._later.seconds >= _SHORT_S * self._later.calls:
                return None
            self._counted_before = self._only_counted
            self._gap = self._gaps.randrange(2 * _ONE_IN - 1)
            self._left_out = itertools.repeat(True, self._gap)
            return self._left_out

    @property
    def _only_counted(self) -> int:
        return self._counted_before + self._gap - operator.length_hint(self._left_out)

    def tally(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> CallTally:
        """Where a call of ``module``, the one that is watched, is counted. It is about to be made."""
        if self.second is None and self.tallies and self.first is not None:
            self.lasts, self._held = True, module if self._holds else None
            self.second = ModuleCondition.of(inner_of(module))
        kind = _kind(module, args, kwargs)
        found = self.tallies.get(kind)
        if found is None:
            with self._lock:
                found = self.tallies.get(kind) or self._new(module, kind, Inputs(args, dict(kwargs)))
        return found

    def _new(self, module: nn.Module, kind: Any, inputs: Inputs) -> CallTally:
        if len(self.tallies) >= _MOST_KINDS:
            return self.others
        made = self.tallies[kind] = CallTally()
        made.reason = _why_not(module, inputs)
        self.records_gradients |= torch.is_grad_enabled() and any(w.requires_grad for w in module.parameters())
        if not made.reason and self.first is not None:
            made.form = _form(called := kind[_MODES:])
            self._keep(called, made.form, inputs)
        return made

    @property
    def calls(self) -> int:
        return sum(tally.calls for tally in self._all()) + self._only_counted

    @property
    def seconds(self) -> float:
        """Of all calls: those that were only counted took as long as those that were looked at meanwhile."""
        others = self._only_counted * self._later.seconds / max(1, self._later.calls)
        return sum(tally.seconds for tally in self._all()) + others

    def _all(self) -> Iterator[CallTally]:
        yield from self.tallies.values()
        yield self.others

    def _keep(self, called: Hashable, form: Hashable, inputs: Inputs) -> None:
        kept = self._kept.setdefault(form, {})
        dropped = list(kept)[_FIRST_KEPT] if len(kept) == _SIZES_KEPT else None
        left = self._left_bytes + (0 if dropped is None else _bytes_of(kept[dropped]))
        if called in kept or _bytes_of(inputs) > left:
            return
        copied = inputs.clone()
        if dropped is not None:
            del kept[dropped]
        kept[called] = copied
        self._left_bytes = left - _bytes_of(copied)

    def _main_form(self) -> Hashable:
        """The form of calls that takes the longest, of those with kept arguments."""
        seconds: dict[Hashable, float] = {}
        for tally in self.tallies.values():
            if self._kept.get(tally.form):
                seconds[tally.form] = seconds.get(tally.form, 0.0) + tally.seconds
        return max(seconds, key=lambda form: seconds[form], default=None)

    def samples(self) -> list[Inputs]:
        """A few calls of that form, of different sizes."""
        from togi.program.samples import of_one_structure, spread

        return spread(of_one_structure(self._calls_of(self._main_form())))

    def _calls_of(self, form: Hashable) -> list[Inputs]:
        return list(self._kept.get(form, {}).values())

    def called_with(self) -> str:
        """``float32 8x128, int64 8 (3 kinds)``."""
        form = self._main_form()
        if not (calls := self._calls_of(form)):
            return ""
        shapes = [
            f"{str(tensor.dtype).removeprefix('torch.')} {'x'.join(map(str, tensor.shape)) or 'scalar'}"
            for tensor in calls[0].tensors()
        ]
        more = ", ..." if len(shapes) > _SHOWN_TENSORS else ""
        sizes = sum(tally.form == form for tally in self.tallies.values())
        kinds = f" ({plural(sizes, 'kind')})" if sizes > 1 else ""
        return f"{', '.join(shapes[:_SHOWN_TENSORS])}{more}{kinds}"

    def why_not(self) -> str:
        """Why it cannot be tuned, after the script has ended; empty if it can."""
        if self.first is None:
            return _NOT_KEPT
        module, changed = self.reference(), ""
        if module is not None:
            changed = ModuleCondition.of(inner_of(module)).changed_since(self.second or self.first)
        elif self._holds or not self.lasts:
            return _GONE
        elif self.second is not None:  # of what a report did not hold, no more is known
            changed = self.second.changed_since(self.first)
        if changed == TRAINED:
            return changed
        if self._main_form() is None:
            tallies = [tally for tally in self._all() if tally.calls]
            longest = max(tallies, key=lambda tally: tally.seconds, default=self.others)
            return longest.reason or _TOO_LARGE
        return "" if module is None else left_alone(inner_of(module)) or changed

    @property
    def live(self) -> nn.Module:
        """The module that is tuned."""
        module = self.reference() if self._held is None else self._held
        assert module is not None
        return inner_of(module)

    def identity(self) -> ModuleIdentity:
        """As it was before its first call."""
        from togi.script.identity import identity_of

        assert self.first is not None
        return identity_of(self.live, self.first.settings, self._code)


def _why_not(module: nn.Module, inputs: Inputs) -> str:
    """Why a call of this kind cannot be tuned; empty if it can."""
    tensors = inputs.tensors()
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _GRADIENTS
    if next(training_parts(inner_of(module)), None) is not None:
        return _TRAINING
    if cast := autocast():
        return _AUTOCAST.format(cast)
    if dispatch_modes() or any(type(tensor) not in (Tensor, nn.Parameter) for tensor in tensors):
        return _UNUSUAL
    return ""


def bytes_by_device(module: nn.Module) -> dict[torch.device, int]:
    """Of its weights and buffers; without those that take none."""
    needed: Counter[torch.device] = Counter()
    for tensor in (*module.parameters(), *module.buffers()):
        needed[tensor.device] += tensor.numel() * tensor.element_size()
    return {device: count for device, count in needed.items() if count}


def _bytes_of(inputs: Inputs) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in inputs.tensors())


def _kind(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """What tells kinds of calls apart: a value to be compared, which is quickly made."""
    cast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    modes = torch.is_grad_enabled(), cast, in_training(module)
    return (*modes, *map(_kind_of, args), *((key, _kind_of(value)) for key, value in kwargs.items()))


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


def _form(kind: Hashable) -> Hashable:
    """What calls of a kind have in common with those of other sizes: all but these, and whole numbers, which may be
    sizes too."""
    if not isinstance(kind, tuple):
        return kind
    if len(kind) == 3 and isinstance(kind[0], torch.Size):
        return len(kind[0]), kind[1]
    if len(kind) == 2 and kind[0] is int:
        return int
    return tuple(map(_form, kind))
