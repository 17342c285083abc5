"""Calls through ``torch.compile``, which compiles at the first call: its settings must hold whenever it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from togi.core.quantities import plural
from togi.core.records import Scalar
from togi.core.user_code import printed_frames
from togi.graphs.recording import StreamOrder
from togi.subject.signature import Signature
from togi.torch_internals.compiler import global_state, inductor_options, inductor_settings
from togi.torch_internals.cuda_graphs import GraphReport, NotRecorded, graphs_reported, trees_in_turn

_REMEMBERED_SHAPES = 4096
_order = StreamOrder()
"""Of calls whose threads take turns: all of torch.compile's graphs share memory."""


class CompiledCall:
    """Calls a compiled function; while it may compile, and only then, Inductor's settings are patched.

    ``freezing`` must be seen by Dynamo as well, which reads the global configuration, so passing it as an option of
    ``torch.compile`` is not enough. Patching around calls whose sizes were not seen before keeps it from leaking into
    other compiled functions of the process.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        settings: dict[str, Any],
        graphs: GraphReport | None = None,
        *,
        exportable: bool,
    ) -> None:
        self.function = function
        self.signature = signature
        self.settings = settings
        self.exportable = exportable
        self.graphs = graphs
        self._seen: set[Any] = set()
        self._states: list[Callable[[], bool]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key = self._key(args, kwargs)
        if key in self._seen:
            return self.function(*args, **kwargs)
        with ExitStack() as stack:
            stack.enter_context(inductor_settings(self.settings, exportable=self.exportable))
            if self.graphs is not None:
                stack.enter_context(graphs_reported(self.graphs))
            output = self.function(*args, **kwargs)
        if len(self._seen) < _REMEMBERED_SHAPES:
            self._seen.add(key)
        return output

    def _key(self, args: Any, kwargs: Any) -> Any:
        """The key by which compiled code fits a call, which is compiled anew under another: what Dynamo compares of the
        process, of each tensor, and which of them are one."""
        tensors = [*args, *kwargs.values()]
        if not all(isinstance(tensor, Tensor) for tensor in tensors):
            tensors = self.signature.flatten_inputs(args, kwargs)
        places = {id(tensor): place for place, tensor in enumerate(tensors)}
        same = () if len(places) == len(tensors) else tuple(places[id(tensor)] for tensor in tensors)
        return (self._state(), torch.is_inference_mode_enabled(), same, *map(_compared, tensors))

    def _state(self) -> int:
        """The number of this state of the process among those of earlier calls."""
        for number, unchanged in enumerate(self._states):
            if unchanged():
                return number
        now = global_state()
        self._states.append(now)
        return self._states.index(now)  # not the last: another thread may have come in between


def _compared(tensor: Tensor) -> tuple[object, ...]:
    """What Dynamo compares of an input."""
    kind = (type(tensor), tensor.dtype, tensor.requires_grad, tensor.is_inference())
    if tensor.is_nested:  # it has no shape
        return (*kind, tensor.layout)
    # sparse ones have no strides
    return (*kind, tensor.shape, tensor.stride() if tensor.layout is torch.strided else tensor.layout)


class FreshOutputs:
    """CUDA graphs write every call's outputs to the same memory: hand out copies. Without a signature the function is
    flat: it returns a tuple of tensors. Any thread may call it."""

    def __init__(self, function: Callable[..., Any], signature: Signature | None = None) -> None:
        self.function = function
        self.signature = signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with trees_in_turn() as in_turn:
            if in_turn and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                _order.after_the_last_call()
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            outputs = self.function(*args, **kwargs)
            if self.signature is None:
                return tuple(tensor.clone() for tensor in outputs)
            return self.signature.build_outputs([tensor.clone() for tensor in self.signature.flatten_outputs(outputs)])


def compile_call(
    function: Callable[..., Any],
    signature: Signature,
    options: dict[str, Scalar],
    graphs: GraphReport | None = None,
    *,
    exportable: bool,
) -> CompiledCall:
    """``torch.compile(function)`` with a technique's options; nothing is compiled before the first call.

    Args:
        exportable: ``torch.export`` captures it.
        graphs: where to tell of CUDA graphs, at the first call of each size.
    """
    descent = {"coordinate_descent_tuning": True} if options.get("coordinate_descent") else {}
    compiled = torch.compile(
        function,
        dynamic=signature.dynamic,
        options=inductor_options(str(options["mode"]), signature.dynamic) | descent,
    )
    settings = compile_settings(signature, freezing=bool(options["freezing"]))
    return CompiledCall(compiled, signature, settings, graphs, exportable=exportable)


def compile_settings(signature: Signature, *, freezing: bool) -> dict[str, Any]:
    """The settings that are patched while Inductor compiles."""
    settings: dict[str, Any] = {"freezing": freezing}
    if signature.device == "cpu":
        # A pool of compiler processes would outlive the compilation, and does not pay for one model on a CPU.
        settings["compile_threads"] = 1
    return settings


def graph_notes(graphs: GraphReport) -> list[str]:
    """Say what is not replayed as a CUDA graph, and why; nothing where all is."""
    if graphs.parts and not graphs.skips and not graphs.reasons:
        return []
    reasons = Counter(_reason(skipped) for skipped in graphs.reasons) or {"torch gives no reason": 1}
    why = "; ".join(f"{reason} ({count} times)" if count > 1 else reason for reason, count in reasons.items())
    return [f"CUDA graphs: {plural(graphs.parts, 'part')} of the compiled code to be recorded; skipped or cut: {why}."]


def _reason(skipped: NotRecorded) -> str:
    """The reason, with the innermost line of the user's where torch tells one."""
    last = printed_frames(skipped.stack)[-1:]
    return skipped.reason + "".join(f", {frame.filename}:{frame.lineno} (`{frame.line}`)" for frame in last)
