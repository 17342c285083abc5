"""Compiles the subject as ``torch.compile(mode="reduce-overhead")`` would, and looks at its graphs: what is not
replayed as a CUDA graph, or recorded anew.

No kernel is generated and nothing is recorded. Without a GPU the module and its inputs are fake tensors that say
``cuda``: a forward pass is captured as on a GPU, a backward pass cannot be (the autograd engine asks for the driver).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.user_code import printed_frames, user_place
from togi.lint.trace.compiled import frame_of, fresh_dynamo, prepared_run, run
from togi.lint.trace.record import StepEvent
from togi.lint.trace.recorder import EventRecorder
from togi.subject.inputs import Inputs, Subject
from togi.subject.prepare import Prepared
from togi.torch_internals.examined_graphs import Examined, ExaminedGraph, ReplayObstacle, examining_backend
from togi.torch_internals.modules import replace_tensors
from togi.torch_internals.tensors import FakeTensorMode

_NEEDS_A_GPU = (
    "What keeps a training step from CUDA graphs is known with --device cuda only: without a GPU no backward pass can "
    "be captured for one."
)
_NEEDS_TORCH = "What keeps the subject from CUDA graphs is known with torch 2.11 and newer, or with --device cuda."


def graph_events(subject: Subject, *, device: str = "cpu") -> tuple[tuple[StepEvent, ...], tuple[str, ...]]:
    """``(events, notes)``. A subject that cannot be looked at gives a note."""
    on_gpu = device != "cpu"
    if subject.step is not None and not on_gpu:
        return (), (_NEEDS_A_GPU,)
    if torch.__version__ < "2.11" and not on_gpu:  # fake CUDA tensors ask for the driver there
        return (), (_NEEDS_TORCH,)
    prepared = prepared_run(subject, device)
    examined, outside = Examined(), EventRecorder()
    notes: list[str] = []
    compiled = torch.compile(prepared.module, backend=examining_backend(examined))
    with fresh_dynamo():
        try:
            samples, mode = (prepared.samples, nullcontext()) if on_gpu else _on_fake_gpu(prepared, examined, outside)
            with mode:
                run(subject, compiled, (*samples, *samples))
        except Exception as failure:  # the subject's code under a compiler
            place = user_place(failure)
            notes.append(f"Compiled for CUDA graphs, it failed ({place}): what is skipped is known up to there.")
    graphs = examined.graphs
    return (*_obstacles(graphs), *_inputs(graphs), *outside.events, *_sizes(graphs)), tuple(notes)


class _FakeGpu(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Fake tensors, with a record of what code that is not compiled reads although a replay has overwritten it."""

    def __init__(self, examined: Examined, outside: EventRecorder) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.found, self.outside = examined, outside

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.found.reads_overwritten(func, (args, kwargs)):
            self.outside.record("cuda-graph", _spelled(str(func)), "stale output")
        return super().__torch_dispatch__(func, types, args, kwargs or {})


def _on_fake_gpu(
    prepared: Prepared, examined: Examined, outside: EventRecorder
) -> tuple[tuple[Inputs, ...], AbstractContextManager[Any]]:
    """Replace the module's parameters and buffers by fake CUDA tensors; other tensors stay where they are, as with
    ``.to("cuda")``. Returns the samples as fake CUDA tensors, and the mode to run under."""
    mode = _FakeGpu(examined, outside)
    outside.armed = True
    fakes: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in fakes:
            with mode:
                fakes[id(tensor)] = mode.from_tensor(tensor.detach()).to("cuda")
        return fakes[id(tensor)]

    replace_tensors(prepared.module, lambda parameter: nn.Parameter(fake(parameter), requires_grad=False), fake)
    return tuple(sample.map(fake) for sample in prepared.samples), mode


def _obstacles(graphs: Iterable[ExaminedGraph]) -> Iterator[StepEvent]:
    """One a line, cause and operation. Code that was compiled for several sizes has each obstacle in each graph."""
    counts: Counter[StepEvent] = Counter()
    for graph in graphs:
        counts |= Counter(_event(obstacle.cause, _told(obstacle), obstacle.stack) for obstacle in graph.obstacles)
    for event, count in counts.items():
        yield event.model_copy(update={"count": count})


def _inputs(graphs: Iterable[ExaminedGraph]) -> Iterator[StepEvent]:
    """What the calls showed of inputs: results of earlier calls, counted; and weights that were somewhere else before,
    with the number of places."""
    counts: Counter[StepEvent] = Counter()
    for graph in graphs:
        counts.update({_event(source.cause, source.op, source.stack): count for source, count in graph.stale.items()})
        for (_, weight), addresses in graph.addresses.items():
            if len(addresses) > 1:
                counts |= Counter({_event(weight.cause, weight.op, weight.stack): len(addresses)})
    for event, count in counts.items():
        yield event.model_copy(update={"count": count})


def _sizes(graphs: Iterable[ExaminedGraph]) -> Iterator[StepEvent]:
    """One recording for each size, of each graph whose sizes vary."""
    for graph in graphs:
        if graph.varies_at and graph.sizes:
            varied = "; ".join(", ".join(map(str, sizes)) for sizes in sorted(graph.sizes))
            event = _event("sizes", "torch.compile", graph.varies_at)
            yield event.model_copy(update={"count": len(graph.sizes), "detail": f"Sizes that varied: {varied}."})


def _event(why: str, op: str, stack: str) -> StepEvent:
    frames = tuple(frame_of(frame) for frame in reversed(printed_frames(stack)))
    return StepEvent(kind="cuda-graph", op=op, why=why, stack=frames)


def _told(obstacle: ReplayObstacle) -> str:
    return "a write into an input" if obstacle.cause == "mutated input" else _spelled(obstacle.op)


def _spelled(op: str) -> str:
    """``aten.cumsum.default`` as ``torch.cumsum``, in most cases the function that people know."""
    return re.sub(r"^aten\.(\w+)\.\w+$", r"torch.\1", op)
