"""How fast, and in how much memory, ``togi memory FILE.pickle`` reads a large CUDA memory snapshot.

    python benchmarks/memory_snapshot.py --gigabytes 1.2

Writes a synthetic snapshot in the form that torch 2.15 pickles (protocol 4; frames shared as torch shares them, a
traceback of its own for every allocation and free) to a temporary folder, reads it in a process of its own, and prints
the rate, the highest resident set beyond the imports, and a check against what the generator knows. ``--others`` also
times a ``pickle.Unpickler`` that refuses every class, and ``pickletools.genops``; ``--frames`` sets their depth.
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
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

_FRAMES = 4000
_SITES = 3000

_READ = """
import json, resource, sys, time
from togi.footprint.snapshot import snapshot_account
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started, processor = time.perf_counter(), time.process_time()
account = snapshot_account(sys.argv[1])
seconds, processor = time.perf_counter() - started, time.process_time() - processor
history = account.devices[0].history
print(json.dumps({
    "seconds": seconds,
    "processor_s": processor,
    "rise_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024,
    "events": history.events,
    "peak_bytes": history.peak_allocated_bytes,
    "sum_of_owners_bytes": sum(held.bytes for held in history.holdings),
}))
"""
_LOAD = """
import json, pickle, resource, sys, time
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
class Refusing(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}")
started, processor = time.perf_counter(), time.process_time()
with open(sys.argv[1], "rb") as file:
    Refusing(file).load()
seconds, processor = time.perf_counter() - started, time.process_time() - processor
rise = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(json.dumps({"seconds": seconds, "processor_s": processor, "rise_bytes": rise}))
"""


class Writer:
    """Writes a pickle of protocol 4 piece by piece; ``pickle.dump`` of the same would need 4 GB of dicts first."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._slots: dict[object, int] = {}
        self._used = 0

    def raw(self, data: bytes) -> None:
        self._file.write(data)

    def new(self, opcode: bytes, key: object = None) -> bytes:
        """An opcode whose value is memoised, under ``key`` if it is going to be referred to."""
        if key is not None:
            self._slots[key] = self._used
        self._used += 1
        return opcode + b"\x94"

    def text(self, text: str, shared: bool = True) -> bytes:
        if shared and text in self._slots:
            return self._reference(self._slots[text])
        coded = text.encode()
        return self.new(b"\x8c" + bytes([len(coded)]) + coded, text if shared else None)

    def number(self, number: int) -> bytes:
        return pickle.dumps(number, protocol=2)[2:-1]

    def frame(self, number: int) -> bytes:
        """A dict at its first use, later a reference, as torch's tracebacks are written."""
        if (key := ("frame", number)) in self._slots:
            return self._reference(self._slots[key])
        parts = [self.new(b"}", key), b"("]
        parts += [self.text("filename"), self.text(_file(number)), self.text("line"), self.number(number % 900 + 1)]
        parts += [self.text("name"), self.text(f"function_{number}"), b"u"]
        return b"".join(parts)

    def site(self, frames: Sequence[int]) -> bytes:
        return b"".join([self.new(b"]"), b"(", *(self.frame(number) for number in frames), b"e"])

    def _reference(self, slot: int) -> bytes:
        return b"h" + bytes([slot]) if slot < 256 else b"j" + slot.to_bytes(4, "little")


def write_snapshot(path: Path, total_bytes: int, seed: int, frames: int = 45) -> int:
    """Until the file has so many bytes. Returns the highest sum of its blocks."""
    random_ = random.Random(seed)
    sites = [random_.choices(range(_FRAMES), k=frames) for _ in range(_SITES)]
    alive: dict[int, int] = {}
    allocated = peak = count = 0
    with path.open("wb") as file:
        to = Writer(file)
        to.raw(b"\x80\x04" + to.new(b"}") + b"(" + to.text("device_traces") + to.new(b"]") + to.new(b"]"))
        while file.tell() < total_bytes:
            to.raw(b"(")
            for _ in range(200):
                count += 1
                if len(alive) < 2000 or random_.random() < 0.4:
                    size, address = 512 * random_.randint(1, 40_000), (1 << 45) + count * 33_554_432
                    alive[address] = size
                    allocated += size
                    actions: tuple[str, ...] = ("segment_alloc", "alloc")
                else:
                    address = next(iter(alive))
                    allocated -= (size := alive.pop(address))
                    actions = ("free_requested", "free_completed", "segment_free")
                site = random_.choice(sites)
                for action in actions:
                    to.raw(_entry(to, action, address, size, count, site))
                peak = max(peak, allocated)
            to.raw(b"e")
        to.raw(b"a" + to.text("segments") + to.new(b"]") + b"(")
        for address, size in alive.items():
            to.raw(_segment(to, address, size))
        to.raw(b"eu.")
    return peak


def _file(number: int) -> str:
    place = "/opt/python/lib/python3.12/site-packages/torch/nn/modules" if number % 4 else "/home/someone/project"
    return f"{place}/file_{number % 300}.py"


def _entry(to: Writer, action: str, address: int, size: int, number: int, site: Sequence[int]) -> bytes:
    parts = [to.new(b"}"), b"(", to.text("action"), to.text(action), to.text("addr"), to.number(address)]
    parts += [to.text("size"), to.number(size), to.text("stream"), b"K\x00"]
    parts += [to.text("time_us"), to.number(1_700_000_000_000_000 + number)]
    parts += [to.text("compile_context"), to.text("N/A"), to.text("user_metadata"), to.text("", shared=False)]
    parts += [to.text("pool_id"), to.new(b"K\x00K\x00\x86"), to.text("frames"), to.site(site), b"u"]
    return b"".join(parts)


def _segment(to: Writer, address: int, size: int) -> bytes:
    parts = [to.new(b"}"), b"(", to.text("device"), b"K\x00", to.text("address"), to.number(address)]
    parts += [to.text("total_size"), to.number(size), to.text("stream"), b"K\x00"]
    parts += [to.text("segment_type"), to.text("large"), to.text("segment_pool_id"), to.new(b"K\x00K\x00\x86")]
    parts += [to.text("blocks"), to.new(b"]"), to.new(b"}"), b"(", to.text("size"), to.number(size)]
    parts += [to.text("state"), to.text("active_allocated"), to.text("frames"), to.new(b"]"), b"uau"]
    return b"".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.2)
    parser.add_argument("--frames", type=int, default=45)
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.pickle"
        peak = write_snapshot(path, int(given.gigabytes * 1e9), given.seed, given.frames)
        _show("togi", path, _child(_READ, path))
        print(f"  the generator's peak: {peak:,} bytes")
        if given.others:
            _show("pickle.Unpickler", path, _child(_LOAD, path))
            _show("pickletools.genops", path, _genops(path))


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
