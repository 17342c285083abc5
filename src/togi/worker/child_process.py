"""The parent's handle of one child: send, receive, pause, resume, kill. No torch."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from pathlib import Path
from typing import Protocol

from togi.core.errors import TrialServerError
from togi.machine.limits import oom_kills, processes_bytes
from togi.worker.channel import Channel, Closed, Timeout
from togi.worker.deadline import Deadline
from togi.worker.logs import shorten, tail
from togi.worker.messages import FROM_CHILD, FromChild, Job, ToTrial

POLL_S = 0.25
"""So often is looked at a child's memory and log."""


class Died(Exception):
    """The child ended without a final record. ``status``: exit code, or minus the signal's number."""

    def __init__(self, status: int, oom_kills_before: int) -> None:
        super().__init__(status)
        self.status = status
        self.out_of_memory = status == -signal.SIGKILL and oom_kills() > oom_kills_before
        """The kernel ended it, or another at the same time, because memory was out."""


class TooMuchMemory(Exception):
    """The child and its descendants held more than they may. ``bytes``: how much."""

    def __init__(self, bytes: int) -> None:
        super().__init__(bytes)
        self.bytes = bytes


class Starter(Protocol):
    """The server that started a child, as far as the child needs it."""

    token: str
    deadline: Deadline
    fork_safe: bool

    def exit_status(self, pid: int) -> int | None: ...

    def close(self) -> None: ...


class Child:
    """One child, as its parent has it. A paused child uses no processor: idle thread pools spin, which would
    disturb the others."""

    def __init__(self, server: Starter, pid: int, channel: Channel, job: Job, shared_bytes: int = 0) -> None:
        """``shared_bytes``: what it has of the server that it was forked from, which both hold once."""
        self.server = server
        self.pid = pid
        self.channel = channel
        self.job = job
        self.doing: str = job.kind
        """What it is asked for now, for people who wait."""
        self.paused = False
        self.ended = False
        self._shared_bytes = shared_bytes
        self._oom_kills_before = oom_kills()

    def send(self, message: ToTrial) -> None:
        try:
            self._open_channel().send(message)
        except Closed:
            raise self._died() from None

    def receive(self, timeout_s: float, memory_limit_bytes: int | None = None) -> FromChild:
        """The next message. Raises Timeout (also where the study's time is over), Died, TooMuchMemory or Unreadable."""
        take = functools.partial(self._next, memory_limit_bytes)
        return self.server.deadline.receive(take, timeout_s, self.doing)

    def _next(self, memory_limit_bytes: int | None, timeout_s: float) -> FromChild:
        try:
            return self._open_channel().receive(FROM_CHILD, min(timeout_s, POLL_S))
        except Closed:
            raise self._died() from None
        except Timeout:
            shorten(Path(self.job.log))
            used = processes_bytes(self.pid) - self._shared_bytes if memory_limit_bytes else 0
            if memory_limit_bytes and used > memory_limit_bytes:
                raise TooMuchMemory(used) from None
            raise

    def pause(self) -> None:
        if not self.paused:
            self.send_signal(signal.SIGSTOP)
            self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.send_signal(signal.SIGCONT)
            self.paused = False

    def send_signal(self, number: signal.Signals) -> None:
        """Send it to the child and all that it started in its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """End it and all its descendants, and wait until it is gone."""
        if self.ended:
            return
        self.ended = True
        self.send_signal(signal.SIGKILL)
        with contextlib.suppress(TrialServerError):
            self.server.exit_status(self.pid)
        self.channel.close()
        if not self.server.fork_safe:
            self.server.close()

    def log_tail(self, limit: int = 4000) -> str:
        return tail(Path(self.job.log), limit)

    def _open_channel(self) -> Channel:
        """Raises Died where the child was ended with the server that it was forked from."""
        if self.ended:
            raise Died(-signal.SIGKILL, self._oom_kills_before)
        return self.channel

    def _died(self) -> Died:
        return Died(self.server.exit_status(self.pid) or 0, self._oom_kills_before)
