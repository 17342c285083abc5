"""Pythons of other environments, each with its own torch and the same togi: ``togi bench --python`` races them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from togi.core.errors import TogiError
from togi.core.interpreter import OWN_PATHS
from togi.core.quantities import last_line
from togi.core.version import version

_PROBE_S = 60
_PROBE = """
import importlib.metadata, json, platform
try:
    from togi.core.version import version
    togi = version()
except ImportError:
    togi = None
try:
    torch = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    torch = None
print(json.dumps({"python": platform.python_version(), "togi": togi, "torch": torch}))
"""


class OtherPython(NamedTuple):
    """A Python of another environment, with a togi of its own."""

    path: str
    """As it was given: its command."""
    python: str
    torch: str
    """Their versions."""


def other_python(path: str) -> OtherPython:
    """Ask an interpreter for what it has.

    Raises TogiError where it does not run, or lacks torch or this version of togi, with the command that installs it.
    """
    command = [path, "-c", f"{OWN_PATHS}\n{_PROBE}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, stdin=subprocess.DEVNULL)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = str(error)
        if isinstance(error, ValueError):
            why = last_line(done.stderr) if done.stderr.strip() else "it printed nothing"
        raise TogiError(
            f"{path} is not a Python that runs here: {why}. Give the path of one, such as env/bin/python"
        ) from None
    here = version()
    released = re.fullmatch(r"[\d.]+", here)
    install = f"{path} -m pip install " + (
        f"'togi[torch]=={here}'" if released else f"'.[torch]' in the clone of {here}"
    )
    if found["togi"] is None or found["torch"] is None:
        missing = "togi" if found["togi"] is None else "torch"
        raise TogiError(
            f"{path} (Python {found['python']}) has no {missing}, which each side of the race needs: {install}"
        )
    if found["togi"] != version():
        raise TogiError(
            f"{path} has togi {found['togi']}, and this is {version()}: both sides of a race need the same: {install}"
        )
    return OtherPython(path, found["python"], found["torch"])


def parse_pythons(given: str | Sequence[str | os.PathLike[str]], name: str = "") -> tuple[str, ...]:
    """Commands of interpreters, at least two: ``"old/bin/python,new/bin/python"``, or a list of them.

    Raises TogiError where these are fewer, or no paths.
    """
    parts = given.split(",") if isinstance(given, str) else [os.fspath(path) for path in given]
    paths = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if len(paths) < 2:
        raise TogiError(
            f"{name or 'python'}={given!r} is not two interpreters to compare: give old/bin/python,new/bin/python"
        )
    return paths
