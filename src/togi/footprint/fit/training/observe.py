"""One step, watched: what its forward pass made of what, and when autograd asks for it.

``observe`` runs the step with nothing kept: every result lives as long as the program itself needs it. That it lives
longer because autograd keeps it is then a decision, result by result, and its effect on the peak is arithmetic
(``timeline``). What such a run cannot say, a timed one does (``costs``).

Times count the operations of the step, as the storage tracker does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from togi.footprint.fit.forward import ReplacedForward
from togi.footprint.fit.training.recompute import Operation, StoredValue
from togi.footprint.fit.training.recording import ForwardRecording
from togi.footprint.fit.training.saved_tensors import RecomputedTensor, SavedTensorHooks
from togi.footprint.step import Step
from togi.footprint.storage_tracker import StorageLifetime, StorageTracker
from togi.subject.behaviour import cuda_devices
from togi.torch_internals.modules import ModuleTracker
from togi.torch_internals.tensors import storage_key, tensors_of


@dataclass(eq=False)
class SavedSpan:
    """A tensor that autograd keeps: when it asks for it, and when it is done with it. None: never."""

    asked_at: int | None = None
    done_at: int | None = None


@dataclass(eq=False)
class Result:
    """A value that can be recomputed."""

    key: str
    bytes: int
    made_at: int
    module: str = ""
    dtype: torch.dtype = torch.float32
    died_at: int | None = None
    """When the program itself let go of the storage; None: not before the end."""
    saved: list[SavedSpan] = field(default_factory=list)
    overwrites: Result | None = None
    """It is made in place of this one."""
    overwritten: bool = False


@dataclass(eq=False)
class RepeatableOperation:
    """An operation that may be repeated."""

    name: str
    at: int
    reads: tuple[Result, ...]
    makes: tuple[Result, ...]
    other_bytes: int = 0
    """Of results that nobody can ask for again, but that take memory while it runs."""
    ms: float = 0.0


@dataclass(eq=False)
class Observed:
    """One step as it was seen."""

    calls: list[RepeatableOperation]
    lifetimes: list[StorageLifetime]
    """Every storage of the step, with the life that it has when autograd keeps nothing."""
    end: int


def observe(step: Step, milliseconds: dict[str, float]) -> Observed:
    """Run ``step`` once, real or on fake tensors. ``milliseconds``: of every call by its name, from a timed run."""
    module = step.module
    running = ModuleTracker(module)
    tracker = _PlainTracker(where=running.now)
    tracker.add_existing([p.grad for p in module.parameters() if p.grad is not None], "gradient")
    tracker.add_step(step)
    calls: list[RepeatableOperation] = []

    def hooks() -> SavedTensorHooks:
        return _Observer(tracker, calls, lambda: running.now().module)

    with torch.random.fork_rng(cuda_devices()), running.following(), tracker, watched_by(module, hooks):
        step.train_once()
    module.zero_grad()
    for call in calls:
        call.ms = milliseconds.get(call.name, 0.0)
        for result in call.makes:
            result.died_at = tracker.lifetimes_of[result].died
    return Observed(calls, tracker.lifetimes, tracker.operations)


@contextmanager
def watched_by(module: nn.Module, hooks: Callable[[], SavedTensorHooks]) -> Iterator[None]:
    """Every forward pass of ``module`` that records a graph runs under hooks of its own."""
    watched = _WatchedForward(module, hooks)
    watched.put()
    try:
        yield
    finally:
        watched.take_away()


class _WatchedForward(ReplacedForward):
    def __init__(self, module: nn.Module, hooks: Callable[[], SavedTensorHooks]) -> None:
        super().__init__(module)
        self._hooks = hooks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.original(*args, **kwargs)
        with self._hooks().watching():
            return self.original(*args, **kwargs)


class _PlainTracker(StorageTracker):
    """Pauses while something is recomputed: that belongs to the decision, not to the program."""

    def __init__(self, where: Callable[[], Any]) -> None:
        super().__init__(where=where)
        self.lifetimes_of: dict[Result, StorageLifetime] = {}
        self._paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if not self._paused:
            return super().operation(operator, args, kwargs)
        results = operator(*args, **kwargs)
        for storage in (storage for tensor in tensors_of(results) for storage in self._storages(tensor)):
            if storage_key(storage) not in self._alive:
                self._ignore(storage)
        return results

    def _ignore(self, storage: torch.UntypedStorage) -> None:
        """Known, so that it is not booked when the program reads it; but not in the book."""
        key, lifetime = storage_key(storage), StorageLifetime(bytes=storage.nbytes(), born=self.operations)
        self._alive[key] = (weakref.ref(storage, lambda _: self._end(key, lifetime)), lifetime)


class _Observer(SavedTensorHooks):
    """Saves nothing that can be recomputed, and writes down when it is asked for."""

    def __init__(self, tracker: _PlainTracker, calls: list[RepeatableOperation], module: Callable[[], str]) -> None:
        self._tracker = tracker
        self._noting = _Noting(tracker, calls, module)
        super().__init__({}, recording=self._noting)

    def pack(self, tensor: Tensor) -> Any:
        value = self.recording.value_of(tensor)
        if value is None or value.maker is None:
            return super().pack(tensor)
        dropped, saved = RecomputedTensor(value, tensor), SavedSpan()
        self._noting.results[value].saved.append(saved)
        weakref.finalize(dropped, _note_done, saved, self._tracker)
        return dropped, saved

    def unpack(self, packed: Any) -> Tensor:
        if not isinstance(packed, tuple):
            return super().unpack(packed)
        dropped, saved = packed
        if saved.asked_at is None:
            saved.asked_at = self._tracker.operations
        with self._tracker.paused():
            tensor: Tensor = dropped.unpack()
        return tensor


def _note_done(saved: SavedSpan, tracker: StorageTracker) -> None:
    saved.done_at = tracker.operations


class _Noting(ForwardRecording):
    """Writes down every call, with the results that can be recomputed."""

    def __init__(self, tracker: _PlainTracker, calls: list[RepeatableOperation], module: Callable[[], str]) -> None:
        super().__init__()
        self._tracker = tracker
        self._noted = calls
        self._module = module
        self.results: weakref.WeakKeyDictionary[StoredValue, Result] = weakref.WeakKeyDictionary()

    def _made(self, operation: Operation, name: str, values: Sequence[tuple[StoredValue, Tensor]]) -> None:
        module, slots = self._module(), operation.slots
        makes, other_bytes = [], 0
        for value, tensor in values:
            lifetime = self._tracker.lifetime_of(tensor)
            if lifetime is None or value.maker is None:
                other_bytes += 0 if value.in_place else tensor.untyped_storage().nbytes()
                continue
            old = self.results.get(slots[value.place].value) if value.in_place else None
            result = Result(value.key, lifetime.bytes, self._tracker.operations, module, tensor.dtype, overwrites=old)
            if old is not None:
                old.overwritten = True
            self.results[value] = result
            self._tracker.lifetimes_of[result] = lifetime
            makes.append(result)
        reads = {self.results[slot.value]: None for slot in slots if slot.value in self.results}
        self._noted.append(RepeatableOperation(name, self._tracker.operations, tuple(reads), tuple(makes), other_bytes))
