"""Commands in this process, for tests to which the child is not the point: a child takes seconds to import torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import pytest

from tests.cli import small_subjects
from togi.core.records import Record
from togi.worker import call
from togi.worker.channel import encoded
from togi.worker.messages import CallFunction
from togi.worker.protocol import SubjectRef


class PoolOfThisProcess:
    """Answers as a child would, with the functions that the child has for it."""

    def __init__(self, subject: SubjectRef, _machine: object, **_options: object) -> None:
        from togi.worker.server import load_subject

        self.subject = load_subject(subject)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(
        self, function: str, request: Record, _limits: object, on_phase: Callable[[str], None], **_options: object
    ) -> Any:
        from togi.core.report import Report
        from togi.worker.answer import answer

        class PhasesOfThisProcess(Report):
            def entered(self, phase: str, limit_s: float | None = None) -> None:
                on_phase(phase)

        job = CallFunction(log="", function=function, request=encoded(request))
        return answer(job, self.subject, "cpu", PhasesOfThisProcess())


@pytest.fixture
def file() -> str:
    """The file of subjects that many commands are given."""
    return small_subjects.__file__


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of ``togi.worker.call`` run here; what a child is for (crashes, limits) is not tested then."""
    monkeypatch.setattr(call, "WorkerPool", PoolOfThisProcess)
