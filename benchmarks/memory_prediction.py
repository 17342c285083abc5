"""Predicted peaks of memory against the real peak of torch's CPU allocator, beside other predictors.

    python benchmarks/memory_prediction.py [--only NAME] [--json FILE]
    python benchmarks/memory_prediction.py --compile [--only NAME] [--json FILE]

Every model of ``memory_models.py``: one inference pass, a training step with SGD, one with Adam. The truth is togi's
account of a run (exact: the allocator's own events); predictions never see it. Errors are of the whole peak and of what
stands above the parameters, inputs and optimizer state, which is harder. Beside it, where they can:

- ``torch.distributed._tools.mem_tracker`` in a fake run of the same step, as its documentation shows;
- ``torch-kitsune`` (``PYTHONPATH`` with it, or installed), which estimates from the module's layers and takes
  one float input. It is made for GPUs and adds 15 % for the allocator, which is left out here.

``--compile``: the models under ``torch.compile`` with its defaults, of which the other two know nothing. The truth is
the allocator's peak under torch's profiler, above what is there before the step. Half a minute a run, most of it for
building kernels for the truth.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parent))
import memory_models

from togi.footprint.account.watched import account_of
from togi.footprint.prediction.cpu import predict_cpu
from togi.footprint.step import fake_step, make_step
from togi.machine.describe import machine
from togi.measure.memory import torch_allocator_peak_bytes
from togi.subject.inputs import Subject

MIB = 1 << 20
RUNS: tuple[tuple[bool, str], ...] = ((False, "none"), (True, "sgd"), (True, "adam"))
PREDICTORS = ("togi", "mem_tracker", "kitsune")
COMPILED_RUNS: tuple[tuple[bool, str], ...] = ((False, "none"), (True, "adam"))


def measure(name: str, train: bool, optimizer: str) -> dict[str, Any]:
    """One row: sizes in bytes, times in seconds; a predictor that cannot gives its reason."""
    torch.manual_seed(0)
    subject = Subject(*getattr(memory_models, name)())
    truth = account_of(make_step(subject, train=train, optimizer=optimizer))
    row: dict[str, Any] = {
        "model": name,
        "run": optimizer if train else "inference",
        "real_bytes": truth.peak_bytes,
        "baseline_bytes": truth.baseline_bytes,
    }
    for predictor, predict in zip(PREDICTORS, (by_togi, by_mem_tracker, by_kitsune), strict=True):
        row[predictor] = attempt(lambda predict=predict: predict(subject, train, optimizer))
    return row


def measure_compiled(name: str, train: bool, optimizer: str) -> dict[str, Any]:
    """As ``measure``, of the compiled module."""
    torch.manual_seed(0)
    subject = Subject(*getattr(memory_models, name)())
    started = time.perf_counter()
    predicted = predict_cpu(make_step(subject, train=train, optimizer=optimizer), compile=True)
    seconds = time.perf_counter() - started
    step = make_step(subject, train=train, optimizer=optimizer)
    step.module.compile()
    for _ in range(2):
        step.run()
    above = torch_allocator_peak_bytes(step.run) or 0
    torch._dynamo.reset()
    return {
        "model": name,
        "run": optimizer if train else "inference",
        "real_bytes": predicted.baseline_bytes + above,
        "baseline_bytes": predicted.baseline_bytes,
        "togi": {"bytes": predicted.peak_bytes, "seconds": round(seconds, 2)},
    }


def attempt(predict: Callable[[], int]) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        found = predict()
    except Exception as error:  # other people's code: the reason stands in the table
        return {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error) else ''}"}
    return {"bytes": found, "seconds": round(time.perf_counter() - started, 2)}


def by_togi(subject: Subject, train: bool, optimizer: str) -> int:
    return predict_cpu(make_step(subject, train=train, optimizer=optimizer)).peak_bytes


def by_mem_tracker(subject: Subject, train: bool, optimizer: str) -> int:
    from torch.distributed._tools.mem_tracker import MemTracker

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    step = fake_step(make_step(subject, train=train, optimizer=optimizer), mode)
    if not train:  # it hooks gradients: under no_grad it cannot with them, and neither without them
        step.module.requires_grad_(False)
    with mode:
        step.run()
        tracker = MemTracker()
        inputs = [
            leaf for leaf in tree_leaves((step.sample.args, dict(step.sample.kwargs))) if isinstance(leaf, Tensor)
        ]
        tracker.track_external(step.module, *inputs, *([step.optimizer] if step.optimizer is not None else []))
        with tracker:
            step.run()
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


def by_kitsune(subject: Subject, train: bool, optimizer: str) -> int:
    from kitsune.predict import predict_memory

    step = make_step(subject, train=train, optimizer=optimizer)
    if step.sample.kwargs or len(step.sample.args) != 1 or not step.sample.args[0].is_floating_point():
        raise ValueError("takes one float input")
    (given,) = step.sample.args
    found = predict_memory(
        step.module, tuple(given.shape[1:]), batch_size=given.shape[0], optimizer=optimizer, training=train
    )
    return int(found.total_bytes - found.overhead_bytes)


def error(row: dict[str, Any], predictor: str, *, above: bool = False) -> float | None:
    """Signed, relative to the real peak, or to what of it stands above the baseline; None where it could not."""
    if "bytes" not in row.get(predictor, {}):
        return None
    base = row["baseline_bytes"] if above else 0
    return (row[predictor]["bytes"] - row["real_bytes"]) / (row["real_bytes"] - base)


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| model | run | real MiB | togi | above baseline | mem_tracker | kitsune | togi s |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        shown = [error(row, "togi"), error(row, "togi", above=True), error(row, "mem_tracker"), error(row, "kitsune")]
        cells = " | ".join("cannot" if e is None else f"{e:+.2%}" for e in shown)
        seconds = row["togi"].get("seconds", "")
        lines.append(f"| {row['model']} | {row['run']} | {row['real_bytes'] / MIB:.1f} | {cells} | {seconds} |")
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]]) -> str:
    lines = ["| predictor | runs | cannot | median error | worst |", "|---|--:|--:|--:|--:|"]
    for predictor in (predictor for predictor in PREDICTORS if any(predictor in row for row in rows)):
        for above in (False, True):
            found = [abs(e) for row in rows if (e := error(row, predictor, above=above)) is not None]
            title = f"{predictor}, above the baseline" if above else predictor
            figures = f"{statistics.median(found):.2%} | {max(found):.2%}" if found else "- | -"
            lines.append(f"| {title} | {len(rows)} | {len(rows) - len(found)} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="the name of a model")
    parser.add_argument("--compile", action="store_true", help="under torch.compile")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for factory in memory_models.ALL:
        if chosen.only in (None, factory.__name__):
            for train, optimizer in COMPILED_RUNS if chosen.compile else RUNS:
                row = measure_compiled if chosen.compile else measure
                rows.append(row(factory.__name__, train, optimizer))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if chosen.json is not None:
        document = {
            "date": datetime.date.today().isoformat(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "machine": machine().model_dump(mode="json"),
            "results": rows,
        }
        chosen.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(markdown(rows), summary(rows), sep="\n\n")


if __name__ == "__main__":
    main()
