"""Trial servers that are forked from a process which has imported what every server does, in place of started anew.

A server imports torch, its compiler's front end and every technique before it loads a subject: 5 s of a processor, more
than most studies of the suite compute. Where the tests are of what a study finds, and not of how a process starts
(``STARTED``), ``Popen`` of ``togi.worker.launch`` forks one here. It is a child of the process that asked for it, in a
group of its own, with the environment, the import path, the channel and the log that it would have. Whatever could have
changed what was imported (another interpreter, import path, or variable) starts a server as ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from togi.core.interpreter import python, without_working_folder
from togi.worker.launch import _BOOT

STARTED = (
    "tests/core/",
    "tests/machine/",
    *(f"tests/worker/test_{name}.py" for name in ("call_in_child", "cuda_devices", "deadline", "isolation")),
    *(f"tests/worker/test_{name}.py" for name in ("killed_processes", "supervise", "terminal")),
    *(f"tests/study/test_{name}.py" for name in ("commands_that_hang", "planted_hangs")),
)
"""Beginnings of the tests that are of processes themselves: their servers are started."""
ROOT = str(Path(__file__).parents[1])
_RUN_TIME = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TOGI_TOKEN", "TOGI_HOME", "PYTEST_CURRENT_TEST")
"""Variables that nothing reads while it is imported."""
_AGAIN = 2
"""So often variables must come again for another process to be prepared with them: libraries set some for good while
they are imported, and a test for itself."""
_ADOPTS = 36
"""``PR_SET_CHILD_SUBREAPER``: orphans become this process's children."""
_PREPARE = """
import gc
gc.disable()
import atexit, json, os, socket, sys, tempfile, threading, time, traceback
first = [*filter(None, sys.path)]
import torch, torch.export
import togi.worker.server, togi.worker.child
from togi.techniques import all_techniques
from togi.torch_internals.compiler import import_dynamo
from togi.worker import messages
import_dynamo()
all_techniques()
messages.build_records()
gc.freeze()
gc.enable()
torch.get_num_threads()

def serve(control):
    while True:
        asked, fds, _, _ = socket.recv_fds(control, 1 << 20, 2)
        if not asked:
            return None
        parent = os.fork()
        if parent == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.001)
            return json.loads(asked), fds
        os.waitpid(parent, 0)
        for fd in fds:
            os.close(fd)

control = socket.socket(fileno=int(sys.argv[1]))
if (found := serve(control)) is not None:
    asked, (channel, log) = found
    os.setpgid(0, 0)
    control.send(f"{os.getpid()} {os.getppid()}".encode())
    control.close()
    null = os.open(os.devnull, os.O_RDONLY)
    for given, wanted in ((null, 0), (log, 1), (log, 2)):
        os.dup2(given, wanted)
    os.close(null)
    if channel != 3:
        os.dup2(channel, 3)
        os.close(channel)
    os.close(log)
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path[:] = [*first, *asked["path"]]
    tempfile.tempdir = None
    try:
        if os.getppid() == asked["parent"]:
            togi.worker.server.main()
        threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)  # taking everything down would copy it first
"""


class _Adopted(subprocess.Popen[bytes]):
    """A process that somebody else started, and that is this one's child."""

    def __init__(self, command: list[str], pid: int) -> None:
        self.args, self.pid, self.returncode = command, pid, None  # type: ignore[assignment]
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock = True, threading.Lock()
        self._sigint_wait_secs = 0.25


class PreparedServers:
    """Stands for the module ``subprocess`` in ``togi.worker.launch``."""

    TimeoutExpired, DEVNULL = subprocess.TimeoutExpired, subprocess.DEVNULL

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._prepared: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._unlike = 0
        """How often in a row the variables were those of the last start."""
        self._plain = _seen_by_imports(os.environ)
        self._paths = _paths()

    def Popen(self, command: list[str], **given: Any) -> subprocess.Popen[bytes]:
        environment = _seen_by_imports(given["env"])
        own = self._plain.items() <= environment.items() and _paths() == self._paths
        if not (sys.platform == "linux" and own and command == python(_BOOT, command[-1])):
            return subprocess.Popen(command, **given)
        self._unlike = self._unlike + 1 if environment == self._last else 0
        self._last = environment
        if self._process is not None and environment != self._prepared:
            if self._unlike < _AGAIN:
                return subprocess.Popen(command, **given)
            self.close()
        if self._process is None:
            self._prepare(given["env"], environment)
        return self._forked(command, given["pass_fds"][0], given["stdout"].fileno(), given["env"])

    def _prepare(self, all_variables: Mapping[str, str], environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        variables = {name: value for name, value in all_variables.items() if name not in _RUN_TIME}
        self._process = subprocess.Popen(
            python(_PREPARE, str(theirs.fileno())), pass_fds=[theirs.fileno()], env=variables, process_group=0
        )
        theirs.close()
        self._control, self._prepared = ours, environment

    def _forked(self, command: list[str], channel: int, log: int, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        assert self._control is not None
        asked = {"environment": dict(env), "path": without_working_folder(), "parent": os.getpid()}
        libc = ctypes.CDLL(None)
        libc.prctl(_ADOPTS, 1, 0, 0, 0)
        try:
            socket.send_fds(self._control, [json.dumps(asked).encode()], [channel, log])
            answer = self._control.recv(64).split()
        finally:
            libc.prctl(_ADOPTS, 0, 0, 0, 0)
        assert answer, "the process that forks servers has ended"
        pid, parent = map(int, answer)
        assert parent == os.getpid(), "a server was not given to the process that asked for it"
        return _Adopted(command, pid)

    def close(self) -> None:
        """End the process that forks them."""
        if self._control is not None and self._process is not None:
            self._control.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self._process.kill()
            self._process.wait()
            self._process = self._control = None


def _seen_by_imports(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _RUN_TIME}


def _paths() -> set[str]:
    """Where modules are found; whether the project's own folder is the working folder, which is not searched, changes
    nothing."""
    return {*without_working_folder()} - {ROOT}
