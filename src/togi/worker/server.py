"""The trial server: imports torch and loads the subject once, then forks a child for every trial in milliseconds.

A child that has captured the subject serves in the same way: children that it forks need not capture it again.

Started with a socket as file descriptor 3 and a ``ServerConfig`` as first frame. It never runs the model and starts no
thread, because a forked child of a process with an OpenMP pool hangs in its first parallel region. Where loading the
subject starts threads or CUDA all the same, it says so, and the parent starts a fresh server for every trial, which
then runs the job itself instead of forking.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import select
import shutil
import signal
import socket
import sys
import termios
import traceback
from pathlib import Path
from typing import Any, NoReturn

from typing_extensions import assert_never

from togi.machine.limits import anonymous_bytes
from togi.worker import messages
from togi.worker.channel import CHANNEL_FD, Channel, Closed
from togi.worker.guard import start_guard
from togi.worker.hand_over import copy_locks, no_data, no_metric
from togi.worker.protocol import COUNTED, Raised, ServerConfig, SubjectRef

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    parent = os.getppid()
    channel, config = _connect()
    folders = [Path(config.folder)]
    if config.subject.kind == "live":
        folders.append(Path(config.subject.spec).parent)
    guard = start_guard(parent, folders)
    try:
        _run(channel, config, guard)
    except Closed:  # the parent died without a word: nobody else is left to remove what it made
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _run(channel: Channel, config: ServerConfig, guard: int) -> None:
    _leave_the_terminal()
    os.chdir(config.subject.cwd)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        subject = _load(config)
    except BaseException as error:
        channel.send(Raised.of(error))
        return
    from togi.worker.forking import end_idle_threads, fork_safe

    end_idle_threads()
    channel.send(messages.Loaded(fork_safe=fork_safe(config.device)))
    _Server(channel, _with_threads_of_subject(config), subject, guard).serve()


def _connect() -> tuple[Channel, ServerConfig]:
    first = Channel(socket.socket(fileno=CHANNEL_FD), os.environ.pop("TOGI_TOKEN"))
    os.set_inheritable(CHANNEL_FD, False)
    return first, first.receive(messages.CONFIG)


def import_torch(threads: int) -> None:
    """Import torch, with so many threads, and what nearly every child needs: it would cost each of them a second."""
    gc.disable()  # nothing that is imported is garbage, and looking for some takes a fifth of the time
    import torch

    found = torch.get_num_threads()  # reads the environment
    for name in os.environ.pop(COUNTED, "").split():
        os.environ.pop(name, None)
    if found != threads:  # asking for several starts those of a pool that cannot be ended
        torch.set_num_threads(threads)
    import torch.export

    import togi.worker.child  # noqa: F401
    from togi.techniques import all_techniques
    from togi.torch_internals.compiler import import_dynamo

    import_dynamo()
    all_techniques()
    messages.build_records()
    gc.enable()


def _load(config: ServerConfig) -> Any:
    """Import torch, then the subject, with as many threads as the user has: weights that a factory computes differ by
    rounding with another number."""
    import_torch(config.threads)
    import torch

    torch.manual_seed(config.seed)
    copy_locks()
    if config.subject.kind in ("locator", "live"):  # the user's modules are found as in the user's own process
        sys.path[:] = [*config.subject.path, *(p for p in sys.path if p not in config.subject.path)]
    return subject_with_data(config)


def subject_with_data(config: ServerConfig) -> Any:
    """The subject with calibration, metric and data: all of them are the user's files, which may ask for devices."""
    from togi.worker.forking import counting_devices_in_forks

    with counting_devices_in_forks():
        subject = load_subject(config.subject)
        if subject is None:
            return None
        if config.calibration:
            subject = with_calibration_of(subject, config)
        if config.needs_metric:
            subject = with_metric(subject, config)
        return with_validation(subject, config) if config.needs_data else subject


def _with_threads_of_subject(config: ServerConfig) -> ServerConfig:
    """Take over the number of torch's threads that loading the subject left. Some packages set it, and wherever the
    user loads the subject, it will be that one too."""
    import torch

    threads = torch.get_num_threads()
    machine = config.machine.model_copy(update={"threads": threads})
    return config.model_copy(update={"threads": threads, "machine": machine})


def with_calibration_of(subject: Any, config: ServerConfig) -> Any:
    """The subject with the calibration data that were named. Raises SubjectError where these hold no samples."""
    from togi.core.errors import SubjectError
    from togi.subject.calibration import with_calibration
    from togi.worker.locate import locate_calibration

    try:
        return with_calibration(subject, locate_calibration(config.calibration))
    except SubjectError as error:
        raise SubjectError(f"calibration={config.calibration}: {error}") from None


def with_metric(subject: Any, config: ServerConfig) -> Any:
    """The subject with the metric by which it is judged. Raises SubjectError where there is none."""
    import dataclasses

    from togi.worker.locate import locate_metric

    assert config.judging is not None
    given: dict[str, Any] = {}
    if config.judging.metric:
        given["metric"] = locate_metric(config.judging.metric)
    if config.judging.better is not None:
        given["better"] = config.judging.better
    subject = dataclasses.replace(subject, **given)
    if subject.metric is None:
        raise no_metric(config.subject.spec)
    return subject


