"""The parts of ``python -m benchmarks.gpu``: each a generator of rows, run in a process of its own.

    python -m benchmarks.gpu_parts engines --device cpu      one part; a row of JSON a line

A row says pass, fail or skip, the figure that was found, and the bound that it was held to. A part asks togi's own
modules, the same that a study asks, on tensors of the device.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn

from togi import graphs, ops
from togi.core.errors import Refused
from togi.decide.faithful import MAX_UNITS, limit_units
from togi.decide.faster import Criterion
from togi.doctor import Level, examine
from togi.graph.candidate import Candidate
from togi.graphs.buckets import choose_buckets, padding
from togi.machine import nvml
from togi.machine.describe import machine
from togi.measure import choose_passes, compare, mark_memory, measure_footprint, take_turn, warm
from togi.ops.backend import VARIABLE
from togi.subject.inputs import Inputs, Subject
from togi.techniques import Refuses, all_techniques, recipe, technique
from togi.techniques.base import Engine
from togi.techniques.build import first_candidate
from togi.techniques.engine.programs.cuda_graph import CudaGraphs
from togi.torch_internals.float32 import tf32_operators
from togi.verify.reference import make_truth
from togi.verify.truth import Truth
from togi.verify.verdict import verify
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits
from togi.worker.survey import survey

Row = dict[str, Any]
MIB = 1 << 20
LIMITS = Limits(timeout_s=120.0)


def row(name: str, ok: bool | None, figure: str, bound: str = "", seconds: float = 0.0) -> Row:
    result = "skip" if ok is None else "pass" if ok else "fail"
    return {"row": name, "result": result, "figure": figure, "bound": bound, "seconds": round(seconds, 1)}


def attempt(name: str, bound: str, check: Callable[..., tuple[bool | None, str]], *given: Any) -> Row:
    """The row of ``check(*given)``, which returns whether it holds (None where it cannot be asked here) and the figure.
    An error is a failure of this row alone."""
    began = time.monotonic()
    try:
        ok, figure = check(*given)
    except Exception as error:  # foreign code: backends; the log has the traceback
        traceback.print_exc()
        ok, figure = False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return row(name, ok, figure, bound, time.monotonic() - began)


# --- environment


def environment(device: str) -> Iterator[Row]:
    """What there is; nothing that a device needs may be missing."""
    here = machine(device)
    name = f"{here.gpu}, driver {here.gpu_driver}" if device == "cuda" else here.cpu_model
    yield row("device", True, f"{name}, torch {here.versions.get('torch')}, Python {here.python}")
    began = time.monotonic()
    missing = [
        f"{check.topic} {check.name}: {check.found}" for check in examine(device) if check.level is Level.MISSING
    ]
    yield row("doctor", not missing, "; ".join(missing) or "nothing is missing", "0 missing", time.monotonic() - began)
    if device == "cuda":
        yield row("NVML", None if (why := nvml.why_not()) else True, why or "answers")


# --- processes

SUBJECT = """
import torch
{before}

def subject():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256) for _ in range(4)]
    return torch.nn.Sequential(*layers){after}, torch.randn(8, 256)
"""


def processes(device: str) -> Iterator[Row]:
    """Trials of subjects whose files do with the device what people's files do; pausing and killing."""
    kinds = {
        "a plain file": ("", ""),
        "a file that asks is_available()": ("AVAILABLE = torch.cuda.is_available()", ""),
        f"a file that moves to {device}": ("", f".to({device!r})"),
    }
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (before, after)) in enumerate(kinds.items()):
            path = Path(folder) / f"kind{number}.py"
            path.write_text(SUBJECT.format(before=before, after=after), encoding="utf-8")
            ref = SubjectRef.here("locator", f"{path}:subject")
            yield attempt(f"a trial of {name}", f"error at most {MAX_UNITS:g} units", trial, ref, device)
        yield attempt("pause, resume, kill", "the paused one answers, the killed one is gone", standing, ref, device)


