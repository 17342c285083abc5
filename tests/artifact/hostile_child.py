"""Loads hostile artifacts one after the other, and says of each what happened: run with a folder and a list of names.

Whatever is executed, imported or written outside of an artifact is seen by an audit hook, by canaries, and by the files
that are there afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import torch

from tests.artifact import canaries
from togi.artifact.load import load
from togi.core.errors import TogiError

_STARTS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "socket.connect",
    "pickle.find_class",
)
_CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.symlink", "os.link", "os.chmod", "os.putenv", "shutil.")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
seen: list[str] = []
watching = False


def hook(event: str, given: tuple[Any, ...]) -> None:
    if not watching:
        return
    if event.startswith((*_STARTS, *_CHANGES)):
        seen.append(f"{event} {given[:2]!r}")
    elif event == "open" and (given[2] or 0) & _WRITES and str(given[0]) not in ("/dev/null", os.devnull):
        seen.append(f"open {given[0]!r} to write")
    elif event == "import" and str(given[0]).startswith(("canary_", "antigravity", "this", "shelve", "idlelib")):
        seen.append(f"import {given[0]}")


def tried(folder: Path) -> dict[str, Any]:
    """What became of one artifact."""
    global watching
    seen.clear()
    environment = dict(os.environ)
    answer: dict[str, Any] = {"raised": "", "kind": ""}
    watching = True
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            optimized = load(folder, native=False, keep_memory=False)
            answer["kind"] = "loaded"
        answer["told"] = [str(each.message) for each in told if each.category.__name__ == "FallbackWarning"]
        with contextlib.suppress(Exception):  # one that loads may not fit its own model
            optimized(torch.ones(3, 8), torch.ones(3, 4))
    except TogiError as error:
        answer |= {"kind": "refused", "raised": str(error)}
    except BaseException as error:
        answer |= {"kind": "traceback", "raised": f"{type(error).__name__}: {error}"}
    finally:
        watching = False
    if dict(os.environ) != environment:
        seen.append("the environment changed")
    if Path(canaries.SPRUNG).exists():
        Path(canaries.SPRUNG).unlink()
        seen.append("a line of a class or module ran")
    return answer | {"seen": list(seen)}


def main() -> None:
    sys.addaudithook(hook)
    for name in json.loads(sys.stdin.read()):
        print(json.dumps({"began": name}), flush=True)
        print(json.dumps({"name": name, **tried(Path(name))}), flush=True)


if __name__ == "__main__":
    tempfile.gettempdir()  # finds out where one can write by writing
    for good in sys.argv[1:]:
        load(good, keep_memory=False)  # what loading imports is imported now
    main()
