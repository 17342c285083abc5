"""Call a function with the subject in a process of its own: typed request, typed answer, errors raised again here.

The subject's code may hang, crash or need too much memory: the caller gets an explanation, and nothing is orphaned.
An error that togi raised on purpose in the child is raised here as what it is; an error of foreign code becomes a
``SubjectError`` that shows the user's own lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from togi.core.errors import SubjectError
from togi.core.records import Outcome, Record
from togi.machine.describe import machine
from togi.machine.limits import usable_bytes
from togi.worker.channel import decoded
from togi.worker.deadline import Deadline
from togi.worker.pool import WorkerPool
from togi.worker.protocol import Raised, SubjectRef
from togi.worker.supervise import Limits, OnPhase, TrialEnded

Request = TypeVar("Request", bound=Record)
Answer = TypeVar("Answer", bound=Record)


@dataclass(frozen=True, kw_only=True)
class ChildCall(Generic[Request, Answer]):
    """A function that runs in a child, as its callers see it.

    It is named and not imported, because the parent imports no torch. In the child it is
    ``def function(subject: Subject, request: Request) -> Answer``, and its annotations say what is parsed and sent.
    """

    function: str
    """``"togi.some.module:name"``."""
    request: type[Request]
    answer: type[Answer]
    purpose: str
    """Completes "the subject could not be ...": ``"examined"``."""
    keeps_memory: bool = True
    """False: malloc is left as it is in a process of the user's, for what tells how long things take there."""
    late: str = ""
    """What to do if it took longer than it said that it would (``Report.entered``)."""

    def __call__(
        self,
        subject: SubjectRef,
        request: Request,
        *,
        device: str = "cpu",
        seed: int = 0,
        limits: Limits | None = None,
        on_phase: OnPhase = lambda _: None,
        on_wait: Callable[[str], None] = lambda _: None,
        within_s: float | None = None,
    ) -> Answer:
        """Call the function in a child that is gone afterwards.

        Args:
            on_wait: is given a sentence each time that nothing was heard for a while.
            within_s: from now on, with loading the subject. None: each request has a limit of its own alone.

        Raises:
            TogiError: what the function raised, or the subject's own where it cannot be loaded.
            SubjectError: foreign code failed in the child, or its process crashed, hung or took too much memory.
        """
        # alone, it may take all that there is: whether a model fits is what some calls are to find out
        limits = limits or Limits(memory_bytes=usable_bytes())
        deadline = Deadline(tell=on_wait)
        if within_s is not None:
            deadline.at, limits = time.monotonic() + within_s, replace(limits, timeout_s=within_s)
        with WorkerPool(subject, machine(device), device=device, seed=seed, deadline=deadline) as pool:
            return self.run(pool, request, limits, on_phase, late="Give a longer --time-limit.")

    def run(
        self,
        pool: WorkerPool,
        request: Request,
        limits: Limits,
        on_phase: OnPhase = lambda _: None,
        late: str = "",
    ) -> Answer:
        """Call the function in a child of a pool that has loaded its subject already.

        ``late``: what to do if the pool's time was over before.
        """
        try:
            returned = pool.call(self.function, request, limits, on_phase, keeps_memory=self.keeps_memory)
        except TrialEnded as ended:
            if ended.trial.found is not None:
                return decoded(self.answer, ended.trial.found)
            printed = ended.trial.child.log_tail(1000).strip()
            remedy = late if ended.cut_off else self.late if ended.ending.outcome is Outcome.TIMED_OUT else ""
            raise SubjectError(
                f"the subject could not be {self.purpose}: {str(ended).rstrip('.')}."
                + (f" {remedy}" if remedy else "")
                + (f" It printed last:\n{printed}" if printed else "")
            ) from None
        if isinstance(returned, Raised):
            raise returned.error(self.purpose) from None
        return decoded(self.answer, returned.answer)
