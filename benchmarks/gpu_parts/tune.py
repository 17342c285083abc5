"""Studies of eight models, each beside what a user would pick instead, all taking turns in one run.

``torch.compile`` in its three best known modes and a CUDA graph by hand (inputs copied in, outputs copied out, since a
replay overwrites them) are verified like a candidate; one that is not faithful does not count. On a CPU, where there is
no graph to replay, the small models of ``benchmarks/gpu_models.py`` are tuned with one engine, ONNX Runtime, beside the
same with its own settings (one of them beside ``torch.compile``, which takes longest): a sweep stays within minutes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.gpu_jobs import MODELS
from benchmarks.gpu_models import CONVOLUTIONAL_AT_BATCH_1, DENSE, locator
from benchmarks.gpu_parts.row import LIMITS, Row, attempt, ignore
from benchmarks.gpu_rows import OVER_BEST

from togi import api
from togi.core.records import Facts, Interval, Recipe
from togi.decide.faster import BETWEEN_PROCESSES, CONFIDENCE, Criterion
from togi.machine.describe import machine
from togi.measure import race, rounds_needed
from togi.study.result import StudyResult
from togi.techniques import recipe
from togi.worker.messages import Purpose
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import RunningTrial, TrialEnded

TUNED_S = {"cpu": 60, "cuda": 100}
ONLY = {"cpu": ("onnxruntime",), "cuda": ()}
"""On a CPU a study that ends by itself, after as much work on any machine; a GPU gets all that its time allows."""
LONGEST_RACE_S = 60.0
"""It ends after ``ROUNDS``."""
COMPILED_ON_CPU = ("mobilenetv3",)
MOST_RACED = 5
"""Plain eager and the peers."""
ROUNDS = rounds_needed(1.0 - (1.0 - CONFIDENCE) / MOST_RACED) + 2
"""What gives each interval ends, and a few more."""
EVERYBODY = Criterion(margin=1e9)
"""A margin that no difference exceeds: nobody leaves the race, every round has everybody."""
HALF_ERROR = 0.01
"""What 16 bits are allowed: a relative error that classifiers do not notice."""
HALVES = ("bf16", "bf16_openvino", "fp16")
HALF_X = {"cpu": dict.fromkeys(("mobilenetv3",), 1.0)}
"""How much faster than eager they must be, by model. In float32 eager's convolutions have TensorFloat-32 on a GPU."""
HALF_X["cuda"] = dict.fromkeys(CONVOLUTIONAL_AT_BATCH_1, 3.0) | dict.fromkeys(DENSE, 2.5)


def peers(name: str, device: str) -> dict[str, Recipe]:
    if device == "cpu":
        if name in COMPILED_ON_CPU:
            return {"torch.compile": compiled("default")}
        return {"ONNX Runtime": recipe(onnxruntime={"spinning": True}, no_grad={})}
    graph = recipe(cuda_graph={"limit": 1}, no_grad={})
    modes = ("default", "reduce-overhead", "max-autotune")
    return {**{f"torch.compile {mode}": compiled(mode) for mode in modes}, "a CUDA graph": graph}


def compiled(mode: str) -> Recipe:
    return recipe(torch_compile={"mode": mode, "freezing": False}, no_grad={})


def rows(device: str, models: Sequence[str] = MODELS) -> Iterator[Row]:
    """Never slower than the best of the peers, and within 16 bits as much faster than eager as was promised."""
    with tempfile.TemporaryDirectory() as folder:
        for name in models:
            yield attempt(name, "no peer is faster beyond doubt", beside_peers, name, device, Path(folder))
        for name in models:
            if name in HALF_X[device]:
                bound = f"at least {HALF_X[device][name]:g} x over eager, error at most {HALF_ERROR:.0%}"
                yield attempt(f"{name} within 16 bits", bound, within_half, name, device, Path(folder))


def study(name: str, device: str, folder: Path, **options: object) -> StudyResult:
    """In a journal that later studies of the model go on with."""
    return api.tune(
        locator(name, device),
        device=device,
        time_limit_s=TUNED_S[device],
        only=(*ONLY[device], *(HALVES if ONLY[device] and "max_error" in options else ())),
        journal=folder / f"{name}.sqlite",
        progress=True,
        **options,
    )


def beside_peers(name: str, device: str, folder: Path) -> tuple[bool, str]:
    best = study(name, device, folder).best
    if best.artifact is None:
        return False, f"nothing could be saved of {best.recipe.label}"
    subject = SubjectRef.here("locator", locator(name, device))
    with WorkerPool(subject, machine(device), device=device, seed=0) as pool:
        facts = pool.make_truth(pool.survey(LIMITS, ignore)[0].facts, LIMITS, ignore)
        ours = pool.start_artifact(best.artifact, best.recipe, facts, LIMITS, check=Purpose.PROOF)
        ours.warm()
        eager = pool.start(recipe(no_grad={}), facts, LIMITS, ignore)
        eager.warm()
        started = {each: start(pool, each, peer, facts) for each, peer in peers(name, device).items()}
        standing = {each: running for each, running in started.items() if running is not None}
        result = race(
            [eager, *standing.values()],
            ours,
            budget_s=LONGEST_RACE_S,
            seed=0,
            criterion=EVERYBODY,
            min_rounds=ROUNDS,
        )
        over = {each: result.entry(running.name).speedup_x for each, running in standing.items()}
        over_eager = result.entry(eager.name).speedup_x
    undecided = [each for each, interval in over.items() if interval is None or interval.low <= 0]
    faster = [each for each, interval in over.items() if interval and BETWEEN_PROCESSES.faster(interval)]
    told = "; ".join([*(f"{each} {_times(interval)}" for each, interval in over.items()), _over_best(over)])
    ratio = "?" if over_eager is None else f"{1 / over_eager.median:.2f} x over eager"
    right = ours.error is not None and ours.error.faithful
    return right and not (faster or undecided), f"{ratio}: {best.recipe.label}; {told}"


def _over_best(over: Mapping[str, Interval | None]) -> str:
    """How fast togi's artifact is, as a multiple of the fastest peer's speed: their geometric mean is a row."""
    fastest = max((interval.median for interval in over.values() if interval is not None), default=0.0)
    return f"{1 / fastest:.3f}{OVER_BEST}" if fastest > 0 else "no peer was measured"


def _times(interval: Interval | None) -> str:
    """How fast a peer is, as a multiple of togi's speed."""
    return "?" if interval is None else f"{interval.median:.2f} x ({interval.low:.2f} to {interval.high:.2f})"


def start(pool: WorkerPool, name: str, peer: Recipe, facts: Facts) -> RunningTrial | None:
    """Verified and warm; None, told to the log, where it cannot run or is not faithful."""
    try:
        running = pool.start(peer, facts, LIMITS, ignore)
        if running.error is not None and running.error.faithful:
            running.warm()
            return running
        running.close()
        print(f"{name} is not faithful", file=sys.stderr)
    except TrialEnded as ended:
        print(f"{name}: {ended}", file=sys.stderr)
    return None


def within_half(name: str, device: str, folder: Path) -> tuple[bool, str]:
    best = study(name, device, folder, max_error=HALF_ERROR).best
    timing = best.trial.timing
    if timing is None:
        return False, f"nothing was measured of {best.recipe.label}"
    return timing.speedup_x.median >= HALF_X[device][name], f"{_times(timing.speedup_x)}: {best.recipe.label}"
