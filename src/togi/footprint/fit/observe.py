"""One step, watched: what its forward pass made of what, when autograd asks for it again, and what all else takes.

The step runs with nothing kept: every result lives as long as the program itself needs it. That it lives longer because
autograd keeps it is then a decision, result by result, and its effect on the peak is arithmetic (``timeline``).

Times count the operations of the step, as the ledger does.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from togi.footprint.fit.keeping import Dropped, Keeper, hooks_in_force
from togi.footprint.fit.proof import outcome_of
from togi.footprint.fit.recording import Recording
from togi.footprint.fit.values import Operation, Value, wait_for_device
from togi.footprint.module_tracker import ModuleTracker
from togi.footprint.step import Step
from togi.footprint.storage_tracker import StorageLifetime, StorageTracker


@dataclass(eq=False)
class Saved:
    """A tensor that autograd keeps: when it asks for it, and when it is done with it. None: never."""

    asked_at: int | None = None
    done_at: int | None = None


@dataclass(eq=False)
class Result:
    """A value that can be computed again."""

    key: str
    bytes: int
    made_at: int
    module: str = ""
    dtype: torch.dtype = torch.float32
    died_at: int | None = None
    """When the program itself let go of the storage; None: not before the end."""
    saved: list[Saved] = field(default_factory=list)
    overwrites: Result | None = None
    """It is made in place of this one."""
    overwritten: bool = False


@dataclass(eq=False)
class Call:
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
    """What is known of a step."""

    calls: list[Call]
    pieces: list[StorageLifetime]
    """Every storage of the step, with the life that it has when autograd keeps nothing."""
    end: int


def observe(step: Step, milliseconds: dict[str, float]) -> Observed:
    """Run ``step`` once, real or on fake tensors. ``milliseconds``: of every call by its name, from a timed run."""
    module, optimizer = step.module, step.optimizer
    whereabouts = ModuleTracker(module)
    ledger = _Natural(where=whereabouts.now)
    ledger.add_existing([*module.parameters(), *module.buffers()], "parameter")
    ledger.add_existing([p.grad for p in module.parameters() if p.grad is not None], "gradient")
    ledger.add_existing(tensors_in((step.sample.args, dict(step.sample.kwargs))), "input")
    if optimizer is not None:
        ledger.add_existing(tensors_in(list(optimizer.state.values())), "optimizer")
    calls: list[Call] = []

    def keeper() -> Keeper:
        return _Observer(ledger, calls, lambda: whereabouts.now().module)

    with torch.random.fork_rng(), whereabouts.following(), ledger, watched_by(module, keeper):
        outcome_of(step)
    module.zero_grad()
    for call in calls:
        call.ms = milliseconds.get(call.name, 0.0)
        for result in call.makes:
            result.died_at = ledger.pieces_of[result].died
    return Observed(calls, ledger.lifetimes, ledger.operations)


@contextmanager
def timing(module: torch.nn.Module) -> Iterator[dict[str, float]]:
    """Round a run: fills in the milliseconds of every call by its name."""
    milliseconds: dict[str, float] = {}
    with watched_by(module, lambda: Keeper({}, hooks_in_force(), _Timed(milliseconds))):
        yield milliseconds


@contextmanager
def watched_by(module: torch.nn.Module, keeper: Callable[[], Keeper]) -> Iterator[None]:
    """Every forward pass of ``module`` that records a graph runs under a keeper of its own."""
    own, forward = vars(module).get("forward"), module.forward

    def watched(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        with keeper().watching():
            return forward(*args, **kwargs)

    object.__setattr__(module, "forward", watched)
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own


class _Timed(Recording):  # type: ignore[no-untyped-call]
    """Also takes the time of every call; on a GPU it waits for the end."""

    def __init__(self, milliseconds: dict[str, float]) -> None:
        super().__init__()
        self._milliseconds = milliseconds

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        started = time.perf_counter()
        results = func(*args, **kwargs)
        wait_for_device()
        self._last_ms = (time.perf_counter() - started) * 1e3
        return results

    def _made(self, operation: Operation, name: str, values: Sequence[tuple[Value, Tensor]]) -> None:
        # a model that is called twice in a step has two calls of a name
        self._milliseconds[name] = max(self._last_ms, self._milliseconds.get(name, 0.0))


class _Natural(StorageTracker):
    """Pauses while something is computed again: that belongs to the decision, not to the program."""

    def __init__(self, where: Callable[[], Any]) -> None:
        super().__init__(where=where)
        self.pieces_of: dict[Result, StorageLifetime] = {}
        self._paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._paused:
            return super().__torch_dispatch__(func, types, args, kwargs)
        results = func(*args, **(kwargs or {}))
        for tensor in tensors_in(results):
            if self.lifetime_of(tensor) is None:
                self._ignore(tensor)
        return results

    def _ignore(self, tensor: Tensor) -> None:
        """Known, so that it is not booked when the program reads it; but not in the book."""
        storage = tensor.untyped_storage()
        key, piece = (
            storage._cdata,
            StorageLifetime(bytes=storage.nbytes(), device=tensor.device.type, born=self.operations),
        )
        self._alive[key] = (weakref.ref(storage, lambda _: self._end(key, piece)), piece)


class _Observer(Keeper):
    """Keeps nothing that can be had again, and writes down when it is asked for."""

    def __init__(self, ledger: _Natural, calls: list[Call], module: Callable[[], str]) -> None:
        self._ledger = ledger
        self._noting = _Noting(ledger, calls, module)
        super().__init__({}, recording=self._noting)

    def pack(self, tensor: Tensor) -> Any:
        value = self.recording.value_of(tensor)
        if value is None or value.maker is None:
            return super().pack(tensor)
        dropped, saved = Dropped(value, tensor), Saved()
        self._noting.results[value].saved.append(saved)
        weakref.finalize(dropped, _note_done, saved, self._ledger)
        return dropped, saved

    def unpack(self, found: Any) -> Tensor:
        if not isinstance(found, tuple):
            return super().unpack(found)
        dropped, saved = found
        if saved.asked_at is None:
            saved.asked_at = self._ledger.operations
        with self._ledger.paused():
            tensor: Tensor = dropped.unpack()
        return tensor


def _note_done(saved: Saved, ledger: StorageTracker) -> None:
    saved.done_at = ledger.operations


class _Noting(Recording):  # type: ignore[no-untyped-call]
    """Writes down every call, with the results that can be had again."""

    def __init__(self, ledger: _Natural, calls: list[Call], module: Callable[[], str]) -> None:
        super().__init__()
        self._ledger = ledger
        self._noted = calls
        self._module = module
        self.results: weakref.WeakKeyDictionary[Value, Result] = weakref.WeakKeyDictionary()

    def _made(self, operation: Operation, name: str, values: Sequence[tuple[Value, Tensor]]) -> None:
        module, slots = self._module(), operation.slots()
        makes, other_bytes = [], 0
        for value, tensor in values:
            piece = self._ledger.lifetime_of(tensor)
            if piece is None or value.maker is None:
                other_bytes += 0 if value.in_place else tensor.untyped_storage().nbytes()
                continue
            old = self.results.get(slots[value.place].value) if value.in_place else None
            result = Result(value.key, piece.bytes, self._ledger.operations, module, tensor.dtype, overwrites=old)
            if old is not None:
                old.overwritten = True
            self.results[value] = result
            self._ledger.pieces_of[result] = piece
            makes.append(result)
        reads = {self.results[slot.value]: None for slot in slots if slot.value in self.results}
        self._noted.append(Call(name, self._ledger.operations, tuple(reads), tuple(makes), other_bytes))


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors among nested values."""
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
