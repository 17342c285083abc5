"""Watches a run: storages and who asked for them, the allocator's events, and what keeps memory alive.

What autograd keeps is read from its graph at the moment backward begins, not with saved-tensor hooks: hooks change what
is saved (a packed output is another tensor), and code may forbid them. Which local names hold what is read from the
frames whenever the run reaches a new peak.

Source: torch.autograd docs, "Saved tensors" (``grad_fn._saved_*``).
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from typing_extensions import Self

from togi.core.errors import TogiError
from togi.core.user_code import place_in, user_frames
from togi.footprint.account.allocator_events import Allocations, operation_mark, read_allocations
from togi.footprint.account.record import Category
from togi.footprint.prediction.caching_allocator import rounded
from togi.footprint.storage_tracker import StorageLifetime, StorageTracker
from togi.torch_internals.autograd import SavedValueHooks, current_node, nodes_below
from togi.torch_internals.modules import BACKWARD, ModuleTracker
from togi.torch_internals.profiler import memory_profile
from togi.torch_internals.tensors import tensors_of

_RAW = "_raw_saved_"
_SMALLEST_BYTES = 64 * 1024
"""Names that hold less are not looked at."""


class TensorName(NamedTuple):
    """A local variable of a running function."""

    name: str
    line: str


class AccountWatch:
    """A context manager round a run. Afterwards its fields say what happened.

    Args:
        module: gives modules their names; None where any code is watched.
        device: whose allocator is read, ``cpu`` or ``cuda``.
    """

    def __init__(self, module: nn.Module | None = None, *, device: str = "cpu") -> None:
        self.device = torch.device(device).type
        self.root = type(module).__name__ if module is not None else ""
        self.modules = ModuleTracker(
            module, root=self.root, on_output=lambda output: self._categorise(output, Category.OUTPUT)
        )
        self.tracker = _WatchingTracker(self)
        self.kept: dict[StorageLifetime, list[str]] = {}
        """What autograd keeps, with each place that keeps it (``NodeName.attribute``)."""
        self.names_at_peaks: list[tuple[int, dict[StorageLifetime, list[TensorName]]]] = []
        """At every new peak of the run, and where it was reached again: the operation, and which names held what."""
        self.backward_at: int | None = None
        """The last operation before backward began."""
        self.allocations: Allocations
        self.ms = 0.0
        self.unowned_bytes = 0
        """What the device's allocator had given away before the run that no known tensor holds."""
        self._hooks: SavedValueHooks
        self._stack = ExitStack()

    @property
    def existing(self) -> list[StorageLifetime]:
        """The storages from before the run, as far as they are known."""
        return [lifetime for lifetime in self.tracker.lifetimes if lifetime.op == "" and lifetime.category]

    def add_existing(self, tensors: Iterable[Tensor], category: Category, module: str = "") -> None:
        """Track what is there before the run."""
        self.tracker.add_existing((t for t in tensors if t.device.type == self.device), category, module)

    def add_module(self, module: nn.Module) -> None:
        """Parameters, their gradients, and buffers, each under the name of its module."""
        for name, part in self._named_parts(module):
            own = list(part.parameters(recurse=False))
            self.add_existing(own, Category.PARAMETER, name)
            self.add_existing((p.grad for p in own if p.grad is not None), Category.GRADIENT, name)
            self.add_existing(part.buffers(recurse=False), Category.BUFFER, name)

    def add_optimizer(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
        """Its state, under the module whose parameters it is kept for."""
        owner: dict[Tensor, str] = {
            p: name for name, part in self._named_parts(module) for p in part.parameters(recurse=False)
        }
        for parameter, state in optimizer.state.items():
            self.add_existing(tensors_of(state), Category.OPTIMIZER, owner.get(parameter, ""))

    def count_unowned(self) -> None:
        """Called once all that is there before the run is added. On a GPU the difference are workspaces of libraries:
        cuBLAS keeps one from a thread's first product on, and no event of the run tells of it."""
        if self.device == "cuda":
            known = sum(rounded(lifetime.bytes) for lifetime in self.existing)
            torch.cuda.synchronize()
            self.unowned_bytes = max(0, torch.cuda.memory_allocated() - known)

    def __enter__(self) -> Self:
        def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self._categorise(list(optimizer.state.values()), Category.OPTIMIZER)

        self._profiler = self._stack.enter_context(memory_profile(self.device))
        self._stack.enter_context(self.modules.following())
        self._stack.callback(register_optimizer_step_post_hook(stepped).remove)
        self._hooks = SavedValueHooks()
        self._started = time.perf_counter()
        self._stack.enter_context(self.tracker)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.ms = (time.perf_counter() - self._started) * 1e3
        self._stack.close()
        if error is not None:
            return
        allocations = read_allocations(self._profiler, self.device)
        if allocations is None:
            raise TogiError(
                f"nothing was allocated by torch's {self.device} allocator in this thread while the code ran, so there "
                "is no account to give. Other threads that the code starts are not seen; an engine outside torch has "
                "memory of its own: 'togi bench' shows the resident set."
            )
        if self.device == "cpu":
            gone = ((lifetime.died, lifetime.bytes) for lifetime in self.existing if lifetime.died is not None)
            allocations = allocations.with_unseen_frees(gone)
        self.allocations = allocations

    def operation_runs(self) -> None:
        """Called while an operation runs, before it is handed on."""
        self._hooks.operation_runs()

    def backward_begins(self, node: Any) -> None:
        """Called at the first operation of a backward pass, with autograd's node."""

        def accumulated(parameter: Tensor) -> None:
            self._categorise(parameter.grad, Category.GRADIENT)

        self.backward_at = self.tracker.operations
        for below in nodes_below(node):
            for name, tensor in _saved_by(below, self._hooks):
                for lifetime in self.tracker.lifetimes_behind(tensor):
                    self.kept.setdefault(lifetime, []).append(f"{below.name()}.{name}")
            if (variable := getattr(below, "variable", None)) is not None:
                self._stack.callback(variable.register_post_accumulate_grad_hook(accumulated).remove)

    def _categorise(self, holder: Any, category: Category) -> None:
        self.tracker.categorise(tensors_of(holder), category)

    def _named_parts(self, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        return ((name or self.root, part) for name, part in module.named_modules())


class _WatchingTracker(StorageTracker):
    """Also tells the watch when backward begins, keeps addresses, and looks at names at every new peak."""

    def __init__(self, watch: AccountWatch) -> None:
        super().__init__(where=watch.modules.now, mark=operation_mark)
        self.addresses: dict[int, list[StorageLifetime]] = {}
        self._watch = watch
        self._in_backward = False

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        self._watch.operation_runs()
        node = current_node()
        if node is not None and not self._in_backward:
            self._watch.backward_begins(node)
        self._in_backward = node is not None
        return super().operation(operator, args, kwargs)

    def _begin(self, lifetime: StorageLifetime, storage: Any) -> None:
        before = self.peak_bytes
        super()._begin(lifetime, storage)
        if lifetime.bytes:
            self.addresses.setdefault(storage.data_ptr(), []).append(lifetime)
        if self.current_bytes >= before and lifetime.op and lifetime.where.phase != BACKWARD:
            names = _names_in(user_frames(sys._getframe(1)), self)
            self._watch.names_at_peaks.append((self.operations, names))


def _saved_by(node: Any, hooks: SavedValueHooks) -> Iterator[tuple[str, Tensor]]:
    """The saved tensors that can be named without side effects: values behind hooks stay packed, for unpacking may
    compute them anew."""
    kind: Any = type(node)
    for attribute in _saved_attributes(kind):
        if not hooks.has(node, getattr(node, attribute)):
            name = attribute.removeprefix(_RAW)
            try:
                value = getattr(node, "saved_tensors" if name == "tensors" else f"_saved_{name}", None)
            except RuntimeError:  # freed, or changed in place: nothing is kept that could be named
                continue
            for tensor in value if isinstance(value, tuple | list) else (value,):
                if isinstance(tensor, Tensor):
                    yield name, tensor


@cache
def _saved_attributes(kind: type) -> tuple[str, ...]:
    return tuple(attribute for attribute in dir(kind) if attribute.startswith(_RAW))


def _names_in(frames: Iterable[FrameType], tracker: StorageTracker) -> dict[StorageLifetime, list[TensorName]]:
    """The storages that local names of running functions hold, directly or in a list, tuple or dict.

    ``frame.f_locals`` of a function is a snapshot that the frame keeps, and with it every value, until it is asked for
    again (Python 3.12 and older). The snapshot is therefore emptied at once; looking must not keep anything alive.
    """
    names_of: dict[StorageLifetime, list[TensorName]] = {}
    for frame in frames:
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            continue  # a module or class body: its names are not locals, and last as long as it does
        place = place_in(frame)
        snapshot = frame.f_locals
        for name, value in snapshot.items():
            for lifetime in _storages_held_by(value, tracker):
                names_of.setdefault(lifetime, []).append(TensorName(name, place))
        if isinstance(snapshot, dict):
            snapshot.clear()
    return names_of


def _storages_held_by(value: object, tracker: StorageTracker) -> Iterator[StorageLifetime]:
    if isinstance(value, Tensor):
        values: Iterable[object] = (value,)
    elif isinstance(value, list | tuple):
        values = value
    elif isinstance(value, dict):
        values = value.values()
    else:
        return
    for tensor in values:
        lifetimes = tracker.lifetimes_behind(tensor) if isinstance(tensor, Tensor) else []
        yield from (lifetime for lifetime in lifetimes if lifetime.bytes >= _SMALLEST_BYTES)
