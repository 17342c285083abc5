"""``torch.cuda`` and those methods of ``torch.Tensor`` that tell or change the device, as they behave with a GPU.

Methods are replaced on the class, so that they hold in all threads, inside of torch's own Python functions and for
parameters; the originals do the work on the CPU. Streams and events are always done. Nothing here invents a
measurement: memory counters are 0, events are timed by the host's clock.
"""

# ruff: noqa: ARG001, ARG005 - the signatures are those of torch.cuda and of torch.Tensor

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace, TracebackType
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from togi.lint.trace.cuda_semantics import READ, TO_DEVICE, TO_HOST, record_transfer
from togi.lint.trace.placement import CPU, CUDA, device_of, is_pinned, on_cuda, pin, place, place_storage
from togi.lint.trace.recorder import Recorder, call_name
from togi.torch_internals.cuda import GROUPING_NAME, GROUPING_OWNER, GeneratorBase, TensorBase, grouping

_ABSENT = object()


class Patches:
    """A context manager. What a class only inherited is removed again, not copied down."""

    def __init__(self) -> None:
        self._wanted: list[tuple[Any, str, Any]] = []
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace ``owner.name`` on entry. A name that this version of torch does not have is added all the same."""
        self._wanted.append((owner, name, value))

    def __enter__(self) -> Self:
        for owner, name, value in self._wanted:
            self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, value)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


EXPLICIT = "the host waits for the GPU, because the code asks for it"
FREED = "freeing memory of the device waits for everything that runs on it"
PROPERTIES = SimpleNamespace(
    name="simulated CUDA device",
    major=8,
    minor=0,
    total_memory=80 * 2**30,
    multi_processor_count=108,
    warp_size=32,
    is_integrated=0,
    gcnArchName="",
)
"""Of the simulated device: compute capability and size of an A100."""


def patch_cuda(patches: Patches, recorder: Recorder) -> None:
    """Replace the functions and classes of ``torch.cuda`` that need a driver."""

    def waiting(op: str, why: str = EXPLICIT, *, seen: bool = False) -> Callable[..., None]:
        def wait(*args: Any, **kwargs: Any) -> None:
            recorder.record("wait", op, why, waits=True, seen_by_debug_mode=seen)

        return wait

    stream_class, event_class = _stream_classes(waiting)
    current = stream_class()
    replacements: dict[str, Any] = {
        "synchronize": waiting("torch.cuda.synchronize"),
        "empty_cache": waiting("torch.cuda.empty_cache", FREED),
        "Stream": stream_class,
        "Event": event_class,
        "current_stream": lambda device=None: current,
        "default_stream": lambda device=None: current,
        "stream": lambda stream: contextlib.nullcontext(stream),
        "StreamContext": lambda stream: contextlib.nullcontext(stream),
        "device": _DeviceContext,
        "device_of": _DeviceContext,
        "nvtx": SimpleNamespace(range_push=_nothing, range_pop=_nothing, mark=_nothing, range=_range, annotate=_range),
        **_answers(),
    }
    for name, value in replacements.items():
        patches.set(torch.cuda, name, value)
    patches.set(torch.accelerator, "is_available", lambda: True)
    patches.set(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    patches.set(torch.accelerator, "device_count", lambda: 1)
    patches.set(torch.accelerator, "synchronize", waiting("torch.accelerator.synchronize"))
    patches.set(torch, "Generator", _Generator)


def _answers() -> dict[str, Any]:
    """Questions and settings."""
    zero = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "utilization")
    ignored = (
        "init",
        "_lazy_init",
        "set_device",
        "set_stream",
        "manual_seed",
        "manual_seed_all",
        "seed",
        "seed_all",
        "ipc_collect",
        "reset_peak_memory_stats",
        "reset_max_memory_allocated",
        "set_sync_debug_mode",
        "set_per_process_memory_fraction",
        "_check_capability",
    )
    return {
        **dict.fromkeys(zero, lambda device=None: 0),
        **dict.fromkeys(ignored, _nothing),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: PROPERTIES.name,
        "get_device_capability": lambda device=None: (PROPERTIES.major, PROPERTIES.minor),
        "get_device_properties": lambda device=None: PROPERTIES,
        "mem_get_info": lambda device=None: (PROPERTIES.total_memory, PROPERTIES.total_memory),
        "memory_stats": lambda device=None: {},
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": lambda: False,
        "get_sync_debug_mode": lambda: 0,
        "can_device_access_peer": lambda device, peer: False,
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda state, device="cuda": torch.set_rng_state(state),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
    }


def _nothing(*args: Any, **kwargs: Any) -> None:
    """There is nothing to set up, to seed or to reset."""


@contextlib.contextmanager
def _range(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


class _DeviceContext(contextlib.AbstractContextManager["_DeviceContext"]):
    """``torch.cuda.device(0)``: there is one device."""

    def __init__(self, device: Any = None) -> None:
        self.idx = 0
        self.prev_idx = 0

    def __exit__(self, *exception: object) -> None:
        return None


def _stream_classes(waiting: Callable[..., Callable[..., None]]) -> tuple[type[Any], type[Any]]:
    class Event:
        """Done as soon as it is recorded: on the CPU everything before it has run."""

        def __init__(self, enable_timing: bool = False, **options: Any) -> None:
            self._recorded_s: float | None = None

        def record(self, stream: Any = None) -> None:
            self._recorded_s = time.perf_counter()

        def wait(self, stream: Any = None) -> None:
            """A stream waits, not the host."""

        def query(self) -> bool:
            return True

        synchronize = waiting("torch.cuda.Event.synchronize")

        def elapsed_time(self, end: Any) -> float:
            """Milliseconds of the host's clock."""
            if self._recorded_s is None or end._recorded_s is None:
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            return 1e3 * float(end._recorded_s - self._recorded_s)

    class Stream:
        """The one queue there is."""

        cuda_stream = 0
        stream_id = 0
        device = torch.device("cuda", 0)
        device_index = 0
        priority = 0

        def __init__(self, *args: Any, **options: Any) -> None:
            pass

        synchronize = waiting("torch.cuda.Stream.synchronize", seen=True)

        def query(self) -> bool:
            return True

        def wait_stream(self, stream: Any) -> None:
            """A stream waits, not the host."""

        def wait_event(self, event: Any) -> None:
            """A stream waits, not the host."""

        def record_event(self, event: Any = None) -> Any:
            recorded = event or Event()
            recorded.record(self)
            return recorded

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *exception: object) -> None:
            return None

    return Stream, Event


