"""Does togi work on this device? One command runs the parts that depend on it, and writes what it found.

    python -m benchmarks.gpu --out DIR                              on the CUDA device, what fits into 9 minutes
    python -m benchmarks.gpu --out DIR --budget 3600                everything
    python -m benchmarks.gpu --out DIR --device cpu                 the same programs where there is none
    python -m benchmarks.gpu --out DIR --resume                     goes on: rows that passed are not run again
    python -m benchmarks.gpu --out DIR --resume FILE                the same after rows of another folder or machine
    python -m benchmarks.gpu --out DIR --parts tune --models resnet50,vit_b
    python -m benchmarks.gpu --out DIR --docs docs/gpu.md           also the tables of that page, and what is proven
    python -m benchmarks.gpu --rows FILE --docs docs/gpu.md         the same of rows that were brought from elsewhere

Each job (``benchmarks/gpu_jobs.py``) is a process of its own with a time limit, so that a hang ends that job alone. A
row that ends its process, or after which the device answers nothing more, fails by itself: the rows after it run in a
fresh process, within the same limit. Jobs that only ask whether togi is right run beside each other, which their rows
say; those that measure run alone, afterwards. Every row is appended to ``DIR/rows.jsonl`` as soon as it is known, after
those of earlier calls; ``DIR/table.md`` holds the table, ``DIR/log.txt`` what the processes said: three files, whatever
runs.
With ``--docs`` rows go to ``benchmarks/data/sweep_DEVICE.jsonl``, in place of those of the same part or name: several
calls make one table. The exit code is 1 where a row failed or nothing passed. What runs on the CPU proves nothing of
CUDA: it shows that the day a device is there, it is the device that is tested.

On a machine that lacks togi's small dependencies: ``python -m benchmarks.gpu_wheels DIR`` packs them on another.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import platform
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import groupby
from pathlib import Path

try:
    from benchmarks.gpu_jobs import JOBS, KEPT_S, LEAST_S, MODELS, PARTS, Job, by_record, enough, left_of, plan
    from benchmarks.gpu_rows import (
        BEGINS,
        DEVICE_LOST,
        NO_DEVICE,
        Row,
        done,
        mean_over_best,
        merged,
        read_rows,
        skipped,
        table,
        write_rows,
    )

    from togi.core.proven import FILE, as_text, read_proofs, with_rows
    from togi.render.proven_table import between
except ModuleNotFoundError as error:
    sys.exit(f"{error}: python -m benchmarks.gpu_wheels DIR packs what togi needs, on another machine")

HERE = Path(__file__).parents[1]
DATA = HERE / "benchmarks" / "data"
COLUMNS = ("part", "row", "result", "figure", "seconds")
"""Shown as they come."""
ROW = {"row", "result", "figure", "bound", "seconds"}
"""What a line holds that is one."""
COMMIT = "TOGI_COMMIT"
"""The variable that names togi's commit where there is no .git."""
CPU_X = 5.0
"""Of the limits, on a CPU: what an H100 and 16 cores take says little of it."""
MOST_LOG_BYTES = 300_000
"""Of one job, from its end: all logs together stay below 16 MiB."""


def main() -> int:
    options = parsed()
    if options.rows:
        for path in options.rows:
            publish(read_rows(path), options.docs)
        return 0
    # a crash is told by its stack: the memory of a process that holds a device takes long to write
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "rows.jsonl"
    known = read_rows(path)
    before = [] if options.resume is None else known if options.resume is True else read_rows(options.resume)
    recorded = read_rows(DATA / "sweep_cuda.jsonl")
    jobs = [left_of(by_record(job, recorded), before) for job in JOBS if job.part in options.parts]
    asked = recorded if options.device == "cuda" else []  # a CPU proves nothing of CUDA
    print(plan(jobs, options.budget, options.beside, asked, before), file=sys.stderr, flush=True)
    rows = []
    with path.open("a", encoding="utf-8") as file:
        for row in with_mean(Sweep(jobs, options, before).rows(), before):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(" | ".join(str(row[column]) for column in COLUMNS), file=sys.stderr, flush=True)
    text = table(merged(known, rows, PARTS), options.device)
    (options.out / "table.md").write_text(text, encoding="utf-8")
    print(text)
    if options.docs is not None:
        publish(rows, options.docs)
    results = [row["result"] for row in rows]
    return 1 if "fail" in results or "pass" not in results else 0


