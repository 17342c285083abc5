"""Runs of a step: their start, what is there before them, and their peak by torch's allocator."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from togi.core.errors import FitError
from togi.footprint.account.allocator_events import rise_bytes
from togi.footprint.step import Step
from togi.subject.behaviour import SavedBuffers, cuda_devices
from togi.torch_internals.layouts import NoStorage, storages_of
from togi.torch_internals.tensors import storage_key


@contextmanager
def same_start(module: nn.Module, seed: int, moved: Collection[str] = ()) -> Iterator[None]:
    """Seeds torch; afterwards buffers, gradients that were not there and the random state are what they were.

    Args:
        moved: names of parameters that are put back, too, since the forward pass writes into them.
    """
    state, without = SavedBuffers(module), [p for p in module.parameters() if p.grad is None]
    values = {name: p.detach().clone() for name, p in module.named_parameters() if name in moved}
    with torch.random.fork_rng(cuda_devices()):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            for parameter in without:
                parameter.grad = None
            state.restore()
            put_back(module, values)


def put_back(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """The values of parameters, by name."""
    with torch.no_grad():
        for name, value in values.items():
            module.get_parameter(name).copy_(value)


def random_state(module: nn.Module) -> Tensor:
    """The state of the generators that a step may draw from: the CPU's, and CUDA's where the module lies there."""
    on_device = any(parameter.is_cuda for parameter in module.parameters())
    return torch.cat([torch.get_rng_state(), torch.cuda.get_rng_state()]) if on_device else torch.get_rng_state()


@contextmanager
def deterministic() -> Iterator[None]:
    """Torch takes kernels whose sums come out alike in every run, where it has such; the others stay, unnamed."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*deterministic", UserWarning)
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def measured_peak_bytes(
    step: Step, run: Callable[[], None], device: str = "cpu", replaced: Collection[str] = ()
) -> int:
    """The bytes that are there before, plus the rise of ``run``, which is the step in some form.

    Args:
        replaced: names of parameters and buffers for which the step makes new ones, as ``ReplacedTensors`` finds them.

    Raises:
        FitError: the allocator cannot be observed here.
    """
    gc.collect()
    kind = torch.device(device).type
    before = bytes_of(t for t in tensors_before(step) if t.device.type == kind)
    if kind == "cpu":  # they are allocated again where it is seen
        before -= bytes_of(tensor for name, tensor in _named(step.module) if name in replaced)

    def observed() -> None:
        torch.empty(1)  # comes and goes: a run that takes nothing is told from a profiler that sees nothing
        if kind == "cpu":
            _allocate_again([tensor for name, tensor in _named(step.module) if name in replaced])
        run()

    rise = rise_bytes(observed, device)
    if rise is None:
        raise FitError("the profiler reports no memory here, so no peak can be measured and no plan trusted")
    return before + rise


def start_profiler(device: str = "cpu") -> None:
    """The first profile of a process takes up to seconds, which no run of a step should be charged with."""
    rise_bytes(lambda: torch.empty(1), device)


class ReplacedTensors:
    """Names of the parameters and buffers that a run lets go of: it makes new ones, as ``buffer = buffer * 0.9``
    does."""

    def __init__(self, module: nn.Module) -> None:
        self._storages = {name: weakref.ref(tensor.untyped_storage()) for name, tensor in _named(module)}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, storage in self._storages.items() if storage() is None)


def _allocate_again(tensors: Sequence[Tensor]) -> None:
    """The CPU's profiler tells rightly only of those frees whose allocation it saw."""
    fresh: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        storage = fresh.setdefault(storage_key(tensor.untyped_storage()), tensor.untyped_storage().clone())  # type: ignore[no-untyped-call]
        there = torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        tensor.data = there


def _named(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Dense ones: others hold several storages, or none."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.layout is torch.strided and type(tensor) in (Tensor, nn.Parameter, nn.Buffer):
            yield name, tensor


def static_bytes(step: Step) -> int:
    """Bytes that are there in every step: parameters, buffers, inputs, optimizer state, and a gradient for each
    parameter."""
    gradients = sum(p.nbytes for p in step.module.parameters() if p.requires_grad)
    return bytes_of(tensors_before(step)) + gradients


def tensors_before(step: Step) -> Iterator[Tensor]:
    """Parameters, buffers, inputs, optimizer state."""
    return (tensor for _, tensors in step.existing() for tensor in tensors)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of their storages, each once. A tensor whose memory torch does not show counts nothing, as in an
    account."""
    storages: dict[int, int] = {}
    for tensor in tensors:
        with suppress(NoStorage):
            storages |= {storage_key(storage): storage.nbytes() for storage in storages_of(tensor)}
    return sum(storages.values())
