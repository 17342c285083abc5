"""A server that is forked finds what one that is started finds."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.forked_processes import Forked, ForkedServers
from togi.core.interpreter import python
from togi.machine.limits import descendants

FINDS = """
import json, os, signal, sys, tempfile
fd = int(sys.argv[1])
print("printed", flush=True)
handlers = {name: str(signal.getsignal(getattr(signal, name))) for name in ("SIGINT", "SIGPIPE", "SIGTERM")}
found = dict(
    variables=dict(os.environ), folder=os.getcwd(), path=sys.path, argv=sys.argv[:1], flags=list(sys.flags),
    parent=os.getppid(), leads=os.getpgid(0) == os.getpid(), umask=os.umask(0), handlers=handlers,
    temporary=tempfile.gettempdir(), name=__name__, standard=[os.readlink(f"/proc/self/fd/{n}") for n in range(3)],
    threads=len(os.listdir("/proc/self/task")), other=[n for n in os.listdir("/proc/self/fd") if int(n) > 2 and
        int(n) != fd and os.path.exists(f"/proc/self/fd/{n}") and "socket:" in os.readlink(f"/proc/self/fd/{n}")],
)
os.write(fd, json.dumps(found).encode() + b"\\n")
sys.exit(3)
"""


def started(servers: ForkedServers, folder: Path, number: int) -> tuple[Any, dict[str, Any]]:
    """The handle of a process, and what that found."""
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOGI_TOKEN": str(number), "TMPDIR": str(folder)}
    with (folder / "log").open("ab") as log, ours.makefile(encoding="utf-8") as answer:
        process = servers.Popen(
            python(FINDS, str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            process_group=0,
        )
        theirs.close()
        ours.settimeout(120)
        found = json.loads(answer.readline())
    ours.close()
    assert process.wait(60) == 3
    assert process.returncode == 3
    assert found["variables"].pop("TOGI_TOKEN") == str(number)
    return process, found


@pytest.mark.thorough
def test_a_forked_server_finds_what_a_started_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before, servers = set(descendants(os.getpid())), ForkedServers()
    try:
        first, alone = started(servers, tmp_path, 0)
        assert not isinstance(first, Forked), "one alone is started: nothing is made to fork from"
        for number in (1, 2):
            process, found = started(servers, tmp_path, number)
            assert isinstance(process, Forked)
            assert found == alone
        monkeypatch.setenv("SOMETHING_ELSE", "1")
        other, found = started(servers, tmp_path, 3)
        assert not isinstance(other, Forked), "imported libraries may have read the variable"
        assert found["variables"].pop("SOMETHING_ELSE") == "1"
        assert found == alone
    finally:
        servers.close()
    assert alone["parent"] == os.getpid()
    assert (alone["leads"], alone["other"], alone["folder"]) == (True, [], str(tmp_path))
    assert (tmp_path / "log").read_text(encoding="utf-8") == "printed\n" * 4
    assert set(descendants(os.getpid())) <= before
