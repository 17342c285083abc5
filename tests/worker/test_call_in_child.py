"""Calls into a child: typed requests and answers, and errors that cross as what they are."""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import time
import typing
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from togi.core.errors import BudgetError, SubjectError, TogiError, UnknownNameError
from togi.core.records import Record
from togi.core.report import Report
from togi.machine.describe import machine
from togi.worker import child, child_process, supervise
from togi.worker.answer import request_type
from togi.worker.call import ChildCall
from togi.worker.channel import encoded
from togi.worker.messages import CallFunction, Returned, Started
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits, RunningTrial, TrialEnded

SUBJECT = """
import torch
def subject():
    return Model(3, 2), torch.zeros(1, 3)
class Model(torch.nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.in_features = width
        self.inner = torch.nn.Linear(width, out)
    def forward(self, x):
        return self.inner(x) @ x
"""


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> SubjectRef:
    file = tmp_path_factory.mktemp("subject") / "called_subject.py"
    file.write_text(SUBJECT, encoding="utf-8")
    return SubjectRef.here("locator", f"{file}:subject")


@pytest.fixture(scope="module")
def pool(ref: SubjectRef) -> Iterator[WorkerPool]:
    """One server that has loaded the subject: every call of these tests is a child that it forks."""
    with WorkerPool(ref, machine("cpu"), device="cpu", seed=0) as opened:
        yield opened


class Asked(Record):
    times: int = 1
    hold_s: float = 1.0


class Width(Record):
    width: int
    pid: int


class OnlyInTheChildError(UnknownNameError):
    """The parent knows its base alone: it is renamed there."""

    exit_code = 7


class FieldsError(TogiError):
    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path} is damaged in line {line}")
        self.path, self.line = path, line


def width(subject: Any, request: Asked) -> Width:
    return Width(width=subject.module.in_features * request.times, pid=os.getpid())


def threads(_subject: Any, _request: Asked) -> Width:
    return Width(width=torch.get_num_threads(), pid=os.getpid())


def breaks(_subject: Any, _request: Asked) -> Width:
    raise ValueError("no such thing")


def runs(subject: Any, _request: Asked) -> Width:
    subject.module(*subject.inputs[0].args)
    raise AssertionError


def refuses(_subject: Any, _request: Asked) -> Width:
    try:
        raise ValueError("deep inside")
    except ValueError as error:
        raise UnknownNameError("there is no device 'x'.\nGive cpu.") from error


def has_no_budget(_subject: Any, _request: Asked) -> Width:
    raise BudgetError("memory='x' is not a size")


def has_fields(_subject: Any, _request: Asked) -> Width:
    raise FieldsError("a.txt", 3)


def raises_what_the_parent_does_not_know(_subject: Any, _request: Asked) -> Width:
    class Unheard(OnlyInTheChildError):
        pass

    raise Unheard("only here")


def dies(_subject: Any, _request: Asked) -> Width:
    os.abort()


def is_killed(_subject: Any, _request: Asked) -> Width:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def holds(_subject: Any, request: Asked) -> Width:
    held = torch.ones(request.times << 18)  # MiB
    time.sleep(request.hold_s)
    return Width(width=len(held), pid=os.getpid())


def hangs(_subject: Any, _request: Asked) -> Width:
    time.sleep(100)
    raise AssertionError


def takes_longer_than_its_limit(_subject: Any, request: Asked, report: Report) -> Width:
    report.entered("something long", limit_s=60.0)
    time.sleep(request.hold_s)
    return Width(width=1, pid=os.getpid())


def hangs_in_a_phase(_subject: Any, _request: Asked, report: Report) -> Width:
    report.entered("something long", limit_s=1.0)
    time.sleep(100)
    raise AssertionError


def finds_and_hangs(_subject: Any, _request: Asked, report: Report) -> Width:
    report.found(Width(width=7, pid=os.getpid()))
    report.found(Width(width=8, pid=os.getpid()))
    time.sleep(100)
    raise AssertionError


def finds_and_dies(_subject: Any, _request: Asked, report: Report) -> Width:
    report.found(Width(width=8, pid=os.getpid()))
    os.abort()


def finds_better(_subject: Any, _request: Asked, report: Report) -> Width:
    report.found(Width(width=8, pid=os.getpid()))
    return Width(width=9, pid=os.getpid())


def untyped(_subject: Any, _request: dict[str, Any]) -> Width:
    raise AssertionError


