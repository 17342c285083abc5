"""Resident memory of a candidate, idle and at the peak of a call, measured inside its own child.

On the CPU two things count as resident. Anonymous memory of the process: its growth since a mark, so that what the fork
server lent copy-on-write does not count. Data files mapped into it (weights read in place): pages of files that lie
neither in the Python installation nor in the system's library folders. Code of installed libraries is left out, as the
system shares and drops it at will. On CUDA it is what torch's caching allocator has reserved, plus what libraries
besides it took since the mark: of this process where NVML tells, else of the whole device, but for what changed there
while this process was stopped. The context, which every process has and nothing changes, is left out there.

Source: Linux, Documentation/filesystems/proc.rst (smaps, VmHWM, clear_refs); torch.cuda memory management notes.
"""

from __future__ import annotations

import functools
import gc
import site
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.quantities import size
from togi.core.records import Footprint
from togi.machine.limits import counted
from togi.machine.nvml import read_gpu
from togi.measure.allocator import freed_memory_returned, trim

if TYPE_CHECKING:
    from togi.measure.turn import GivenAs
    from togi.subject.inputs import Inputs

_SELF = Path("/proc/self")
_SAMPLE_EVERY_S = 0.001
_CONTEXT_MOST_BYTES = 700 << 20
"""Of a CUDA context with its kernels, where NVML does not tell what this process holds."""
_LOOP_PASSES, _LOOP_S = 20, 2.0
"""Of a loop. From one step to twenty the peak of small ones grew by 10 to 50 %, from there to two hundred by about 10;
long ones are of large blocks, which malloc gives back."""
_MUCH = 0.02
"""Of a device's memory: a note says if others hold at least this share."""


@dataclass(kw_only=True)
class MemoryMark:
    """Where a measurement of memory begins: taken in the child before the candidate is built."""

    anonymous_bytes: int = 0
    mapped_bytes: int = 0
    device_other_bytes: int = 0
    """Device memory in use beyond torch's own reserve (CUDA only)."""
    of_all: bool = False
    """It is that of all processes: NVML does not tell this one's."""
    _left_bytes: int | None = None
    """What was in use when this process stopped; None while it runs."""

    def stops(self) -> None:
        """Call it before others go on, which take memory of the same device and give it back."""
        if self.of_all:
            self._left_bytes = cuda_bytes_of_all()

    def goes_on(self) -> None:
        """Call it when this process is asked for something again: what has changed meanwhile is the others'."""
        if self._left_bytes is not None:
            self.device_other_bytes += cuda_bytes_of_all() - self._left_bytes
            self._left_bytes = None


def mark_memory(device: str = "cpu") -> MemoryMark:
    """The state now, after returning what the allocator keeps free to the system."""
    _release(device)
    if device == "cuda":
        own = own_cuda_bytes()
        return MemoryMark(device_other_bytes=_cuda_other_bytes(own), of_all=own is None)
    anonymous, mapped = _resident()
    return MemoryMark(anonymous_bytes=anonymous, mapped_bytes=mapped)


def measure_footprint(
    call: Callable[..., Any],
    samples: Sequence[Inputs],
    mark: MemoryMark,
    *,
    held_bytes: int = 0,
    device: str = "cpu",
    passes: int = 2,
    exact: bool = True,
    as_it_is: bool = False,
    given_as: GivenAs | None = None,
) -> Footprint:
    """The footprint of a warm candidate; whatever ``call`` raises goes through.

    Args:
        call: the candidate, built and warm.
        samples: at least one; each is called ``passes`` times, and the output of a call is dropped before the next.
        mark: from before the candidate was built.
        held_bytes: bytes of torch storages that the candidate uses and that were in the process before the mark
            (weights inherited from the fork server): they are not growth, but the candidate needs them. 0 on CUDA,
            where torch's reserve holds everything.
        device: ``cpu`` or ``cuda``.
        passes: calls per sample. Each pass is measured by itself and the lowest peak counts: pages that the system
            takes back late only ever add. On CUDA, where the counter is exact, it is the highest.
        exact: also ask torch's allocator for its exact peak, which takes one more pass under the profiler.
        as_it_is: malloc keeps or returns what is freed as it does in other calls, and the peak is that of a loop of
            them: what one frees lies in holes that the next does not always find, so that a step that takes 65 MiB
            once takes 115 after twenty. Else malloc returns all of it meanwhile.
        given_as: of the arguments of a sample makes what a call is given instead, before its memory counts.
    """
    if device == "cuda":
        return _cuda_footprint(call, samples, mark, passes, given_as)
    _release(device)
    anonymous, mapped = _resident()
    idle = max(0, anonymous - mark.anonymous_bytes) + max(0, mapped - mark.mapped_bytes) + held_bytes
    if as_it_is:
        peak = peak_resident_bytes(functools.partial(_loop, call, samples, given_as, passes))
    else:
        with freed_memory_returned():
            peak = min(peak_resident_bytes(_one_pass(call, samples, given_as)) for _ in range(passes))
    allocator = torch_allocator_peak_bytes(_one_pass(call, samples, given_as)) if exact else None
    return Footprint(idle_bytes=idle, peak_bytes=peak, allocator_peak_bytes=allocator)


