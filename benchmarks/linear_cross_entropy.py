"""The loss of a large vocabulary, forward and backward: ``togi.ops.linear_cross_entropy`` against eager torch, its
compiled form, a loop of checkpoints as people write it by hand, and torch's own chunked function where it has one.

    python benchmarks/linear_cross_entropy.py            # writes benchmarks/data/linear_cross_entropy.json
    python benchmarks/linear_cross_entropy.py --smoke    # small sizes, writes nothing
    python benchmarks/linear_cross_entropy.py --table    # the table of what was written

All ways run in turns in one process (A B C A B C ...) after a run that is not counted; times are medians. The peak is
that of torch's allocator over forward and backward, gradients included, without the inputs. The error is the worst
gradient's, relative to its norm, against float64, in units of eager's own.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from togi import ops
from togi.machine.describe import machine
from togi.measure.memory import torch_allocator_peak_bytes

MIB = 1 << 20
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
# (tokens, features, vocabulary, dtype)
SIZES = (
    (2048, 768, 50_257, torch.float32),  # GPT-2
    (2048, 768, 50_257, torch.bfloat16),
    (4096, 512, 128_256, torch.float32),  # the vocabulary of Llama 3
)
SMOKE = ((256, 64, 4_000, torch.float32), (256, 64, 4_000, torch.bfloat16))
HAND_ROWS = 256
ROUNDS = 3
FORMAT_VERSION = 1
DATA = Path(__file__).with_name("data") / "linear_cross_entropy.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    if asked.table:
        print(table(json.loads(DATA.read_text(encoding="utf-8"))["runs"]))
        return
    runs = [measure(*size, rounds=asked.rounds) for size in (SMOKE if asked.smoke else SIZES)]
    print(table(runs))
    if not asked.smoke:
        report = {
            "format_version": FORMAT_VERSION,
            "date": datetime.date.today().isoformat(),
            "machine": machine().model_dump(mode="json"),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "runs": runs,
        }
        DATA.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def eager(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(hidden, weight), target)


def by_hand(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    def part(rows: Tensor, wanted: Tensor) -> Tensor:
        return functional.cross_entropy(functional.linear(rows, weight), wanted, reduction="sum")

    pieces = zip(hidden.split(HAND_ROWS), target.split(HAND_ROWS), strict=True)
    parts: list[Tensor] = [checkpoint(part, rows, wanted, use_reentrant=False) for rows, wanted in pieces]
    return torch.stack(parts).sum() / len(target)


def with_memory(memory: str) -> Loss:
    return lambda hidden, weight, target: ops.linear_cross_entropy(hidden, weight, target, memory=memory)


def ways() -> dict[str, Loss]:
    found: dict[str, Loss] = {
        "eager": eager,
        "torch.compile": torch.compile(eager),
        f"checkpoints, {HAND_ROWS} rows": by_hand,
    }
    if hasattr(functional, "linear_cross_entropy") and hasattr(torch.nn, "LinearCrossEntropyOptions"):
        options = torch.nn.LinearCrossEntropyOptions()
        found["torch's own, options"] = lambda *given: functional.linear_cross_entropy(*given, options=options)
    return found | {f"togi, {memory}": with_memory(memory) for memory in ("16MiB", "32MiB", "128MiB")}


def measure(rows: int, features: int, vocabulary: int, dtype: torch.dtype, *, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    hidden = torch.randn(rows, features).to(dtype).requires_grad_()
    weight = (torch.randn(vocabulary, features) / features**0.5).to(dtype).requires_grad_()
    target = torch.randint(vocabulary, (rows,))
    exact = exact_gradients(hidden, weight, target)
    found: dict[str, dict[str, Any]] = {}
    steps = {name: step_of(loss, hidden, weight, target) for name, loss in ways().items()}
    for name, step in steps.items():
        gradients = step()
        found[name] = {"error": max(error(g, e) for g, e in zip(gradients, exact, strict=True)), "times_s": []}
        del gradients
        found[name]["peak_bytes"] = peak_bytes(step)
    for _ in range(rounds):
        for name, step in steps.items():
            gc.collect()
            start = time.perf_counter()
            step()
            found[name]["times_s"].append(time.perf_counter() - start)
    return {
        "tokens": rows,
        "features": features,
        "vocabulary": vocabulary,
        "dtype": str(dtype).removeprefix("torch."),
        "logits_bytes": rows * vocabulary * dtype.itemsize,
        "gradients_bytes": hidden.nbytes + weight.nbytes,
        "ways": found,
    }


def step_of(loss: Loss, hidden: Tensor, weight: Tensor, target: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: torch.autograd.grad(loss(hidden, weight, target), (hidden, weight))


def exact_gradients(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """In float64, by the plain formula, some rows at a time."""
    wide, w = hidden.detach().double(), weight.detach().double()
    for_hidden, for_weight = torch.empty_like(wide), torch.zeros_like(w)
    for rows in torch.arange(len(wide)).split(HAND_ROWS):
        gradient = (wide[rows] @ w.T).softmax(1)
        gradient[torch.arange(len(rows)), target[rows]] -= 1
        gradient /= len(wide)
        for_hidden[rows] = gradient @ w
        for_weight.addmm_(gradient.T, wide[rows])
    return for_hidden, for_weight


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def peak_bytes(step: Callable[[], Any]) -> int:
    gc.collect()

    def once() -> None:
        step()

    return torch_allocator_peak_bytes(once) or 0


def table(runs: list[dict[str, Any]]) -> str:
    lines = [
        "| tokens x features x vocabulary | way | seconds | over eager | peak, MiB | beyond gradients | error |",
        "| - | - | -: | -: | -: | -: | -: |",
    ]
    for run in runs:
        size = f"{run['tokens']:,} x {run['features']:,} x {run['vocabulary']:,}, {run['dtype']}"
        plain = run["ways"]["eager"]
        for name, way in run["ways"].items():
            took, base = statistics.median(way["times_s"]), statistics.median(plain["times_s"])
            beyond = (way["peak_bytes"] - run["gradients_bytes"]) / MIB
            lines.append(
                f"| {size} | {name} | {took:.3g} | {took / base:.2f} | {way['peak_bytes'] / MIB:,.1f} | {beyond:,.1f} "
                f"| {way['error'] / plain['error']:.2f} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
