"""``togi.lean`` against eager, torch.compile, vmap in chunks and KeOps: time and exact peak of pairwise work.

    python benchmarks/lean.py [--only NAME] [--rounds N] [--json FILE]

All cases take less than five minutes; a way that is slow takes part in three rounds only. Everything of one case runs
interleaved in one process (A B C A B C ...); times are medians. The peak is that of torch's allocator, exact, the
result included; the budget is what ``lean`` was given. vmap gets the largest ``chunk_size`` (a power of two) whose
measured peak keeps to the same budget; where vmap does not express the function (a reduction over the mapped
dimension, gradients without keeping everything), it is a loop of vmap calls as one would write it by hand.
KeOps allocates outside of torch, so its peak says little; its first call compiles and is not counted.

``--json`` adds the case to what is in FILE.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint
from torchvision.ops import box_iou

import togi
from togi.machine.describe import machine
from togi.measure.memory import torch_allocator_peak_bytes

MIB = 1 << 20
LEAST_ROUNDS, ENOUGH_S = 3, 3.0
Call = Callable[..., Any]


@dataclass
class Case:
    """One function. ``chunked(size)`` is the vmap way; ``keops`` the KeOps way, where there is one."""

    function: Call
    inputs: tuple[Tensor, ...]
    memory: str
    chunked: Callable[[int], Call]
    keops: Call | None = None
    backward: bool = False
    results: dict[str, Any] = field(default_factory=dict)


def boxes(count: int) -> Tensor:
    corners = torch.rand(count, 4) * 500
    corners[:, 2:] = corners[:, :2] + 1 + torch.rand(count, 2) * 120
    return corners


def squared(x: Tensor, y: Tensor) -> Tensor:
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def best_iou(anchors: Tensor, found: Tensor) -> Any:
    return box_iou(anchors, found).max(1)


def gaussian(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    return (torch.exp(-squared(x, y) / 2) * b).sum(1)


def chamfer(x: Tensor, y: Tensor) -> Tensor:
    distance = squared(x, y)
    return distance.min(1).values.mean() + distance.min(0).values.mean()


def neighbours(x: Tensor, y: Tensor) -> Any:
    return torch.cdist(x, y).topk(8, largest=False)


def cosine(x: Tensor, y: Tensor) -> Any:
    x, y = torch.nn.functional.normalize(x, dim=1), torch.nn.functional.normalize(y, dim=1)
    return (x @ y.T).topk(10)


def cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(hidden @ weight.T, target)


def cases() -> dict[str, Callable[[], Case]]:
    return {
        "box_iou, best per anchor": _best_iou,
        "box_iou, matrix": _iou_matrix,
        "Gaussian kernel sum": _gaussian,
        "Chamfer, both ways": _chamfer,
        "nearest neighbours": _neighbours,
        "cosine top-k": _cosine,
        "cross-entropy": _cross_entropy,
        "cross-entropy, with backward": _cross_entropy_backward,
    }


def _best_iou() -> Case:
    def chunked(size: int) -> Call:
        def run(anchors: Tensor, found: Tensor) -> Any:
            def one(a: Tensor) -> Any:
                values, index = box_iou(a[None], found).max(1)
                return values[0], index[0]

            return vmap(one, chunk_size=size)(anchors)

        return run

    return Case(best_iou, (boxes(242_991), boxes(500)), "8MiB", chunked)


def _iou_matrix() -> Case:
    def chunked(size: int) -> Call:
        return lambda a, b: vmap(lambda one: box_iou(one[None], b)[0], chunk_size=size)(a)

    return Case(box_iou, (boxes(100_000), boxes(500)), "200MiB", chunked)


def _gaussian() -> Case:
    def chunked(size: int) -> Call:
        return lambda x, y, b: vmap(lambda one: gaussian(one[None], y, b)[0], chunk_size=size)(x)

    def keops(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
        from pykeops.torch import LazyTensor

        distance = ((LazyTensor(x[:, None]) - LazyTensor(y[None])) ** 2).sum(-1)
        return ((-distance / 2).exp() @ b[:, None])[:, 0]

    inputs = (torch.randn(20_000, 3), torch.randn(10_000, 3), torch.randn(10_000))
    return Case(gaussian, inputs, "8MiB", chunked, keops)


def _chamfer() -> Case:
    def chunked(size: int) -> Call:
        def nearest(x: Tensor, y: Tensor) -> Tensor:
            return vmap(lambda one: squared(one[None], y).min(1).values[0], chunk_size=size)(x).mean()

        return lambda x, y: nearest(x, y) + nearest(y, x)

    def keops(x: Tensor, y: Tensor) -> Tensor:
        from pykeops.torch import LazyTensor

        distance = ((LazyTensor(x[:, None]) - LazyTensor(y[None])) ** 2).sum(-1)
        return distance.min(1).mean() + distance.min(0).mean()

    return Case(chamfer, (torch.randn(10_000, 3), torch.randn(10_000, 3)), "8MiB", chunked, keops)


def _neighbours() -> Case:
    def chunked(size: int) -> Call:
        def run(x: Tensor, y: Tensor) -> Any:
            def one(row: Tensor) -> Any:
                values, index = torch.cdist(row[None], y).topk(8, largest=False)
                return values[0], index[0]

            return vmap(one, chunk_size=size)(x)

        return run

    def keops(x: Tensor, y: Tensor) -> Any:
        from pykeops.torch import LazyTensor

        distance = ((LazyTensor(x[:, None]) - LazyTensor(y[None])) ** 2).sum(-1)
        values, index = distance.Kmin_argKmin(8, dim=1)
        return values.sqrt(), index

    return Case(neighbours, (torch.randn(20_000, 16), torch.randn(10_000, 16)), "16MiB", chunked, keops)


def _cosine() -> Case:
    def chunked(size: int) -> Call:
        def run(x: Tensor, y: Tensor) -> Any:
            x, y = torch.nn.functional.normalize(x, dim=1), torch.nn.functional.normalize(y, dim=1)
            return vmap(lambda row: tuple((y @ row).topk(10)), chunk_size=size)(x)

        return run

    def keops(x: Tensor, y: Tensor) -> Any:
        from pykeops.torch import LazyTensor

        x, y = torch.nn.functional.normalize(x, dim=1), torch.nn.functional.normalize(y, dim=1)
        values, index = (-(LazyTensor(x[:, None]) * LazyTensor(y[None])).sum(-1)).Kmin_argKmin(10, dim=1)
        return -values, index

    return Case(cosine, (torch.randn(4_000, 64), torch.randn(10_000, 64)), "16MiB", chunked, keops)


def _language(gradients: bool) -> tuple[Tensor, ...]:
    hidden, weight = torch.randn(2_048, 256), torch.randn(50_304, 256) / 16
    return hidden.requires_grad_(gradients), weight.requires_grad_(gradients), torch.randint(50_304, (2_048,))


def _cross_entropy() -> Case:
    def chunked(size: int) -> Call:
        def run(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
            def one(h: Tensor, t: Tensor) -> Tensor:
                return torch.nn.functional.cross_entropy(weight @ h, t)

            return vmap(one, chunk_size=size)(hidden, target).mean()

        return run

    return Case(cross_entropy, _language(False), "64MiB", chunked)


def _cross_entropy_backward() -> Case:
    def chunked(size: int) -> Call:
        def run(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
            def part(h: Tensor, t: Tensor) -> Tensor:
                return vmap(lambda a, b: torch.nn.functional.cross_entropy(weight @ a, b))(h, t).sum()

            parts = [
                checkpoint(part, h, t, use_reentrant=False)
                for h, t in zip(hidden.split(size), target.split(size), strict=True)
            ]
            return torch.stack(parts).sum() / len(target)

        return run

    return Case(cross_entropy, _language(True), "192MiB", chunked, backward=True)


def whole(case: Case, call: Call) -> Callable[[], Any]:
    """One call as it is timed: with its backward pass where the case has one."""

    def run() -> Any:
        result = call(*case.inputs)
        if case.backward:
            return torch.autograd.grad(result, [t for t in case.inputs if t.requires_grad])
        return result

    return run


def peak_mib(run: Callable[[], Any]) -> float:
    gc.collect()

    def once() -> None:
        run()

    peak = torch_allocator_peak_bytes(once)
    return (peak or 0) / MIB


def chunk_size(case: Case, limit_mib: float, result_bytes: int) -> int:
    """The largest power of two whose peak keeps to the limit, looked for from above; 1 where none does."""
    row = max(len(t) for t in case.inputs[1:]) * 4
    size = max(1, 1 << (int((limit_mib * MIB - result_bytes) / row).bit_length() - 1))
    while size > 1 and peak_mib(whole(case, case.chunked(size))) > limit_mib:
        size //= 2
    return size


def close(one: Any, other: Any) -> float:
    """The largest difference of floating leaves, relative to the largest magnitude."""
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    worst = 0.0
    for a, b in pairs:
        if isinstance(a, Tensor) and a.is_floating_point():
            worst = max(worst, float((a.reshape(b.shape) - b).abs().max() / b.abs().max().clamp_min(1e-30)))
    return worst


def measure(name: str, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    case = cases()[name]()
    limit_mib = float(case.memory.removesuffix("MiB"))
    start = time.perf_counter()
    whole(case, togi.lean(case.function, memory=case.memory))()
    lean_first_call_s = time.perf_counter() - start
    lean = togi.lean(case.function, memory=case.memory, compile=True)  # by default only after 10 s of running
    whole(case, lean)()
    size = chunk_size(case, limit_mib + gradients_mib(case), lean.plan().result_bytes or 0)
    contenders: dict[str, Call] = {
        "eager": case.function,
        "lean": lean,
        "vmap": case.chunked(size),
        "compile": torch.compile(case.function),
    }
    if case.keops is not None:
        contenders["keops"] = case.keops
    notes = {"vmap": f"chunk_size={size}"}
    expected: list[Any] = []
    found: dict[str, dict[str, Any]] = {}
    runs = {}
    for label, call in contenders.items():
        runs[label] = whole(case, call)
        try:
            found[label] = checked(runs[label], expected)
        except Exception as error:
            notes[label] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            del runs[label]
    found["lean"]["first_call_s"] = lean_first_call_s
    del expected
    times = time_in_turns(runs, rounds)
    return {
        "case": name,
        "shapes": [list(t.shape) for t in case.inputs],
        "memory": case.memory,
        "gradients_mib": gradients_mib(case),
        "plan": str(lean.plan()),
        "notes": notes,
        "contenders": {
            label: {"median_s": statistics.median(times[label]), "samples_s": times[label], **found[label]}
            for label in runs
        },
    }


def checked(run: Callable[[], Any], expected: list[Any]) -> dict[str, Any]:
    """The first call's time, a call's peak, and its difference from the result of the first contender.

    The first contender compiles nothing, so that its first call is the one watched.
    """
    results: list[Any] = []
    start = time.perf_counter()
    if expected:
        run()
    first_call_s = time.perf_counter() - start if expected else None
    peak = peak_mib(lambda: results.append(run()))
    expected.extend(results[: not expected])
    return {
        "first_call_s": first_call_s,
        "peak_mib": peak,
        "difference_from_eager": close(results[0], expected[0]),
    }


def time_in_turns(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call. What has taken ``ENOUGH_S`` in all, over three rounds at least, is out."""
    times: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(rounds):
        for label, run in runs.items():
            if len(times[label]) >= LEAST_ROUNDS and sum(times[label]) > ENOUGH_S:
                continue
            gc.collect()
            start = time.perf_counter()
            run()
            times[label].append(time.perf_counter() - start)
    return times


