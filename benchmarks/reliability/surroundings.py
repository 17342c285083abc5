"""What surrounds a run: a disk that is full, memory that is short, a clock that jumps.

Each is planted for the processes of that run alone, and needs no right beyond a user's; some containers forbid users to
have mounts of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reliability.files import leaves
from benchmarks.reliability.place import LONGEST_S, Place, ended, in_child

from togi.core.errors import TogiError
from togi.core.records import Trial

_CLONE_NEWNS, _CLONE_NEWUSER, _MS_REMOUNT, _MS_BIND = 0x20000, 0x10000000, 32, 4096
_LIBC = ctypes.CDLL(None, use_errno=True)


def with_own_mounts(job: Callable[[], dict[str, Any]], folder: Path) -> dict[str, Any]:
    """What ``job`` found in a child that may mount things which nobody else sees. Raises OSError where it may not."""

    def work() -> str:
        user, group = os.getuid(), os.getgid()
        _check(_LIBC.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
        return json.dumps(job())

    answer = in_child(work, folder, 2 * LONGEST_S)
    if not answer.startswith("{"):
        raise OSError(f"it could not be planted here: {answer}")
    found: dict[str, Any] = json.loads(answer)
    return found


def mount(source: Path | None, target: Path, options: str = "", flags: int = 0) -> None:
    """A file or folder in place of another, or (without ``source``) a disk in memory of its own."""
    kind = b"tmpfs" if source is None else None
    flags |= 0 if source is None else _MS_BIND
    _check(_LIBC.mount(os.fsencode(source or "none"), os.fsencode(target), kind, flags, options.encode()))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def full_disk(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Runs whose disk is full at a write that is drawn by chance, and has space again afterwards.

    The first run has space enough, and tells how much the others may lack.
    """
    rng = random.Random(seed)
    whole = with_own_mounts(lambda: _run_on_disk(folder / "disk-whole", 1 << 20), folder)
    needed_kib = whole["used_kib"]
    sizes = sorted(rng.randrange(8, needed_kib, 4) for _ in range(count))
    found = [
        with_own_mounts(functools.partial(_run_on_disk, folder / f"disk-{number}", kib), folder)
        for number, kib in enumerate(sizes)
    ]
    bad = [f"{kib} KiB: {what}" for kib, one in zip(sizes, found, strict=True) for what in one["bad"]]
    filled = sum(one["filled"] for one in found)
    return {"runs": count, "needed_kib": needed_kib, "filled": filled, "sizes_kib": sizes, "bad": whole["bad"] + bad}


def _run_on_disk(folder: Path, kib: int) -> dict[str, Any]:
    folder.mkdir()
    mount(None, folder, f"size={kib}k")
    place = Place(folder / "place")
    used_kib, bad = 0, []
    with place.start() as run:
        while run.poll() is None:
            used_kib = max(used_kib, _used_kib(folder))
            time.sleep(0.02)
        _, told = run.communicate()
    mount(None, folder, "size=1g", _MS_REMOUNT)
    try:
        if lost := ended(told) - place.recorded():
            bad.append(f"lost {sorted(lost)}")
    except TogiError as error:
        bad.append(f"the journal cannot be read: {error}")
    if run.returncode not in (0, 2) or "defect of togi" in told:
        bad.append(f"exit code {run.returncode}: {told.strip().rpartition(chr(10))[2]}")
    bad += [f"left {what}" for what in place.left()]
    return {"used_kib": used_kib, "filled": used_kib >= kib - 4, "bad": bad}


def _used_kib(folder: Path) -> int:
    disk = os.statvfs(folder)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize // 1024


WIDE = """
import os
import torch

def subject():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(2048, 2048) for _ in range(int(os.environ["WEIGHTS_MIB"]) // 16)]
    return torch.nn.Sequential(*layers), torch.randn(4, 2048)
"""
"""16 MiB of weights a layer."""


def little_memory(folder: Path, free_mib: int, weights_mib: Sequence[int]) -> dict[str, Any]:
    """Models of growing size, on a machine and in a container that have so much memory free.

    What togi reads of memory is planted and kept up to date. In place of the kernel's OOM killer a thread ends the
    process that the kernel would end, and counts it where the kernel counts, when the processes of the run hold more
    than there is. No process may end in this way without the run saying that memory was the reason.
    """
    found: dict[str, Any] = {"free_mib": free_mib, "ends": {}, "bad": []}
    for kind, mib in itertools.product(("machine", "container"), weights_mib):
        run = functools.partial(_run_in_memory, folder / f"{kind}-{mib}", kind, free_mib << 20, mib)
        one = with_own_mounts(run, folder)
        name = f"{kind}, {mib} MiB of weights"
        found["ends"][name] = one["end"]
        found["bad"] += [f"{name}: {what}" for what in one["bad"]]
    return found


def _run_in_memory(folder: Path, kind: str, free_bytes: int, weights_mib: int) -> dict[str, Any]:
    place = Place(folder, {"WEIGHTS_MIB": str(weights_mib)}, WIDE)
    memory = _Memory(place, kind, free_bytes)
    with place.start("--only", "torchscript,onnxruntime,openvino", "--time-limit", "60s") as run:
        while run.poll() is None:
            memory.look()
            time.sleep(0.02)
        _, told = run.communicate()
    trials = [trial for study in place.studies() for trial in study.trials]
    killed = [trial for trial in trials if "SIGKILL" in trial.reason and "memory" not in trial.reason]
    bad = [f"{trial.recipe.label}: {trial.reason}" for trial in killed]
    if run.returncode not in (0, 2) or "defect of togi" in told:
        bad.append(f"exit code {run.returncode}: {told[-500:]}")
    if run.returncode == 2 and "memory" not in told:
        bad.append(f"not said that memory was the reason: {told[-500:]}")
    end = {
        "says": told.strip().rpartition("\n")[2] if run.returncode else "tuned",
        "trials": Counter(str(trial.outcome) for trial in trials),
        "held_mib": memory.most >> 20,
        "killed": memory.killed,
    }
    return {"end": end, "bad": bad + [f"left {what}" for what in place.left()]}


