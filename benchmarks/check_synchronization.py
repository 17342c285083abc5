"""Synchronisations of a GPU that are found without one, and the cost of watching.

    python -m benchmarks.check_synchronization              the tables of benchmarks/README.md
    python -m benchmarks.check_synchronization --only "training"    programs whose name contains it
    python -m benchmarks.check_synchronization --misses     also every line that was missed or wrongly reported

The programs are those of tests/lint/trace/programs, whose lines are marked where the host waits for the GPU. Two ways
are compared: *substitution* (what togi does: real CPU tensors that say they are CUDA tensors) and *fake tensors*
(``FakeTensorMode`` with fake CUDA tensors; a value that is read is answered with 1, so that the run goes on). On a
machine with a GPU PyTorch's own debug mode is a third row. Each program runs in a forked child of its own, since fake
CUDA tensors can abort a process.

Overhead: a pass under watch over a plain one, taken in turns, median of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

from tests.lint.trace.synchronization_programs import Program, programs
from togi.lint.trace.check import debug_mode_events, trace_subject
from togi.lint.trace.recorder import EventRecorder
from togi.lint.trace.watching import mark_subject, watching
from togi.subject.prepare import Prepared, prepare

TIMEOUT_S = 60
Way = Callable[[Program], tuple[set[int], str]]
"""Lines found in a program, and why it ended early (empty when it did not)."""
ROUNDS = 7


@dataclass
class Score:
    """Lines, over all programs."""

    found: int = 0
    missed: int = 0
    wrong: int = 0
    failed: list[str] = field(default_factory=list)

    @property
    def recall(self) -> float:
        return self.found / max(self.found + self.missed, 1)

    @property
    def precision(self) -> float:
        return self.found / max(self.found + self.wrong, 1)


def by_substitution(program: Program) -> tuple[set[int], str]:
    trace = trace_subject(program.subject())
    ended = "" if trace.mode == "simulated" else trace.notes[-1]
    return program.lines_of(event for event in trace.events if event.waits), ended


class _Answered(TorchDispatchMode):
    """Above the fake mode: notes what fake tensors cannot answer, and answers a read with 1."""

    def __init__(self, recorder: EventRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            if args[0].device.type == "cuda":
                self._record(func)
            return 1.0 if args[0].dtype.is_floating_point else 1
        if _sized_by_values(func, args) or _blocking_copy(func, args, options):
            self._record(func)
        try:
            return func(*args, **options)
        except DataDependentOutputException:
            self._record(func)
            raise

    def _record(self, func: Any) -> None:
        self.recorder.record("wait", str(func), "fake tensors cannot answer", waits=True)


def _sized_by_values(func: Any, args: Any) -> bool:
    if func is torch.ops.aten.index.Tensor:
        return any(index is not None and index.dtype is torch.bool for index in args[1])
    return torch.Tag.dynamic_output_shape in func.tags


def _blocking_copy(func: Any, args: Any, options: Any) -> bool:
    device = options.get("device")
    if func is not torch.ops.aten._to_copy.default or device is None or options.get("non_blocking"):
        return False
    return torch.device(device).type != args[0].device.type


def by_fake_tensors(program: Program) -> tuple[set[int], str]:
    """Lines noted until the run ended or failed. A dynamic size becomes a symbol; where that cannot go on, it ends."""
    subject = program.subject()
    prepared = prepare(subject)
    recorder = EventRecorder()
    recorder.armed = True
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def faked(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_like(tensor, device="cuda").requires_grad_(tensor.requires_grad)

    for module in prepared.module.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = torch.nn.Parameter(faked(parameter.data), parameter.requires_grad)
        for name, buffer in list(module._buffers.items()):
            module._buffers[name] = None if buffer is None else faked(buffer)
    sample = prepared.samples[0].map(faked)
    try:
        with mode, _Answered(recorder):
            call(subject, prepared, sample)
    except Exception as failure:  # what fake tensors cannot do, raised in foreign code
        return program.lines_of(recorder.events), f"{type(failure).__name__}: {failure}".splitlines()[0]
    return program.lines_of(recorder.events), ""


def by_debug_mode(program: Program) -> tuple[set[int], str]:
    subject = program.subject()
    prepared = prepare(subject, device="cuda")
    call(subject, prepared, prepared.samples[0])
    with debug_mode_events() as events:
        call(subject, prepared, prepared.samples[0])
    return program.lines_of(events), ""


def call(subject: Any, prepared: Prepared, sample: Any) -> Any:
    if subject.step is not None:
        prepared.module.train(prepared.training)
        return subject.step(prepared.module, sample.args[0])
    with torch.no_grad():
        return prepared.module(*sample.args, **sample.kwargs)


def in_a_child(find: Way, program: Program) -> tuple[set[int], str]:
    """``find(program)`` in a forked child, with its last words when it fails, aborts or hangs."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        answer(find, program, writing)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        words = pipe.read()
    _, status = os.waitpid(pid, 0)
    if not words:
        return set(), f"the process ended with status {os.waitstatus_to_exitcode(status)}"
    lines, ended = json.loads(words)
    return set(lines), ended


