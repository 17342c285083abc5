"""Training steps under a byte budget: `togi fit` beside what a user would do by hand, measured.

    python benchmarks/fit.py --model resnet50 --budgets 75 50     # measures, adds to benchmarks/data/fit.json
    python benchmarks/fit.py --model gpt2_small --compiled 0.5 --budgets compiled
    python benchmarks/fit.py --table                              # the rows as Markdown

A budget of 50 stands for `static + 50 % of (peak - static)`; static is what no plan can lower: parameters, their
gradients, inputs. The budget `block` is the measured peak of checkpointing every block, `sequential` that of
`checkpoint_sequential`, and `compiled` that of `torch.compile` with `activation_memory_budget`, so that the plan
competes at the same memory. Peaks are the CPU allocator's, read through the profiler. Times are the best of the turns,
in which plain, by-hand and planned steps alternate; compiling is not in them.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from togi.footprint.fit.measure import measured_peak_bytes, static_bytes
from togi.footprint.fit.training.planner import TrainingPlanner
from togi.footprint.step import Step, make_step
from togi.machine.describe import machine
from togi.subject.inputs import Subject

DATA = Path(__file__).parent / "data" / "fit.json"
MIB = 1 << 20
SEGMENTS = 6


def resnet50() -> Subject:
    import torchvision

    return Subject(torchvision.models.resnet50().train(), torch.randn(16, 3, 128, 128))


def gpt2_small() -> Subject:
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = torch.randint(0, 50257, (1, 512))
    module = GPT2LMHeadModel(GPT2Config(use_cache=False)).train()
    return Subject(module, {"input_ids": ids, "labels": ids}, step=lambda module, sample: module(**sample).loss)


def vit_b16() -> Subject:
    import torchvision

    return Subject(torchvision.models.vit_b_16().train(), torch.randn(8, 3, 224, 224))


@dataclass(frozen=True)
class Model:
    """A training step, and where its blocks are."""

    text: str
    make: Callable[[], Subject]
    blocks: Callable[[nn.Module], list[nn.Module]]
    sequential: Callable[[nn.Module], list[nn.Module]] | None = None


MODELS = {
    "resnet50": Model(
        "ResNet-50 (torchvision), batch 16 at 128 x 128",
        resnet50,
        lambda m: [block for layer in (m.layer1, m.layer2, m.layer3, m.layer4) for block in layer],
        # the stem in one part: its activation writes into its input, which a segment's border would forbid
        lambda m: [
            nn.Sequential(m.conv1, m.bn1, m.relu, m.maxpool),
            *m.layer1,
            *m.layer2,
            *m.layer3,
            *m.layer4,
            nn.Sequential(m.avgpool, Head(m)),
        ],
    ),
    "gpt2_small": Model(
        "GPT-2 small (transformers), batch 1, sequence 512", gpt2_small, lambda m: list(m.transformer.h)
    ),
    "vit_b16": Model("ViT-B/16 (torchvision), batch 8 at 224 x 224", vit_b16, lambda m: list(m.encoder.layers)),
}


class Head(nn.Module):
    """What torchvision's ResNet does after pooling."""

    def __init__(self, resnet: nn.Module) -> None:
        super().__init__()
        self.fc = resnet.fc

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        return self.fc(pooled.flatten(1))


@contextmanager
def every_block(model: Model, step: Step) -> Iterator[None]:
    """`torch.utils.checkpoint` round each block, as documented."""
    blocks = model.blocks(step.module)
    for block in blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    yield
    for block in blocks:
        del block.forward


@contextmanager
def sequential(model: Model, step: Step) -> Iterator[None]:
    parts = model.sequential(step.module)
    step.module.forward = lambda x: checkpoint_sequential(parts, SEGMENTS, x, use_reentrant=False)
    yield
    del step.module.forward


@contextmanager
def compiled(share: float, compilations: dict[float, Any], step: Step) -> Iterator[None]:
    """`torch.compile` of the module, its partitioner told which share of the activations it may keep."""
    own = step.module.forward
    if share not in compilations:
        torch._functorch.config.activation_memory_budget = share
        torch._dynamo.reset()
        compilations[share] = torch.compile(own)
    step.module.forward = compilations[share]
    try:
        yield
    finally:
        del step.module.forward


@contextmanager
def planned(plan: Any, step: Step) -> Iterator[None]:
    plan.apply(step.module)
    yield
    plan.remove()


