"""What grows: the process that tunes again and again, and the server that forks a child for each trial.

A day has 288 studies of five minutes. In fast motion each is one of a tiny model that ends by itself after seconds:
what happens once a study happens as often as in a day, and what happens once a trial less often. The second experiment
makes up for that: one server with more trials than the longest study has.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.reliability.place import Place

_MEASURE = """
import json, os, pathlib, sys

def measured(pid, *folders):
    process = pathlib.Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    found = {"RSS, KiB": int(status["RssAnon"].split()[0]), "threads": int(status["Threads"])}
    found["descriptors"] = len(os.listdir(process / "fd"))
    found["children"] = sum(len(tasks.read_text().split()) for tasks in process.glob("task/*/children"))
    for folder in map(pathlib.Path, folders):
        files = [path for path in folder.rglob("*") if path.is_file()]
        found[f"files in {folder.name}"] = len(files)
        found[f"KiB in {folder.name}"] = sum(path.stat().st_size for path in files) // 1024
    return found
"""
STUDIES = """
import togi
sys.path.insert(0, ".")
import tiny

for _ in range(int(sys.argv[1])):
    module, inputs = tiny.subject()
    togi.tune(
        module, inputs, out="out.togi", force=True, only=("inference_mode",), time_limit_s=20.0,
        journal="journal.sqlite", resume=False, progress=False,
    )
    togi.load("out.togi")(inputs)
    journal = {"journal, KiB": os.stat("journal.sqlite").st_size // 1024}
    print(json.dumps(measured(os.getpid(), os.environ["TMPDIR"], os.environ["TOGI_HOME"]) | journal), flush=True)
"""
TRIALS = """
from togi.machine.describe import machine
from togi.techniques import recipe
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits

with WorkerPool(SubjectRef.here("locator", "tiny.py:subject"), machine(), device="cpu", seed=0) as pool:
    facts = pool.make_truth(pool.survey(Limits(), lambda _: None)[0].facts, Limits(), lambda _: None)
    (server,) = pathlib.Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    for number in range(int(sys.argv[1])):
        with pool.start(recipe(no_grad={}), facts, Limits(), lambda _: None):
            pass
        if number % 10 == 9:
            own = {f"driver's {name}": value for name, value in measured(os.getpid()).items()}
            print(json.dumps(measured(server, os.environ["TMPDIR"]) | own), flush=True)
"""
_WARM_SHARE = 0.3
"""Of the samples, in which caches fill; they are left out."""


def growth(program: str, count: int, folder: Path, allowed: dict[str, float]) -> dict[str, Any]:
    """How much a process gained from the middle of its life to the end; bad where it is more than allowed.

    Args:
        program: ``STUDIES`` or ``TRIALS``.
        count: how often.
        allowed: by the beginning of a measure's name; 0 where none is given.
    """
    place = Place(folder)
    with place.python("-c", _MEASURE + program, str(count)) as run:
        told, errors = run.communicate()
    samples = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    bad = [f"exit code {run.returncode}: {errors[-500:]}"] if run.returncode else []
    calm = samples[int(_WARM_SHARE * len(samples)) :]
    half = len(calm) // 2
    gained = {}
    for name in calm[0] if half else ():
        earlier, later = (statistics.median(one[name] for one in part) for part in (calm[:half], calm[half:]))
        gained[name] = [earlier, later]
        limit = next((limit for start, limit in allowed.items() if name.startswith(start)), 0.0)
        if later - earlier > limit:
            bad.append(f"{name}: {earlier} to {later}")
    # the folder is torch's own, of the process that loads artifacts
    bad += [f"left {what}" for what in place.left() if not what.startswith("torchinductor_")]
    return {"count": count, "samples": len(samples), "earlier and later": gained, "bad": bad}
