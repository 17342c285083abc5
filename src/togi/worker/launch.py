"""The parent's side of servers: start one, have it fork children, end it. No torch."""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakSet

from typing_extensions import assert_never

from togi.core.errors import TrialServerError
from togi.core.interpreter import python
from togi.core.quantities import seconds
from togi.machine import nvml
from togi.machine.limits import descendants, oom_kills
from togi.worker import messages
from togi.worker.channel import CHANNEL_FD, Channel, Closed, Timeout, Unreadable
from togi.worker.child_process import POLL_S, Child, Died
from togi.worker.deadline import Deadline
from togi.worker.inductor_cache import inductor_folder, temporary_folder
from togi.worker.logs import shorten, tail
from togi.worker.protocol import COUNTED, Raised, ServerConfig

_START_TIMEOUT_S = 600.0
_FORK_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 10.0
_SEND_TIMEOUT_S = 20
_QUIT_TIMEOUT_S = 2.0
"""Servers that do not end by themselves (what the subject's file does at exit) are killed."""


class ServerNotStarted(TrialServerError):
    """It died while it loaded the subject, or was not done in time."""


class NoTimeLeft(ServerNotStarted):
    """The time of the study was over before."""


class ForkServer(abc.ABC):
    """A process that forks children on request and reports how they end."""

    channel: Channel

    def __init__(self, token: str, deadline: Deadline) -> None:
        """``deadline``: of all that is asked of it and of its children."""
        self.token = token
        self.deadline = deadline
        self.fork_safe = True
        self.exits: dict[int, int] = {}
        self._children: WeakSet[Child] = WeakSet()
        self._abandoned = 0
        """Children that were asked for and not waited for: they are ended when they are named."""

    def start_child(self, job: messages.Job) -> Child:
        over = f"the time limit was over before a process was started for {job.kind}: give a longer --time-limit"
        if not self.deadline.left_s:
            raise NoTimeLeft(over)
        ours, theirs = socket.socketpair()
        self._send(messages.Fork(job=job), theirs.fileno())
        theirs.close()
        while True:
            began = time.monotonic()
            try:
                message = self.deadline.receive(self._receive, _FORK_TIMEOUT_S, "the process that starts trials")
            except Timeout:
                if not self.deadline.left_s:  # of this request: others may have time
                    self._abandoned += 1
                    raise NoTimeLeft(over) from None
                waited = seconds(time.monotonic() - began)
                self.close()
                raise TrialServerError(
                    f"the process that starts trials did not start one in {waited}: the machine has no memory or no "
                    "processor left for it. What was learned is kept: give the same command again to go on"
                ) from None
            if isinstance(message, messages.Started) and not self._is_abandoned(message):
                channel = Channel(ours, self.token, _SEND_TIMEOUT_S)
                return self._adopted(Child(self, message.pid, channel, job, message.shared_bytes))

    def _is_abandoned(self, started: messages.Started) -> bool:
        """It is of an earlier request, and ended: as a group, since it may have ended by itself long ago, and what has
        its number now is hardly ever the leader of one."""
        if not self._abandoned:
            return False
        self._abandoned -= 1
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(started.pid, signal.SIGKILL)
        return True

    def _adopted(self, child: Child) -> Child:
        self._children.add(child)
        return child

    def exit_status(self, pid: int) -> int | None:
        """How the child ended, or None if that was not known within ten seconds (two, where the study is over)."""
        deadline = time.monotonic() + (_END_TIMEOUT_S if self.deadline.left_s else _QUIT_TIMEOUT_S)
        while pid not in self.exits:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            with contextlib.suppress(Timeout):
                message = self._receive(left_s)
                if isinstance(message, messages.Started):
                    self._is_abandoned(message)
        return self.exits[pid]

    def close(self) -> None:
        """End it, and every child."""
        children = [child for child in self._children if not child.ended]
        for child in children:  # all at once; then each is waited for
            child.send_signal(signal.SIGKILL)
        for child in children:
            child.kill()

    @abc.abstractmethod
    def _gone(self) -> TrialServerError:
        """It ended unexpectedly: what to tell people."""

    def _send(self, message: messages.ToServer | ServerConfig, *fds: int) -> None:
        try:
            self.channel.send(message, fds)
        except Closed:
            raise self._gone() from None

    def _receive(self, timeout_s: float) -> messages.FromServer:
        try:
            message = self.channel.receive(messages.FROM_SERVER, timeout_s)
        except Closed:
            raise self._gone() from None
        except Unreadable as error:
            raise TrialServerError(f"the process that starts trials sent {error}") from None
        match message:
            case messages.Exited():
                self.exits[message.pid] = message.status
            case messages.Started():
                self.exits.pop(message.pid, None)  # of an earlier child, whose number the kernel gave again
        return message


class CapturedServer(ForkServer):
    """A child that has captured the subject and now forks children of its own, which hold what it captured.

    They end with it.
    """

    def __init__(self, child: Child) -> None:
        super().__init__(child.server.token, child.server.deadline)
        self.channel = child.channel
        self._child = child
        child.resume()

    def exit_status(self, pid: int) -> int | None:
        try:
            return super().exit_status(pid)
        except TrialServerError:
            return -signal.SIGKILL

    def close(self) -> None:
        super().close()
        self._child.kill()

    def _gone(self) -> TrialServerError:
        return TrialServerError(f"the process that captured the subject has ended:\n{self._child.log_tail()}")


