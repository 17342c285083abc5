"""The child's side of ``togi.worker.call``: one function, called with the subject."""

from __future__ import annotations

import importlib
import inspect
import typing
from typing import Any

from togi.core.records import Record
from togi.worker.channel import decoded, encoded
from togi.worker.job import ChildJob
from togi.worker.messages import CallFunction, Returned
from togi.worker.protocol import Raised, changed


class AnswerJob(ChildJob[CallFunction]):
    """Sends what the job's function returns or raises."""

    def run(self) -> None:
        self.enter("run")
        self.channel.send(answer(self.job, self.subject, self.config.device))


def answer(job: CallFunction, subject: Any, device: str) -> Returned | Raised:
    """Call the job's function with the subject. A device with a number (``cuda:1``) is ``device`` here, where no other
    is seen."""
    try:
        module, _, name = job.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        request = decoded(request_type(function), job.request)
        if getattr(request, "device", "").startswith("cuda:"):
            request = changed(request, device=device)
        return Returned(answer=encoded(function(subject, request)))
    except Exception as error:  # foreign code: the subject's
        return Raised.of(error)


def request_type(function: Any) -> type[Record]:
    """The annotation of a function's second parameter."""
    name = list(inspect.signature(function).parameters)[1]
    annotation = typing.get_type_hints(function)[name]
    if not (isinstance(annotation, type) and issubclass(annotation, Record)):
        raise TypeError(f"{function.__module__}:{function.__name__} must take a record, and {name} is a {annotation}")
    return annotation