class _Generator(GeneratorBase):
    """A generator that says it is the device's, and draws on the CPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        generator = GeneratorBase.__new__(cls, device="cpu")  # type: ignore[call-arg]
        generator.asked = torch.device(device)  # type: ignore[attr-defined]
        return generator

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.asked  # type: ignore[attr-defined,no-any-return]


def patch_reads(patches: Patches, recorder: Recorder) -> None:
    """Ways to the host that no operator shows, because the memory is the host's already."""

    def tolist(self: Tensor) -> Any:
        if on_cuda(self):
            recorder.record("wait", call_name("Tensor.tolist"), READ, tensors=[self], waits=True)
        return TensorBase.tolist(self)

    def numpy(self: Tensor, *, force: bool = False) -> Any:
        _note_numpy(recorder, self, force)
        return TensorBase.numpy(self, force=force)

    original_array: Callable[..., Any] = torch.Tensor.__array__

    def array(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        _note_numpy(recorder, self, False)
        return original_array(self, *args, **kwargs)

    original_reduce: Callable[..., Any] = torch.Tensor.__reduce_ex__

    def reduce(self: Tensor, protocol: Any) -> Any:
        if on_cuda(self):
            why = "it is pickled, for which its values are copied to the host"
            _note_copy(recorder, "pickle", self, why)
        with recorder.quiet():
            return original_reduce(self, protocol)

    original_deepcopy: Callable[..., Tensor] = torch.Tensor.__deepcopy__

    def deepcopy(self: Tensor, memo: dict[int, Any]) -> Any:
        with recorder.quiet():
            return place(original_deepcopy(self, memo), device_of(self))

    for name, value in {
        "tolist": tolist,
        "numpy": numpy,
        "__array__": array,
        "__reduce_ex__": reduce,
        "__deepcopy__": deepcopy,
    }.items():
        patches.set(torch.Tensor, name, value)


def _note_numpy(recorder: Recorder, tensor: Tensor, force: bool) -> None:
    if not on_cuda(tensor):
        return
    if force:
        _note_copy(recorder, "Tensor.numpy", tensor, TO_HOST)
    else:
        why = "a tensor on the GPU is turned into an array, which fails there"
        recorder.record("mixed-devices", "Tensor.numpy", why, tensors=[tensor])


def _note_copy(recorder: Recorder, op: str, tensor: Tensor, why: str) -> None:
    moved_bytes = tensor.numel() * tensor.element_size()
    recorder.record("copy", call_name(op), why, tensors=[tensor], moved_bytes=moved_bytes, waits=True)


def patch_moves(patches: Patches, recorder: Recorder) -> None:
    """``to``, ``cuda``, ``cpu``, ``type``: a move changes the mark, with a copy of the values like on a GPU."""

    def move(op: str, tensor: Tensor, target: torch.device, non_blocking: bool, **change: Any) -> Tensor:
        record_transfer(recorder, op, tensor, target, non_blocking=non_blocking)
        change["dtype"] = change.get("dtype") or tensor.dtype
        moved = place(TensorBase.to(tensor, copy=True, **change), target)
        return pin(moved) if target.type == "cpu" and non_blocking else moved

    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        target, non_blocking, change = _parsed(args, dict(kwargs))
        if target is None or target.type == device_of(self).type or _elsewhere(self, target):
            if target is not None and _elsewhere(self, target):
                change["device"] = target
            change["dtype"] = change.get("dtype") or self.dtype
            return TensorBase.to(self, **change)
        change.pop("copy", None)
        return move("Tensor.to", self, target, non_blocking, **change)

    def cuda(
        self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
    ) -> Tensor:
        if on_cuda(self):
            return self
        return move("Tensor.cuda", self, CUDA, non_blocking, memory_format=memory_format)

    def cpu(self: Tensor, memory_format: Any = torch.preserve_format) -> Tensor:
        if not on_cuda(self):
            return TensorBase.cpu(self, memory_format=memory_format)
        return move("Tensor.cpu", self, CPU, False, memory_format=memory_format)

    def type_as(self: Tensor, other: Tensor) -> Tensor:
        return to(self, other)

    original_storage_to = torch.UntypedStorage.to

    def storage_to(self: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> Any:
        """How ``torch.load`` follows ``map_location="cuda"``."""
        if torch.device(device).type != "cuda":
            return original_storage_to(self, device=device, non_blocking=non_blocking)
        with recorder.quiet():
            moved = place_storage(self.clone())  # type: ignore[no-untyped-call]
        recorder.record("copy", call_name("torch.load"), TO_DEVICE, moved_bytes=self.nbytes(), waits=True)
        return moved

    patches.set(torch.UntypedStorage, "to", storage_to)
    patches.set(torch.Tensor, "to", to)
    patches.set(torch.Tensor, "type_as", type_as)
    patches.set(torch.Tensor, "cuda", cuda)
    patches.set(torch.Tensor, "cpu", cpu)


def _parsed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.device | None, bool, dict[str, Any]]:
    """``(device, non_blocking, {dtype, copy, memory_format})`` of the overloads of ``Tensor.to``."""
    flags = [a for a in args if isinstance(a, bool)]
    plain = [a for a in args if not isinstance(a, bool)]
    other = kwargs.pop("other", None)
    plain = [other, *plain] if other is not None else plain
    device, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
    for value in plain:
        if isinstance(value, Tensor):
            device, dtype = device_of(value), value.dtype
        elif isinstance(value, torch.dtype):
            dtype = value
        elif value is not None:
            device = value
    non_blocking = bool(kwargs.pop("non_blocking", flags[0] if flags else False))
    change: dict[str, Any] = {"copy": bool(kwargs.pop("copy", flags[1] if len(flags) > 1 else False)), **kwargs}
    if dtype is not None:
        change["dtype"] = dtype
    target = None if device is None else _device(device)
    return target, non_blocking, change


def _device(device: Any) -> torch.device:
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return torch.device("cuda", found.index or 0) if found.type == "cuda" else found


def _elsewhere(tensor: Tensor, target: torch.device) -> bool:
    """Neither CPU nor CUDA is concerned: the meta device, say."""
    return target.type not in ("cpu", "cuda") or device_of(tensor).type not in ("cpu", "cuda")


def patch_appearance(patches: Patches) -> None:
    """What a tensor says of its device."""

    def get_device(self: Tensor) -> int:
        index = device_of(self).index
        return -1 if index is None else index

    def pin_memory(self: Tensor, device: Any = None) -> Tensor:
        return self if is_pinned(self) else pin(TensorBase.clone(self))

    def record_stream(self: Tensor, stream: Any) -> None:
        """The memory is not reused by another stream: there is only one here."""

    properties: dict[str, Callable[[Tensor], Any]] = {
        "device": device_of,
        "is_cuda": on_cuda,
        "is_cpu": lambda self: device_of(self).type == "cpu",
    }
    original_groups = grouping()

    def groups(lists: list[list[Tensor | None]], with_indices: bool = False) -> Any:
        """Optimizers and clipping ask C++ for the device of each group, which is that of its first tensor."""
        found = original_groups(lists, with_indices)
        return {(_group_device(group, device), dtype): group for (device, dtype), group in found.items()}

    patches.set(GROUPING_OWNER, GROUPING_NAME, groups)
    for name, read in properties.items():
        patches.set(torch.Tensor, name, property(read))
    patches.set(torch.Tensor, "get_device", get_device)
    patches.set(torch.Tensor, "pin_memory", pin_memory)
    patches.set(torch.Tensor, "is_pinned", lambda self, device=None: is_pinned(self))
    patches.set(torch.Tensor, "record_stream", record_stream)


def _group_device(group: Any, real: torch.device) -> torch.device:
    tensors, _ = group
    first = next((t for t in tensors[0] if t is not None), None)
    return real if first is None else device_of(first)