def peak_resident_bytes(run: Callable[[], None]) -> int:
    """How far the resident set rises above where it stands, while ``run`` runs.

    The kernel's own high-water mark where it may be reset; else a thread looks every millisecond and may miss less.
    """
    trim()
    if _reset_high_water():
        before = _status_bytes("VmRSS")
        run()
        return max(0, _status_bytes("VmHWM") - before)
    before = _status_bytes("VmRSS")
    with _sampling() as highest:
        run()
    return max(0, highest() - before)


_REFUSALS = (
    "can't allocate memory",
    "out of memory",
    "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Failed to allocate memory for requested buffer",  # ONNX Runtime's arena
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was refused. Only CUDA's has a class of its own; others say it in words."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(text in str(error) for text in _REFUSALS)


def torch_allocator_peak_bytes(run: Callable[[], object], device: Any = "cpu") -> int | None:
    """The exact peak of what torch's allocator on ``device`` (the CPU's, or CUDA's) handed out during ``run`` and had
    not got back, in bytes.

    None on the CPU where the profiler does not report memory (its events have no public form, so their shape is
    checked), or where ``run`` used no memory of torch's: an engine with an allocator of its own.
    """
    from togi.torch_internals.profiler import DeviceType, memory_profile

    if str(device).startswith("cuda"):
        return _cuda_allocator_peak_bytes(run, device)
    with memory_profile() as profiler:
        run()
    results = getattr(getattr(profiler, "profiler", None), "kineto_results", None)
    if results is None:
        return None
    changes = [
        (event.start_ns(), event.nbytes())
        for event in results.events()
        if event.name() == "[memory]" and event.device_type() == DeviceType.CPU
    ]
    return _highest(changes)


def _cuda_allocator_peak_bytes(run: Callable[[], object], device: Any) -> int:
    import torch

    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _highest(changes: Sequence[tuple[int, int]]) -> int | None:
    """The highest running sum of ``(time, signed bytes)``; None where nothing was allocated."""
    if not any(size > 0 for _, size in changes):
        return None
    total = highest = 0
    for _, changed in sorted(changes, key=lambda change: change[0]):
        total += changed
        highest = max(highest, total)
    return highest


def _loop(call: Callable[..., Any], samples: Sequence[Inputs], given_as: GivenAs | None, at_least: int) -> None:
    until = time.monotonic() + _LOOP_S
    for number in range(_LOOP_PASSES):
        if number >= at_least and time.monotonic() >= until:
            return
        _one_pass(call, samples, given_as)()


def _one_pass(call: Callable[..., Any], samples: Sequence[Inputs], given_as: GivenAs | None) -> Callable[[], None]:
    """A pass, with its inputs made."""
    given = [(sample.args, sample.kwargs) for sample in samples]
    if given_as is not None:
        given = [given_as(*one) for one in given]

    def run() -> None:
        for args, kwargs in given:
            call(*args, **kwargs)

    return run


def _cuda_footprint(
    call: Callable[..., Any],
    samples: Sequence[Inputs],
    mark: MemoryMark,
    passes: int,
    given_as: GivenAs | None,
) -> Footprint:
    """Reserved, not allocated, is what the device must have: private pools of CUDA graphs are in it.

    The inputs that a pass is given are made for it alone, so that they are there once, as a caller has them. What they
    hold is taken off, as far as more was reserved for it; what those segments have left is not, since calls work in it.
    """
    import torch

    _release("cuda")
    own = None if mark.of_all else own_cuda_bytes()
    told = own is not None or mark.of_all  # else NVML told at the mark, and does not now
    other = max(0, _cuda_other_bytes(own) - mark.device_other_bytes) if told else 0
    reserved = torch.cuda.memory_reserved()
    peak = allocator_peak = 0
    for _ in range(passes):
        before = torch.cuda.memory_allocated()
        run = _one_pass(call, samples, given_as)
        given, grown = torch.cuda.memory_allocated() - before, torch.cuda.memory_reserved() - reserved
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        peak = max(peak, torch.cuda.max_memory_reserved() - reserved - min(given, grown))
        allocator_peak = max(allocator_peak, torch.cuda.max_memory_allocated() - before - given)
        del run
    return Footprint(idle_bytes=reserved + other, peak_bytes=peak, allocator_peak_bytes=allocator_peak)


def _cuda_other_bytes(own: int | None) -> int:
    """Of this process by NVML's word, ``own``; without it of the device, where a neighbour that comes or goes is
    counted too."""
    import torch

    return (cuda_bytes_of_all() if own is None else own) - torch.cuda.memory_reserved()


def own_cuda_bytes(device: str = "cuda") -> int | None:
    """What this process holds of a CUDA device, by NVML's word; None where it does not tell."""
    gpu = read_gpu(device)
    return None if gpu is None else gpu.own_bytes


def cuda_bytes_of_all(device: str = "cuda") -> int:
    """What is in use of a CUDA device, by whomever."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def held_by_others(device: str) -> str:
    """Says so where processes other than this one hold much of a CUDA device; empty elsewhere, and where none do."""
    if device != "cuda":
        return ""
    import torch

    free, total = torch.cuda.mem_get_info()
    own = own_cuda_bytes()
    others = total - free - (torch.cuda.memory_reserved() + _CONTEXT_MOST_BYTES if own is None else own)
    if others < _MUCH * total:
        return ""
    about = "" if own is not None else "about "
    return (
        f"Other processes hold {about}{size(others)} of the device's {size(total)}: what would fit on an empty device "
        "may end as out of memory here. nvidia-smi lists them."
    )


def _release(device: str) -> None:
    gc.collect()
    give_back_cache(device)
    if device == "cpu":
        trim()


def give_back_cache(device: str) -> None:
    """What torch's caching allocator keeps of a CUDA device for the next call goes back to the device: of a process
    that is stopped, no other could use it. Elsewhere nothing."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _resident() -> tuple[int, int]:
    """(anonymous bytes, bytes of mapped data files), exact: counted by walking the page tables."""
    try:
        lines = (_SELF / "smaps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not offered (some sandboxes): the counters of the process, without mapped files
        return _status_bytes("RssAnon"), 0
    return _count_resident(lines, _installed())


def _count_resident(lines: Sequence[str], installed: tuple[str, ...]) -> tuple[int, int]:
    anonymous = mapped = 0
    counts = False
    for line in lines:
        head, _, value = line.partition(" ")
        if not head.endswith(":"):
            path = [*line.split(None, 5), ""][5] if "-" in head else ""
            counts = path.startswith("/") and not path.startswith(installed)
        elif head == "Anonymous:":
            size = int(value.split()[0]) * 1024
            anonymous += size
            mapped -= size if counts else 0
        elif head == "Rss:" and counts:
            mapped += int(value.split()[0]) * 1024
    return anonymous, mapped


def _installed() -> tuple[str, ...]:
    """Folders whose mapped files are code: no candidate brought them."""
    prefixes = {sys.prefix, sys.base_prefix, *site.getsitepackages(), site.getusersitepackages()}
    return (
        "/usr/",
        "/lib/",
        "/lib32/",
        "/lib64/",
        "/dev/",
        "/memfd:",
        "/SYSV",
        *(f"{Path(p).resolve()}/" for p in sorted(prefixes)),
    )


def _status_bytes(field: str) -> int:
    return 1024 * (counted(_SELF / "status", f"{field}:") or 0)


def _reset_high_water() -> bool:
    """Set VmHWM to what is resident now (proc.rst, clear_refs: 5)."""
    try:
        (_SELF / "clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return False
    return _status_bytes("VmHWM") > 0


@contextmanager
def _sampling() -> Iterator[Callable[[], int]]:
    """A thread that looks at the resident set; ``highest()`` is the largest seen."""
    stop, highest_bytes = threading.Event(), [_status_bytes("VmRSS")]

    def look() -> None:
        while not stop.wait(_SAMPLE_EVERY_S):
            highest_bytes[0] = max(highest_bytes[0], _status_bytes("VmRSS"))

    thread = threading.Thread(target=look, name="togi-memory", daemon=True)
    thread.start()
    try:
        yield lambda: max(highest_bytes[0], _status_bytes("VmRSS"))
    finally:
        stop.set()
        thread.join()