def trial(ref: SubjectRef, device: str) -> tuple[bool, str]:
    with WorkerPool(ref, machine(device), device=device, seed=0) as pool:
        facts = pool.make_truth(pool.survey(LIMITS, ignore)[0].facts, LIMITS, ignore)
        with pool.start(recipe(inference_mode={}), facts, LIMITS, ignore) as running:
            warmed, footprint = running.warm(), running.footprint()
            assert running.error is not None
            forked = "forked" if pool.server({}).fork_safe else "a process of its own"
            measured = f"{warmed.pass_ms:.3f} ms, {footprint.peak_bytes / MIB:.1f} MiB"
            return (
                running.error.faithful and warmed.pass_ms > 0,
                f"{running.error.units:.2g} units, {measured}, {forked}",
            )


def standing(ref: SubjectRef, device: str) -> tuple[bool, str]:
    """One process is stopped while another is measured, and measured again afterwards; then ended."""
    with WorkerPool(ref, machine(device), device=device, seed=0) as pool:
        facts = pool.make_truth(pool.survey(LIMITS, ignore)[0].facts, LIMITS, ignore)
        one = pool.start(recipe(no_grad={}), facts, LIMITS, ignore)
        other = pool.start(recipe(inference_mode={}), facts, LIMITS, ignore)
        one.warm()
        other.warm()
        first, between, second = one.turn(one.passes), other.turn(other.passes), one.turn(one.passes)
        free = free_bytes() if device == "cuda" else 0
        one.close()
        other.close()
        freed = free_bytes() - free if device == "cuda" else 0
        times = (first.pass_ms, between.pass_ms, second.pass_ms)
        figure = ", ".join(f"{ms:.3f}" for ms in times) + " ms" + (f", {freed / MIB:.0f} MiB freed" if freed else "")
        return all(ms > 0 for ms in times) and (device == "cpu" or freed > 0), figure


def free_bytes() -> int:
    return int(torch.cuda.mem_get_info()[0])


def ignore(_: object) -> None: ...


# --- engines


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).flatten(1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection, self.norm = nn.Linear(32, 96), nn.LayerNorm(32)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
        query, key, value = self.projection(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        hidden = self.norm(x + attended.transpose(1, 2).flatten(2))
        return {"hidden": hidden, "pooled": (hidden * mask.unsqueeze(-1)).sum(1)}


MODULES: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "perceptron": lambda: (nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)), (torch.randn(4, 32),)),
    "convolutions": lambda: (Convolutions(), (torch.randn(2, 3, 16, 16),)),
    "attention": lambda: (Attention(), (torch.randn(2, 6, 32), torch.ones(2, 6))),
    "recurrent": lambda: (nn.LSTM(8, 16, batch_first=True), (torch.randn(2, 5, 8),)),
}


def subject_of(name: str, device: str) -> tuple[Candidate, Truth]:
    torch.manual_seed(0)
    module, inputs = MODULES[name]()
    subject = Subject(module.eval(), [inputs, tuple(tensor * 2 for tensor in inputs)])
    found = survey(subject, device=device, machine=machine(device))
    candidate = first_candidate(subject, found.facts, found.signature)
    truth = make_truth(candidate.module, candidate.samples, found.signature, seed=0, samples=2, device=device)
    return candidate, truth


def engines(device: str) -> Iterator[Row]:
    """Every engine that can be built here, on four modules: right, its outputs fresh, on other strides, in other grad
    modes, in another thread, and loaded again from its files."""
    for name in MODULES:
        candidate, truth = subject_of(name, device)
        bound = f"at most {limit_units(exact=True, tf32_units=truth.facts.tf32_units):.3g} units"
        for engine in all_techniques().values():
            if isinstance(engine, Engine) and device in engine.devices and engine.id != "parts":
                yield attempt(f"{engine.id} on {name}", bound, engine_on, engine, candidate, truth)


def engine_on(engine: Engine, candidate: Candidate, truth: Truth) -> tuple[bool | None, str]:
    if missing := next((what for package in engine.packages if (what := package.missing())), None):
        return None, missing
    if isinstance(refusal := engine.applies(candidate.facts), Refuses):
        return None, refusal.reason
    try:
        built = engine.apply(candidate, engine.options(candidate.facts)[-1])
    except Refused as refused:
        return None, str(refused)
    limit, call = limit_units(exact=True, tf32_units=truth.facts.tf32_units), built.runnable()
    report = verify(call, truth, candidate.samples, candidate.signature, seed=0, max_units=limit)
    problems = list(report.problems)
    for what, run in uses(candidate):
        problems += [f"{what}: {found}"] if (found := run(call)) else []
    figure = f"{report.units:.2g} units"
    if built.program is not None:
        loaded = saved_and_loaded(engine, built, candidate)
        again = verify(loaded, truth, candidate.samples, candidate.signature, seed=0, max_units=limit)
        problems += [f"loaded: {problem}" for problem in again.problems]
        problems += [] if again.faithful else [f"loaded: {again.units:.3g} units"]
    return report.faithful and not problems, "; ".join([figure, *problems])