def gradients_mib(case: Case) -> float:
    """Of the results of a backward pass, which come on top of the budget."""
    return sum(t.numel() * t.element_size() for t in case.inputs if t.requires_grad) / MIB


def row(result: dict[str, Any]) -> str:
    def cell(label: str) -> str:
        found = result["contenders"].get(label)
        return f"{found['median_s']:.3f} s, {found['peak_mib']:,.1f} MiB" if found else "-"

    lean, by_chunks = result["contenders"]["lean"], result["contenders"]["vmap"]
    labels = ("eager", "compile", "vmap", "keops", "lean")
    ratio = by_chunks["median_s"] / lean["median_s"]
    sizes = " x ".join(f"{shape[0]:,}" for shape in result["shapes"][:2])
    cells = [f"{result['case']}, {sizes}", result["memory"], *map(cell, labels), f"{ratio:.2f} x"]
    return f"| {' | '.join(cells)} |"


HEADER = (
    "| case | budget | eager | torch.compile | vmap in chunks | KeOps | togi.lean | over vmap |\n"
    "|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="the name of a case, or a part of the names of some")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    known = list(cases())
    names = [chosen.only] if chosen.only in known else [name for name in known if (chosen.only or "") in name]
    results = [measure(name, chosen.rounds) for name in names]
    if chosen.json is not None:
        save(chosen.json, results)
    print(HEADER)
    for result in results:
        print(row(result))
    for result in results:
        print(f"\n{result['case']}: {result['notes']}\n{result['plan']}")


def save(path: Path, results: list[dict[str, Any]]) -> None:
    """Cases measured before stay, unless they were measured again."""
    known = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else []
    again = {result["case"] for result in results}
    order = list(cases())
    kept = [result for result in known if result["case"] not in again] + results
    document = {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": machine().model_dump(mode="json"),
        "results": sorted(kept, key=lambda result: order.index(result["case"])),
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
