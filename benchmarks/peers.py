"""The tuned artifact beside what a user would pick instead, all of them taking turns in one run.

    python -m benchmarks.peers [--models resnet50 ...] [--time-limit 120] [--budget 60] [--json peers.json] [--twice]

Peers are used as their documentation shows first: ``torch.compile(model)``, ``torch.compile(mode="max-autotune")``
with freezing, an ONNX Runtime session and an OpenVINO compiled model with default settings. Every one is verified like
a candidate; one that is not faithful is shown and does not count. The machine's limit is the larger of two times: the
model's floating-point operations at the best rate of MKL's matrix product and oneDNN's convolutions, and its weights
at the rate of a measured copy. Algorithms that need fewer operations than the definition (Winograd's convolution) may
be below it. With ``--twice`` the chosen recipe also races against itself, loaded again and built again: what a ratio
may be where there is no difference.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.rows import measured_here, measured_on, put_rows

from togi import api
from togi.core.records import Facts, Interval, Recipe
from togi.decide.faster import Criterion
from togi.machine.describe import machine
from togi.measure import RaceResult, race
from togi.render.gains import gains, nearly_all
from togi.study.result import Best
from togi.techniques import recipe
from togi.worker.messages import Purpose
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits, RunningTrial, TrialEnded

ROUNDS = 31
OURS = "togi"
LOADED, BUILT = "loaded again", "built again"
"""The chosen recipe in processes of its own."""
EVERYBODY = Criterion(margin=1e9)
"""A margin that no difference exceeds: nobody leaves the race, every round has everybody."""
HERE = Path(__file__).parent
MODELS = """mobilenetv3_large vit_tiny lstm_tagger gpt2_small resnet50 efficientnet_lite0 minilm unet vgg11 repvgg_a0
    convnext_atto swin_tiny densenet121 efficientnetv2 gru_encoder t5 speech_encoder yolo""".split()


def peers() -> dict[str, Recipe]:
    """What a user would pick instead, by name."""
    return {
        "torch.compile": recipe(torch_compile={"mode": "default", "freezing": False}, no_grad={}),
        "torch.compile max": recipe(torch_compile={"mode": "max-autotune-no-cudagraphs", "freezing": True}, no_grad={}),
        "ONNX Runtime": recipe(onnxruntime={"spinning": True}, no_grad={}),
        "OpenVINO": recipe(openvino={}, no_grad={}),
    }


@dataclass
class Row:
    """One model. Times in ms per sample; ``ratio``: best faithful peer's time over the artifact's."""

    model: str
    eager_ms: float = math.nan
    togi_ms: float = math.nan
    recipe: str = ""
    verdict: str = ""
    peers_ms: dict[str, float] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    best_peer: str = ""
    ratio: tuple[float, float, float] = (math.nan, math.nan, math.nan)
    over_peers: dict[str, float] = field(default_factory=dict)
    over_eager: float = math.nan
    limit_ms: float = math.nan
    first_gain_s: float | None = None
    nearly_s: float | None = None
    """90 % of what was gained in the end. Seconds from the start of the command, loading included."""
    tune_s: float = math.nan
    """What tuning took in all."""
    time_limit_s: float = math.nan
    twins: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """The time of the same recipe in another process over the artifact's."""
    measured: str = field(default_factory=measured_here)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds for tuning one model")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for comparing on one model")
    parser.add_argument("--twice", action="store_true", help="race the chosen recipe against itself, too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    limits = machine_limits()
    print(f"best product {limits[0] / 1e9:.0f} GFLOP/s, copy {limits[1] / 1e9:.1f} GB/s", flush=True)
    rows = []
    for model in options.models:
        rows.append(compare(model, options.time_limit, options.budget, limits, twice=options.twice))
        print(line(rows[-1]), flush=True)
        if options.json:
            put_rows(options.json, [asdict(rows[-1])], by="model")
    print(table([asdict(row) for row in rows]))


def compare(
    model: str, time_limit_s: float, budget_s: float, limits: tuple[float, float], *, twice: bool = False
) -> Row:
    """Tune the model, then race its artifact and the peers in one run."""
    row = Row(model, time_limit_s=time_limit_s)
    subject = f"{HERE / 'models.py'}:{model}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result = api.tune(subject, time_limit_s=time_limit_s, journal=Path(folder) / "journal.sqlite")
    row.tune_s = time.monotonic() - began
    row.recipe, row.verdict = result.best.recipe.label, result.record.verdict
    if found := gains(result.record):
        row.first_gain_s, row.nearly_s = found[0].ended_s, nearly_all(found).ended_s
    with WorkerPool(SubjectRef.here("locator", subject), machine(), device="cpu", seed=0) as stable:
        limits_s = Limits(timeout_s=600)
        facts = stable.make_truth(stable.survey(limits_s, lambda _: None)[0].facts, limits_s, lambda _: None)
        row.limit_ms = limit_ms(facts, limits)
        race_all(row, stable, facts, result.best, budget_s, twice=twice)
    return row


def race_all(row: Row, stable: WorkerPool, facts: Facts, best: Best, budget_s: float, *, twice: bool = False) -> None:
    """Fill the row from one race of eager, the peers and the artifact; the artifact is the race's reference."""
    if best.artifact is None:
        row.excluded["togi"] = "nothing could be saved"
        return
    ours = None
    recipes = {"eager": recipe(no_grad={}), **peers()}
    others: dict[str, RunningTrial | None] = {}
    for name in starting_order(row.model, [OURS, *recipes]):
        if name == OURS:
            ours = stable.start_artifact(best.artifact, best.recipe, facts, Limits(timeout_s=600), check=Purpose.PROOF)
            ours.warm()
        else:
            others[name] = start(row, stable, facts, name, recipes[name])
    assert ours is not None
    if twice:
        others[LOADED] = stable.start_artifact(best.artifact, best.recipe, facts, ours.limits, check=None, name=LOADED)
        others[LOADED].warm()
        others[BUILT] = start(row, stable, facts, BUILT, best.recipe)
    standing = {name: running for name, running in others.items() if running is not None}
    result = race([*standing.values()], ours, budget_s=budget_s, seed=0, criterion=EVERYBODY, min_rounds=ROUNDS)
    row.togi_ms = median_ms(result, ours)
    row.peers_ms = {name: median_ms(result, standing[name]) for name in peers() if name in standing}
    row.eager_ms = median_ms(result, standing["eager"]) if "eager" in standing else math.nan
    # the race's reference is the artifact, so a peer's speed-up over it is artifact time over peer time
    ratios = {name: entry.speedup_x for name in standing if (entry := result.entry(standing[name].name)).speedup_x}
    row.over_eager = 1 / ratios["eager"].median if "eager" in ratios else math.nan
    row.twins = {name: inverse(ratios[name]) for name in (LOADED, BUILT) if name in ratios}
    rivals = {name: interval for name, interval in ratios.items() if name in peers()}
    row.over_peers = {name: 1 / interval.median for name, interval in rivals.items()}
    if rivals:
        row.best_peer = max(rivals, key=lambda name: rivals[name].median)
        row.ratio = inverse(rivals[row.best_peer])


def starting_order(model: str, names: list[str]) -> list[str]:
    """Another for each model, the same in each run: of processes with one recipe, the first that is started is up to
    1 % slower than those after it."""
    return random.Random(model).sample(names, len(names))


def start(row: Row, stable: WorkerPool, facts: Facts, name: str, peer: Recipe) -> RunningTrial | None:
    """The peer, verified and warm; None, with the reason in the row, where it cannot run or is not faithful."""
    try:
        running = stable.start(peer, facts, Limits(timeout_s=600), lambda _: None)
        if running.error is None or not running.error.faithful:
            row.excluded[name] = (
                f"not faithful: {running.error.units:.0f} x eager's error" if running.error else "unverified"
            )
            running.close()
            return None
        running.warm()
        running.name = name  # the chosen recipe may be a peer's
        return running
    except TrialEnded as ended:
        row.excluded[name] = str(ended)
        return None


def median_ms(result: RaceResult, running: RunningTrial) -> float:
    entry = result.entry(running.name)
    return entry.latency_ms.median if entry.latency_ms else math.nan


def inverse(interval: Interval) -> tuple[float, float, float]:
    """An end of 0 comes of too few rounds."""
    return 1 / interval.median, 1 / interval.high, 1 / interval.low if interval.low > 0 else math.inf


def machine_limits() -> tuple[float, float]:
    """(FLOP/s of the best float32 product, bytes/s of a copy, read and written), the best of several, all cores."""
    import torch

    source = torch.empty(64 << 20)
    target = torch.empty_like(source)
    copy_s = fastest_s(lambda: target.copy_(source))
    return max(product_rates().values()), 2 * source.numel() * 4 / copy_s


def product_rates() -> dict[str, float]:
    """FLOP/s of float32 products by who computes them: a matrix product is MKL's, a convolution oneDNN's."""
    import torch

    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    rates = {"MKL": 2 * 2048**3 / fastest_s(lambda: torch.mm(a, b))}
    x = torch.randn(1, 512, 56, 56).to(memory_format=torch.channels_last)
    with torch.no_grad():
        for size in (1, 3):
            convolution = torch.nn.Conv2d(512, 512, size, padding=size // 2).to(memory_format=torch.channels_last)
            flops = 2 * x.numel() * 512 * size**2
            rates[f"oneDNN {size}x{size}"] = flops / fastest_s(functools.partial(convolution, x))
    return rates


def fastest_s(work: Callable[[], object]) -> float:
    best = math.inf
    for _ in range(12):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def limit_ms(facts: Facts, limits: tuple[float, float]) -> float:
    """Per sample: the operations at the rate of the best product, or the weights at that of a copy, if that is more."""
    if facts.flops is None:
        return math.nan
    return max(facts.flops / facts.samples / limits[0], facts.parameter_bytes / limits[1]) * 1e3


def line(row: Row) -> str:
    peers_text = ", ".join(f"{name} {ms:.2f}" for name, ms in row.peers_ms.items())
    excluded = "; ".join(f"{name}: {why}" for name, why in row.excluded.items())
    twins_text = "".join(f"{name} {x[0]:.3f} x ({x[1]:.3f} to {x[2]:.3f})  " for name, x in row.twins.items())
    return (
        f"{row.model:<20} eager {row.eager_ms:8.2f} ms  togi {row.togi_ms:8.2f} ms ({row.over_eager:.2f} x)  "
        f"[{peers_text}]  best peer {row.best_peer}: {row.ratio[0]:.3f} x ({row.ratio[1]:.3f} to {row.ratio[2]:.3f})  "
        f"limit {row.limit_ms:.2f} ms  gains after {row.first_gain_s or 0:.0f} and {row.nearly_s or 0:.0f} s  "
        f"tuned in {row.tune_s:.0f} of {row.time_limit_s:.0f} s  {twins_text}{row.recipe}"
        + (f"  excluded: {excluded}" if excluded else "")
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown, the best peer in bold, with the means below."""
    names = [*peers()]
    lines = [
        f"| model | eager | **togi** | over eager | {' | '.join(names)} | best peer's time / togi's "
        "| first gain, 90 % (s) | tuned in (s) | share of the limit | chosen |",
        "|---|" + "--:|" * (3 + len(names)) + "---|" + "--:|" * 3 + "---|",
    ]
    for row in rows:
        cells = [_cell(row, name) for name in names]
        median, low, high = row["ratio"]
        soon = "-, -" if row["first_gain_s"] is None else f"{row['first_gain_s']:.0f}, {row['nearly_s']:.0f}"
        tuned = _tuned(row)
        limit = f"{row['limit_ms'] / row['togi_ms']:.0%}"
        lines.append(
            f"| {row['model']} | {row['eager_ms']:.2f} | {row['togi_ms']:.2f} | {row['over_eager']:.2f} x | "
            f"{' | '.join(cells)} | {median:.3f} ({low:.3f} to {high:.3f}) | {soon} | {tuned} | {limit} | "
            f"`{row['recipe']}` |"
        )
    good = [row["ratio"][0] for row in rows if math.isfinite(row["ratio"][0])]
    if not good:
        return "\n".join(lines)
    below = sum(ratio < 0.98 for ratio in good)
    over_eager = statistics.geometric_mean(row["over_eager"] for row in rows if math.isfinite(row["over_eager"]))
    lines += [
        "",
        f"Against the best peer of each: {statistics.geometric_mean(good):.3f} x on {len(good)} models, lowest "
        f"{min(good):.3f}, {below} below 0.98. Over eager: {over_eager:.2f} x.",
    ]
    for name in names:
        found = [row["over_peers"][name] for row in rows if name in row["over_peers"]]
        if found:
            lines.append(f"Over {name}: {statistics.geometric_mean(found):.2f} x on {len(found)}.")
    soon_s = [(row["first_gain_s"], row["nearly_s"]) for row in rows if row["first_gain_s"] and row["nearly_s"]]
    if soon_s:
        first_s, nearly_s = (statistics.median(each) for each in zip(*soon_s, strict=True))
        lines.append(
            f"First gain after {first_s:.0f} s, 90 % of the last after {nearly_s:.0f} s (medians of {len(soon_s)})."
        )
    limited = [row["tune_s"] / row["time_limit_s"] for row in rows if "tune_s" in row]
    if limited:
        kept = sum(share <= 1.1 for share in limited)
        lines.append(
            f"The time limit was kept within 10 % on {kept} of {len(limited)}, at most {max(limited):.0%} of it."
        )
    for name in (LOADED, BUILT):
        twins = [row["twins"][name][0] for row in rows if name in row.get("twins", {})]
        if twins:
            lines.append(f"The chosen recipe {name}: {min(twins):.3f} to {max(twins):.3f} x on {len(twins)}.")
    lines.append(measured_on(rows))
    return "\n".join(lines)


def _tuned(row: dict[str, Any]) -> str:
    """Rows of before were not timed."""
    return f"{row['tune_s']:.0f} of {row['time_limit_s']:.0f}" if "tune_s" in row else "-"


def _cell(row: dict[str, Any], name: str) -> str:
    if name not in row["peers_ms"]:
        return "not faithful" if row["excluded"].get(name, "").startswith("not faithful") else "fails"
    text = f"{row['peers_ms'][name]:.2f}"
    return f"**{text}**" if name == row["best_peer"] else text


if __name__ == "__main__":
    main()