def saved_and_loaded(engine: Engine, built: Candidate, candidate: Candidate) -> Callable[..., Any]:
    folder = Path(tempfile.mkdtemp(prefix="togi-engine-"))
    assert built.program is not None
    meta = json.loads(json.dumps(built.program.save(folder)))
    return engine.load(folder, meta, candidate.signature, None)


Use = Callable[[Callable[..., Any]], str]


def uses(candidate: Candidate) -> Iterator[tuple[str, Use]]:
    """Ways to call a program that are not the first: what goes wrong, or nothing."""
    sample, signature = candidate.samples[0], candidate.signature

    def answers(call: Callable[..., Any], given: Inputs) -> list[Tensor]:
        return [tensor.detach() for tensor in signature.flatten_outputs(call(*given.args, **given.kwargs))]

    def same(found: list[Tensor]) -> str:
        with torch.no_grad():
            expected = answers(candidate.module, sample.clone())
        close = all(torch.allclose(a, b, rtol=1e-2, atol=1e-2) for a, b in zip(found, expected, strict=True))
        return "" if close else "another answer"

    def strided(call: Callable[..., Any]) -> str:
        other = sample.map(lambda t: t.transpose(0, -1).contiguous().transpose(0, -1))
        with torch.no_grad():
            return same(answers(call, other))

    def modes(call: Callable[..., Any]) -> str:
        with torch.inference_mode():
            first = same([tensor.clone() for tensor in answers(call, sample.clone())])
        with torch.enable_grad():
            return first or same(answers(call, sample.clone()))

    def thread(call: Callable[..., Any]) -> str:
        found: list[str] = []

        def work() -> None:
            try:
                with torch.no_grad():
                    found.append(same(answers(call, sample.clone())))
            except Exception as error:  # foreign code: the engine's
                found.append(f"{type(error).__name__}: {error}")

        worker = threading.Thread(target=work)
        worker.start()
        worker.join()
        return found[0]

    def elsewhere(call: Callable[..., Any]) -> str:
        """Only programs that bind addresses, or check their inputs, can tell; eager raises by itself."""
        try:
            with torch.no_grad():
                call(*sample.to("cpu").args, **sample.to("cpu").kwargs)
        except (ValueError, RuntimeError):
            return ""
        return "inputs of the CPU were taken"

    yield "other strides", strided
    yield "grad modes", modes
    yield "another thread", thread
    if candidate.device.type != "cpu":
        yield "inputs elsewhere", elsewhere


# --- timer

DELAYS_MS = (0.05, 0.5, 0.9, 1.0, 5.0)
PLANTED = 0.05


MakeCall = Callable[[float], tuple[Callable[[Any], None], float]]


def busy_call(device: str) -> MakeCall:
    """``busy_call(device)(ms)`` is a call that keeps the device busy for about so long, and for how long: on the CPU by
    the clock; on CUDA by products, timed by events while the queue is full, which is not how the timer takes time."""
    if device == "cpu":

        def spinning(ms: float) -> tuple[Callable[[Any], None], float]:
            def call(_: Any) -> None:
                ends = time.perf_counter_ns() + int(ms * 1e6)
                while time.perf_counter_ns() < ends:
                    pass

            return call, ms

        return spinning
    a = torch.randn(512, 512, device=device)
    out = torch.empty_like(a)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(a, a, out=out)

    products(2000)  # until the clocks have risen
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    products(2000)
    end.record()
    torch.cuda.synchronize()
    one_ms = start.elapsed_time(end) / 2000

    def working(ms: float) -> tuple[Callable[[Any], None], float]:
        count = max(1, round(ms / one_ms))
        return lambda _: products(count), count * one_ms

    return working


