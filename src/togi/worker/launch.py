"""The parent's side of trial processes: start a server, start children, pause, resume, kill. No torch."""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakSet

from togi.core.errors import TrialServerError
from togi.core.interpreter import python
from togi.core.quantities import seconds
from togi.machine import nvml
from togi.machine.limits import descendants, oom_kills, processes_bytes
from togi.worker.deadline import Deadline
from togi.worker.inductor_cache import inductor_folder
from togi.worker.protocol import CHANNEL_FD, Channel, Closed, Job, Message, Raised, ServerConfig, Timeout

_START_TIMEOUT_S = 600.0
_FORK_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 10.0
_SEND_TIMEOUT_S = 20
_POLL_S = 0.25
"""So often is looked at a child's memory and log."""
_QUIT_TIMEOUT_S = 2.0
"""Servers that do not end by themselves (what the subject's file does at exit) are killed."""
_LONGEST_LOG = 32 << 20
"""Bytes; of a longer log the beginning goes: a child that prints in a loop must not fill the disk."""


class Died(Exception):
    """The child ended without a final record. ``status``: exit code, or minus the signal's number."""

    def __init__(self, status: int, oom_kills_before: int) -> None:
        super().__init__(status)
        self.status = status
        self.out_of_memory = status == -signal.SIGKILL and oom_kills() > oom_kills_before
        """The kernel ended it, or another at the same time, because memory was out."""


class ServerNotStarted(TrialServerError):
    """It died while it loaded the subject, or was not done in time."""


class NoTimeLeft(ServerNotStarted):
    """The time of the study was over before."""


