"""The watched region: observers, stand-ins and marks together, on every thread that is started inside of it.

The observer of functions sees every call of a torch function before it is taken apart into operators. It knows what
operators no longer tell: that a device was asked for by name, that data came from a Python list, and which function a
read of a value belongs to.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from togi.lint.trace.cuda_semantics import READ, SIZE, record_transfer
from togi.lint.trace.cuda_stand_ins import patch_cuda
from togi.lint.trace.dispatch import OperatorWatch
from togi.lint.trace.patches import Patches
from togi.lint.trace.placement import CPU, CUDA, device_of, memory_of, named_device, on_cuda, place
from togi.lint.trace.recorder import EventRecorder, TorchCall, open_calls, spelled
from togi.lint.trace.tensor_stand_ins import patch_appearance, patch_moves, patch_reads
from togi.subject.inputs import Inputs
from togi.torch_internals.compiler import import_dynamo
from togi.torch_internals.cuda import cuda_can_be_named
from togi.torch_internals.modes import FunctionObserver, without_torch_function

_FROM_DATA = frozenset({"tensor", "as_tensor", "asarray", "new_tensor", "sparse_coo_tensor"})


class FunctionWatch(FunctionObserver):
    """Keeps the stack of open calls, and answers for a device that is not there."""

    def __init__(self, recorder: EventRecorder, *, simulated: bool = True) -> None:
        super().__init__()
        self.recorder = recorder
        self.simulated = simulated

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if function is torch.Tensor.backward:
            return self._backward(*args, **kwargs)
        opened = open_calls()
        opened.append(TorchCall(function, args, dict(kwargs)))
        try:
            return self._call(function, args, kwargs)
        finally:
            opened.pop()

    def _backward(
        self,
        tensor: Tensor,
        gradient: Any = None,
        retain_graph: Any = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Does what ``Tensor.backward`` does, with the mode on, so that hooks and custom functions are seen."""
        with self:
            torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)

    def _call(self, func: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name == "one_hot":
            self._judge_one_hot(args, options)
        if not self.simulated:
            return func(*args, **options)
        if name in _FROM_DATA:
            return self._from_data(func, name, args, options)
        device = _named_gpu(options)
        if device is None or not _is_builtin(func):
            return func(*args, **options)
        options["device"] = CPU
        result = func(*args, **options)
        return place(result, device) if isinstance(result, Tensor) else result

    def _judge_one_hot(self, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        classes = args[1] if len(args) > 1 else options.get("num_classes", -1)
        labels = args[0] if args else options.get("self", options.get("input"))
        if classes == -1 and isinstance(labels, Tensor) and on_cuda(labels):
            self.recorder.record("wait", "torch.nn.functional.one_hot", SIZE, tensors=[labels], waits=True)

    def _from_data(self, func: Callable[..., Any], name: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """A tensor from Python or NumPy data: made on the host, then copied."""
        like = args[0] if name == "new_tensor" else None
        position = 1 if name == "new_tensor" else 0
        data = args[position] if len(args) > position else options.get("data", options.get("obj"))
        self._note_reads(spelled(func), data)
        device = _named_gpu(options)
        target = device or (CPU if options.get("device") is not None else None)
        if isinstance(data, Tensor):
            target = target or (device_of(like) if like is not None else device_of(data))
        elif target is None:
            target = device_of(like) if like is not None else CPU
        if device is not None:
            options["device"] = CPU
        result = func(*args, **options)
        if not isinstance(result, Tensor):
            return result
        return self._arrived(spelled(func), result, data, target)

    def _arrived(self, op: str, result: Tensor, data: Any, target: torch.device) -> Tensor:
        source = device_of(data) if isinstance(data, Tensor) else CPU
        shares = isinstance(data, Tensor) and memory_of(result) == memory_of(data) is not None
        if source.type != target.type:
            record_transfer(self.recorder, op, data if isinstance(data, Tensor) else result, target, non_blocking=False)
            with without_torch_function():
                result = result.clone() if shares else result
        return place(result, target)

    def _note_reads(self, op: str, data: Any) -> None:
        """Device tensors inside of a list are read one by one, below what operators show."""
        for item in _tensors_in(data):
            if on_cuda(item):
                self.recorder.record("wait", op, READ, tensors=[item], waits=True)


def _named_gpu(options: Mapping[str, Any]) -> torch.device | None:
    named = options.get("device")
    if isinstance(named, bool) or named is None:
        return None
    device = named_device(named)
    return device if device.type == "cuda" else None


def _is_builtin(func: Callable[..., Any]) -> bool:
    """Implemented in C++: a Python function must get the device that was asked for, since it may look at it."""
    return not hasattr(func, "__code__")


def _tensors_in(data: Any, depth: int = 0) -> Iterable[Tensor]:
    if not isinstance(data, list | tuple) or depth > 3:
        return
    for item in data:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from _tensors_in(item, depth + 1)
        else:
            return


import_dynamo()  # before anything is replaced: it keeps what it finds in torch.cuda when it is imported


@contextlib.contextmanager
def watching(recorder: EventRecorder, *, simulated: bool) -> Iterator[None]:
    """Inside, what marked tensors do is recorded. Not reentrant; for a process of its own.

    Args:
        simulated: tensors, ``torch.cuda`` and factories answer as with a GPU. Without it the subject sees the CPU that
            it runs on, and only reads, dynamic sizes and layouts of marked tensors are recorded.
    """
    patches = Patches()
    patch_reads(patches, recorder)
    patches.set(threading.Thread, "_bootstrap_inner", _watched_thread(recorder, simulated))
    if simulated:
        patch_moves(patches, recorder)
        patch_appearance(patches)
        patch_cuda(patches, recorder)
    eager = torch.compiler.set_stance("force_eager")
    with patches, cuda_can_be_named() if simulated else contextlib.nullcontext(), eager, _modes(recorder, simulated):
        yield


def mark_subject(module: nn.Module, samples: tuple[Inputs, ...]) -> None:
    """Say that the module's parameters and buffers and the samples lie on the GPU. Other tensors do not, just as
    ``module.to("cuda")`` would leave them."""
    for tensor in (*module.parameters(), *module.buffers()):
        place(tensor.data, CUDA)
        if tensor.grad is not None:
            place(tensor.grad, CUDA)
    for sample in samples:
        sample.map(lambda tensor: place(tensor, CUDA))


@contextlib.contextmanager
def _modes(recorder: EventRecorder, simulated: bool) -> Iterator[None]:
    with FunctionWatch(recorder, simulated=simulated), OperatorWatch(recorder, simulated=simulated):
        yield


def _watched_thread(recorder: EventRecorder, simulated: bool) -> Callable[[threading.Thread], None]:
    """Modes belong to a thread: one that is started inside gets its own."""
    original: Callable[[Any], None] = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def bootstrap(thread: threading.Thread) -> None:
        with _modes(recorder, simulated):
            original(thread)

    return bootstrap