class _Memory:
    """So much is free before a run begins; while it runs, less by what its processes hold."""

    def __init__(self, place: Place, kind: str, free_bytes: int) -> None:
        self.most = 0
        self.killed = 0
        self._place, self._free_bytes = place, free_bytes
        self._files = {place.folder / "vmstat": "oom_kill {killed:12d}\n"}
        group = place.folder / "group"
        if kind == "machine":
            self._files[place.folder / "meminfo"] = "MemTotal: 4194304 kB\nMemAvailable: {left_kib:12d} kB\n"
        else:
            group.mkdir()
            (group / "memory.max").write_text(f"{free_bytes}\n", encoding="ascii")
            (group / "memory.stat").write_text("inactive_file 0\n", encoding="ascii")
            self._files[group / "memory.current"] = "{held:20d}\n"
        self._write(0)
        for path in self._files:
            mount(path.parent, Path("/sys/fs/cgroup")) if path.parent == group else mount(
                path, Path("/proc") / path.name
            )

    def look(self) -> None:
        held = {pid: _held_bytes(pid) for pid in self._place.processes()}
        total = sum(held.values())
        self.most = max(self.most, total)
        if total > self._free_bytes:
            # the largest of those with the highest oom_score_adj, which the kernel takes; it counts first
            victim = max(held, key=lambda pid: (_oom_score_adj(pid), held[pid]))
            self.killed += 1
            self._write(total)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        self._write(total)

    def _write(self, held: int) -> None:
        for path, text in self._files.items():
            path.touch()
            left_kib = max(0, self._free_bytes - held) // 1024
            with path.open("r+b") as file:  # never empty in between: others read it
                file.write(text.format(held=held, left_kib=left_kib, killed=self.killed).encode())


def _held_bytes(pid: int) -> int:
    """Private and its share of what it shares, of memory that no file backs."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("Pss_Anon:")).split()[1])
    return 0


def _oom_score_adj(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii"))
    return 0


JUMPING_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

/* The wall clock jumps twice a second, to somewhere within twelve hours of what is right: of all processes alike. */
static long jump_s(void) {
    struct timespec now;
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    real(CLOCK_MONOTONIC, &now);
    unsigned long half_seconds = now.tv_sec * 2 + now.tv_nsec / 500000000;
    return (long)(half_seconds * 2654435761UL % 86400) - 43200;
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, found);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += jump_s();
    return status;
}

int gettimeofday(struct timeval *found, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""
"""In place of the C library's, through which Python and the backends ask. The monotonic clock is left as it is."""


def jumping_clock(folder: Path) -> dict[str, Any]:
    """Two runs of a study, the second of which resumes the first, while the wall clock jumps by hours."""
    library = folder / "jumping_clock.so"
    (folder / "jumping_clock.c").write_text(JUMPING_CLOCK, encoding="utf-8")
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(folder / "jumping_clock.c"), "-ldl"]
    subprocess.run(command, check=True)
    place = Place(folder / "clock", {"LD_PRELOAD": str(library)})
    bad: list[str] = []
    jumps_s = _jumps_s(place)
    if max(jumps_s) - min(jumps_s) < 3600:
        bad.append(f"the clock did not jump: {jumps_s}")
    took_s, tried = [], []
    for _ in range(2):
        began = time.monotonic()
        with place.start() as run:
            _, told = run.communicate(timeout=LONGEST_S)
        took_s.append(time.monotonic() - began)
        tried.append(ended(told))
        bad += [f"exit code {run.returncode}: {told[-300:]}"] if run.returncode else []
        bad += [f"lost {label}" for label in ended(told) - place.recorded()]
        bad += [f"left {what}" for what in place.left()]
    bad += [f"tried again: {label}" for label in tried[0] & tried[1]]
    for study in place.studies():
        for trial in study.trials:
            bad += [
                f"{trial.recipe.label}: {name} = {value}"
                for name, value in _seconds(trial)
                if not 0 <= value < max(took_s)
            ]
    return {"runs_s": [round(s) for s in took_s], "tried": [found.total() for found in tried], "bad": bad}


def _jumps_s(place: Place) -> list[float]:
    """By how much a clock of a process of the place is wrong, a few times."""
    code = "import time\nfor _ in range(8): print(time.time()); time.sleep(0.5)"
    began = time.time()
    told, _ = place.python("-c", code).communicate(timeout=LONGEST_S)
    return [float(line) - began for line in told.split()]


def _seconds(trial: Trial) -> Iterator[tuple[str, float]]:
    """Every duration in a trial's record."""
    document: Any = trial.model_dump(mode="json")
    for path in leaves(document):
        value = document
        for key in path:
            value = value[key]
        units = [unit for key in path for end, unit in (("_ms", 1e-3), ("_s", 1.0)) if str(key).endswith(end)]
        if units and isinstance(value, int | float):
            yield ".".join(map(str, path)), value * units[0]
