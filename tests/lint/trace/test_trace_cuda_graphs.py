"""What keeps compiled code from CUDA graphs, read off the graphs that torch.compile makes; without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import togi
from togi.lint.trace.cuda_graphs import graph_events
from togi.lint.trace.record import StepEvent

pytestmark = pytest.mark.skipif(torch.__version__ < "2.11", reason="without a GPU it takes torch 2.11")


class Obstacles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.steps: Tensor
        self.register_buffer("steps", torch.zeros(4))
        self.left_behind = torch.arange(4.0)

    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        cache.add_(1)
        self.steps.add_(1)  # a buffer: its address is fixed
        turned = x[:, torch.arange(4) - 1]  # Inductor makes the index on the GPU
        weights = self.left_behind.cumsum(0)
        return self.linear(turned) * weights.to(x.device) + cache + self.steps


def found(events: tuple[StepEvent, ...]) -> list[tuple[str, str, str]]:
    return [(event.why, event.op, event.stack[0].code.partition("  #")[0]) for event in events]


def test_each_obstacle_has_its_cause_and_line() -> None:
    events, notes = graph_events(togi.Subject(Obstacles(), (torch.ones(3, 4), torch.zeros(4))))
    assert notes == ()
    assert found(events) == [
        ("mutated input", "a write into an input", "cache.add_(1)"),
        ("CPU operation", "torch.cumsum", "weights = self.left_behind.cumsum(0)"),
    ]


def test_a_tensor_that_was_left_on_the_cpu_is_copied_into_the_graph() -> None:
    class Copies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left_behind = torch.ones(4)
            self.scale = torch.tensor(2.0)  # a number of the CPU may be read

        def forward(self, x: Tensor) -> Tensor:
            there = x * self.left_behind.to(x.device) * self.scale
            return there.cpu()

    events, _ = graph_events(togi.Subject(Copies(), torch.ones(3, 4)))
    assert found(events) == [
        ("copy between devices", "torch._to_copy", "there = x * self.left_behind.to(x.device) * self.scale"),
        ("copy between devices", "torch._to_copy", "return there.cpu()"),
    ]


def test_operations_with_several_results_and_inputs_of_one_line_are_counted() -> None:
    class Caches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left_behind = torch.ones(4, 4)

        def forward(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
            for cache in (first, second):
                cache.copy_(x[0])
            values, _ = self.left_behind.max(0)
            return x + values.to(x.device)

    samples = [(torch.ones(n, 4), torch.zeros(4), torch.zeros(4)) for n in (3, 5)]
    events, _ = graph_events(togi.Subject(Caches(), samples))
    assert [(event.why, event.stack[0].code, event.count) for event in events][:2] == [
        ("mutated input", "cache.copy_(x[0])", 2),
        ("CPU operation", "values, _ = self.left_behind.max(0)", 1),
    ]


def test_each_size_is_one_more_recording() -> None:
    class Doubles(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    events, _ = graph_events(togi.Subject(Doubles(), [torch.ones(n, 4) for n in (3, 5, 7)]))
    (event,) = events
    assert (event.why, event.stack[0].code, event.count) == ("sizes", "return x * 2", 3)
    assert event.detail == "Sizes that varied: 3; 5; 7."


class Remembers(nn.Module):
    """Keeps its last result, at once or in a buffer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.state: Tensor | None = None
        self.kept: Tensor
        self.register_buffer("kept", torch.zeros(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "in a buffer":
            found = x + self.kept
            self.kept.copy_(found)
        elif self.how == "a buffer of each call":
            self.kept = found = x + self.kept
        else:
            found = x if self.state is None else x + self.state
            self.state = found * 2
        return found * 3


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("as it is", "found = x if self.state is None else x + self.state"),
        ("a buffer of each call", "self.kept = found = x + self.kept"),
    ],
)
def test_a_result_that_the_next_call_reads_is_stale(how: str, line: str) -> None:
    events, notes = graph_events(togi.Subject(Remembers(how), [torch.ones(3, 4), torch.zeros(3, 4)]))
    assert notes == ()
    assert [(event.why, event.stack[0].code, event.count) for event in events] == [("stale output", line, 3)]


