"""The child's side of ``togi.worker.call``: one function, called with the subject."""

from __future__ import annotations

import importlib
import inspect
import typing
from typing import Any, final

from togi.core.records import Record
from togi.worker.job import ChildJob
from togi.worker.protocol import Job, Message, Raised


@final
class AnswerJob(ChildJob):
    """What the job's function answers."""

    def run(self) -> None:
        self.enter("run")
        self.channel.send({"returned": _call(self.job, self.subject, self.config.device)})


def _call(job: Job, subject: Any, device: str) -> Message:
    """Call the job's function with the subject; what it answered or raised, as a message. A device with a number
    (``cuda:1``) is ``device`` here, where no other is seen."""
    try:
        assert job.function is not None
        module, _, name = job.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        numbered = str(job.request.get("device", "")).startswith("cuda:")
        request = {**job.request, "device": device} if numbered else job.request
        answer = function(subject, request_type(function).model_validate(request))
        return {"answer": answer.model_dump(mode="json")}
    except Exception as error:  # foreign code: the subject's
        return {"raised": Raised.of(error).model_dump(mode="json")}


def request_type(function: Any) -> type[Record]:
    """The annotation of a function's second parameter."""
    name = list(inspect.signature(function).parameters)[1]
    found = typing.get_type_hints(function)[name]
    if not (isinstance(found, type) and issubclass(found, Record)):
        raise TypeError(f"{function.__module__}:{function.__name__} must take a record, and {name} is a {found}")
    return found
