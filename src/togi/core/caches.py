"""Folders of togi: for what it can make again (findings, figures of the machine, compiled code), and for results."""

from __future__ import annotations

import os
import platform
import stat
from pathlib import Path

from togi.core.backports import StrEnum


def cache_folder() -> Path:
    """``$TOGI_CACHE``, else ``$XDG_CACHE_HOME/togi``, else ``~/.cache/togi``."""
    if "TOGI_CACHE" in os.environ:
        return Path(os.environ["TOGI_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "togi"


def home() -> Path:
    """Home of journals and artifacts: ``$TOGI_HOME``, else ``$XDG_STATE_HOME/togi``, else ``~/.local/state/togi``."""
    if "TOGI_HOME" in os.environ:
        return Path(os.environ["TOGI_HOME"])
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local" / "state")) / "togi"


def default_journal() -> Path:
    return home() / "journal.sqlite"


class Keeping(StrEnum):
    """Kinds of what is kept. ``togi clean`` removes the first two, and artifacts where they are named."""

    CACHES = "caches"
    """Made again when they are needed."""
    LEFTOVERS = "leftovers"
    """Of runs that were killed."""
    ARTIFACTS = "artifacts"
    """Of studies, below ``home``."""
    JOURNALS = "journals"


RUN_MARK = "togi-run"
"""A file in the folder of a run: the id of the process that made it."""


def run_folder() -> Path:
    """A private folder of a run. Should the run be killed, ``togi clean`` knows it by its mark."""
    import tempfile  # --help needs none

    folder = Path(tempfile.mkdtemp(prefix="togi-"))
    (folder / RUN_MARK).write_text(str(os.getpid()), encoding="ascii")
    return folder


def private(folder: Path) -> Path:
    """``folder``, made if need be, with those above it. For what is believed when it is read again, such as code that
    is loaded from it: nobody else may be able to write there.

    Raises OSError where it cannot be made, PermissionError where it is another user's or others can write to it.
    """
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(exist_ok=True, mode=0o700)
    check_own(folder)
    return folder


def check_own(path: Path) -> None:
    """Raises PermissionError where ``path`` is another user's, or others can write to it. Windows has neither owner nor
    mode to ask for; a user's folders there are closed to others."""
    if not hasattr(os, "getuid"):
        return
    status = path.stat()
    if status.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} can be written by others: chmod go-w '{path}'")


def processor() -> str:
    """The processor as ``-march=native`` sees it: machines with different processors may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    telling = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
    return "\n".join(line for line in lines if line.split("\t")[0].split(":")[0].strip() in telling)
