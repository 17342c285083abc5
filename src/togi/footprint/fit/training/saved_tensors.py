"""Saved-tensor hooks under a plan: what autograd keeps is saved as it is, in fewer bits, or recomputed.

The plan decides memory and time alone. Whatever runs, a value is recomputed by the operations that made it, on what
they read. So a plan made for other sizes or another branch gives the same gradients, only another peak. float32 may be
saved as bfloat16, and masks as one bit for each element. Parameters are left as they are: they live anyway, and a copy
would cost. A tensor that several operations keep is packed once.

Source: torch.autograd.graph.saved_tensors_hooks.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from togi.core.errors import FitError
from togi.footprint.fit.forward import ReplacedForward, why_not_replaceable
from togi.footprint.fit.policies import Action, SavePolicy
from togi.footprint.fit.training.recompute import Slot, StoredValue, flat, recompute
from togi.footprint.fit.training.recording import ForwardRecording, PlannedRecording
from togi.footprint.fit.training.repeats import Repeats
from togi.torch_internals.autograd import is_transformed, saved_tensor_hooks_allowed, top_saved_tensor_hooks, version_of
from togi.torch_internals.cuda import wait_for_device

SMALLEST_BYTES = 4096
"""Below this, packing costs more than it brings."""


@dataclass(frozen=True)
class Narrow:
    """A float32 tensor in half the bytes. Relative error of each value at most 2**-8."""

    values: Tensor

    def unpack(self) -> Tensor:
        return self.values.to(torch.float32)


@dataclass(frozen=True)
class Bits:
    """A boolean tensor, eight elements in a byte. Exact."""

    packed: Tensor
    shape: torch.Size

    def unpack(self) -> Tensor:
        shifts = torch.arange(8, dtype=torch.uint8, device=self.packed.device)
        bits = (self.packed.unsqueeze(-1) >> shifts) & 1
        return bits.view(-1)[: self.shape.numel()].view(self.shape).to(torch.bool)


def pack_bits(mask: Tensor) -> Bits:
    """``mask``: boolean, any shape."""
    elements = mask.reshape(-1).to(torch.uint8)
    elements = torch.nn.functional.pad(elements, (0, -elements.numel() % 8)).view(-1, 8)
    packed = elements[:, 0].clone()
    for bit in range(1, 8):
        packed |= elements[:, bit] << bit
    return Bits(packed, mask.shape)


def packed_form(tensor: Tensor, dtype: torch.dtype) -> Narrow | Bits | None:
    """Its whole storage in fewer bits, if it is of that dtype (bool or float32) and large enough to be worth it."""
    whole = flat(tensor.detach())
    if tensor.dtype is not dtype or whole.nbytes < SMALLEST_BYTES:
        return None
    return pack_bits(whole) if dtype is torch.bool else Narrow(whole.to(torch.bfloat16))


def ms_per_byte(dtype: torch.dtype, device: str = "cpu") -> float:
    """Measured: of packing a tensor of that dtype (bool or float32), or of unpacking it."""
    tensor = torch.ones(1 << 22, device=device, dtype=dtype)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        form = packed_form(tensor, dtype)
        assert form is not None
        form.unpack()
        wait_for_device()
        times.append((time.perf_counter() - began) * 1e3 / 2)
    return min(times) / tensor.nbytes


PACKED_FORMS = {Action.BITS: torch.bool, Action.NARROW: torch.float32}
Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]


class RecomputedTensor:
    """Stands for a saved tensor that is recomputed when the backward pass asks for it."""

    __slots__ = ("__weakref__", "given_out", "slot")

    def __init__(self, value: StoredValue, tensor: Tensor) -> None:
        self.slot = Slot(value, tensor)
        self.given_out = False
        value.awaited += 1

    def unpack(self) -> Tensor:
        value = self.slot.value
        tensor = self.slot.of(recompute(value))
        if not self.given_out:
            self.given_out = True
            value.awaited -= 1
        if value.awaited <= 0:
            value.recomputed = None  # a second backward pass computes it a third time
        return tensor


class SavedTensor:
    """The tensor itself. With hooks in force torch does not see that it was written into since; this does."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version = tensor, version_of(tensor)

    def unpack(self) -> Tensor:
        if version_of(self.tensor) != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a "
                f"tensor of shape {list(self.tensor.shape)} is at version {version_of(self.tensor)}; expected version "
                f"{self.version} instead. It would be so without the plan, too."
            )
        return self.tensor