_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class TrialServer(ForkServer):
    """One server process for one subject, from ``start`` to ``close``, which ends every child.

    Starting raises TogiError (the subject's own error) or TrialServerError.
    """

    def __init__(
        self, config: ServerConfig, environment: Mapping[str, str] | None = None, deadline: Deadline | None = None
    ) -> None:
        super().__init__(config.token, deadline or Deadline())
        self.config = config
        self.environment = dict(environment or {})
        self._log = Path(config.folder) / "server.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.answers = False
        """It has loaded the subject, and reads what it is sent."""

    def start(self) -> None:
        try:
            self._start()
        except BaseException:  # interrupted: what is still loading must not live on
            self.close()
            raise

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",  # numpy's OpenBLAS starts its threads on import, before any fork
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # is_available() then starts no CUDA, which no fork survives
            # as many as torch is to use from its start: asking it for others later starts threads, and then none forks
            **dict.fromkeys(_COUNTS, str(self.config.threads)),
            COUNTED: " ".join(name for name in _COUNTS if name not in os.environ),
            # compilers' caches and unpacked libraries: shared by the trials of a run, gone with its folder
            "TMPDIR": str(temporary_folder(Path(self.config.folder))),
            "TORCHINDUCTOR_CACHE_DIR": str(inductor_folder(Path(self.config.folder))),
            **self.environment,
            "TOGI_TOKEN": self.config.token,
            nvml.PARENT: str(os.getpid()),
        }
        fd = theirs.fileno()
        self._oom_kills_before = oom_kills()
        Path(environment["TMPDIR"]).mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(  # type: ignore[call-overload]  # process_group: Python 3.11, as all with torch
                python(_BOOT, str(fd), interpreter=self.config.interpreter),
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                process_group=0,  # a session of its own would be given less next to busy ones: togi.worker.server
            )
        theirs.close()
        self.channel = Channel(ours, self.token, _SEND_TIMEOUT_S)
        self._send(self.config)
        self._await_ready()

    def _await_ready(self) -> None:
        began = time.monotonic()
        try:
            answer = self.deadline.receive(self._loaded, _START_TIMEOUT_S, "the subject to be loaded")
        except Timeout:
            how = f"was still at it after {seconds(time.monotonic() - began)}"
            if self.deadline.left_s:
                raise ServerNotStarted(self._not_loaded(how)) from None
            raise NoTimeLeft(f"{self._not_loaded(how)} The time limit is over: give a longer --time-limit") from None
        except Closed:
            raise ServerNotStarted(self._not_loaded(self._how_it_ended("died"))) from None
        except Unreadable as error:
            raise ServerNotStarted(self._not_loaded(f"sent {error}")) from None
        match answer:
            case messages.Loaded():
                self.fork_safe = answer.fork_safe
                self.answers = True
            case Raised():
                raise answer.error("loaded")
            case _:
                assert_never(answer)

    def _not_loaded(self, how: str) -> str:
        printed = self.log_tail()
        return f"the process that loads the subject {how} while loading it, so nothing can be tried." + (
            f" It printed last:\n{printed}\n" if printed else ""
        )

    def _loaded(self, timeout_s: float) -> messages.FromLoadingServer:
        shorten(self._log)
        return self.channel.receive(messages.FROM_LOADING_SERVER, min(timeout_s, POLL_S))

    def start_child(self, job: messages.Job) -> Child:
        """Fork a child for ``job`` (or make a fresh server the child where forking is not safe)."""
        return super().start_child(job) if self.fork_safe else self._start_inline(job)

    def _start_inline(self, job: messages.Job) -> Child:
        own = TrialServer(self.config, self.environment, self.deadline)
        own.start()
        ours, theirs = socket.socketpair()
        try:
            own._send(messages.Become(job=job), theirs.fileno())
        except BaseException:
            own.close()
            raise
        theirs.close()
        assert own.process is not None
        return self._adopted(Child(own, own.process.pid, Channel(ours, self.token, _SEND_TIMEOUT_S), job))

    def exit_status(self, pid: int) -> int | None:
        if self.process is None or pid != self.process.pid:
            return super().exit_status(pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.exits[pid] = self.process.wait(_END_TIMEOUT_S)
        return self.exits.get(pid)

    def _gone(self) -> TrialServerError:
        return TrialServerError(
            f"the trial server {self._how_it_ended('ended unexpectedly')}. What was learned is kept: give the same "
            f"command again to go on. It printed last:\n{self.log_tail()}"
        )

    def _how_it_ended(self, otherwise: str) -> str:
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            if Died(self.process.wait(5.0), self._oom_kills_before).out_of_memory:
                return "was killed as the system had run out of memory"
        return otherwise

    def log_tail(self, limit: int = 2000) -> str:
        return tail(self._log, limit)

    def close(self) -> None:
        self.ask_to_end()
        self.end()

    def ask_to_end(self) -> None:
        """It kills its children and ends; not waited for, so that several end at once."""
        super().close()
        if hasattr(self, "channel"):
            with contextlib.suppress(Closed):
                self.channel.send(messages.Quit())
            self.channel.close()

    def end(self) -> None:
        """Wait for its end, for a moment; then kill it, with all that it started."""
        if self.process is None:
            return
        try:
            self.process.wait(_QUIT_TIMEOUT_S if self.answers else 0.0)
        except subprocess.TimeoutExpired:
            left_behind = descendants(self.process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            for pid in left_behind:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it: nothing more can be done
                self.process.wait(_QUIT_TIMEOUT_S)


_BOOT = f"""
import os, sys
fd = int(sys.argv[1])
if fd != {CHANNEL_FD}:
    os.dup2(fd, {CHANNEL_FD})
    os.close(fd)
from togi.worker.server import main
main()
"""