class Here:
    """A runner of this process."""

    def __init__(self, name: str, call: Callable[..., Any], device: str) -> None:
        self.name, self.call, self.device = name, call, device

    def turn(self, passes: int) -> Any:
        return take_turn(self.call, SAMPLES, passes, device=self.device)


SAMPLES = [Inputs((0,))]


def timer(device: str) -> Iterator[Row]:
    """Known delays come out as they are, short or long; equal things as equal, and a planted 5 % is found."""
    make = busy_call(device)
    for wanted_ms in DELAYS_MS:
        call, known_ms = make(wanted_ms)
        bound_ms = 0.1 * known_ms + 0.03
        yield attempt(
            f"a call of {known_ms:.3g} ms",
            "within 10 % and 0.03 ms, the cost of launching and waiting",
            known_delay,
            call,
            known_ms,
            bound_ms,
            device,
        )
    yield attempt("the same against itself", "neither is called faster", raced, make, 0.0, device)
    yield attempt("5 % planted", "found", raced, make, PLANTED, device)


def known_delay(call: Callable[[Any], None], known_ms: float, bound_ms: float, device: str) -> tuple[bool, str]:
    warmed = warm(call, SAMPLES, device=device)
    turn = take_turn(call, SAMPLES, choose_passes(warmed.pass_ms), device=device)
    return abs(turn.pass_ms - known_ms) <= bound_ms, f"{turn.pass_ms:.4g} ms"


def raced(
    make: Callable[[float], tuple[Callable[[Any], None], float]], planted: float, device: str
) -> tuple[bool, str]:
    (plain, plain_ms), (slower, slower_ms) = make(2.0), make(2.0 * (1 + planted))
    criterion = Criterion(process_bias=0.0)
    result = compare(
        Here("slower", slower, device), Here("plain", plain, device), budget_s=8.0, seed=0, criterion=criterion
    )
    found = result.entry("plain").speedup_x
    assert found is not None
    figure = f"{found.median:.3f} x ({found.low:.3f} to {found.high:.3f}), made {slower_ms / plain_ms:.3f} x"
    return criterion.faster(found) is bool(planted), figure


# --- memory


def memory(device: str) -> Iterator[Row]:
    """What is known to be held and to be worked in is what is measured."""
    yield attempt(
        "64 MiB held, 64 MiB in a call",
        "idle 64 to 96 MiB; peak 60 to 100 MiB; torch's allocator 64 MiB to 0.1 %",
        known_memory,
        device,
    )
    if device == "cuda":
        yield attempt("NVML knows this process", "at least what torch reserved", own_memory)


