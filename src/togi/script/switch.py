"""What stands for the ``forward`` of a module in a script, which knows nothing of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor

from togi.artifact.part_engine import PartEngine
from togi.artifact.switch import Switch, is_observed
from togi.subject.nested import mapped, tensors_in
from togi.torch_internals.tensors import is_view

_FIRST = "its first call with gradients switched on shows which of its answers have a history"
_UNKNOWN = (
    "gradients are switched on, and which of its answers have a history is not known: call it under torch.no_grad() "
    "where none are needed"
)


class ScriptSwitch(Switch):
    """A switch that changes nothing but the time.

    The original serves whatever traces, compiles or observes the module, and calls whose inputs require gradients.
    Copies and files hold the original. Where something in the module requires gradients, the answers have a history as
    ever: if the script asks for gradients, the original is run then.

    Which of the answers have one is the original's business: what it computes under ``no_grad``, detaches or makes of
    constants alone has none. So it serves the first such call of each form, and again when other weights require
    gradients. A captured graph decides nothing of that by values; what runs in place may, and leaves it to the
    original.
    """

    def watch_again(self) -> None:
        super().watch_again()
        self._histories: dict[Hashable, tuple[bool, ...]] = {}
        """Of the original's answers to a kind of calls: whether each tensor requires gradients."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        original = self.original
        assert original is not None  # it is never freed here
        if self.retired or is_observed():
            return original(*args, **kwargs)
        if not torch.is_grad_enabled() or not self.watch.wants_gradients():
            return super().__call__(*args, **kwargs)
        given = tensors_in((args, kwargs))
        if reason := self._left_to_original(given):
            if reason == _UNKNOWN:
                self._warn_once("history", f"the original of {self.name} serves its calls: {reason}")
            return self._fall_back(reason, args, kwargs)
        call, around = _Unrecorded(self), _IN_THREAD.call
        _IN_THREAD.call = call
        try:
            with torch.no_grad():
                output = super().__call__(*args, **kwargs)
        finally:
            _IN_THREAD.call = around
        if call.fell_back:
            if call.kind is not None:
                self._histories[call.kind] = tuple(tensor.requires_grad for tensor in tensors_in(output))
            return output
        has_history = self._histories[call.kind]

        def again() -> list[Tensor]:
            outputs = tensors_in(original(*args, **kwargs))
            return [tensor for tensor, has in zip(outputs, has_history, strict=True) if has]

        return self._with_history(output, has_history, again, given)

    def _left_to_original(self, given: Sequence[Tensor]) -> str:
        """Why the original serves a call with gradients switched on, whatever its form; empty if the engine may."""
        if any(tensor.requires_grad for tensor in given):
            return "its inputs require gradients"
        if any(tensor.is_inference() for tensor in given):
            return "its inputs were made under torch.inference_mode(), which autograd cannot keep"
        decided_by_values = any(form.in_place for form in self.forms)
        leaves_more = self.state is not None or any(form.entry.effects.changes for form in self.forms)
        return _UNKNOWN if decided_by_values or leaves_more else ""

    def _unknown_of(self, form: PartEngine) -> str:
        call = _IN_THREAD.call
        if call is None or call.switch is not self:
            return ""
        call.kind = form, torch.is_inference_mode_enabled(), self.watch.gradients_wanted()
        return "" if call.kind in self._histories else _FIRST

    def _fall_back(self, reason: str, args: Any, kwargs: Any) -> Any:
        call = _IN_THREAD.call
        if call is None or call.switch is not self:
            return super()._fall_back(reason, args, kwargs)
        call.fell_back, _IN_THREAD.call = True, None
        try:
            with torch.enable_grad():
                return super()._fall_back(reason, args, kwargs)
        finally:
            _IN_THREAD.call = call

    def _warn_once(self, of: str, text: str) -> None:
        """The end of the run reports it, with what a script's user can do."""

    def _with_history(
        self, output: Any, has_history: Sequence[bool], again: Callable[[], list[Tensor]], given: Sequence[Tensor]
    ) -> Any:
        """The output as autograd would have it. ``again`` runs the original, with the same inputs (``given``), for the
        tensors that have a history."""
        before = tensors_in(output)
        tensors = [_usable(tensor, recorded=has) for tensor, has in zip(before, has_history, strict=True)]
        if recorded := [tensor for tensor, has in zip(tensors, has_history, strict=True) if has]:
            served = _ServedCall(again, recorded, given)
            with_history = iter(_ComputedAgain.apply(served, *self.watch.with_gradients()))
            tensors = [next(with_history) if has else tensor for tensor, has in zip(tensors, has_history, strict=True)]
        if all(map(is_, tensors, before)):
            return output
        answers = iter(tensors)
        return mapped(output, lambda _: next(answers))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As the bound method of its class, which is what the module would have without the switch."""
        return getattr, (self.module, "forward")


def _usable(tensor: Tensor, *, recorded: bool) -> Tensor:
    """torch lets nobody write to a view that a recorded function returned, nor record what was made in inference
    mode."""
    return tensor.clone() if tensor.is_inference() or (recorded and is_view(tensor)) else tensor


class _Unrecorded:
    """A call with gradients switched on, which the switch has without."""

    def __init__(self, switch: ScriptSwitch) -> None:
        self.switch = switch
        self.kind: Hashable = None
        """The form of the call, and what else decides which answers have a history; None if no engine takes it."""
        self.fell_back = False
        """The original served it, with gradients."""


class _CallInThread(threading.local):
    call: _Unrecorded | None = None


_IN_THREAD = _CallInThread()


@dataclass(frozen=True)
class _ServedCall:
    """A call that an engine has answered."""

    again: Callable[[], list[Tensor]]
    outputs: Sequence[Tensor]
    given: Sequence[Tensor]


class _ComputedAgain(torch.autograd.Function):
    """The outputs of an engine, with the gradients of the original."""

    @staticmethod
    def forward(ctx: Any, call: _ServedCall, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.again, ctx.weights = call.again, len(weights)  # not its outputs, which would hold themselves
        ctx.save_for_backward(*weights, *call.given)  # what is written to meanwhile raises, as ever
        ctx.set_materialize_grads(False)
        return tuple(call.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        weights = ctx.saved_tensors[: ctx.weights]
        wanted = [weight for weight in weights if weight.requires_grad]  # the script may have frozen some since
        with torch.enable_grad():
            outputs = ctx.again()
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if not pairs or not wanted:
            return None, *[None] * len(weights)
        roots, of_roots = zip(*pairs, strict=True)
        twice = torch.is_grad_enabled()  # gradients of these gradients are wanted
        found = iter(torch.autograd.grad(roots, wanted, of_roots, allow_unused=True, create_graph=twice))
        return None, *(next(found) if weight.requires_grad else None for weight in weights)
