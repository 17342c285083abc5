"""What a recorded run says of the calls of a module."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from togi.core.records import ProgramTree
from togi.program import calls
from togi.program.calls import record_inputs
from togi.program.capture import RefusedCut
from togi.program.cuts import CutRequest, _Cutting, _is_its_forward, find_cuts
from togi.program.uses import ModuleUse
from togi.subject.inputs import Inputs, Subject
from togi.torch_internals.modules import has_own_call, users_hooks

Between = Callable[[list[Tensor]], object]


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        cache[0] = torch.cat([cache[0], self.layer(x)], dim=1)
        return torch.relu(x + (cache[0] @ cache[0].transpose(1, 2)).sum() * 1e-6)


class Program(nn.Module):
    def __init__(self, between: Between) -> None:
        super().__init__()
        self.step = Step()
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        cache = [torch.zeros(2, 1, 64)]
        for _ in range(6):
            x = self.step(x, cache)
            self.between(cache)
            x = x / x.tolist()[0][0][0]  # decided by Python: it cannot be captured whole
        return x


def as_it_is(_: list[Tensor]) -> None: ...


def reordered(cache: list[Tensor]) -> None:
    cache[0] = cache[0].index_select(0, torch.tensor([1, 0]))


def copied(cache: list[Tensor]) -> None:
    cache[0] = cache[0].clone()


@pytest.mark.parametrize(
    ("between", "expected"),
    [(as_it_is, True), (reordered, False), (copied, False)],
    ids=["kept", "reordered", "copied"],
)
def test_whether_calls_go_on_from_what_the_last_one_left(between: Between, expected: bool, tmp_path) -> None:
    torch.manual_seed(0)
    program, x = Program(between).eval(), torch.randn(2, 1, 64)
    with torch.no_grad():
        found = record_inputs(program, [Inputs((x,))], {"step": program.step}, {"step": 6}, 1 << 20)["step"]
    (form,) = found.forms
    assert form[-1].value == "2 float32[3] float32[3]", "an input, and a list of one tensor that grows"
    assert found.calls[form] == 6
    assert found.goes_on(form) is expected
    cuts = find_cuts(Subject(program, [Inputs((x,))]), CutRequest(folder=str(tmp_path)))
    (part,) = (part for part in cuts.parts if part.key.path == "step")
    assert part.survey.facts.steps is expected


class Queue:
    """A device that works off what it was given while it is waited for; the clock is that of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.queued_s = 0.0
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.cuda, "synchronize", self.wait)
        monkeypatch.setattr(calls.time, "perf_counter", lambda: self.now_s)

    def wait(self) -> None:
        self.now_s, self.queued_s = self.now_s + self.queued_s, 0.0


class Queues(nn.Module):
    def __init__(self, queue: Queue, seconds: float, *, reads: bool = False) -> None:
        super().__init__()
        self.queue, self.seconds, self.reads = queue, seconds, reads

    def forward(self, x: Tensor) -> Tensor:
        self.queue.queued_s += self.seconds
        if self.reads:
            self.queue.wait()
        return x


def test_on_a_device_a_call_takes_what_the_device_takes_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the one that first waits for a result."""
    queue = Queue(monkeypatch)
    program = nn.Sequential(Queues(queue, 4.0), Queues(queue, 1.0, reads=True), Queues(queue, 2.0))
    given = [Inputs((torch.ones(1),))]
    tree = calls.record_tree(program, given)
    assert {call.path: call.ms for call in tree.calls} == {"": 7000.0, "0": 4000.0, "1": 1000.0, "2": 2000.0}
    queue.queued_s = 50.0  # of somebody else
    found = record_inputs(program, given, {"2": program[2]}, {"2": 1}, 1 << 20)["2"]
    assert list(found.seconds.values()) == [2.0]


def test_threads_that_call_in_turn_go_on_from_what_they_left_themselves() -> None:
    torch.manual_seed(0)
    at_once = threading.Barrier(2)
    program = Program(lambda _: at_once.wait(timeout=60)).eval()

    class InThreads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.program = program

        def forward(self, x: Tensor) -> list[Tensor]:
            with ThreadPoolExecutor(2, initializer=torch.set_grad_enabled, initargs=(False,)) as threads:
                return list(threads.map(self.program, (x, -x)))

    given = [Inputs((torch.randn(2, 1, 64),))]
    found = record_inputs(InThreads(), given, {"program.step": program.step}, {"program.step": 12}, 1 << 20)
    (form,) = found["program.step"].forms
    assert found["program.step"].calls[form] == 12
    assert found["program.step"].goes_on(form)


def looks(*_: Any) -> None: ...


def adds(_: nn.Module, __: Any, answer: Tensor) -> Tensor:
    return answer + 1


def doubles(_: nn.Module, __: Any, answer: Tensor) -> None:
    answer.mul_(2)


def halves(_: nn.Module, given: Any) -> Any:
    return given[0] / 2, given[1]


@pytest.mark.parametrize(("hook", "changes"), [(looks, False), (adds, True), (doubles, True), (halves, True)])
def test_a_module_whose_hooks_change_its_calls_is_no_part(hook: Any, changes: bool) -> None:
    """They would be in its engine, and be called once more round it."""
    torch.manual_seed(0)
    program, x = Program(as_it_is), torch.randn(2, 1, 64)
    register = program.step.register_forward_pre_hook if hook is halves else program.step.register_forward_hook
    register(hook)
    with torch.no_grad():
        recorded = record_inputs(program, [Inputs((x,))], {"step": program.step}, {"step": 6}, 1 << 20)
    assert recorded["step"].hooks_change is changes
    assert users_hooks(program.step) == [hook], "each is put back"
    group = [ModuleUse(path="step", module=program.step, share=1.0, places=(), architecture=0)]
    cutting = _Cutting(program, [], ProgramTree(calls=()), CutRequest(folder=""), (), ())
    (form,) = recorded["step"].forms
    recorded["step"].forms[form].clear()  # nothing is captured
    (refused,) = cutting._capture(group, recorded["step"], form)
    assert isinstance(refused, RefusedCut)
    assert refused.reason.startswith("its forward hooks") is changes


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_hooks_of_torchs_own_are_nobodys() -> None:
    assert users_hooks(nn.utils.weight_norm(nn.Linear(2, 2))) == []


class Prepares(Step):
    def __call__(self, x: Tensor, cache: list[Tensor]) -> Any:
        return super().__call__(x / 2, cache)


class Passes(Step):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


@pytest.mark.parametrize(("step", "is_its_forward"), [(Step(), True), (Passes(), True), (Prepares(), False)])
def test_a_module_whose_class_changes_its_calls_is_no_part(step: Step, is_its_forward: bool) -> None:
    use = ModuleUse(path="step", module=step, share=1.0, places=(), architecture=0)
    assert has_own_call(step) is (type(step) is not Step)
    assert _is_its_forward(use, Inputs((torch.ones(2, 1, 64), [torch.zeros(2, 1, 64)]))) is is_its_forward
