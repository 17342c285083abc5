"""How fast, and in how much memory, ``togi memory FILE.pickle`` reads a large CUDA memory snapshot.

    python benchmarks/memory_snapshot.py --gigabytes 1.2

Writes a synthetic snapshot in the form that torch 2.15 pickles (protocol 4; frames shared as torch shares them, a
traceback of its own for every allocation and free) to a temporary folder, reads it in a process of its own, and prints
the rate, the highest resident set beyond the imports, and a check against what the generator knows. ``--others`` also
times ``pickletools.genops`` and ``pickle.load`` on a part of it.
"""

from __future__ import annotations

import argparse
import json
import pickle
import pickletools
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_FRAMES = 4000
_DEPTH = 45
_SITES = 3000

_READ = """
import json, resource, sys, time
from togi.budget.snapshot import snapshot_account
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.perf_counter()
account = snapshot_account(sys.argv[1])
seconds = time.perf_counter() - started
history = account.devices[0].history
print(json.dumps({
    "seconds": seconds,
    "rise_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024,
    "events": history.events,
    "peak_bytes": history.peak_allocated_bytes,
    "sum_of_owners_bytes": sum(held.bytes for held in history.holdings),
}))
"""
_LOAD = """
import json, pickle, resource, sys, time
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    pickle.load(file)
seconds = time.perf_counter() - started
rise = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(json.dumps({"seconds": seconds, "rise_bytes": rise}))
"""


def snapshot(events: int, seed: int) -> tuple[dict[str, object], int]:
    """A snapshot and the highest sum of its blocks."""
    random_ = random.Random(seed)
    frames = [
        {"filename": _file(number), "line": number % 900 + 1, "name": f"function_{number}"} for number in range(_FRAMES)
    ]
    sites = [random_.choices(frames, k=_DEPTH) for _ in range(_SITES)]
    alive: dict[int, int] = {}
    trace: list[dict[str, object]] = []
    allocated = peak = 0
    while len(trace) < events:
        number = len(trace)
        if len(alive) < 2000 or random_.random() < 0.4:
            size = 512 * random_.randint(1, 40_000)
            alive[address := (1 << 45) + number * 33_554_432] = size
            allocated += size
            site = random_.choice(sites)
            trace += [_entry(action, address, size, number, site) for action in ("segment_alloc", "alloc")]
            peak = max(peak, allocated)
        else:
            address = next(iter(alive))
            allocated -= (size := alive.pop(address))
            site = random_.choice(sites)
            actions = ("free_requested", "free_completed", "segment_free")
            trace += [_entry(action, address, size, number, site) for action in actions]
    blocks = [
        {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": []}
        for address, size in alive.items()
    ]
    segments = [_segment(block) for block in blocks]
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {}}, peak


def _file(number: int) -> str:
    place = "/opt/python/lib/python3.12/site-packages/torch/nn/modules" if number % 4 else "/home/someone/project"
    return f"{place}/file_{number % 300}.py"


def _entry(action: str, address: int, size: int, number: int, site: list[dict[str, object]]) -> dict[str, object]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": 1_700_000_000_000_000 + number,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": (0, 0),
        "frames": list(site),
    }


def _segment(block: dict[str, object]) -> dict[str, object]:
    size = block["size"]
    return {
        "device": 0,
        "address": block["address"],
        "total_size": size,
        "allocated_size": size,
        "active_size": size,
        "requested_size": size,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [block],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.2)
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, peak = _write(Path(folder) / "large.pickle", int(given.gigabytes * 3_300_000), given.seed)
        _show("togi", path, _child(_READ, path))
        print(f"the generator's peak: {peak:,} bytes")
        if given.others:
            part, _ = _write(Path(folder) / "part.pickle", 100_000, given.seed)
            _show("togi, part", part, _child(_READ, part))
            _show("pickle.load, part", part, _child(_LOAD, part))
            _show("pickletools.genops, part", part, _genops(part))


def _write(path: Path, events: int, seed: int) -> tuple[Path, int]:
    value, peak = snapshot(events, seed)
    with path.open("wb") as file:
        pickle.dump(value, file, protocol=4)
    return path, peak


def _child(code: str, path: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _genops(path: Path) -> dict[str, float]:
    started = time.perf_counter()
    with path.open("rb") as file:
        for _ in pickletools.genops(file):
            pass
    return {"seconds": time.perf_counter() - started}


def _show(name: str, path: Path, found: dict[str, float]) -> None:
    size = path.stat().st_size
    print(f"{name}: {size / 1e6:,.0f} MB at {size / found['seconds'] / 1e6:.1f} MB/s")
    print(
        "  "
        + ", ".join(f"{key} {value:,.4g}" if value < 1e4 else f"{key} {value:,.0f}" for key, value in found.items())
    )


if __name__ == "__main__":
    main()