def with_mean(rows: Iterator[Row], before: Sequence[Row]) -> Iterator[Row]:
    """The rows of a call, then the mean over the races of this call and those ``before``, where one of this call made
    it another."""
    found: list[Row] = []
    for row in rows:
        found.append(row)
        yield row
    raced = any(row["part"] == "tune" and row["row"] in MODELS for row in found)
    if raced and (mean := mean_over_best([*before, *found], MODELS)) is not None:
        yield mean


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("sweep"), help="where the rows and the logs go")
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--models", help="names of benchmarks/gpu_models.py for the part tune; none: all")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for everything; what is left is skipped")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--beside", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="jobs at once, at most")
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        metavar="FILE",
        help="run what is left after the rows of FILE; without one: after those of --out",
    )
    parser.add_argument("--commit", default=commit(), help=f"of togi, where there is no .git; also {COMMIT}")
    parser.add_argument("--docs", type=Path, help="a page with the marks of this table; what is proven is recorded too")
    parser.add_argument(
        "--rows", type=Path, action="append", help="run nothing: a rows.jsonl of another call or machine, for --docs"
    )
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}: of {', '.join(PARTS)}")
    if options.rows and (options.docs is None or not all(path.is_file() for path in options.rows)):
        parser.error("--rows needs a file that is there, and --docs PAGE")
    if isinstance(options.resume, str):
        options.resume = Path(options.resume)
        if not options.resume.is_file():
            parser.error(f"there are no rows to go on after: {options.resume} is not a file")
    return options


def commit() -> str:
    """Of togi's sources: by ``TOGI_COMMIT``, else by git, with a plus where files differ from it; else unknown."""
    if named := os.environ.get(COMMIT):
        return named
    try:
        git = ["git", "-C", str(HERE), "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"]
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def publish(rows: Sequence[Row], page: Path, data: Path = DATA, proofs: Path = FILE) -> None:
    """The rows in place of those known of the same parts or names: in the data, in the page's table of that device, and
    in what is proven."""
    for device in dict.fromkeys(row["device"] for row in rows):
        of_device = [row for row in rows if row["device"] == device]
        if any(row["row"] == NO_DEVICE for row in of_device):
            print(f"{page} is left as it is: there was no CUDA device to prove anything on", file=sys.stderr)
            continue
        path = data / f"sweep_{device}.jsonl"
        known = merged(read_rows(path), of_device, PARTS)
        write_rows(path, known)
        record(known, device, proofs)
        text = with_table(page.read_text(encoding="utf-8"), table(known, device), device)
        page.write_text(text, encoding="utf-8")
    # the table of what is proven: by a process that reads what was recorded
    subprocess.run([sys.executable, "-m", "togi.render.proven_table", str(page)], check=True)


def record(rows: Sequence[Row], device: str, path: Path = FILE) -> None:
    """What the rows prove, for ``togi.core.proven``."""
    path.write_text(as_text(with_rows(read_proofs(path), rows, device)), encoding="utf-8")


class Sweep:
    """Runs jobs: neighbours in the list that may run beside each other, so; the others one after the other."""

    def __init__(self, jobs: Sequence[Job], options: argparse.Namespace, before: Sequence[Row]) -> None:
        self.jobs, self.options, self.before = jobs, options, before
        self.ends = time.monotonic() + options.budget
        self.log = options.out / "log.txt"
        self._log_lock = threading.Lock()

    def rows(self) -> Iterator[Row]:
        """As they come, with the day and the machine; a job that the budget leaves too little time for is skipped and
        says so."""
        device = self.options.device
        known = {"device": device, "machine": f"{device} of {platform.machine()}", "commit": self.options.commit}
        partial = {"partial": True} if self.before or self.options.models else {}
        for beside, group in groupby(self.jobs, key=lambda job: job.beside):
            together = list(group)
            at_once = self.options.beside if beside and len(together) > 1 else 1
            for row in _at_once(self._run, together, at_once):
                known["machine"] = row.get("machine", known["machine"])
                today = datetime.datetime.now(datetime.UTC).date().isoformat()
                yield {**row, **known, "date": today, **partial, **({"beside": True} if at_once > 1 else {})}

    def _run(self, job: Job) -> Iterator[Row]:
        """One job's rows, unless there is too little time, or none is left to run."""
        left_s = self.ends - time.monotonic() - (0 if job.part in KEPT_S else sum(KEPT_S.values()))
        if self.options.device == "cpu":
            job = dataclasses.replace(job, expected_s=min(job.expected_s, 5.0), limit_s=job.limit_s * CPU_X)
        if not enough(job, left_s):
            why = f"it takes about {job.expected_s:.0f} s, and of the budget of {self.options.budget:g} s "
            yield skipped(job.part, f"{why}{max(0.0, left_s):.0f} s were left: --resume goes on", rows=job.rows)
            return
        until = time.monotonic() + min(job.limit_s, left_s)
        cut = f"the budget of {self.options.budget:g} s was over" if left_s < job.limit_s else None
        known = done(self.before, job.part)
        while True:
            with tempfile.TemporaryDirectory() as folder:
                log = Path(folder) / "log"
                ran = yield from run_part(job, self._command(job, known), until - time.monotonic(), log, cut)
                self._keep(job, log)
            if not ran or ran[-1] in known:
                return
            known, left_s = [*known, *ran], until - time.monotonic()
            if left_s < min(LEAST_S, job.expected_s):
                why = f"{ran[-1]} ended the process, and {max(0.0, left_s):.0f} s were left for another"
                yield skipped(job.part, f"{why}: --resume goes on", rows=job.rows)
                return

    def _command(self, job: Job, known: Sequence[str]) -> list[str]:
        command = [sys.executable, "-m", "benchmarks.gpu_parts", job.part, "--device", self.options.device]
        command += ["--rows", job.rows, "--known", json.dumps(known)]
        return command + (["--models", self.options.models] if self.options.models and job.part == "tune" else [])

    def _keep(self, job: Job, log: Path) -> None:
        """The end of the job's log, in the one file of all."""
        said = log.read_bytes()[-MOST_LOG_BYTES:]
        with self._log_lock, self.log.open("ab") as file:
            file.write(f"\n==== {job.name}\n".encode() + said)


