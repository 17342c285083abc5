"""Every engine that can be built here: right, and right in every use that is not the first.

All options of each engine on one module; on the others its last, as compilers take seconds for each.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu_parts.modules import MODULES, subject_of
from benchmarks.gpu_parts.row import Row, attempt
from torch import Tensor

from togi.core.errors import Refused
from togi.decide.faithful import limit_units
from togi.graph.candidate import Candidate
from togi.machine.limits import read_text
from togi.subject.inputs import Inputs
from togi.techniques import Refuses, all_techniques
from togi.techniques.base import Engine, Options
from togi.verify.truth import Truth
from togi.verify.verdict import verify

ALL_OPTIONS_ON = "convolutions"


def rows(device: str) -> Iterator[Row]:
    """Every engine on four modules: right, its outputs fresh, on other strides, in other grad modes, in another thread,
    and loaded again from its files."""
    for name in MODULES:
        candidate, truth = subject_of(name, device)
        bound = f"at most {limit_units(exact=True, tf32_units=truth.facts.tf32_units):.3g} units"
        for engine in quick_first(device):
            tried = list(engine.options(candidate.facts))
            for options in tried if name == ALL_OPTIONS_ON else tried[-1:]:
                told = f" ({', '.join(f'{key}={value}' for key, value in options.items())})" if options else ""
                row = f"{engine.id}{told} on {name}"
                yield attempt(row, bound, engine_on, engine, options, candidate, truth, proves=(engine.id,))


def quick_first(device: str) -> list[Engine]:
    """Those that compile nothing, so that a limit cuts off as few as it can."""
    found = [one for one in all_techniques().values() if isinstance(one, Engine) and device in one.devices]
    return sorted(found, key=lambda one: one.inductor)


def engine_on(engine: Engine, options: Options, candidate: Candidate, truth: Truth) -> tuple[bool | None, str]:
    if missing := next((what for package in engine.packages if (what := package.missing())), None):
        return None, missing
    if isinstance(refusal := engine.applies(candidate.facts), Refuses):
        return None, refusal.reason
    if engine.native:
        print(f"C++ runtimes in this process: {', '.join(cpp_runtimes())}", file=sys.stderr, flush=True)
    torch.compiler.reset()  # else what the options before compiled counts for the limit on compilations
    try:
        built = engine.apply(candidate, options)
    except Refused as refused:
        return None, str(refused)
    call = built.runnable()
    report = verify(call, truth, candidate.samples, candidate.signature, seed=0, exact=True)
    problems = list(report.problems)
    for what, run in uses(candidate):
        problems += [f"{what}: {found}"] if (found := run(call)) else []
    figure = f"{report.units:.2g} units"
    if built.program is not None:
        loaded = saved_and_loaded(engine, built, candidate)
        again = verify(loaded, truth, candidate.samples, candidate.signature, seed=0, exact=True)
        problems += [f"loaded: {problem}" for problem in again.problems]
        problems += [] if again.faithful else [f"loaded: {again.units:.3g} units"]
    return report.faithful and not problems, "; ".join([figure, *problems])


def cpp_runtimes() -> list[str]:
    """Of which several, or an old one, crash code that is compiled here: programs of AOTInductor did, on a GPU, in
    ``std::regex`` (pytorch #22447)."""
    lines = (line.split(maxsplit=5)[5:] for line in read_text(Path("/proc/self/maps")).splitlines())
    return sorted({place[0] for place in lines if place and "libstdc++" in place[0]})


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

    def elsewhere(_: Callable[..., Any]) -> str:
        """Asked of the signature, as each call of an artifact does: AOTInductor's programs believe their caller, and
        end the process where a pointer is the host's."""
        there = sample.to("cpu")
        try:
            signature.checked(there.args, there.kwargs)
        except (TypeError, ValueError):
            return ""
        return "inputs of the CPU were taken"

    yield "other strides", strided
    yield "grad modes", modes
    yield "another thread", thread
    if candidate.device.type != "cpu":
        yield "inputs elsewhere", elsewhere