def known_memory(device: str) -> tuple[bool, str]:
    warming = torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)  # cuBLAS takes its workspace
    mark = mark_memory(device)
    weights = torch.ones(64 * MIB // 4, device=device)
    found = measure_footprint(lambda _: weights * 2, SAMPLES, mark, device=device)
    del warming
    idle, peak, exact = found.idle_bytes / MIB, found.peak_bytes / MIB, (found.allocator_peak_bytes or 0) / MIB
    right = 64 <= idle <= 96 and 60 <= peak <= 100 and 64 <= exact <= 64.064
    return right, f"idle {idle:.0f}, peak {peak:.0f}, allocator {exact:.4f} MiB"


def own_memory() -> tuple[bool | None, str]:
    gpu = nvml.read_gpu()
    if gpu is None or gpu.own_bytes is None:
        return None, nvml.why_not() or "process numbers are the host's here (a container): memory is the whole device's"
    reserved = torch.cuda.memory_reserved()
    return gpu.own_bytes >= reserved, f"{gpu.own_bytes / MIB:.0f} MiB, of which torch reserved {reserved / MIB:.0f}"


# --- numerics


def numerics(device: str) -> Iterator[Row]:
    """The truth of the device is the CPU's; TensorFloat-32 is seen; 16 bits are never exact."""
    for name in MODULES:
        yield attempt(f"float64 of {name}", "1e-9 of the CPU's", same_truth, name, device)
    yield attempt("TensorFloat-32 of convolutions", "seen where the flags say it", tf32_seen, device)
    for half in ("fp16", "bf16"):
        yield attempt(f"{half} by a cast", "never exact", never_exact, half, device)


def same_truth(name: str, device: str) -> tuple[bool, str]:
    here, there = (subject_of(name, where)[1] for where in (device, "cpu"))
    pairs = [pair for one, other in zip(here.truth, there.truth, strict=True) for pair in zip(one, other, strict=True)]
    worst = max(float((a - b).norm() / b.norm()) for a, b in pairs)
    return worst <= 1e-9 and here.facts.precision == "float64", f"{worst:.1e}, truth in {here.facts.precision}"


def tf32_seen(device: str) -> tuple[bool | None, str]:
    operators = tf32_operators(device)
    if not operators:
        return None, "no operator rounds to TensorFloat-32 on this device"
    units = subject_of("convolutions", device)[1].facts.tf32_units
    return units > MAX_UNITS, f"eager's own error is {units:,.0f} x that of IEEE float32 ({', '.join(operators)})"


def never_exact(half: str, device: str) -> tuple[bool | None, str]:
    candidate, truth = subject_of("convolutions", device)
    approximate = technique(half)
    if isinstance(refusal := approximate.applies(candidate.facts), Refuses):
        return None, refusal.reason
    call = approximate.apply(candidate, {"how": "cast"}).runnable()
    limit = limit_units(exact=approximate.exact, tf32_units=truth.facts.tf32_units)
    report = verify(call, truth, candidate.samples, candidate.signature, seed=0, max_units=limit)
    return not report.faithful and not report.problems, f"{report.units:,.0f} units"


# --- tests


def tests(device: str) -> Iterator[Row]:
    """The tests that need a device."""
    if device == "cpu":
        yield row("pytest -m gpu", None, "they need a CUDA device")
        return
    yield attempt("pytest -m gpu", "all pass", marked_tests)


def marked_tests() -> tuple[bool | None, str]:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, file=sys.stderr)
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    return None if done.returncode == 5 else done.returncode == 0, last


# --- tune

NET = """
import torch
from torch import nn

def subject():
    torch.manual_seed(0)
    layers = []
    for _ in range({blocks}):
        layers += [nn.Conv2d({width}, {width}, 3, padding=1), nn.BatchNorm2d({width}), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), torch.randn(1, {width}, {size}, {size})
"""


def tune(device: str) -> Iterator[Row]:
    """A whole study: never slower, right, saved, and the same again in a fresh process."""
    forms = {"cpu": {"blocks": 3, "width": 16, "size": 32}, "cuda": {"blocks": 20, "width": 64, "size": 56}}
    seconds = {"cpu": 25, "cuda": 90}[device]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "net.py").write_text(NET.format(**forms[device]), encoding="utf-8")
        subjects = {"own file, a convolutional net at batch 1": f"{folder}/net.py:subject"}
        if device == "cuda":
            subjects |= {"timm:resnet50": "timm:resnet50"}
        for name, subject in subjects.items():
            yield attempt(name, "at least 1 x, proven", tuned, subject, device, seconds, folder)


def tuned(subject: str, device: str, seconds: int, folder: str) -> tuple[bool | None, str]:
    if subject.startswith("timm:") and not has("timm"):
        return None, "timm is not installed"
    out = f"{folder}/{abs(hash(subject))}.togi"
    command = [sys.executable, "-m", "togi", "tune", subject, "--device", device, "--time-limit", f"{seconds}s"]
    command += ["--out", out, "--json", "--journal", f"{out}.journal", "--seed", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stderr, file=sys.stderr)
    document = json.loads(done.stdout)
    chosen = [trial for trial in document["trials"] if trial["chosen"] and trial["speedup_x"]]
    if done.returncode != 0 or not chosen:
        return False, f"exit code {done.returncode}: {document['verdict']}"
    speedup = chosen[-1]["speedup_x"]
    interval = f"{speedup['median']:.2f} x ({speedup['low']:.2f} to {speedup['high']:.2f})"
    return speedup["median"] >= 0.99, f"{interval}: {chosen[-1]['recipe']['label']}"


