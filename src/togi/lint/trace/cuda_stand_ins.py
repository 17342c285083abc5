"""``torch.cuda`` as it behaves with a GPU.

Streams and events are always done. Nothing here invents a measurement: memory counters are 0, events are timed by the
host's clock.
"""

# ruff: noqa: ARG001, ARG005 - the signatures are those of torch.cuda

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from typing_extensions import Self

from togi.lint.trace.patches import Patches
from togi.lint.trace.recorder import EventRecorder
from togi.torch_internals.cuda import GeneratorBase

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


def patch_cuda(patches: Patches, recorder: EventRecorder) -> None:
    """Replace the functions and classes of ``torch.cuda`` that need a driver."""

    def waiting(op: str, why: str = EXPLICIT, *, seen_by_debug_mode: bool = False) -> Callable[..., None]:
        def wait(*args: Any, **kwargs: Any) -> None:
            recorder.record("wait", op, why, waits=True, seen_by_debug_mode=seen_by_debug_mode)

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
    zero = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved utilization".split()
    ignored = """init _lazy_init set_device set_stream manual_seed manual_seed_all seed seed_all ipc_collect
    reset_peak_memory_stats reset_max_memory_allocated set_sync_debug_mode set_per_process_memory_fraction
    _check_capability""".split()
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

        synchronize = waiting("torch.cuda.Stream.synchronize", seen_by_debug_mode=True)

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
