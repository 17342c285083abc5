"""The graphs of one or several functions in one memory budget: what is held, what was used last, what goes.

Only working memory is in CUDA's pool: inputs and outputs of a graph are copied to buffers outside of it. So whatever
was captured there may share it, in any order of calls, and it is as large as the largest capture needs.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from togi.core.errors import TogiError
from togi.core.quantities import parse_size
from togi.decide.faster import WITHIN_PROCESS
from togi.graphs.recording import OnDevice, Recording, StreamOrder, capturing, is_capturing
from togi.measure import LocalRunner, race
from togi.measure.memory import cuda_bytes_of_all, own_cuda_bytes
from togi.subject.inputs import Inputs

Call = Callable[..., Any]
Key = tuple[Hashable, int]
"""Whose graphs they are, and their bucket."""
Run = Callable[..., Sequence[Tensor]]
_RACE_S = 1.0
_RACE_TURN_MS = 5.0
_OF_ALL = (
    "memory is counted of the whole device, since NVML does not tell this process's own: other processes that take or "
    "free memory during a capture change what fits (pip install 'togi[gpu]'; in a container NVML cannot tell)"
)


class GraphError(TogiError):
    """A function that cannot be captured, or would not be the same with padded inputs."""


class Device(Protocol):
    """Captures and replays: ``Cuda``, or ``Recorder`` where there is no device."""

    place: torch.device
    """Where tensors must be."""
    note: str
    """What disturbs its account of memory; empty where nothing does."""

    def capture(self, run: Run, inputs: tuple[Tensor, ...]) -> Recording: ...

    def random_state(self) -> Tensor:
        """Read the state of the generator that operations draw from if nobody gives them one."""

    def used_bytes(self) -> int:
        """Memory of the device that this process uses; differences count."""

    def capturing(self) -> bool:
        """Return whether somebody else captures what runs now, or warms up for it."""

    def current(self) -> AbstractContextManager[Any]:
        """Makes it the current device."""

    def turn(self) -> None:
        """Let what the current stream does next wait for the last call."""

    def faster(self, graph: Call, eager: Call, sample: Inputs) -> bool: ...


class Cuda:
    """A CUDA device. Its memory is the driver's word, so that what graphs take besides torch's allocator counts too: of
    this process by NVML, else of all, which other processes disturb while a graph is captured."""

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self._capture = OnDevice()
        self._order = StreamOrder()
        self._own_bytes = own_cuda_bytes(str(place))
        self.note = _OF_ALL if self._own_bytes is None else ""

    def capture(self, run: Run, inputs: tuple[Tensor, ...]) -> Recording:
        with capturing():
            return self._capture(run, inputs)

    def random_state(self) -> Tensor:
        return torch.cuda.get_rng_state(self.place)

    def used_bytes(self) -> int:
        torch.cuda.synchronize(self.place)
        torch.cuda.empty_cache()  # what warming up left is not a graph's
        if self._own_bytes is None:
            return cuda_bytes_of_all(str(self.place))
        own = own_cuda_bytes(str(self.place))
        self._own_bytes = self._own_bytes if own is None else own  # no answer this once: nothing changed
        return self._own_bytes

    def capturing(self) -> bool:
        return is_capturing() or torch.cuda.is_current_stream_capturing()

    def current(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self.place)

    def turn(self) -> None:
        self._order.after_the_last_call()

    def faster(self, graph: Call, eager: Call, sample: Inputs) -> bool:
        """Beyond doubt (``decide.faster``), each call waited for, in at most a second."""
        runners = [LocalRunner(name, call, [sample], "cuda") for name, call in (("graph", graph), ("eager", eager))]
        result = race(runners, runners[1], budget_s=_RACE_S, seed=0, criterion=WITHIN_PROCESS, turn_ms=_RACE_TURN_MS)
        speedup = result.entry("graph").speedup_x
        return speedup is not None and WITHIN_PROCESS.faster(speedup)


class Recorder:
    """Stands for a device where there is none: replays by calling, on the CPU, and keeps an account as CUDA would.

    Args:
        working_bytes: what a capture of such inputs takes of the shared pool; else as much as its inputs.
        graph_bytes: what each graph takes besides.
        faster: whether a graph is to be faster than eager on such a sample; else always.
    """

    place = torch.device("cpu")
    note = ""

    def __init__(
        self,
        working_bytes: Callable[[tuple[Tensor, ...]], int] | None = None,
        graph_bytes: int = 1 << 20,
        faster: Callable[[Inputs], bool] | None = None,
    ) -> None:
        self._working_bytes = working_bytes or (lambda inputs: sum(tensor.nbytes for tensor in inputs))
        self._graph_bytes, self._faster = graph_bytes, faster
        self._live: weakref.WeakSet[Recording] = weakref.WeakSet()
        self._pool_bytes = 0

    def capture(self, run: Run, inputs: tuple[Tensor, ...]) -> Recording:
        def replay() -> None:
            with capturing():  # a graph's replay calls nobody
                run(*inputs)

        with capturing():
            outputs = tuple(run(*inputs))
        recording = Recording(replay=replay, inputs=inputs, outputs=outputs)
        self._pool_bytes = max(self._pool_bytes if self._live else 0, self._working_bytes(inputs))
        self._live.add(recording)
        return recording

    def random_state(self) -> Tensor:
        return torch.get_rng_state()

    def used_bytes(self) -> int:
        return self._pool_bytes + self._graph_bytes * len(self._live) if self._live else 0

    def capturing(self) -> bool:
        return is_capturing()

    def current(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def turn(self) -> None: ...

    def faster(self, graph: Call, eager: Call, sample: Inputs) -> bool:
        return self._faster is None or self._faster(sample)


class Pool:
    """Memory that captured functions share: ``togi.graphs.capture(f, ..., memory=pool)``, one after the other.

    Their calls take turns, on the host and on the device. Where a new graph does not fit, those of other functions that
    were not used for longest are dropped; they are captured again when they are needed.

    Args:
        memory: the budget for graphs, their working memory, and the buffers of inputs and outputs: ``"2GiB"`` or bytes.
        device: ``togi.graphs.Recorder()`` to try a policy on the CPU; None: the CUDA device of the first sample.

    Raises:
        BudgetError: ``memory`` is not a size.
    """

    def __init__(self, memory: str | int = "2GiB", device: Device | None = None) -> None:
        self.memory_bytes = parse_size(memory, "memory")
        self.lock = threading.RLock()
        self.buffer_bytes = 0
        """Inputs and outputs; their owners say so."""
        self._device = device
        self._graph_bytes = 0
        self._held: OrderedDict[Key, list[Recording]] = OrderedDict()
        self.left: deque[tuple[Hashable, int]] = deque()
        """Owners that are gone, with the bytes of their buffers: a garbage collection may run within a capture, where
        nothing may be freed."""

    @property
    def held_bytes(self) -> int:
        """Graphs and working memory, measured as each was captured and dropped, and buffers."""
        return self._graph_bytes + self.buffer_bytes

    @property
    def fits(self) -> bool:
        return self.held_bytes <= self.memory_bytes

    def device(self, like: Tensor) -> Device:
        """The device that captures calls of such tensors. Raises GraphError if none does."""
        if self._device is None:
            if like.device.type != "cuda":
                raise GraphError(
                    f"the samples are on '{like.device}', and CUDA graphs need a CUDA device: move the function and "
                    "its samples there, or call it as it is (memory=togi.graphs.Pool('2GiB', togi.graphs.Recorder()) "
                    "tries the policy on the CPU)"
                )
            self._device = Cuda(like.device)
        if like.device != self._device.place:
            raise GraphError(f"the samples are on '{like.device}', and this pool's graphs on '{self._device.place}'")
        return self._device

    def __contains__(self, key: Key) -> bool:
        return key in self._held

    def record(self, key: Key, runs: Sequence[Run], inputs: tuple[Tensor, ...]) -> int:
        """Capture ``run(*inputs)`` for each and hold it, whatever it takes: bytes are returned. What a capture raises
        goes through, and nothing is held then."""
        assert self._device is not None
        with self._measured() as taken:
            recordings: list[Recording] = []
            self._held[key] = recordings
            try:
                for run in runs:
                    recordings.append(self._device.capture(run, inputs))
            except BaseException:
                self._held.pop(key).clear()  # freed before it is measured: the traceback holds the list
                raise
        return taken[0]

    def drop(self, key: Key) -> None:
        with self._measured():
            self._held.pop(key, None)

    def drop_all(self, owner: Hashable, buffer_bytes: int) -> None:
        """All that ``owner`` had."""
        for key in [key for key in self._held if key[0] == owner]:
            self.drop(key)
        self.buffer_bytes -= buffer_bytes

    def make_room(self, owner: Hashable) -> bool:
        """Drop graphs of others than ``owner`` until all fits, those not used for longest first; whether it does."""
        while self.left:
            self.drop_all(*self.left.popleft())
        for key in [key for key in self._held if key[0] != owner]:
            if self.fits:
                break
            self.drop(key)
        return self.fits

    def replay(self, key: Key, at: int = 0) -> None:
        self._held.move_to_end(key)
        self._held[key][at].replay()

    @contextmanager
    def _measured(self) -> Iterator[list[int]]:
        assert self._device is not None
        before, taken = self._device.used_bytes(), [0]
        try:
            yield taken
        except BaseException:
            with suppress(RuntimeError):  # of a device that has failed as a whole: what failed first tells more
                self._settle(before, taken)
            raise
        self._settle(before, taken)

    def _settle(self, before: int, taken: list[int]) -> None:
        assert self._device is not None
        taken[0] = self._device.used_bytes() - before
        self._graph_bytes = max(0, self._graph_bytes + taken[0])