class Compares(nn.Module):
    """Code that is not compiled looks at the last result: after the next replay or before it, or at a copy."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.last: Tensor | None = None
        self.changes: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "before it":
            self.compare(x)
        found = x * 2
        if self.how == "before it":
            self.last = found
        else:
            self.compare(found)
        return found + 1

    @torch.compiler.disable
    def compare(self, found: Tensor) -> None:
        if self.last is not None:
            assert self.last[:1].shape == found[:1].shape  # neither a view nor a size is a look at values
            self.changes.append(found - self.last)
        self.last = found.clone() if self.how == "a copy" else found


def test_a_result_that_plain_code_reads_after_the_next_replay_is_stale() -> None:
    events, notes = graph_events(togi.Subject(Compares("after it"), [torch.ones(3, 4), torch.zeros(3, 4)]))
    assert notes == ()
    assert found(events) == [("stale output", "torch.sub", "self.changes.append(found - self.last)")]
    assert events[0].count == 3


@pytest.mark.parametrize("how", ["before it", "a copy"])
def test_what_plain_code_reads_in_time_is_not(how: str) -> None:
    assert graph_events(togi.Subject(Compares(how), [torch.ones(3, 4), torch.zeros(3, 4)])) == ((), ())


def test_a_state_that_is_written_in_place_is_not() -> None:
    assert graph_events(togi.Subject(Remembers("in a buffer"), torch.ones(3, 4))) == ((), ())


def test_a_view_of_an_input_is_no_replays() -> None:
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x * self.weight, self.weight[:2]

    assert graph_events(togi.Subject(Returns(), torch.ones(3, 4))) == ((), ())


class Replaces(nn.Module):
    """Code that is not compiled puts a new tensor in the place of a buffer, or writes into it."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.before: list[Tensor] = []
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.renew()
        return x * self.scale

    @torch.compiler.disable
    def renew(self) -> None:
        self.before.append(self.scale)
        if self.in_place:
            self.scale.fill_(2)
        else:
            self.scale = torch.full_like(self.scale, 2)


def test_a_buffer_that_is_replaced_is_recorded_anew() -> None:
    events, _ = graph_events(togi.Subject(Replaces(in_place=False), [torch.ones(3, 4), torch.zeros(3, 4)]))
    (event,) = events
    assert (event.why, event.stack[0].code, event.count) == ("moved input", "return x * self.scale", 4)
    assert graph_events(togi.Subject(Replaces(in_place=True), torch.ones(3, 4))) == ((), ())


def test_settings_of_the_process_are_not_taken_over() -> None:
    with torch._dynamo.config.patch(assume_static_by_default=False):
        assert graph_events(togi.Subject(nn.Linear(4, 4), torch.ones(3, 4))) == ((), ())


@pytest.mark.parametrize("module", [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4))])
def test_what_is_recorded_whole_gives_nothing(module: nn.Module) -> None:
    assert graph_events(togi.Subject(module, torch.ones(3, 4))) == ((), ())


def test_what_depends_on_values_is_said_and_gives_no_finding() -> None:
    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum().item() > 0 else x

    events, notes = graph_events(togi.Subject(Reads(), torch.ones(3, 4)))
    assert events == ()
    assert "Compiled for CUDA graphs, it failed" in notes[0]


def test_a_training_step_takes_a_gpu() -> None:
    def step(module: nn.Module, x: Any) -> None:
        module(x).sum().backward()

    events, notes = graph_events(togi.Subject(nn.Linear(4, 4), torch.ones(3, 4), step=step))
    assert events == ()
    assert "--device cuda" in notes[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_same_is_seen_and_a_training_step_too() -> None:
    def step(module: nn.Module, inputs: Any) -> None:
        module(*inputs).sum().backward()

    samples = (torch.ones(3, 4), torch.zeros(4))
    events, notes = graph_events(togi.Subject(Obstacles(), samples, step=step), device="cuda")
    assert notes == ()
    assert found(events) == found(graph_events(togi.Subject(Obstacles(), samples))[0])


def test_the_subject_stays_as_it_was() -> None:
    module = nn.Linear(4, 4)
    before = _identities(module)
    graph_events(togi.Subject(module, torch.ones(3, 4)))
    assert _identities(module) == before


def _identities(module: nn.Module) -> dict[str, object]:
    return {name: (id(weight), weight.device, weight.requires_grad) for name, weight in module.named_parameters()}
