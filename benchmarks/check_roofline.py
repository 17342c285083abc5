"""Test of ``togi check``'s table of memory access cost: the times that it predicts, against those of this processor.

    python benchmarks/check_roofline.py [MODEL ...] [--passes 20]

Each operation of a pass is timed (the fastest of ``--passes``) and compared with its prediction, by layer. Two simpler
predictions, FLOPs alone and bytes alone, stand beside it. Writes ``benchmarks/data/check_roofline.json``.

``misplaced``: half the sum of the differences between predicted and measured shares: 0 is right, 1 is all wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from togi.lint.module.forward_pass import ForwardPass
from togi.lint.module.observe import observe
from togi.lint.roofline.costs import Costs
from togi.lint.roofline.devices import Figures
from togi.lint.roofline.this_machine import measure
from togi.machine.describe import machine
from togi.subject.behaviour import seed_all
from togi.subject.inputs import Inputs
from togi.torch_internals.modes import DispatchObserver
from togi.torch_internals.operators import OpOverload

MODELS = ("resnet50", "mobilenetv3_large", "vit_tiny", "convnext_atto")
OUT = Path(__file__).parent / "data" / "check_roofline.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--passes", type=int, default=20)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    models = importlib.import_module("models")
    here = machine()
    figures = measure("cpu", here, ["float32"])
    rows = []
    for name in options.models:
        row = compared(name, getattr(models, name)(), figures, options.passes)
        rows.append(row)
        print(json.dumps(row), flush=True)
    record = {
        "machine": here.model_dump(mode="json", include={"cpu_model", "cpu_cores", "threads", "versions"}),
        "figures": figures.model_dump(mode="json"),
        "models": rows,
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def compared(name: str, subject: Any, figures: Figures, passes: int) -> dict[str, Any]:
    """One model's prediction against its times, milliseconds and shares."""
    module, sample = subject if isinstance(subject, tuple) else (subject.module, subject.samples)
    module, inputs = module.eval(), Inputs.of(sample)
    whole_ms = pass_ms(module, inputs, passes)
    timed, seconds = time_calls(module, inputs, passes)
    costs = Costs.of(timed.calls, figures)
    measured = by_layer(timed, seconds)
    predictions = {
        "roofline": [prediction.seconds for prediction in costs.predictions],
        "flops": [float(work.flops) if work.product else 0.0 for work in costs.works],
        "bytes": [float(work.bytes) for work in costs.works],
    }
    row: dict[str, Any] = {
        "model": name,
        "operations": sum(not call.view for call in timed.calls),
        "layers": len(measured),
        "predicted_ms": round(costs.seconds * 1e3, 2),
        "sum_of_operations_ms": round(sum(seconds) * 1e3, 2),
        "pass_ms": round(whole_ms, 2),
    }
    for kind, values in predictions.items():
        row[kind] = agreement(by_layer(timed, values), measured)
    row["by_operation"] = by_operation(timed, seconds, predictions["roofline"])
    return row


class Clock(DispatchObserver):
    """Seconds of each operation that ``observe`` lists, in its order. On the CPU only."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def operation(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        began = time.perf_counter()
        result = operator(*args, **kwargs)
        if isinstance(operator, OpOverload):
            self.seconds.append(time.perf_counter() - began)
        return result


def time_calls(module: torch.nn.Module, inputs: Inputs, passes: int) -> tuple[ForwardPass, list[float]]:
    """One watched pass, and the fastest time of each of its operations over ``passes`` others."""
    watched = observe(module, inputs)
    best = [math.inf] * len(watched.calls)
    for _ in range(passes):
        sample, clock = inputs.clone(), Clock()
        seed_all(0)
        with torch.no_grad(), torch.compiler.set_stance("force_eager"), clock:
            module(*sample.args, **sample.kwargs)
        best = [min(pair) for pair in zip(best, clock.seconds, strict=True)]
    return watched, best


def pass_ms(module: torch.nn.Module, inputs: Inputs, passes: int) -> float:
    """The fastest plain pass, without anybody watching."""
    times = []
    with torch.no_grad():
        for _ in range(passes):
            began = time.perf_counter()
            module(*inputs.args, **inputs.kwargs)
            times.append(time.perf_counter() - began)
    return min(times) * 1e3


def by_layer(timed: ForwardPass, values: Sequence[float]) -> dict[str, float]:
    """Sums by layer; views, which only the watching makes cost anything, are left out."""
    sums: defaultdict[str, float] = defaultdict(float)
    for call, value in zip(timed.calls, values, strict=True):
        if not call.view:
            sums[call.layer] += value
    return dict(sums)


def agreement(predicted: dict[str, float], measured: dict[str, float]) -> dict[str, float]:
    """Correlation of the shares and of their ranks, share of time misplaced, how many of the ten slowest it names."""
    guess, truth = shares(predicted), shares(measured)
    top = [set(sorted(values, key=lambda layer: -values[layer])[:10]) for values in (guess, truth)]
    names = list(truth)
    pairs = [guess[layer] for layer in names], [truth[layer] for layer in names]
    return {
        "correlation": round(statistics.correlation(*pairs), 3),
        "rank_correlation": round(statistics.correlation(*map(ranks, pairs)), 3),
        "misplaced": round(sum(abs(guess[layer] - truth[layer]) for layer in names) / 2, 3),
        "of_ten_slowest": len(top[0] & top[1]),
    }


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the smallest; equal values get the middle of their places."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]


def shares(values: dict[str, float]) -> dict[str, float]:
    total = sum(values.values())
    return {layer: value / total for layer, value in values.items()}


def by_operation(timed: ForwardPass, took_s: Sequence[float], predicted_s: Sequence[float]) -> list[dict[str, Any]]:
    """The kinds of operations that take longest: how often, measured and predicted milliseconds."""
    kinds: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for call, seconds, guess in zip(timed.calls, took_s, predicted_s, strict=True):
        if not call.view:
            sums = kinds[call.name]
            sums[0], sums[1], sums[2] = sums[0] + 1, sums[1] + seconds * 1e3, sums[2] + guess * 1e3
    slowest = sorted(kinds, key=lambda name: -kinds[name][1])[:6]
    return [
        {
            "op": name,
            "calls": int(kinds[name][0]),
            "ms": round(kinds[name][1], 2),
            "predicted_ms": round(kinds[name][2], 2),
        }
        for name in slowest
    ]


if __name__ == "__main__":
    main()
