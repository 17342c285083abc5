"""Checking source on Windows, as far as Linux can show it: what Python lacks there is taken away before togi runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

WINDOWS = """
import os, signal, subprocess, sys, sysconfig, tempfile
import pydantic.main  # before: what others do by the platform is their own
sysconfig.get_config_vars()
for name in "fork getuid geteuid sched_getaffinity getloadavg sysconf uname killpg".split():
    delattr(os, name)
for name in "O_NONBLOCK O_CLOEXEC O_NOFOLLOW".split():
    delattr(os, name)
for name in "SIGALRM alarm SIGKILL SIGSTOP setitimer".split():
    delattr(signal, name)
for name in "fcntl resource pwd grp termios".split():
    sys.modules[name] = None
sys.platform = "win32"
"""
CHECK = """
import json
from togi.lint import pool
from togi.lint.check_paths import check_paths
from togi.lint.fix import fix_paths
python = pool.python
pool.python = lambda code: python(sys.argv[1] + code)
pool.processes = lambda *_: 2
found, again = check_paths(["."]), check_paths(["."])
fixed = fix_paths(["."], unsafe=True).result
print(json.dumps([len(found.findings), len(found.problems), again.cached, fixed.fixed, len(again.notes)]))
"""
FAULT = """import torch
for x, y in loader:
    loss = model(x)
    loss.backward()
    optimizer.step()
    total += loss
"""


def on_windows(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = f"import os\nos.environ['TOGI_CACHE'] = {str(folder / 'cache')!r}\n"
    command = [sys.executable, "-c", environment + WINDOWS + code, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_files_are_checked_kept_and_mended(tmp_path: Path) -> None:
    """In processes, which are started and not forked there; the ends of lines stay as they are."""
    for number in range(3):
        (tmp_path / f"übung {number}.py").write_bytes(FAULT.replace("\n", "\r\n").encode())
    done = on_windows(CHECK, tmp_path, WINDOWS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [6, 0, 3, 3, 0]
    text = (tmp_path / "übung 0.py").read_bytes()
    assert b"total += loss.detach()\r\n" in text
    assert text.count(b"\r\n") == text.count(b"\n")


def test_a_file_that_takes_too_long_ends_its_process(tmp_path: Path) -> None:
    code = """
import io, json, time
from togi.lint import pool
pool.check_bytes = lambda *_, **named: time.sleep(50)
pool.LONGEST_S = 1
request = [sys.argv[1], "f.py", "f.py", [], 100]
pool.answer_requests([json.dumps(request)], io.BytesIO())
"""
    (tmp_path / "f.py").write_text("import torch\n", encoding="utf-8")
    done = on_windows(code, tmp_path, str(tmp_path / "f.py"))
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