class SavedTensorHooks:
    """The hooks of one forward pass. ``actions``: by the key of a value; others are saved as they are."""

    def __init__(
        self,
        actions: Mapping[str, Action],
        outer: Hooks | None = None,
        recording: ForwardRecording | None = None,
        repeats: Repeats | None = None,
    ) -> None:
        """``repeats``: of the passes before this one; without them every call is recorded."""
        self._actions = actions
        self._outer = outer
        self.recording = recording or PlannedRecording(lambda key: actions.get(key) is Action.KEEP, repeats)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Enter it round the forward pass."""
        try:
            with self.recording, saved_tensors_hooks(self.pack, self.unpack):
                yield
        finally:
            self.recording.close()

    def pack(self, tensor: Tensor) -> Any:
        value = self.recording.value_of(tensor)
        if value is None or (value.maker is None and not _is_packed(value)):
            return self._kept(tensor)
        action = self._actions.get(value.key)
        dtype = None if action is None or _is_packed(value) else PACKED_FORMS.get(action)
        if dtype is not None and (form := packed_form(tensor, dtype)) is not None:
            self.recording.will_name(value)
            value.held, value.maker = form, None
        if _is_packed(value) or action is Action.RECOMPUTE:
            self.recording.will_repeat(value)
            return RecomputedTensor(value, tensor)
        self.recording.hold(value, tensor)
        return self._kept(tensor)

    def unpack(self, packed: Any) -> Tensor:
        if type(packed) in (SavedTensor, RecomputedTensor):
            tensor: Tensor = packed.unpack()
            return tensor
        assert self._outer is not None
        return self._outer[1](packed)

    def _kept(self, tensor: Tensor) -> Any:
        return SavedTensor(tensor) if self._outer is None else self._outer[0](tensor)


def _is_packed(value: StoredValue) -> bool:
    return value.held is not None and not isinstance(value.held, Tensor)


class PlanWarning(UserWarning):
    """A call runs without its plan, and takes more memory than planned."""


class SavingForward(ReplacedForward):
    """A module's forward, under which autograd saves what the policies say."""

    def __init__(self, module: nn.Module, policies: Sequence[SavePolicy]) -> None:
        super().__init__(module)
        self.actions: dict[str, Action] = {policy.value: policy.action for policy in policies}
        self.repeats = Repeats()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (torch.is_grad_enabled() and self.actions) or self.retired or _is_captured():
            return self.original(*args, **kwargs)
        return self._with_hooks(args, kwargs)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _with_hooks(self, args: Any, kwargs: Any) -> Any:
        """Eagerly, also inside torch.compile, which has a partitioner of its own and sees no single operations."""
        if is_transformed():
            warnings.warn(
                f"{type(self.module).__name__} runs inside a transform of torch.func, which forbids hooks for saved "
                "tensors: this call runs without its plan, and takes more memory than planned.",
                PlanWarning,
                stacklevel=2,
            )
            return self.original(*args, **kwargs)
        if not saved_tensor_hooks_allowed():
            raise FitError(
                f"{type(self.module).__name__} runs inside torch.autograd.graph.disable_saved_tensors_hooks(), which "
                "forbids recomputation. It saves no memory itself: take it away, or run without the plan."
            )
        with SavedTensorHooks(self.actions, top_saved_tensor_hooks(), repeats=self.repeats).watching():
            return self.original(*args, **kwargs)


def _is_captured() -> bool:
    """The call is written down as a program, which has no plan: neither hooks nor modes are part of it."""
    return torch.compiler.is_exporting() or bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def save_by(module: nn.Module, policies: Sequence[SavePolicy]) -> None:
    """Put the policies on ``module`` in place. Raises FitError, and changes nothing then."""
    if reason := why_not_replaceable(module):
        raise FitError(f"no plan can be applied to this {type(module).__name__}: {reason}")
    SavingForward(module, policies).put()
