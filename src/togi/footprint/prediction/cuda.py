"""Predicts the peak on a CUDA device that is not here: allocated, reserved, and how far both could be off.

A fake run on the CPU gives births and deaths, with CUDA's kernels put in where they differ; the caching allocator is
replayed over them. What a device decides (convolution algorithms, library workspaces, the context) is a range.

Source: aten/src/ATen/cuda/CublasHandlePool.cpp (workspace sizes), torch docs "CUDA semantics".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from togi.core.proven import MarkedPart, proofs
from togi.footprint.prediction.caching_allocator import CachingAllocator
from togi.footprint.prediction.cuda_kernels import CudaKernels
from togi.footprint.prediction.fake_run import RunRecorder, baseline_bytes, by_category, moment_of, record
from togi.footprint.prediction.operation_call import OperationCall
from togi.footprint.prediction.record import Prediction
from togi.footprint.step import Step
from togi.footprint.storage_tracker import StorageLifetime
from togi.torch_internals.modules import BACKWARD

MIB = 1 << 20
CONTEXT_BYTES = (250 * MIB, 700 * MIB)
"""CUDA context with the kernels loaded: differs with device, driver and lazy loading. Assumed, and wide on purpose."""
_MATMULS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::mv", "aten::dot")
_CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")
_UNKNOWN_SHARE = 0.03
"""Temporaries inside of kernels that are not modelled (sorts, reductions, index operations), of the allocated peak."""
_UNSPLIT_SHARE = -0.002
"""What the allocator gives away with blocks that it does not split depends on what it happened to hold; of the peak."""


@dataclass(frozen=True)
class Workspaces:
    """The memory that libraries take, at one end of the range or in its middle."""

    cublas_bytes: int
    """Per thread that multiplies matrices; kept: (4096 x 2 + 16 x 8) KiB or 32 MiB."""
    convolution_x: float
    """Multiple of a convolution's arguments and results: one copy of all in the other memory format is 1."""
    reserve_x: float
    """Multiple of the guessed reserve of recurrent layers, beyond the guess itself."""
    unknown_share: float


CUBLAS_BYTES = (8320 * 1024, 32 * MIB)
"""Before compute capability 9.0, and from it on."""
LOW = Workspaces(CUBLAS_BYTES[0], 0.0, -0.5, _UNSPLIT_SHARE)
MIDDLE = Workspaces(CUBLAS_BYTES[0], 1.0, 0.0, 0.0)
HIGH = Workspaces(CUBLAS_BYTES[1], 2.0, 1.0, _UNKNOWN_SHARE)


def workspaces() -> tuple[Workspaces, ...]:
    """The two ends of the range and its middle; what is known of the device here, if there is one, is not a range."""
    levels = (LOW, MIDDLE, HIGH)
    if not torch.cuda.is_available() or torch.version.hip:
        return levels
    cublas_bytes = CUBLAS_BYTES[torch.cuda.get_device_capability() >= (9, 0)]
    return tuple(replace(level, cublas_bytes=cublas_bytes) for level in levels)


def predict_cuda(step: Step, *, batch: int | None = None) -> Prediction:
    """Peak allocated and reserved over the first two steps, with their ranges.

    Args:
        step: on the CPU, as ``make_step`` makes it. It is consumed.
        batch: rows of the inputs.

    Raises:
        SubjectError: the run depends on values.
    """
    kernels = CudaKernels()
    foreach = True if step.optimizer is not None else None  # the default of torch's optimizers on CUDA
    recorder = record(step, batch=batch, around=kernels, foreach=foreach, first=True)
    peaks_of_levels = [peaks(recorder, level, kernels.reserve_bytes // 2) for level in workspaces()]
    allocated, reserved = zip(*peaks_of_levels, strict=True)  # more can be reserved for less: it fragments differently
    call = recorder.calls[max(0, recorder.peak_at - 1)]
    return Prediction(
        device="cuda",
        train=step.train,
        peak_bytes=allocated[1],
        low_bytes=min(allocated),
        high_bytes=max(allocated),
        reserved_bytes=reserved[1],
        reserved_low_bytes=min(reserved),
        reserved_high_bytes=max(reserved),
        context_low_bytes=CONTEXT_BYTES[0],
        context_high_bytes=CONTEXT_BYTES[1],
        baseline_bytes=baseline_bytes(recorder),
        peak=moment_of(call, recorder),
        by_category=by_category(recorder, call, allocated[1]),
        notes=(*step.notes, *_notes(kernels, recorder), *recorder.notes),
    )


def peaks(recorder: RunRecorder, level: Workspaces, reserve_bytes: int = 0) -> tuple[int, int]:
    """(allocated, reserved) of the caching allocator over the recorded births and deaths.

    Args:
        reserve_bytes: of recurrent layers in one of the recorded runs, as guessed.
    """
    allocator = CachingAllocator()
    extra = max(0, int(level.reserve_x * reserve_bytes))
    allocator.allocate("reserve", extra)
    for sign, event in recorder.events:
        if isinstance(event, OperationCall):
            _take_workspace(allocator, event, level)
        elif isinstance(event, StorageLifetime):
            if sign > 0:
                allocator.allocate(event, event.bytes)
            else:
                allocator.free(event)
    less = min(0, int(level.reserve_x * reserve_bytes))
    unknown = int(level.unknown_share * allocator.peak_allocated_bytes)
    return allocator.peak_allocated_bytes + less + unknown, allocator.reserved_bytes + less + unknown


def _take_workspace(allocator: CachingAllocator, call: OperationCall, level: Workspaces) -> None:
    """Until the next operation for a convolution; for good, once per thread, for a matrix product."""
    allocator.free("workspace")
    name = _name(call)
    if name in _CONVOLUTIONS:
        allocator.allocate("workspace", int(level.convolution_x * (call.read_bytes + call.made_bytes)))
    elif name in _MATMULS:
        thread = ("cublas", call.where.phase == BACKWARD)
        if not allocator.holds(thread):
            allocator.allocate(thread, level.cublas_bytes)


def _name(call: OperationCall) -> str:
    name: str = call.func.name()
    return name.partition(".")[0]


_UNBOUNDED = (
    "cuDNN may take more while a convolution runs than the two copies of its tensors in the range: torch sets no limit "
    "to it, the variable CUDNN_CONV_WSCAP_DBG (in MiB) does."
)


def _notes(kernels: CudaKernels, recorder: RunRecorder) -> tuple[str, ...]:
    sources = "the ranges are built from the sources of torch, not from measurements on a GPU."
    is_proven = "cuda" in proofs().get(MarkedPart.PREDICTION_FOR_CUDA, {})
    notes = [] if is_proven else [f"Not yet proven on a device: {sources}"]
    if kernels.attention:
        chosen = ", ".join(f"{name} ({count} calls)" for name, count in sorted(kernels.attention.items()))
        notes.append(f"Attention on compute capability 8.0 or above, over two runs: {chosen}.")
    if any(_name(call) in _CONVOLUTIONS for call in recorder.calls):
        notes.append(_UNBOUNDED)
    if kernels.reserve_bytes:
        notes.append("What cuDNN keeps of recurrent layers is a guess between half and double.")
    return tuple(notes)
