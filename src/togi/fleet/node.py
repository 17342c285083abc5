"""The functions that run on a node. Ray sends these functions by value: a node's own togi may be another one, or none.

So nothing of togi is imported here, and what goes in and out is bytes, text and numbers. The study is a process of its
own, ``togi tune``, as it would be without Ray.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

_TUNE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL: with Ray's worker the study ends
os.execv(sys.executable, [sys.executable, "-P", "-m", "togi", *sys.argv[1:]])
"""


def versions(packages: Sequence[str]) -> bytes:
    """JSON: the installed version of each package, null where there is none, and the name of the machine."""
    installed: dict[str, str | None] = {}
    for package in packages:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            installed[package] = None
    return json.dumps({"host": platform.node(), "versions": installed}).encode()


def study(subject: bytes, locator: str, name: str, options: Sequence[str]) -> bytes:
    """Tune ``locator`` next to the files of the archive ``subject``.

    The folder ``name`` keeps the journal, so that a study that was interrupted on this machine goes on. What comes
    back is a zip archive: ``exit_code``, ``study.json``, ``messages.txt``, ``journal.sqlite`` and ``model.togi/``.
    """
    work = _home() / "fleet" / name
    source, artifact, journal = work / "subject", work / "model.togi", work / "journal.sqlite"
    try:
        for folder in (source, artifact):  # by a study that was killed
            shutil.rmtree(folder, ignore_errors=True)
        source.mkdir(parents=True)
        with zipfile.ZipFile(io.BytesIO(subject)) as archive:
            archive.extractall(source)
        files = ["--json", "--out", str(artifact), "--journal", str(journal)]
        command = [sys.executable, "-P", "-c", _TUNE, "tune", locator, *files, *options]
        done = subprocess.run(
            command, cwd=source, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        return _packed(work, done)
    finally:
        for folder in (source, artifact):
            shutil.rmtree(folder, ignore_errors=True)


def _packed(work: Path, done: subprocess.CompletedProcess[bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", strict_timestamps=False) as archive:
        archive.writestr("exit_code", str(done.returncode))
        archive.writestr("study.json", done.stdout)
        archive.writestr("messages.txt", done.stderr)
        for path in (work / "journal.sqlite", *sorted((work / "model.togi").rglob("*"))):
            if path.is_file():
                archive.write(path, path.relative_to(work))
    return packed.getvalue()


def _home() -> Path:
    """As ``togi.core.caches.home``."""
    if "TOGI_HOME" in os.environ:
        return Path(os.environ["TOGI_HOME"])
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local" / "state")) / "togi"


def _environment() -> dict[str, str]:
    """The node's own, with which Ray started this process. Ray then sets ``OMP_NUM_THREADS`` to the number of logical
    processors, where torch would take the cores, and hides GPUs."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry)
