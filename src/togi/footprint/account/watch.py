"""Watches a run: the ledger for who asked for memory, the profiler for what the allocator did."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._C._profiler import _RecordFunctionFast  # the cheap form of torch.profiler.record_function
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

from togi.core.errors import TogiError
from togi.footprint.account.allocations import MARK, Stream, read_stream
from togi.footprint.account.kept import kept_pieces, nodes_below
from togi.footprint.account.names import Name, names_of
from togi.footprint.account.record import Category
from togi.footprint.ledger import Ledger, Piece
from togi.footprint.whereabouts import BACKWARD, Whereabouts, users_frames


class Watch:
    """A context manager round a run. Afterwards its fields say what happened.

    Args:
        module: gives modules their names; None where any code is watched.
        device: whose allocator is read, ``cpu`` or ``cuda``.
    """

    def __init__(self, module: nn.Module | None = None, *, device: str = "cpu") -> None:
        self.device = torch.device(device).type
        self.whereabouts = Whereabouts(module, on_output=self._output)
        self.ledger = _MarkedLedger(self)
        self.kept: dict[Piece, list[str]] = {}
        self.heights: list[tuple[int, dict[Piece, list[Name]]]] = []
        """At every new height of the run: the operation, and which names held what."""
        self.backward_at: int | None = None
        self.stream: Stream
        self.ms = 0.0
        self._stack = ExitStack()

    def enter(self, tensors: Iterable[Tensor], category: Category, module: str = "") -> None:
        """What is there before the run."""
        self.ledger.enter((t for t in tensors if t.device.type == self.device), category, module)

    def enter_module(self, module: nn.Module) -> None:
        """Parameters, their gradients, and buffers, each under the name of its module."""
        for name, part in module.named_modules():
            own = list(part.parameters(recurse=False))
            self.enter(own, Category.PARAMETER, name)
            self.enter((p.grad for p in own if p.grad is not None), Category.GRADIENT, name)
            self.enter(part.buffers(recurse=False), Category.BUFFER, name)

    def enter_optimizer(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
        """Its state, under the module whose parameters it is kept for."""
        owner = {p: name for name, part in module.named_modules() for p in part.parameters(recurse=False)}
        for parameter, state in optimizer.state.items():
            self.enter(_tensors(state), Category.OPTIMIZER, owner.get(parameter, ""))

    def __enter__(self) -> Self:
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.device == "cuda" else [])
        self._profiler = self._stack.enter_context(profile(activities=activities, profile_memory=True))
        self._stack.enter_context(self.whereabouts.following())
        self._stack.callback(register_optimizer_step_post_hook(self._stepped).remove)
        self._started = time.perf_counter()
        self._stack.enter_context(self.ledger)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.ms = (time.perf_counter() - self._started) * 1e3
        self._stack.close()
        if error is not None:
            return
        stream = read_stream(self._profiler, self.device)
        if stream is None:
            raise TogiError(
                f"nothing was allocated by torch's {self.device} allocator in this thread while the code ran, so there "
                "is no account to give. Other threads that the code starts are not seen; an engine outside torch has "
                "memory of its own: 'togi bench' shows the resident set."
            )
        self.stream = stream

    def backward_begins(self, node: Any) -> None:
        """Called at the first operation of a backward pass, with autograd's node."""
        self.backward_at = self.ledger.operations
        for piece, places in kept_pieces(node, self.ledger).items():
            self.kept.setdefault(piece, []).extend(places)
        for below in nodes_below(node):
            if (variable := getattr(below, "variable", None)) is not None:
                self._stack.callback(variable.register_post_accumulate_grad_hook(self._accumulated).remove)

    def _accumulated(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._categorise([parameter.grad], Category.GRADIENT)

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._categorise(_tensors(list(optimizer.state.values())), Category.OPTIMIZER)

    def _output(self, output: Any) -> None:
        self._categorise(_tensors(output), Category.OUTPUT)

    def _categorise(self, tensors: Iterable[Tensor], category: Category) -> None:
        for tensor in tensors:
            if (piece := self.ledger.piece_of(tensor)) and not piece.category:
                piece.category = category


class _MarkedLedger(Ledger):  # type: ignore[no-untyped-call]
    """Also marks every operation in the profile, keeps addresses, and looks at names at every new height."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(where=watch.whereabouts.now)
        self.addresses: dict[int, list[Piece]] = {}
        self._watch = watch
        self._in_backward = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        node = torch._C._current_autograd_node()
        if node is not None and not self._in_backward:
            self._watch.backward_begins(node)
        self._in_backward = node is not None
        with _RecordFunctionFast(f"{MARK}{self.operations + 1}"):
            return super().__torch_dispatch__(func, types, args, kwargs)

    def _add(self, piece: Piece, storage: Any) -> None:
        height = self.peak_bytes
        super()._add(piece, storage)
        if piece.bytes:
            self.addresses.setdefault(storage.data_ptr(), []).append(piece)
        if self.peak_bytes > height and piece.op and piece.where.phase != BACKWARD:
            names = names_of(users_frames(sys._getframe(1)), self)
            self._watch.heights.append((self.operations, names))


def _tensors(values: object) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
