"""Processes that are forked from one that has imported already what they import: with torch that takes 4 s of a core
for each, of hundreds.

Servers of studies are forked where the tests' process starts them, but for tests of how they start (``starts_servers``
marks them, ``tests/conftest.py`` reads it). Each comes from a process that was started by the same command, with the
same variables and limits. All of one origin hash alike, so that a test of what is known again starts its own.

A forked process is a child of the one that runs the tests, like one that it started: that becomes a reaper of orphans
for the moment in which the process between them ends. Run as a program, this file is the origin.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OF_A_RUN = ("PYTEST_CURRENT_TEST", "TMPDIR", "TOGI_CACHE", "TOGI_HOME", "TOGI_TOKEN", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that a server may have others of than its origin: nothing that this has imported has read them."""
CHANNEL_FD = 3
"""As in ``togi.worker.channel``. What an origin is asked by has the number, so that nothing that it imports has it."""
_ABOVE_FD = 64
_MOST_BYTES = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36
_START_S, _FORK_S = 120.0, 60.0
_KEPT = 2
"""Origins, the last ones: tests that change into a folder of their own have another import path."""

EXPORTS = "import torch; torch.export.export(torch.nn.Linear(1, 1), (torch.ones(1, 1),))"
"""What a study begins with."""

Kind = tuple[object, ...]
_REAL = subprocess.Popen


class Forked:
    """A process as its parent has it, like a ``subprocess.Popen`` that is waited for."""

    def __init__(self, args: Sequence[str], pid: int) -> None:
        self.args, self.pid = args, pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif timeout is not None and until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(self.args, timeout)
            else:
                time.sleep(0.005)
        return self.returncode

    def __del__(self) -> None:
        """Nobody waits for it any more."""
        with contextlib.suppress(ChildProcessError, subprocess.TimeoutExpired):
            self.wait(0.0)


class Origin:
    """A process to fork from, as its parent has it."""

    def __init__(self, options: Sequence[str], prepare: str, environment: Mapping[str, str]) -> None:
        """
        Args:
            options: the interpreter and its options.
            prepare: code that imports what the forked ones need, with ``import_as``. Their import path is the one
                before it.
        """
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = _REAL(
            [*options, __file__, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=dict(environment),
            process_group=0,
        )
        theirs.close()
        self._control.settimeout(_START_S)
        try:
            self._control.send(prepare.encode())
            self._heard()
        except BaseException:
            self.close()
            raise
        self._control.settimeout(_FORK_S)

    def fork(
        self, argv: Sequence[str], code: str, environment: Mapping[str, str], folder: str, fds: Mapping[int, int]
    ) -> Forked:
        """A child of this process that runs ``code``. ``fds``: for each of its descriptors one of this process."""
        request = {"argv": argv, "code": code, "environment": dict(environment), "folder": folder, "fds": [*fds]}
        _reap_orphans(True)
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], list(fds.values()))
            return Forked(argv, int(self._heard()))
        except BaseException:  # interrupted: its next answer would be to this request
            self.close()
            raise
        finally:
            _reap_orphans(False)

    def _heard(self) -> bytes:
        if not (heard := self._control.recv(32)):
            raise OSError(f"the process to fork from has ended ({self._process.wait()})")
        return heard

    def close(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()


class ForkedServers:
    """In place of ``subprocess`` in ``togi.worker.launch``."""

    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self) -> None:
        self._origins: dict[Kind, Origin] = {}
        self._last: Kind = ()

    def Popen(self, command: Sequence[str], **options: Any) -> Any:
        """Forked where there is an origin; one is made for the second server in a row of a kind."""
        if "-P" not in command or subprocess.Popen is not _REAL:  # of another environment; a test replaced it
            return subprocess.Popen(command, **options)
        environment, code = options["env"], command[command.index("-c") + 1]
        kind = _kind(command, environment)
        again, self._last = kind == self._last, kind
        if kind not in self._origins and again:
            while len(self._origins) >= _KEPT:
                self._origins.pop(next(iter(self._origins))).close()
            path, threads = code.partition("\n")[0], environment["OMP_NUM_THREADS"]
            torch = f"from togi.worker.server import import_torch\nimport_torch({threads})"
            prepare = f"{path}\n{torch}\nimport_as({EXPORTS!r})"
            self._origins[kind] = Origin(command[: command.index("-c")], prepare, environment)
        if kind not in self._origins:
            return _REAL(command, **options)
        (channel,), log = options["pass_fds"], options["stdout"].fileno()
        argv = ["-c", str(CHANNEL_FD)]
        try:
            return self._origins[kind].fork(argv, code, environment, os.getcwd(), {CHANNEL_FD: channel, 1: log, 2: log})
        except BaseException:
            del self._origins[kind]
            raise

    def close(self) -> None:
        while self._origins:
            self._origins.popitem()[1].close()


