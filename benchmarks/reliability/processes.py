"""Processes that are killed at random, stopped for a while, or run twice at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.reliability.place import LONGEST_S, Place, command, ended, parent


def kills(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Runs of which processes, drawn by chance, are killed at moments that are drawn by chance, until they are over."""
    rng = random.Random(seed)
    found: dict[str, Any] = {"runs": 0, "kills": 0, "of": Counter(), "lost": [], "left": [], "odd ends": []}
    while found["kills"] < count:
        if found["runs"] % 5 == 0:  # a new study; the other four resume it
            place = Place(folder / f"kill-{found['runs']}")
        found["runs"] += 1
        killed, code, told = _killed_run(place, rng)
        found["kills"] += len(killed)
        found["of"].update(killed)
        found["left"] += [f"{killed}: {what}" for what in place.left()]
        found["lost"] += sorted(ended(told) - place.recorded())
        if code not in ((-signal.SIGKILL,) if "driver" in killed else (0, 2)):
            found["odd ends"].append(f"{killed} killed: exit code {code}: {told[-300:]}")
    return found


def _killed_run(place: Place, rng: random.Random) -> tuple[list[str], int, str]:
    """What was killed, the exit code, and what the run had said."""
    killed = []
    with place.start() as run:
        while run.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(rng.uniform(0.2, 12.0))
            kind = rng.choice(("driver", "server", "trial"))
            while run.poll() is None:
                if chosen := _of_kind(place, kind, run.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rng.choice(chosen), signal.SIGKILL)
                        killed.append(kind)
                    break
        _, told = run.communicate(timeout=LONGEST_S)
    return killed, run.returncode, told


def _of_kind(place: Place, kind: str, driver: int) -> list[int]:
    """Ids of the processes of a run that are its driver, its servers, or its trials (the paused ones too).

    A compiler that the driver asks something is none of them: killed, it leaves files of its own.
    """
    living = place.processes()
    servers = [pid for pid in living if parent(pid) == driver and "togi.worker.server" in command(pid)]
    return {"driver": [driver], "server": servers, "trial": [pid for pid in living if parent(pid) in servers]}[kind]


def stopped(folder: Path, seconds: float) -> dict[str, Any]:
    """The driver is stopped in the midst, and goes on later."""
    place = Place(folder / "stopped")
    with place.start() as run:
        time.sleep(10.0)
        run.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        run.send_signal(signal.SIGCONT)
        _, told = run.communicate(timeout=LONGEST_S)
    bad = [f"exit code {run.returncode}: {told[-300:]}"] if run.returncode else []
    return {"stopped_s": seconds, "trials": place.recorded().total(), "bad": bad + place.left()}


def two_at_once(folder: Path) -> dict[str, Any]:
    """The same command twice at once: both end well, and no recipe is explored by both."""
    place = Place(folder / "two")
    runs = [place.start() for _ in range(2)]
    told = [run.communicate(timeout=LONGEST_S)[1] for run in runs]
    labels = [ended(text) for text in told]
    bad = [f"exit code {run.returncode}: {text[-300:]}" for run, text in zip(runs, told, strict=True) if run.returncode]
    bad += [f"tried by both: {label}" for label in labels[0] & labels[1]]
    return {"recipes": [found.total() for found in labels], "bad": bad + place.left()}
