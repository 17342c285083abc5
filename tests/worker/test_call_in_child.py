"""Calls into a child: typed requests and answers, and errors that cross as what they are."""

from __future__ import annotations

import importlib
import os
import time
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from togi.core.errors import BudgetError, SubjectError, TogiError, UnknownNameError
from togi.core.records import Record
from togi.machine.describe import machine
from togi.worker.call import ChildCall
from togi.worker.child import request_type
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits

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
    here = str(Path(__file__).parent)
    found = SubjectRef.here("locator", f"{file}:subject")
    return found.model_copy(update={"path": (here, *found.path)})


@pytest.fixture(scope="module")
def pool(ref: SubjectRef) -> Iterator[WorkerPool]:
    """One server that has loaded the subject: every call of these tests is a child that it forks."""
    with WorkerPool(ref, machine("cpu"), device="cpu", seed=0) as opened:
        yield opened


class Asked(Record):
    times: int = 1


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


def hangs(_subject: Any, _request: Asked) -> Width:
    time.sleep(100)
    raise AssertionError


def untyped(_subject: Any, _request: dict[str, Any]) -> Width:
    raise AssertionError


def call(name: str) -> ChildCall[Asked, Width]:
    return ChildCall(function=f"test_call_in_child:{name}", request=Asked, answer=Width, purpose="examined")


def test_answers_from_another_process(ref: SubjectRef) -> None:
    answer = call("width")(ref, Asked(times=2))
    assert answer.width == 6
    assert answer.pid != os.getpid()


@pytest.mark.parametrize(
    ("name", "said"), [("breaks", "no such thing"), ("dies", "SIGABRT"), ("hangs", "after 2 s")], ids=str
)
def test_says_what_happened(pool: WorkerPool, name: str, said: str) -> None:
    with pytest.raises(SubjectError, match=rf"could not be examined(.|\n)*{said}"):
        call(name).run(pool, Asked(), Limits(timeout_s=2.0))


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


@pytest.mark.parametrize("module", ["togi.footprint.calls", "togi.lint.calls", "togi.claims.prove", "togi.study.repro"])
def test_what_callers_say_of_a_function_is_what_it_is_annotated_with(module: str) -> None:
    calls = [value for value in vars(importlib.import_module(module)).values() if isinstance(value, ChildCall)]
    assert calls
    for one in calls:
        where, _, name = one.function.partition(":")
        function = getattr(importlib.import_module(where), name)
        assert request_type(function) is one.request or issubclass(one.request, request_type(function))
        assert typing.get_type_hints(function)["return"] is one.answer