def has(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None


# --- ops


def operations(device: str) -> Iterator[Row]:
    """``togi.ops`` decides as on the CPU; ``togi.lean`` keeps its budget and its answer."""
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(20_000, 2, generator=generator) * 900
    anchors = torch.cat([corners, corners + 20 + torch.rand(20_000, 2, generator=generator) * 100], 1)
    boxes, scores = anchors[::101].clone() + 3, torch.rand(4000, generator=generator)
    calls: dict[str, Callable[[str], Any]] = {
        "match_boxes": lambda on: ops.match_boxes(anchors.to(on), boxes.to(on), thresholds=(0.3, 0.7)),
        "box_giou": lambda on: ops.box_giou(anchors[:4000].to(on), boxes.to(on)),
        "nms": lambda on: ops.nms(anchors[:4000].to(on), scores.to(on), 0.5),
    }
    for name, call in calls.items():
        yield attempt(f"ops.{name}", "equal to the plain kernels of the CPU", same_decision, call, device)
    yield attempt("lean", "the budget of 16 MiB, the same values", leaned, device)


def same_decision(call: Callable[[str], Any], device: str) -> tuple[bool, str]:
    backend = ops.backend(device).name
    found = flat(call(device))
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "tiled"
    try:
        expected = flat(call("cpu"))
    finally:
        os.environ.pop(VARIABLE)
        os.environ.update({} if before is None else {VARIABLE: before})
    equal = all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))
    return equal, f"{backend} against plain torch: {'equal' if equal else 'different'}"


def flat(result: Any) -> list[Tensor]:
    return [one for one in result if one is not None] if isinstance(result, tuple) else [result]


def leaned(device: str) -> tuple[bool, str]:
    from togi import lean
    from togi.tiling.peak import peak_bytes

    def nearest(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, None] - b[None]).abs().sum(-1).amin(1)

    a, b = torch.randn(4096, 8, device=device), torch.randn(4096, 8, device=device)
    streamed = lean(nearest, memory="16MiB")
    found = streamed(a, b)
    peak = peak_bytes(lambda: streamed(a, b), device)
    close = torch.allclose(found, nearest(a, b), rtol=1e-5, atol=1e-5)
    return close and peak <= 16 * MIB, f"{peak / MIB:.1f} MiB, {'equal' if close else 'different'}"


# --- graphs

REQUESTS = 1000
SHARE_OF_SPEED, SHARE_OF_MEMORY = 0.9, 0.25
"""Of an exact graph for each size, which is what a graph for each size takes."""


def text_lengths(count: int) -> list[int]:
    """Words of paragraphs of Python's own documentation, drawn at random."""
    paragraphs = [part.split() for text in topics.values() for part in text.split("\n\n") if part.strip()]
    return random.Random(0).choices([len(words) for words in paragraphs], k=count)


class Tagger(nn.Module):
    """Reads a sequence of tokens; padding is masked."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        self.projections = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden, seen = self.embedding(ids), mask.bool()[None, None]
        for project in self.projections:
            query, key, value = project(hidden).unflatten(-1, (3, 4, -1)).permute(1, 2, 0, 3)
            attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
            hidden = self.norm(hidden + attended.transpose(0, 1).flatten(1))
        return self.head(hidden)


def graph_requests(device: str) -> Iterator[Row]:
    """``togi.graphs`` on 1,000 requests of a text's own lengths; on the CPU with the recorder, which has no speed."""
    lengths = text_lengths(REQUESTS)
    yield attempt("the choice of 32 buckets", "under 1 s", chosen_buckets, lengths)
    yield attempt(
        "1,000 requests", "equal to eager, all but those above replayed, within the memory", served, lengths, device
    )
    some = lengths[:20]
    yield attempt("gradients of 20 requests", "accumulated as in eager, none overwritten", trained, some, device)
    yield attempt("20 results that are lent", "equal to eager, and an error after their block", lent, some, device)
    yield attempt(
        "against an exact graph per size",
        f"at least {SHARE_OF_SPEED:.0%} of the speed at {SHARE_OF_MEMORY:.0%} of the memory",
        against_exact,
        lengths,
        device,
    )


def chosen_buckets(lengths: list[int]) -> tuple[bool, str]:
    calls = Counter(lengths)
    began = time.monotonic()
    buckets = choose_buckets(calls, 32)
    seconds = time.monotonic() - began
    real = sum(lengths)
    figure = f"{padding(calls, buckets) / real:.1%} padding for {len(calls)} sizes in {seconds:.3f} s"
    return seconds < 1, figure


def request(n: int, device: str) -> tuple[Tensor, Tensor]:
    ids = torch.arange(n, device=device) * 7 % 1000
    return ids, torch.ones(n, device=device)


