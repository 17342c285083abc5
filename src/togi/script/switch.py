"""What stands for the ``forward`` of a module in a script, which knows nothing of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from togi.artifact.switch import Switch, is_observed
from togi.subject.nested import mapped, tensors_in
from togi.torch_internals.tensors import is_view


class ScriptSwitch(Switch):
    """A switch that changes nothing but the time.

    The original serves whatever traces, compiles or observes the module, and calls whose inputs require gradients.
    Copies and files hold the original. Where the weights require gradients, the answer has a history as ever: if the
    script asks for gradients, the original is run then.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        original = self.original
        assert original is not None  # it is never freed here
        if self.retired or is_observed():
            return original(*args, **kwargs)
        if not torch.is_grad_enabled() or not self.watch.wants_gradients():
            return super().__call__(*args, **kwargs)
        given = tensors_in((args, kwargs))
        if any(tensor.requires_grad for tensor in given):
            return self._fall_back("its inputs require gradients", args, kwargs)
        call, around = _Unrecorded(), _IN_THREAD.call
        _IN_THREAD.call = call
        try:
            with torch.no_grad():
                output = super().__call__(*args, **kwargs)
        finally:
            _IN_THREAD.call = around
        if call.fell_back:
            return output
        return self._with_history(output, lambda: tensors_in(original(*args, **kwargs)), given)

    def _fall_back(self, reason: str, args: Any, kwargs: Any) -> Any:
        call = _IN_THREAD.call
        if call is None:
            return super()._fall_back(reason, args, kwargs)
        call.fell_back, _IN_THREAD.call = True, None
        try:
            with torch.enable_grad():
                return super()._fall_back(reason, args, kwargs)
        finally:
            _IN_THREAD.call = call

    def _warn_once(self, of: str, text: str) -> None:
        """The end of the run reports it, with what a script's user can do."""

    def _with_history(self, output: Any, again: Callable[[], list[Tensor]], given: Sequence[Tensor]) -> Any:
        """The output as autograd would have it. ``again`` runs the original, with the same inputs (``given``)."""
        weights = [weight for weight in self.module.parameters() if weight.requires_grad]
        # torch lets nobody write to a view that a function returned, nor record what was made in inference mode
        outputs = [t.clone() if t.is_inference() or is_view(t) else t for t in tensors_in(output)]
        if not outputs:
            return output
        served = _ServedCall(again, outputs, given)
        recorded = iter(_ComputedAgain.apply(served, *weights))
        return mapped(output, lambda _: next(recorded))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As the bound method of its class, which is what the module would have without the switch."""
        return getattr, (self.module, "forward")


class _Unrecorded:
    """A call with gradients switched on, which the switch has without."""

    fell_back = False
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
        ctx.mark_non_differentiable(*(t for t in call.outputs if not (t.is_floating_point() or t.is_complex())))
        return tuple(call.outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        weights = ctx.saved_tensors[: ctx.weights]
        with torch.enable_grad():
            outputs = ctx.again()
        wanted = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if not wanted:
            return None, *[None] * len(weights)
        roots, of_roots = zip(*wanted, strict=True)
        twice = torch.is_grad_enabled()  # gradients of these gradients are wanted
        return None, *torch.autograd.grad(roots, weights, of_roots, allow_unused=True, create_graph=twice)
