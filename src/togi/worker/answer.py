"""The child's side of ``togi.worker.call``: one function, called with the subject."""

from __future__ import annotations

import importlib
import inspect
import typing
from typing import Any

from togi.core.records import Record
from togi.core.report import Report
from togi.worker.channel import Channel, decoded, encoded
from togi.worker.job import ChildJob
from togi.worker.messages import CallFunction, Entered, Found, Returned
from togi.worker.protocol import Raised, changed

_ARGUMENTS = 2
"""Of a function that reports nothing: the subject and the request."""


class AnswerJob(ChildJob[CallFunction]):
    """Sends what the job's function returns or raises."""

    def run(self) -> None:
        self.enter("run")
        self.channel.send(answer(self.job, self.subject, self.config.device, _ReportByChannel(self.channel)))


class _ReportByChannel(Report):
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def entered(self, phase: str, limit_s: float | None = None) -> None:
        self._channel.send(Entered(phase=phase, limit_s=limit_s))

    def found(self, answer: Record) -> None:
        self._channel.send(Found(answer=encoded(answer)))


def answer(job: CallFunction, subject: Any, device: str, report: Report) -> Returned | Raised:
    """Call the job's function with the subject, and with ``report`` where it takes a third argument. A device with a
    number (``cuda:1``) is ``device`` here, where no other is seen."""
    try:
        module, _, name = job.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        request = decoded(request_type(function), job.request)
        if getattr(request, "device", "").startswith("cuda:"):
            request = changed(request, device=device)
        reported = (report,) if len(inspect.signature(function).parameters) > _ARGUMENTS else ()
        return Returned(answer=encoded(function(subject, request, *reported)))
    except Exception as error:  # foreign code: the subject's
        return Raised.of(error)


def request_type(function: Any) -> type[Record]:
    """The annotation of a function's second parameter."""
    name = list(inspect.signature(function).parameters)[1]
    annotation = typing.get_type_hints(function)[name]
    if not (isinstance(annotation, type) and issubclass(annotation, Record)):
        raise TypeError(f"{function.__module__}:{function.__name__} must take a record, and {name} is a {annotation}")
    return annotation