def can_fork() -> bool:
    """On this system a process forked by another becomes a child of this one."""
    try:
        _reap_orphans(True)
        _reap_orphans(False)
    except (AttributeError, OSError):
        return False
    return True


def _kind(command: Sequence[str], environment: Mapping[str, str]) -> Kind:
    """What a process has from its parent, but for what is handed on to one that is forked."""
    variables = sorted((name, value) for name, value in environment.items() if name not in OF_A_RUN)
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":", 1) for line in lines)
    masks = [status.get(name, "") for name in ("Umask", "SigBlk", "SigIgn", "Cpus_allowed", "Mems_allowed")]
    return (os.getpid(), *command[:-1], *variables, *limits, *masks)


def _reap_orphans(does: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(does), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no reaper of orphans")


def import_as(code: str) -> None:
    """Import what a process that is forked here imports to run ``code``, but for a compiler that starts processes."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException), open(write, "w", encoding="utf-8") as file:
            exec(code, {})
            json.dump([*sys.modules], file)
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as file:
        names = json.loads(file.read() or "[]")
    os.waitpid(child, 0)
    for name in names:
        if not name.startswith("torch._inductor"):
            with contextlib.suppress(Exception):  # a name that is none of a file
                importlib.import_module(name)


def _serve(control: socket.socket) -> str:
    """Returns in forked processes alone: the code that each is to run."""
    path, parent = list(sys.path), os.getppid()
    exec(control.recv(_MOST_BYTES), {"import_as": import_as})
    gc.collect()
    gc.freeze()  # a collection in a forked process would visit, and so copy, what is shared
    control.send(b"\n")
    while True:
        text, fds, *_ = socket.recv_fds(control, _MOST_BYTES, 8)
        if not text:
            os._exit(0)
        read, write = os.pipe()
        if (between := os.fork()) == 0:
            if (forked := os.fork()) == 0:
                os.close(control.detach())
                os.close(read)
                os.close(write)
                sys.path[:] = path
                return _settled(json.loads(text), fds, parent)
            with contextlib.suppress(OSError):  # it does the same: who is told of it may end its group at once
                os.setpgid(forked, forked)
            os.write(write, str(forked).encode())
            os._exit(0)
        os.waitpid(between, 0)
        control.send(os.read(read, 32))
        for fd in (*fds, read, write):
            os.close(fd)


def _settled(request: Mapping[str, Any], fds: Sequence[int], parent: int) -> str:
    """Make this process what one that was started would be, and return the code that it is to run."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    until = time.monotonic() + _FORK_S
    while os.getppid() != parent:
        if time.monotonic() > until:
            os._exit(70)
        time.sleep(0.001)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _ABOVE_FD) for fd in fds]  # out of the way of the numbers that they get
    for fd in fds:
        os.close(fd)
    for fd, number in zip(high, request["fds"], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    sys.argv[:] = request["argv"]
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # as of a new process; Python's own is seeded by the fork
    code: str = request["code"]
    return code


if __name__ == "__main__":
    _given = int(sys.argv[1])
    if _given != CHANNEL_FD:
        os.dup2(_given, CHANNEL_FD)
        os.close(_given)
    os.set_inheritable(CHANNEL_FD, False)
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of this file
    _found = _serve(socket.socket(fileno=CHANNEL_FD))
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(_found, "<string>", "exec"), sys.modules["__main__"].__dict__)
