"""What a trial costs beyond its technique's own building and the time spent measuring.

    python benchmarks/overhead.py [SUBJECT ...] [--trials 20]

Every trial is plain eager under ``no_grad``, whose building is nothing, so that all of start, build and verification is
overhead. Warm-up, turns and the memory measurement are measuring. Also times ``togi --help``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from togi.machine.describe import machine
from togi.techniques import recipe
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits

TINY = """
import torch
def subject():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)), torch.randn(8, 64)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*")
    parser.add_argument("--trials", type=int, default=20)
    options = parser.parse_args()
    print(f"togi --help: {help_s():.2f} s (median of 9)")
    with tempfile.TemporaryDirectory() as folder:
        tiny = Path(folder) / "tiny.py"
        tiny.write_text(TINY, encoding="utf-8")
        for subject in [f"{tiny}:subject", *options.subjects]:
            print(overhead(subject, options.trials), flush=True)


def overhead(subject: str, trials: int) -> str:
    """Medians of start, build and verification over ``trials`` trials, in ms."""
    began = time.monotonic()
    with WorkerPool(SubjectRef.here("locator", subject), machine(), device="cpu", seed=0) as stable:
        facts = stable.make_truth(stable.survey(Limits(), lambda _: None)[0].facts, Limits(), lambda _: None)
        ready_s = time.monotonic() - began
        found: dict[str, list[float]] = {"start": [], "build": [], "verify": []}
        for _ in range(trials):
            with stable.start(recipe(no_grad={}), facts, Limits(), lambda _: None) as running:
                running.warm()
                for phase, times in found.items():
                    times.append(running.phases_s[phase])
    medians = {phase: 1e3 * statistics.median(times) for phase, times in found.items()}
    phases = ", ".join(f"{phase} {ms:.0f} ms" for phase, ms in medians.items())
    name = Path(subject).name
    return f"{name}: {sum(medians.values()):.0f} ms a trial ({phases}); {ready_s:.1f} s once to load and survey"


def help_s() -> float:
    command = [str(Path(sys.executable).parent / "togi"), "--help"]
    times = []
    for _ in range(9):
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main()
