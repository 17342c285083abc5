"""The mode that sees every call of a torch function, before it is taken apart into operators.

It knows what operators no longer tell: that a device was asked for by name, that data came from a Python list, and
which function a read of a value belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from togi.lint.trace import calls
from togi.lint.trace.placement import CPU, CUDA, device_of, memory_of, on_cuda, place
from togi.lint.trace.recorder import Recorder
from togi.lint.trace.transfers import record_transfer
from togi.lint.trace.waits import READ, SIZE
from togi.torch_internals.modes import FunctionObserver, without_torch_function

_FROM_DATA = frozenset({"tensor", "as_tensor", "asarray", "new_tensor", "sparse_coo_tensor"})


class FunctionWatch(FunctionObserver):
    """Keeps the stack of open calls, and answers for a device that is not there."""

    def __init__(self, recorder: Recorder, *, simulated: bool = True) -> None:
        super().__init__()
        self.recorder = recorder
        self.simulated = simulated

    def function(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if function is torch.Tensor.backward:
            return self._backward(*args, **kwargs)
        open_calls = calls.stack()
        open_calls.append(calls.Call(function, args, dict(kwargs)))
        try:
            return self._call(function, args, kwargs)
        finally:
            open_calls.pop()

    def _backward(
        self,
        tensor: Tensor,
        gradient: Any = None,
        retain_graph: Any = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """With the mode on, so that hooks and custom functions are seen; ``Tensor.backward`` itself does only this."""
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
        asked = _cuda_asked(options)
        if asked is None or not _is_builtin(func):
            return func(*args, **options)
        options["device"] = CPU
        result = func(*args, **options)
        return place(result, asked) if isinstance(result, Tensor) else result

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
        self._note_reads(calls.spelled(func), data)
        asked = _cuda_asked(options)
        target = asked or (CPU if options.get("device") is not None else None)
        if isinstance(data, Tensor):
            target = target or (device_of(like) if like is not None else device_of(data))
        elif target is None:
            target = device_of(like) if like is not None else CPU
        if asked is not None:
            options["device"] = CPU
        result = func(*args, **options)
        if not isinstance(result, Tensor):
            return result
        return self._arrived(calls.spelled(func), result, data, target)

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


def _cuda_asked(options: Mapping[str, Any]) -> torch.device | None:
    asked = options.get("device")
    if isinstance(asked, bool) or asked is None:
        return None
    device = CUDA if isinstance(asked, int) else torch.device(asked)
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else None


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