def call(name: str) -> ChildCall[Asked, Width]:
    return ChildCall(function=f"{__name__}:{name}", request=Asked, answer=Width, purpose="examined")


@pytest.mark.thorough
def test_answers_from_another_process(ref: SubjectRef) -> None:
    answer = call("width")(ref, Asked(times=2))
    assert answer.width == 6
    assert answer.pid != os.getpid()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "said"), [("breaks", "no such thing"), ("dies", "SIGABRT"), ("hangs", "after 2 s")], ids=str
)
def test_says_what_happened(pool: WorkerPool, name: str, said: str) -> None:
    with pytest.raises(SubjectError, match=rf"could not be examined(.|\n)*{said}"):
        call(name).run(pool, Asked(), Limits(timeout_s=2.0))


@pytest.mark.thorough
def test_a_phase_has_a_limit_of_its_own_in_place_of_the_calls(pool: WorkerPool) -> None:
    phases: list[str] = []
    answer = call("takes_longer_than_its_limit").run(
        pool, Asked(hold_s=4.0), Limits(timeout_s=2.0), on_phase=phases.append
    )
    assert answer.width == 1
    assert phases == ["run", "something long"]
    patient = replace(call("hangs_in_a_phase"), late="Give it more.")
    with pytest.raises(SubjectError, match=r"it was still in something long after 1 s\. Give it more\."):
        patient.run(pool, Asked(), Limits(timeout_s=60.0))


@pytest.mark.parametrize(
    ("name", "width"), [("finds_and_hangs", 8), ("finds_and_dies", 8), ("finds_better", 9)], ids=str
)
def test_what_was_found_by_then_is_the_answer_of_a_child_that_does_not_return(
    pool: WorkerPool, name: str, width: int
) -> None:
    assert call(name).run(pool, Asked(), Limits(timeout_s=2.0)).width == width


@pytest.mark.parametrize(("keeps", "train"), [(True, False), (False, False), (True, True)])
def test_malloc_is_left_alone_for_what_tells_times_of_a_users_process_and_for_training_steps(
    monkeypatch: pytest.MonkeyPatch, keeps: bool, train: bool
) -> None:
    told: list[str] = []
    monkeypatch.setattr(child, "keep_freed_memory", lambda: told.append("keeps"))
    monkeypatch.setattr(child, "_work_of", lambda *_: SimpleNamespace(run=lambda: told.append("ran"), serves=False))
    job = CallFunction(log="", function="", request="", keeps_memory=keeps, threads=torch.get_num_threads())
    with torch.random.fork_rng():
        assert child.run_job(job, SimpleNamespace(seed=0, train=train), None, None) == 0
    assert told == (["keeps", "ran"] if keeps and not train else ["ran"])


@pytest.mark.thorough
def test_a_call_alone_ends_within_the_time_that_it_is_given_with_loading(ref: SubjectRef) -> None:
    began = time.monotonic()
    with pytest.raises(TogiError, match=r"[Gg]ive a longer --time-limit"):
        call("hangs")(ref, Asked(), within_s=8.0)
    assert time.monotonic() - began < 18.0


@pytest.mark.thorough
def test_children_have_the_threads_that_loading_the_subject_set_as_its_user_has(ref: SubjectRef) -> None:
    text = SUBJECT.replace("@ x", "+ 1")  # that one does not run
    plain, setting = (Path(ref.spec).with_name(f"{name}.py") for name in ("plain", "setting"))
    plain.write_text(text, encoding="utf-8")
    setting.write_text(f"{text}torch.set_num_threads(1)\n", encoding="utf-8")
    two = machine("cpu").model_copy(update={"threads": 2})
    found = []
    for each in (plain, setting):
        subject = ref.model_copy(update={"spec": f"{each}:subject"})
        with WorkerPool(subject, two, device="cpu", seed=0) as opened:
            survey, _ = opened.survey(Limits(), lambda _: None)
            found.append((survey.facts.machine.threads, call("threads").run(opened, Asked(), Limits()).width))
    assert found == [(2, 2), (1, 1)]


@pytest.mark.parametrize(("counted", "said"), [(0, "in run."), (1, "in run: the system had run out of memory")])
def test_a_child_that_the_kernel_ends_for_memory_is_told_from_one_that_somebody_kills(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, counted: int, said: str
) -> None:
    monkeypatch.setattr(child_process, "oom_kills", itertools.count(0, counted).__next__)
    with pytest.raises(SubjectError) as caught:
        call("is_killed").run(pool, Asked(), Limits())
    assert f"its process was killed by SIGKILL {said}" in str(caught.value)