class TooMuchMemory(Exception):
    """The child and its descendants held more than they may. ``bytes``: how much."""

    def __init__(self, bytes: int) -> None:
        super().__init__(bytes)
        self.bytes = bytes


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

    def start_child(self, job: Job) -> Child:
        ours, theirs = socket.socketpair()
        self._send({"job": job.model_dump(mode="json"), "inline": False}, (theirs.fileno(),))
        theirs.close()
        while True:
            began = time.monotonic()
            try:
                message = self.deadline.receive(self._receive, _FORK_TIMEOUT_S, "the process that starts trials")
            except Timeout:
                waited = seconds(time.monotonic() - began)
                self.close()  # a child that it names later would be taken for the next
                if not self.deadline.left_s:
                    raise NoTimeLeft(
                        f"the time limit was over before a process was started for {job.kind}: give a longer "
                        "--time-limit"
                    ) from None
                raise TrialServerError(
                    f"the process that starts trials did not start one in {waited}: the machine has no memory or no "
                    "processor left for it. What was learned is kept: give the same command again to go on"
                ) from None
            if "started" in message:
                pid, shared_bytes = int(message["started"]), int(message["shared_bytes"])
                return self._adopted(Child(self, pid, Channel(ours, self.token, _SEND_TIMEOUT_S), job, shared_bytes))

    def _adopted(self, child: Child) -> Child:
        self._children.add(child)
        return child

    def exit_status(self, pid: int) -> int | None:
        """How the child ended, or None if that was not known within ten seconds (two, where the study is over)."""
        deadline = time.monotonic() + (_END_TIMEOUT_S if self.deadline.left_s else _QUIT_TIMEOUT_S)
        while pid not in self.exits:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            with contextlib.suppress(Timeout):
                self._receive(left)
        return self.exits[pid]

    def close(self) -> None:
        """End it, and every child."""
        children = [child for child in self._children if not child.ended]
        for child in children:  # all at once; then each is waited for
            child._signal(signal.SIGKILL)
        for child in children:
            child.kill()

    @abc.abstractmethod
    def _gone(self) -> TrialServerError:
        """It ended unexpectedly: what to tell people."""

    def _send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        try:
            self.channel.send(message, fds)
        except Closed:
            raise self._gone() from None

    def _receive(self, timeout_s: float) -> Message:
        try:
            message = self.channel.receive(timeout_s)
        except Closed:
            raise self._gone() from None
        if "exited" in message:
            self.exits[int(message["exited"])] = int(message["status"])
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
        self._process: subprocess.Popen[bytes] | None = None
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
            # compilers' caches and unpacked libraries: shared by the trials of a run, gone with its folder
            "TMPDIR": str(Path(self.config.folder) / "tmp"),
            "TORCHINDUCTOR_CACHE_DIR": str(inductor_folder(Path(self.config.folder))),
            **self.environment,
            "TOGI_TOKEN": self.config.token,
            nvml.PARENT: str(os.getpid()),
        }
        fd = theirs.fileno()
        self._oom_kills_before = oom_kills()
        Path(environment["TMPDIR"]).mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # type: ignore[call-overload]  # process_group: Python 3.11, as all with torch
                python(_BOOT, str(fd)),
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                process_group=0,  # a session of its own would be given less next to busy ones: togi.worker.server
            )
        theirs.close()
        self.channel = Channel(ours, self.token, _SEND_TIMEOUT_S)
        self._send(self.config.model_dump(mode="json"))
        self._await_ready()

    def _await_ready(self) -> None:
        began = time.monotonic()
        try:
            answer = self.deadline.receive(self._loaded, _START_TIMEOUT_S, "the subject to be loaded")
        except Timeout:
            took = f"was still at it after {seconds(time.monotonic() - began)}"
            if self.deadline.left_s:
                raise ServerNotStarted(self._not_loaded(took)) from None
            raise NoTimeLeft(f"{self._not_loaded(took)} The time limit is over: give a longer --time-limit") from None
        except Closed:
            raise ServerNotStarted(self._not_loaded(self._how_it_ended("died"))) from None
        if "raised" in answer:
            raise Raised.model_validate(answer["raised"]).error("loaded")
        self.fork_safe = bool(answer["fork_safe"])
        self.answers = True

    def _not_loaded(self, how: str) -> str:
        printed = self.log_tail()
        return f"the process that loads the subject {how} while loading it, so nothing can be tried." + (
            f" It printed last:\n{printed}\n" if printed else ""
        )

    def _loaded(self, timeout_s: float) -> Message:
        shorten(self._log, _LONGEST_LOG)
        return self.channel.receive(min(timeout_s, _POLL_S))

    def start_child(self, job: Job) -> Child:
        """Fork a child for ``job`` (or make a fresh server the child where forking is not safe)."""
        return super().start_child(job) if self.fork_safe else self._start_inline(job)

    def _start_inline(self, job: Job) -> Child:
        own = TrialServer(self.config, self.environment, self.deadline)
        own.start()
        ours, theirs = socket.socketpair()
        try:
            own._send({"job": job.model_dump(mode="json"), "inline": True}, (theirs.fileno(),))
        except BaseException:
            own.close()
            raise
        theirs.close()
        assert own._process is not None
        return self._adopted(Child(own, own._process.pid, Channel(ours, self.token, _SEND_TIMEOUT_S), job))

    def exit_status(self, pid: int) -> int | None:
        if self._process is None or pid != self._process.pid:
            return super().exit_status(pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.exits[pid] = self._process.wait(_END_TIMEOUT_S)
        return self.exits.get(pid)

    def _gone(self) -> TrialServerError:
        return TrialServerError(
            f"the trial server {self._how_it_ended('ended unexpectedly')}. What was learned is kept: give the same "
            f"command again to go on. It printed last:\n{self.log_tail()}"
        )

    def _how_it_ended(self, otherwise: str) -> str:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            if Died(self._process.wait(5.0), self._oom_kills_before).out_of_memory:
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
                self.channel.send({"quit": {}})
            self.channel.close()

    def end(self) -> None:
        """Wait for its end, for a moment; then kill it, with all that it started."""
        if self._process is None:
            return
        try:
            self._process.wait(_QUIT_TIMEOUT_S if self.answers else 0.0)
        except subprocess.TimeoutExpired:
            left_behind = descendants(self._process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            for pid in left_behind:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it: nothing more can be done
                self._process.wait(_QUIT_TIMEOUT_S)


class Child:
    """One trial process. Paused children use no processor: idle thread pools spin and would disturb the others."""

    def __init__(self, server: ForkServer, pid: int, channel: Channel, job: Job, shared_bytes: int = 0) -> None:
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

    def send(self, message: Message) -> None:
        try:
            self._open_channel().send(message)
        except Closed:
            raise self._died() from None

    def receive(self, timeout_s: float, memory_limit_bytes: int | None = None) -> Message:
        """The next message. Raises Timeout (also where the study's time is over), Died or TooMuchMemory."""
        take = functools.partial(self._next, memory_limit_bytes)
        return self.server.deadline.receive(take, timeout_s, self.doing)

    def _next(self, memory_limit_bytes: int | None, timeout_s: float) -> Message:
        try:
            return self._open_channel().receive(min(timeout_s, _POLL_S))
        except Closed:
            raise self._died() from None
        except Timeout:
            shorten(Path(self.job.log), _LONGEST_LOG)
            used = processes_bytes(self.pid) - self._shared_bytes if memory_limit_bytes else 0
            if memory_limit_bytes and used > memory_limit_bytes:
                raise TooMuchMemory(used) from None
            raise

    def pause(self) -> None:
        if not self.paused:
            self._signal(signal.SIGSTOP)
            self.paused = True

    def resume(self) -> None:
        if self.paused:
            self._signal(signal.SIGCONT)
            self.paused = False

    def kill(self) -> None:
        """End it and all its descendants, and wait until it is gone."""
        if self.ended:
            return
        self.ended = True
        self._signal(signal.SIGKILL)
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

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def tail(path: Path, limit: int) -> str:
    """The last ``limit`` bytes of a text file, whole lines, rubbish replaced. What is written meanwhile is left out: a
    writer may be faster than this reader, which would never reach the end."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            return file.read(limit).decode(errors="replace").strip()
    except OSError:
        return ""


def shorten(path: Path, limit: int) -> None:
    """Keep the last quarter of a log that has grown beyond ``limit`` bytes; its writer goes on at the new end."""
    try:
        if path.stat().st_size > limit:
            kept = tail(path, limit // 4)
            with path.open("r+b") as file:
                file.truncate()
                file.write(kept.encode(errors="replace"))
    except OSError:
        return


_BOOT = f"""
import os, sys
fd = int(sys.argv[1])
if fd != {CHANNEL_FD}:
    os.dup2(fd, {CHANNEL_FD})
    os.close(fd)
from togi.worker.server import main
main()
"""
