"""The parent's side of trial processes: start a server, start children, pause, resume, kill. No torch."""

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

from togi.core.errors import TrialServerError
from togi.core.interpreter import python
from togi.machine.limits import oom_kills, processes_bytes
from togi.worker.inductor_cache import inductor_folder
from togi.worker.protocol import CHANNEL_FD, Channel, Closed, Job, Message, Raised, ServerConfig, Timeout

_START_TIMEOUT_S = 600.0
_FORK_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 10.0
_MEMORY_POLL_S = 0.25


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


class ForkServer(abc.ABC):
    """A process that forks children on request and reports how they end."""

    channel: Channel

    def __init__(self, token: str) -> None:
        self.token = token
        self.fork_safe = True
        self.exits: dict[int, int] = {}
        self._children: WeakSet[Child] = WeakSet()

    def start_child(self, job: Job) -> Child:
        ours, theirs = socket.socketpair()
        self._send({"job": job.model_dump(mode="json"), "inline": False}, (theirs.fileno(),))
        theirs.close()
        while True:
            try:
                message = self._receive(_FORK_TIMEOUT_S)
            except Timeout:
                self.close()  # a child that it names later would be taken for the next
                raise TrialServerError(
                    f"the process that starts trials did not start one in {_FORK_TIMEOUT_S:.0f} s: the machine has no "
                    "memory or no processor left for it. What was learned is kept: give the same command again to go on"
                ) from None
            if "started" in message:
                pid, shared_bytes = int(message["started"]), int(message["shared_bytes"])
                return self._adopted(Child(self, pid, Channel(ours, self.token), job, shared_bytes))

    def _adopted(self, child: Child) -> Child:
        self._children.add(child)
        return child

    def exit_status(self, pid: int) -> int | None:
        """How the child ended, or None if it has not within ten seconds."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        while pid not in self.exits:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            with contextlib.suppress(Timeout):
                self._receive(left)
        return self.exits[pid]

    def close(self) -> None:
        """End it, and every child."""
        for child in list(self._children):
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
        super().__init__(child.server.token)
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

    def __init__(self, config: ServerConfig, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(config.token)
        self.config = config
        self.environment = dict(environment or {})
        self._log = Path(config.folder) / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

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
        }
        fd = theirs.fileno()
        self._oom_kills_before = oom_kills()
        Path(environment["TMPDIR"]).mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                python(_BOOT, str(fd)),
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                process_group=0,  # a session of its own would be given less beside busy ones: togi.worker.server
            )
        theirs.close()
        self.channel = Channel(ours, self.config.token)
        self._send(self.config.model_dump(mode="json"))
        self._await_ready()

    def _await_ready(self) -> None:
        try:
            answer = self.channel.receive(_START_TIMEOUT_S)
        except (Closed, Timeout) as error:
            how = "did not answer in 10 minutes" if isinstance(error, Timeout) else self._how_it_ended("died")
            raise TrialServerError(
                f"the process that loads the subject {how} while loading it, so nothing can be tried. It printed last:"
                f"\n{self.log_tail()}"
            ) from None
        if "raised" in answer:
            raise Raised.model_validate(answer["raised"]).error("loaded")
        self.fork_safe = bool(answer["fork_safe"])

    def start_child(self, job: Job) -> Child:
        """Fork a child for ``job`` (or make a fresh server the child where forking is not safe)."""
        return super().start_child(job) if self.fork_safe else self._start_inline(job)

    def _start_inline(self, job: Job) -> Child:
        own = TrialServer(self.config, self.environment)
        own.start()
        ours, theirs = socket.socketpair()
        try:
            own._send({"job": job.model_dump(mode="json"), "inline": True}, (theirs.fileno(),))
        except BaseException:
            own.close()
            raise
        theirs.close()
        assert own._process is not None
        return self._adopted(Child(own, own._process.pid, Channel(ours, self.config.token), job))

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
        super().close()
        if self._process is None:
            return
        if hasattr(self, "channel"):
            with contextlib.suppress(Closed):
                self.channel.send({"quit": {}})  # it kills its children and ends
            self.channel.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Child:
    """One trial process. Paused children use no processor: idle thread pools spin and would disturb the others."""

    def __init__(self, server: ForkServer, pid: int, channel: Channel, job: Job, shared_bytes: int = 0) -> None:
        """``shared_bytes``: what it has of the server that it was forked from, which both hold once."""
        self.server = server
        self.pid = pid
        self.channel = channel
        self.job = job
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
        """The next message. Raises Timeout, Died or TooMuchMemory.

        What has arrived counts, also when the time is over: this process may have been stopped meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return self._open_channel().receive(min(left, _MEMORY_POLL_S) if memory_limit_bytes else left)
            except Closed:
                raise self._died() from None
            except Timeout:
                used = processes_bytes(self.pid) - self._shared_bytes if memory_limit_bytes else 0
                if memory_limit_bytes and used > memory_limit_bytes:
                    raise TooMuchMemory(used) from None
                if left == 0:
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
    """The last ``limit`` bytes of a text file, whole lines, rubbish replaced."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


_BOOT = f"""
import os, sys
fd = int(sys.argv[1])
if fd != {CHANNEL_FD}:
    os.dup2(fd, {CHANNEL_FD})
    os.close(fd)
from togi.worker.server import main
main()
"""