def test_without_a_limit_a_child_may_take_most_of_what_is_free_beside_what_it_shares(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "available_bytes", lambda: 80 << 20)
    assert call("holds").run(pool, Asked(times=1), Limits()).width == 1 << 18  # torch and the subject are shared
    with pytest.raises(
        SubjectError, match=r"it held [\d.]+ MiB of memory in run, more than the 64.0 MiB that it may take"
    ):
        call("holds").run(pool, Asked(times=200, hold_s=60.0), Limits())  # until it is seen


def test_what_a_child_shares_is_known_also_to_a_parent_that_is_late(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = pool.deadline.receive

    def late(take: Callable[[float], Any], limit_s: float, what: str) -> Any:
        message = receive(take, limit_s, what)
        if isinstance(message, Started):
            time.sleep(0.5)  # the child holds all of it by now
        return message

    monkeypatch.setattr(pool.deadline, "receive", late)
    with pytest.raises(SubjectError, match="of memory in run, more than"):
        call("holds").run(pool, Asked(times=200, hold_s=60.0), Limits(memory_bytes=100 << 20))


@pytest.mark.thorough
def test_a_call_alone_may_take_all_that_the_machine_has(ref: SubjectRef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "available_bytes", lambda: 80 << 20)
    assert call("holds")(ref, Asked(times=200)).width == 200 << 18


def test_a_child_that_has_ended_says_so_again_when_it_is_asked(pool: WorkerPool, tmp_path: Path) -> None:
    job = CallFunction(function=f"{__name__}:is_killed", request=encoded(Asked()), log=str(tmp_path / "log"))
    trial = RunningTrial.begin(pool.server({}), job, Limits(), "is_killed")
    with pytest.raises(TrialEnded) as caught:
        trial.wait_for(Returned)
    with pytest.raises(TrialEnded) as again:
        trial.turn(1)
    assert again.value is caught.value


def test_what_the_subject_raises_comes_with_the_users_lines_alone(pool: WorkerPool) -> None:
    with pytest.raises(SubjectError) as caught:
        call("runs").run(pool, Asked(), Limits())
    said = str(caught.value)
    assert "return self.inner(x) @ x" in said
    assert "in forward" in said
    assert "torch/nn" not in said
    assert "togi/worker" not in said
    assert "torch/nn" in caught.value.child_traceback


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("refuses", UnknownNameError, "there is no device 'x'.\nGive cpu."),
        ("has_no_budget", BudgetError, "memory='x' is not a size"),
        ("raises_what_the_parent_does_not_know", OnlyInTheChildError, "only here"),
    ],
    ids=str,
)
def test_errors_of_togi_arrive_as_what_they_are(
    pool: WorkerPool, name: str, kind: type[TogiError], message: str
) -> None:
    with pytest.raises(TogiError) as caught:
        call(name).run(pool, Asked(), Limits())
    assert type(caught.value) is kind
    assert str(caught.value) == message
    assert caught.value.exit_code == kind.exit_code


def test_fields_of_an_error_arrive(pool: WorkerPool) -> None:
    with pytest.raises(FieldsError) as caught:
        call("has_fields").run(pool, Asked(), Limits())
    assert (caught.value.path, caught.value.line, str(caught.value)) == ("a.txt", 3, "a.txt is damaged in line 3")


def test_the_request_of_a_function_is_a_record() -> None:
    assert request_type(width) is Asked
    with pytest.raises(TypeError, match="must take a record"):
        request_type(untyped)


@pytest.mark.parametrize(
    "module", ["togi.worker.footprint_calls", "togi.lint.calls", "togi.claims.prove", "togi.study.repro"]
)
def test_what_callers_say_of_a_function_is_what_it_is_annotated_with(module: str) -> None:
    calls = [value for value in vars(importlib.import_module(module)).values() if isinstance(value, ChildCall)]
    assert calls
    for one in calls:
        where, _, name = one.function.partition(":")
        function = getattr(importlib.import_module(where), name)
        assert request_type(function) is one.request or issubclass(one.request, request_type(function))
        assert typing.get_type_hints(function)["return"] is one.answer