def with_validation(subject: Any, config: ServerConfig) -> Any:
    """The subject with the data by which it is judged. Raises SubjectError where there are none."""
    import dataclasses

    from togi.subject.validation import hash_once
    from togi.worker.locate import locate_validation

    if config.data:
        subject = dataclasses.replace(subject, validation=locate_validation(config.data))
    if subject.validation is None:
        raise no_data(config.subject.spec)
    hash_once(subject.validation)
    return subject


def load_subject(ref: SubjectRef) -> Any:
    """The subject itself (None for an artifact, which the child loads, and where there is none)."""
    if ref.kind in ("artifact", "nothing"):
        return None
    if ref.kind == "live":
        from togi.subject.sources.live import unpickled

        return unpickled(Path(ref.spec))
    from togi.worker.locate import locate

    return locate(ref.spec)


class _Server:
    """Forks on request, reaps, reports every exit, and kills what a dead child left behind."""

    def __init__(self, channel: Channel, config: ServerConfig, subject: Any, guard: int | None = None) -> None:
        """``guard``: a child that is none of a trial's."""
        self.guard = guard
        self.channel = channel
        self.config = config
        self.subject = subject
        self.children: set[int] = set()
        # a collection in a child would visit, and so copy, everything that it shares with the server
        gc.collect()
        gc.freeze()
        self.wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides

    def serve(self) -> None:
        arrives = select.poll()  # ``select.select`` takes no descriptor beyond 1023, and the subject may hold as many
        for descriptor in (self.channel.fileno(), self.wake_read):
            arrives.register(descriptor, select.POLLIN)
        try:
            while True:
                readable = [descriptor for descriptor, _ in arrives.poll()]
                if self.wake_read in readable:
                    os.read(self.wake_read, 4096)
                    self._reap()
                if self.channel.fileno() in readable and not self._obey():
                    return
        finally:
            for pid in self.children:
                _kill_group(pid)
            self._reap_strays(set())

    def _obey(self) -> bool:
        message, fds = self.channel.receive_with_fds(messages.TO_SERVER)
        match message:
            case messages.Fork():
                self._fork(message.job, fds[0])
            case messages.Become():
                self._become(message.job, fds[0])
            case messages.Quit():
                return False
            case _:
                assert_never(message)
        return True

    def _fork(self, job: messages.Job, fd: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._become(job, fd)
        with contextlib.suppress(OSError):  # the child does the same: who is told of it may end its group at once
            os.setpgid(pid, pid)
        self.children.add(pid)
        os.close(fd)
        # what the child began with; asked of the child itself, it may have taken more by then
        self.channel.send(messages.Started(pid=pid, shared_bytes=anonymous_bytes(os.getpid())))

    def _become(self, job: messages.Job, fd: int) -> NoReturn:
        """Run the job and end: in a child, or in the server itself."""
        status = 70
        try:
            _settle(job)
            from togi.worker.child import SERVES, run_job

            channel = Channel(socket.socket(fileno=fd), self.config.token)
            status = run_job(job, self.config, self.subject, channel)
            if status == SERVES:
                _prctl(_PR_SET_CHILD_SUBREAPER, 1)
                _Server(channel, self.config, self.subject).serve()
                status = 0
        except BaseException:  # the last line of defence: whatever it was, the log has it
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.children:
                self.children.discard(pid)
                _kill_group(pid)
                self._reap_strays({*self.children, self.guard})
                self.channel.send(messages.Exited(pid=pid, status=os.waitstatus_to_exitcode(status)))

    def _reap_strays(self, expected: set[int | None]) -> None:
        """Processes that a trial left behind are our children now (subreaper); they end with their trial."""
        for _ in range(100):
            strays = [pid for pid in _child_pids() if pid not in expected]
            if not strays:
                return
            for pid in strays:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _settle(job: messages.Job) -> None:
    """Make the child a process group of its own, with its prints in the log and first in line for the OOM killer.

    No session: Linux shares the cores between sessions (autogroup), and next to one busy process of another session
    a model's threads waited for each other: 9.3 s a call in place of 0.3.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if not isinstance(job, messages.CaptureSubject):  # the trials depend on it
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _leave_the_terminal() -> None:
    """Code that asks there (a login, a password) fails at once: of a process in the background it would be stopped,
    and nobody would know why."""
    with contextlib.suppress(OSError):  # there is none
        terminal = os.open("/dev/tty", os.O_RDWR)
        fcntl.ioctl(terminal, termios.TIOCNOTTY)
        os.close(terminal)


def _child_pids() -> list[int]:
    """Direct children, of every thread of this process (Linux; elsewhere none are found)."""
    pids: list[int] = []
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += [int(pid) for pid in listing.read_text(encoding="utf-8").split()]
    return pids


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux only: elsewhere orphans are killed by group alone
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
