"""Where togi keeps what it can make again: findings, figures of the machine, compiled code."""

from __future__ import annotations

import os
import platform
import stat
from pathlib import Path


def cache_folder() -> Path:
    """``$TOGI_CACHE``, else ``$XDG_CACHE_HOME/togi``, else ``~/.cache/togi``."""
    if "TOGI_CACHE" in os.environ:
        return Path(os.environ["TOGI_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "togi"


def private(folder: Path) -> Path:
    """``folder``, made if need be. For code that is loaded from it, so nobody else may be able to write there.

    Raises OSError where it cannot be made, PermissionError where others can write to it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{folder} can be written by others")
    return folder


def processor() -> str:
    """What ``-march=native`` looks at: a home folder may be shared by machines with different processors."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
    return "\n".join(line for line in lines if line.split("\t")[0].split(":")[0].strip() in told)