def answer(find: Way, program: Program, writing: int) -> None:
    """The child's part; it never returns."""
    signal.alarm(TIMEOUT_S)
    warnings.simplefilter("ignore")
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            lines, ended = find(program)
        except BaseException:
            lines, ended = set(), traceback.format_exc(limit=-1).strip().splitlines()[-1]
    os.write(writing, json.dumps([sorted(lines), ended]).encode())
    os._exit(0)


def score(find: Way, chosen: Iterable[Program], *, misses: bool, seen_only: bool) -> Score:
    total = Score()
    for program in chosen:
        marked = program.waits - program.unseen if seen_only else program.waits
        lines, ended = in_a_child(find, program)
        if ended:
            total.failed.append(program.name)
        total.found += len(lines & marked)
        total.missed += len(marked - lines)
        total.wrong += len(lines - marked)
        if misses and (lines != marked or ended):
            print(f"  {program.name}: missed {sorted(marked - lines)}, wrong {sorted(lines - marked)} {ended[:200]}")
    return total


def overhead(name: str, subject: Any) -> str:
    """A table row: plain and watched time of one pass, and their ratio."""
    prepared = prepare(subject)
    sample = prepared.samples[0]
    mark_subject(prepared.module, prepared.samples)

    def timed() -> float:
        started = time.perf_counter()
        call(subject, prepared, sample)
        return time.perf_counter() - started

    recorder = EventRecorder()
    recorder.armed = True
    plain, watched = [], []
    timed()
    for _ in range(ROUNDS):
        plain.append(timed())
        with watching(recorder, simulated=True):
            watched.append(timed())
    ratio = statistics.median(w / p for w, p in zip(watched, plain, strict=True))
    before, after = statistics.median(plain), statistics.median(watched)
    return f"| {name} | {1e3 * before:.1f} | {1e3 * after:.1f} | {ratio:.2f} |"


def overhead_subjects() -> Iterable[tuple[str, Any]]:
    import timm

    import togi

    torch.manual_seed(0)
    yield "resnet50, 1 x 3 x 176 x 176", togi.Subject(timm.create_model("resnet50").eval(), torch.randn(1, 3, 176, 176))
    vit = timm.create_model("vit_tiny_patch16_224").eval()
    yield "vit_tiny, 1 x 3 x 224 x 224", togi.Subject(vit, torch.randn(1, 3, 224, 224))
    small = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(100))).eval()
    yield "100 layers of 8 x 8 (no work in each)", togi.Subject(small, torch.randn(1, 8))


def row(name: str, total: Score) -> str:
    failed = len(total.failed)
    return (
        f"| {name} | {total.found} | {total.missed} | {total.wrong} | {total.recall:.3f} | {total.precision:.3f} "
        f"| {failed} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--misses", action="store_true", help="print every line missed or wrongly reported")
    parser.add_argument("--skip-overhead", action="store_true")
    parser.add_argument("--only-overhead", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.only_overhead:
        print_scores(options)
    if not options.skip_overhead:
        print_overheads()


def print_scores(options: argparse.Namespace) -> None:
    chosen = [program for program in programs() if options.only in program.name]
    marked = sum(len(program.waits) for program in chosen)
    silent = sum(1 for program in chosen if not program.waits)
    print(f"{len(chosen)} programs, {silent} of them without a synchronisation; {marked} marked lines\n")
    print(
        "| way | found | missed | wrongly reported | recall | precision | programs that failed or ended early |\n"
        + "|---" * 7
        + "|"
    )
    ways: dict[str, Way] = {
        "substitution (togi)": by_substitution,
        "fake CUDA tensors, reads answered": by_fake_tensors,
    }
    for name, find in ways.items():
        print(row(name, score(find, chosen, misses=options.misses, seen_only=False)), flush=True)
    if torch.cuda.is_available():
        print(row("debug mode on this GPU", score(by_debug_mode, chosen, misses=options.misses, seen_only=True)))


def print_overheads() -> None:
    print("\n| subject | plain, ms | watched, ms | factor |\n" + "|---" * 4 + "|")
    for name, subject in overhead_subjects():
        print(overhead(name, subject), flush=True)


if __name__ == "__main__":
    main()
