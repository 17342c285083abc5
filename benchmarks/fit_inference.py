"""An inference pass under a byte budget: `togi fit --inference`, measured.

    python benchmarks/fit_inference.py --model gpt2_small --budgets 75 50 30    # adds to data/fit_inference.json
    python benchmarks/fit_inference.py --table                                  # the rows as Markdown

A budget of 50 stands for `static + 50 % of (peak - static)`; static is what no plan can lower: parameters, buffers,
inputs, outputs. Peaks are the CPU allocator's, read through the profiler. After planning, plain and planned passes
alternate, and the best of the turns counts. All models have random weights; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from togi.footprint.fit.inference.planner import InferencePlanner
from togi.footprint.fit.plan import Plan
from togi.footprint.step import Step, make_step, step_ms
from togi.machine.describe import machine
from togi.subject.inputs import Subject

DATA = Path(__file__).parent / "data" / "fit_inference.json"
MIB = 1 << 20


def gpt2_small() -> Subject:
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = torch.randint(0, 50257, (1, 1024))
    return Subject(GPT2LMHeadModel(GPT2Config(use_cache=False)).eval(), {"input_ids": ids, "logits_to_keep": 1})


def bert_base() -> Subject:
    from transformers import BertConfig, BertModel

    return Subject(BertModel(BertConfig()).eval(), {"input_ids": torch.randint(0, 30522, (16, 128))})


def vit_b16() -> Subject:
    import torchvision

    return Subject(torchvision.models.vit_b_16().eval(), torch.randn(16, 3, 224, 224))


def convnext_tiny() -> Subject:
    import timm

    return Subject(timm.create_model("convnext_tiny").eval(), torch.randn(1, 3, 512, 512))


@dataclass(frozen=True)
class Model:
    text: str
    make: Callable[[], Subject]


MODELS = {
    "gpt2_small": Model("GPT-2 small (transformers), 1 x 1024 tokens, last logits", gpt2_small),
    "bert_base": Model("BERT base (transformers), 16 x 128 tokens", bert_base),
    "vit_b16": Model("ViT-B/16 (torchvision), 16 x 224 px", vit_b16),
    "convnext_tiny": Model("ConvNeXt-T (timm), 1 x 512 px", convnext_tiny),
}


def measure(name: str, budgets: list[int], turns: int, planning_s: float) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    step = make_step(MODELS[name].make(), train=False)
    started = time.perf_counter()
    planner = InferencePlanner(step)
    prepared_s = time.perf_counter() - started
    whole = planner.plan(1 << 60)
    plain, static = whole.plain.peak_bytes, whole.static_bytes
    rows, plans = [{"way": "plain", "peak": plain}], [Plan()]
    for percent in budgets:
        limit = static + (plain - static) * percent // 100
        started = time.perf_counter()
        found = planner.plan(limit, time_limit_s=planning_s)
        rows.append(
            {
                "way": f"togi fit --inference, {percent} %",
                "peak": found.plan.peak_bytes,
                "budget": limit,
                "planning_s": prepared_s + time.perf_counter() - started,
                "exact": found.proof.exact,
                "units": found.proof.units,
                "modules": len(found.plan.chunks),
                "cut": sorted({f"{one.where}, {one.size} at a time" for one in found.plan.chunks}),
            }
        )
        plans.append(found.plan)
        print(json.dumps(rows[-1]), flush=True)
    for row, ms in zip(rows, in_turns(step, plans, turns), strict=True):
        row["pass_ms"] = ms
    about = {"model": name, "text": MODELS[name].text, "static": static, "cpu": machine("cpu").cpu_model}
    return [
        {**about, "turns": turns, "torch": torch.__version__, "plain_ms": rows[0]["pass_ms"], **row} for row in rows
    ]


def in_turns(step: Step, plans: list[Plan], turns: int) -> list[float]:
    """The best milliseconds of each; a plan without entries is the plain module."""
    best = [float("inf")] * len(plans)
    for _ in range(turns):
        for at, plan in enumerate(plans):
            if plan.chunks:
                plan.apply(step.module)
            best[at] = min(best[at], step_ms(step))
            plan.remove()
    return best


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| model | way | budget MiB | peak MiB | pass ms | time against plain | planning s | equal | cut |",
        "|---|---|--:|--:|--:|--:|--:|---|---|",
    ]
    for row in rows:
        budget = f"{row['budget'] / MIB:,.0f}" if "budget" in row else ""
        planning = f"{row['planning_s']:.0f}" if "planning_s" in row else ""
        equal = {True: "to the bit", False: f"{row.get('units', 0):.2g} x own error"}.get(row.get("exact"), "")
        lines.append(
            f"| {row['text']} | {row['way']} | {budget} | {row['peak'] / MIB:,.0f} | {row['pass_ms']:,.0f} | "
            f"{row['pass_ms'] / row['plain_ms']:.2f} x | {planning} | {equal} | {'; '.join(row.get('cut', []))} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*MODELS, "all"])
    parser.add_argument("--budgets", nargs="*", type=int, default=[75, 50, 30], help="percent of what a plan can lower")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--planning", type=float, default=40.0, help="seconds for planning under one budget")
    parser.add_argument("--table", action="store_true", help="print what was measured, as Markdown")
    options = parser.parse_args()
    known = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else []
    for name in list(MODELS) if options.model == "all" else [options.model] if options.model else []:
        known = [row for row in known if row["model"] != name]
        known += measure(name, options.budgets, options.turns, options.planning)
        known.sort(key=lambda row: list(MODELS).index(row["model"]))
        DATA.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    if options.table or options.model:
        print(table(known))


if __name__ == "__main__":
    main()