def capture_tagger(lengths: list[int], device: str, **options: Any) -> tuple[Tagger, graphs.CapturedFunction]:
    torch.manual_seed(0)
    model = Tagger(*((256, 6) if device == "cuda" else (32, 2))).to(device).eval()
    pool = graphs.Pool("2GiB", graphs.Recorder() if device == "cpu" else None)
    samples = [request(n, device) for n in (4, max(lengths))]
    return model, graphs.capture(model, samples, sizes=lengths, memory=pool, **options)


@torch.no_grad()
def served(lengths: list[int], device: str) -> tuple[bool, str]:
    model, captured = capture_tagger(lengths, device, limit=16)
    wrong = 0
    for n in lengths:
        given = request(n, device)
        wrong += not torch.allclose(captured(*given), model(*given), rtol=1e-3, atol=1e-4)
    plan = captured.plan()
    unserved = sum(captured.calls.values()) - captured.calls["replayed"]
    figure = f"{wrong} wrong, {unserved} in eager ({len(plan.eager)} buckets), {str(plan).splitlines()[0]}"
    slow = sum(reason.startswith("a graph was not faster") and n for reason, n in captured.calls.items())
    return not wrong and unserved == slow and plan.held_bytes <= plan.memory_bytes, figure


def trained(lengths: list[int], device: str) -> tuple[bool, str]:
    """The first gradient of the first weight is kept and compared at the end: a later replay must not write there."""
    model, captured = capture_tagger(lengths, device, limit=4, gradients=True)
    plain = copy.deepcopy(model)
    kept = []
    for call, owner in ((captured, model), (plain, plain)):
        for n in lengths:
            call(*request(n, device)).square().mean().backward()
            if not kept:
                gradient = owner.head.weight.grad
                kept = [gradient, gradient.clone()]
                owner.head.weight.grad = gradient.clone()
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    wrong = sum(not torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-5) for a, b in pairs)
    overwritten = not torch.equal(*kept)
    return not (wrong or overwritten), f"{wrong} wrong, {captured.calls['replayed']} of {len(lengths)} replayed"


@torch.no_grad()
def lent(lengths: list[int], device: str) -> tuple[bool, str]:
    model, captured = capture_tagger(lengths, device, limit=4)
    wrong = silent = 0
    for n in lengths:
        given = request(n, device)
        before = captured.calls["replayed"]
        with captured.lend(*given) as found:
            wrong += not torch.allclose(found, model(*given), rtol=1e-3, atol=1e-4)
        with contextlib.suppress(RuntimeError):
            found.sum()
            silent += captured.calls["replayed"] > before
    return not (wrong or silent), f"{wrong} wrong, {silent} in silence, {captured.calls['replayed']} lent"


@torch.no_grad()
def against_exact(lengths: list[int], device: str) -> tuple[bool | None, str]:
    if device == "cpu":
        return None, "a recorder has no speed and no memory"
    model, buckets = capture_tagger(lengths, device, limit=16)
    exact = CudaGraphs(lambda *given: [model(*given)], limit=REQUESTS)
    torch.cuda.empty_cache()
    free = free_bytes()
    for n in sorted(set(lengths), reverse=True):
        exact.recording(request(n, device))
    torch.cuda.empty_cache()
    exact_bytes = free - free_bytes()
    inputs = [Inputs(request(n, device)) for n in lengths[:200]]
    buckets_ms, exact_ms = (take_turn(call, inputs, 5, device=device).pass_ms for call in (buckets, exact))
    speed, memory_share = exact_ms / buckets_ms, buckets.plan().held_bytes / max(1, exact_bytes)
    return speed >= SHARE_OF_SPEED and memory_share <= SHARE_OF_MEMORY, f"{speed:.0%} of the speed, {memory_share:.0%}"


PARTS = {
    "environment": environment,
    "processes": processes,
    "engines": engines,
    "timer": timer,
    "memory": memory,
    "numerics": numerics,
    "tests": tests,
    "tune": tune,
    "ops": operations,
    "graphs": graph_requests,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(json.dumps(row("the device", False, f"torch {torch.__version__} sees no CUDA device here")))
        return
    for found in PARTS[options.part](options.device):
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