def _at_once(run: Callable[[Job], Iterator[Row]], jobs: Sequence[Job], most: int) -> Iterator[Row]:
    """The rows of all jobs, of at most so many at a time. An error of one ends all."""
    waiting, found = queue.SimpleQueue[Job | None](), queue.SimpleQueue[Row | BaseException | None]()
    for job in (*jobs, *[None] * most):
        waiting.put(job)

    def work() -> None:
        try:
            while (job := waiting.get()) is not None:
                for row in run(job):
                    found.put(row)
            found.put(None)
        except BaseException as error:  # told to who waits for the rows
            found.put(error)

    for _ in range(most):
        threading.Thread(target=work, daemon=True).start()
    ended = 0
    while ended < most:
        row = found.get()
        if isinstance(row, BaseException):
            raise row
        if row is None:
            ended += 1
        else:
            yield row


def run_part(
    job: Job, command: Sequence[str], limit_s: float, log: Path, cut: str | None = None
) -> Generator[Row, None, list[str]]:
    """One process, which prints a row a line; what it prints else, and its errors, are in ``log``. All of its own
    processes end with it. Ended at the limit the row that it was at has failed; with ``cut``, which says why, it was
    not given its time.

    Returns the names of the rows that are done where a row ended the process, so that the others need a fresh one.
    """
    began = time.monotonic()
    begun: Row | None = None
    ran: list[str] = []
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            cwd=HERE,
            env={**os.environ, "PYTHONFAULTHANDLER": "1", **(_SHARED if job.beside else {})},
            process_group=0,
        )
        late = threading.Timer(limit_s, _end, (process.pid,))
        late.start()
        assert process.stdout is not None
        for line in process.stdout:
            told = _told(line)
            if BEGINS in told:
                begun = {**told[BEGINS], "at": time.monotonic()}
            elif told:
                begun = None
                ran.append(told["row"])
                yield {"part": job.part, **told}
        status = process.wait()
        late.cancel()
    if status == 0:
        return []
    if status == DEVICE_LOST and ran:
        return ran
    ended = _ended(job, status, time.monotonic() - began, limit_s, log, cut)
    if begun is None or ended["result"] == "skip":
        yield ended
        return []
    seconds = round(time.monotonic() - begun.pop("at"), 1)
    yield {"part": job.part, **begun, "result": "fail", "figure": ended["figure"], "seconds": seconds}
    if ended["figure"].startswith(_AT_LIMIT):
        yield skipped(job.part, f"what comes after {begun['row']} was not run: --resume goes on", rows=job.rows)
        return []
    return [*ran, begun["row"]]


def _told(line: str) -> Row:
    """A row, or the beginning of one; empty for what libraries print."""
    try:
        told = json.loads(line) if line.startswith("{") else {}
    except ValueError:
        return {}
    return told if BEGINS in told or told.keys() >= ROW else {}


def _end(group: int) -> None:
    """Of a job at its limit: it says where it is, then those that it started do, and all end."""
    for send, last in ((os.kill, signal.SIGABRT), (os.killpg, signal.SIGABRT), (os.killpg, signal.SIGKILL)):
        with contextlib.suppress(ProcessLookupError):
            send(group, last)
        time.sleep(_SAYING_S)


_SAYING_S = 2.0
_AT_LIMIT = "ended at its limit"
_SHARED = {"TORCHINDUCTOR_COMPILE_THREADS": "4", "OMP_NUM_THREADS": "2"}
"""Of jobs beside each other: by default each would start a compiler and a thread of OpenMP for each core, and threads
that wait for each other while others have the core take many times as long."""


def _ended(job: Job, status: int, seconds: float, limit_s: float, log: Path, cut: str | None) -> Row:
    at_limit = status in (-signal.SIGABRT, -signal.SIGKILL) and seconds >= limit_s
    if at_limit and cut is not None:
        return skipped(job.part, f"{cut} after {seconds:.0f} s of it: --resume goes on", seconds, job.rows)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    why = f"{_AT_LIMIT} of {limit_s:.0f} s" if at_limit else f"exit status {status}: {''.join(last)}"
    return {**skipped(job.part, why, seconds, job.rows), "result": "fail"}


def with_table(page: str, text: str, device: str) -> str:
    """``page`` with ``text`` between the marks of ``device``. Raises ValueError where a mark is missing."""
    begin = f"<!-- sweep {device}: generated by python -m benchmarks.gpu -->"
    return between(page, begin, f"<!-- sweep {device}: end -->", text.rstrip("\n"))


if __name__ == "__main__":
    sys.exit(main())