@contextmanager
def plain() -> Iterator[None]:
    yield


def measure(name: str, budgets: list[str], turns: int, planning_s: float, share: float | None) -> list[dict[str, Any]]:
    model = MODELS[name]
    torch.manual_seed(0)
    step = make_step(model.make(), train=True)
    by_hand = {"every block": functools.partial(every_block, model, step)}
    if model.sequential:
        by_hand[f"checkpoint_sequential, {SEGMENTS}"] = functools.partial(sequential, model, step)
    if share is not None:
        by_hand[f"compiled, activation_memory_budget {share:g}"] = functools.partial(compiled, share, {}, step)
    ways: dict[str, Callable[[], Any]] = {"plain": plain, **by_hand}
    for context in by_hand.values():
        with context():
            step.run()  # compiles, warms up
    rows = {way: {"way": way, "peak": peak_under(step, context)} for way, context in ways.items()}
    static = static_bytes(step)
    started = time.perf_counter()
    planner = TrainingPlanner(step)
    prepared_s = time.perf_counter() - started
    for budget in budgets:
        limit = budget_bytes(budget, static, rows)
        started = time.perf_counter()
        found = planner.plan(limit, time_limit_s=planning_s, timed=False)
        way = f"togi fit, {budget}{' %' if budget.isdigit() else ''}"
        ways[way] = functools.partial(planned, found.plan, step)
        rows[way] = {
            "way": way,
            "peak": found.plan.peak_bytes,
            "budget": limit,
            "planning_s": prepared_s + time.perf_counter() - started,
            "exact": found.proof.exact,
            "treated": len(found.plan.policies),
            "tried": found.plans_tried,
        }
        print(json.dumps(rows[way]), flush=True)
    for way, ms in in_turns(step, ways, turns).items():
        rows[way]["step_ms"] = ms
    about = {"model": name, "text": model.text, "static": static, "cpu": machine("cpu").cpu_model, "turns": turns}
    return [{**about, "torch": torch.__version__, **row} for row in rows.values()]


def budget_bytes(budget: str, static: int, rows: dict[str, dict[str, Any]]) -> int:
    if budget.isdigit():
        return int(static + int(budget) / 100 * (rows["plain"]["peak"] - static))
    return next(row["peak"] for way, row in rows.items() if budget in way)


def peak_under(step: Step, context: Callable[[], Any]) -> int:
    with context():
        return measured_peak_bytes(step, step.run)


def in_turns(step: Step, ways: dict[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    best = dict.fromkeys(ways, math.inf)
    for _ in range(turns):
        for way, context in ways.items():
            with context():
                started = time.perf_counter()
                step.run()
                best[way] = min(best[way], (time.perf_counter() - started) * 1e3)
    return best


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| model | way | budget MiB | peak MiB | step s | time against plain | planning s | exact |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        # each run has its own plain step: rows are compared with theirs
        over = row["step_ms"] / row["plain_ms"]
        budget = f"{row['budget'] / MIB:,.0f}" if "budget" in row else ""
        planning = f"{row['planning_s']:.0f}" if "planning_s" in row else ""
        exact = {True: "to the bit", False: "no"}.get(row.get("exact"), "")
        lines.append(
            f"| {row['text']} | {row['way']} | {budget} | {row['peak'] / MIB:,.0f} | {row['step_ms'] / 1e3:.2f} | "
            f"{over:.2f} x | {planning} | {exact} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--budgets", nargs="*", default=["75", "50", "30"], help="percent, block, sequential, compiled")
    parser.add_argument("--compiled", type=float, metavar="SHARE", help="also torch.compile, with that budget (0 to 1)")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--planning", type=float, default=60.0, help="seconds for planning under one budget")
    parser.add_argument("--table", action="store_true", help="print what was measured, as Markdown")
    options = parser.parse_args()
    known = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else []
    if options.model:
        new = measure(options.model, options.budgets, options.turns, options.planning, options.compiled)
        plain_ms = new[0]["step_ms"]
        new = [{**row, "plain_ms": plain_ms} for row in new]
        replaced = {(row["model"], row["way"]) for row in new}
        known = [row for row in known if (row["model"], row["way"]) not in replaced] + new
        known.sort(key=lambda row: list(MODELS).index(row["model"]))
        DATA.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        print(table(new))
    if options.table:
        print(table(known))


if __name__ == "__main__":
    main()
