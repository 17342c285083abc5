"""Does an artifact answer every call that it takes as the original does? Drawn modules, all engines, wild values.

    python -m benchmarks.right [--seed 0] [--count 200] [--calls 1000] [--engines openvino,...] [--json FILE]
        [--tests FOLDER]

Each module is built by force in each engine, saved as a study saves it (with what was found beyond the sample) and
loaded. Then calls with values that the sample does not show are made of both: what the artifact refuses, and what the
original raises on, needs no answer; all else has to be right. Values are drawn by other code than that with which togi
asks. 200 modules take about an hour on two cores.

The exit code is 1 where an answer is wrong. Each such module is shrunk to a test (``right_shrink``), which is printed.

A difference is no fault where the original itself moves as much when its weights and inputs move by a rounding.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.right_modules import Drawn, drawn, other
from benchmarks.right_shrink import Fault, as_test, shrunk
from torch import Tensor, nn

from tests.artifact.artifact_maker import ArtifactMaker
from togi.artifact.load import load
from togi.core.errors import NotSaveable, Refused
from togi.core.records import Outcome
from togi.decide.faithful import accept
from togi.subject.inputs import Inputs, Subject
from togi.subject.prepare import prepare
from togi.techniques import recipe, technique
from togi.techniques.build import StepFailed, build
from togi.verify.derived_inputs import variants
from togi.verify.float64 import float64_arithmetic, nudged, nudged_inputs, widened, widened_inputs
from togi.verify.reference import make_truth
from togi.verify.verdict import verify
from togi.worker.supervise import ASKED_S

ENGINES = ("openvino", "onnxruntime", "torchscript", "torch_compile", "aot_inductor")
_NUDGES = 8
_APART = {torch.float32: 1e-3, torch.float64: 1e-9}
"""Share of the largest number up to which two answers are one; above, the original is asked how far it moves."""

Call = Callable[..., Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tests", type=Path, help="an existing folder, into which the tests are written too")
    parser.add_argument("--here", action="store_true", help="in this process, a line of JSON for each artifact")
    given = parser.parse_args()
    engines = given.engines.split(",")
    if given.here:
        for number in range(given.seed, given.seed + given.count):
            for engine in engines:
                print(json.dumps(answers(number, engine, given.calls)), flush=True)
        return 0
    found = list(_in_processes(given.seed, given.count, engines, given.calls))
    print(table(found, engines))
    wrong = [row for row in found if row["end"] == "wrong answers"]
    for row in wrong:
        print(f"WRONG seed {row['seed']} ({row['module']}) in {row['engine']}: {row['wrong']} of {row['taken']}")
        print(row["test"])
        if given.tests:
            (given.tests / f"test_seed_{row['seed']}_{row['engine']}.py").write_text(row["test"], encoding="utf-8")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 1 if wrong else 0


def _in_processes(seed: int, count: int, engines: list[str], calls: int) -> Iterator[dict[str, Any]]:
    """A process for each engine of a module: what crashes ends itself alone. Some seconds each."""
    for number in range(seed, seed + count):
        for engine in engines:
            command = [sys.executable, "-m", "benchmarks.right", "--here", "--count", "1"]
            command += ["--seed", str(number), "--engines", engine, "--calls", str(calls)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            row = json.loads(lines[-1]) if lines else None
            yield row or {"seed": number, "engine": engine, "end": f"ended with {done.returncode}"}


def answers(seed: int, engine: str, calls: int) -> dict[str, Any]:
    """What became of one module in one engine; where an answer is wrong, with a test that shows it."""
    warnings.simplefilter("ignore")
    case = drawn(seed)
    row: dict[str, Any] = {"seed": seed, "engine": engine, "module": case.name}
    with tempfile.TemporaryDirectory() as folder:
        end, optimized = artifact(case, engine, Path(folder) / "drawn.togi")
        if optimized is None:
            return row | {"end": end}
        counts, first = compared(optimized, case, calls, seed)
    row |= {"bounds": optimized.signature.domains_in_words(), **counts}
    if first is None:
        return row | {"end": "right"}
    fault = Fault(seed=seed, engine=engine, given=first.given, exact=first.exact)
    return row | {"end": "wrong answers", "test": as_test(shrunk(fault, engine_of))}


def artifact(case: Drawn, engine: str, folder: Path) -> tuple[str, Any]:
    """The artifact of one engine, loaded, or how it ended before."""
    subject = Subject(case.module, Inputs(case.sample))
    maker = ArtifactMaker.of(subject, case.name)
    chosen = recipe(**{engine: dict(technique(engine).options(maker.facts)[0]), "no_grad": {}})
    samples, signature = maker.start.samples, maker.signature
    try:
        built = build(chosen, maker.start)
        inputs = variants(samples, signature, 0)
        truth = make_truth(prepare(subject).module, inputs, signature, seed=0, samples=len(samples))
        outcome, why = accept(verify(built.runnable(), truth, inputs, signature, seed=0), exact=True)
        if outcome is not Outcome.OK:
            return f"found wrong: {why}", None
        saved = maker.make_proven(folder, chosen, built, ASKED_S)
    except (Refused, NotSaveable, StepFailed) as refused:
        return f"refused: {refused.__cause__ or refused}"[:200], None
    if saved.wrong:
        return f"found wrong: {saved.wrong}", None
    return "", load(folder)


@dataclass(frozen=True)
class GivenCall:
    given: list[Tensor]
    exact: bool
    """Its values are meant as they are: roundings of them explain nothing."""


def engine_of(engine: str, case: Drawn) -> Callable[[list[Tensor], bool], bool] | None:
    """Whether the artifact of a module answers a call wrongly; None where there is no artifact."""
    with tempfile.TemporaryDirectory() as folder:
        _, optimized = artifact(case, engine, Path(folder) / "drawn.togi")
    if optimized is None:
        return None
    return lambda given, exact: judged(optimized, case.module, GivenCall(given, exact)) == "wrong"


def compared(optimized: Call, case: Drawn, calls: int, seed: int) -> tuple[collections.Counter[str], GivenCall | None]:
    """How many calls ended how, and the first that is wrong. What is wrong was taken."""
    rng, first = random.Random(seed + 1), None
    counts = collections.Counter(taken=0, refused=0, illegal=0, wrong=0)
    for _ in range(calls):
        made = [other(tensor, rng) for tensor in case.sample]
        call = GivenCall([tensor for tensor, _ in made], all(exact for _, exact in made))
        end = judged(optimized, case.module, call)
        counts[end] += 1
        if end == "wrong":
            counts["taken"] += 1
            first = first or call
    return counts, first


def judged(optimized: Call, module: nn.Module, call: GivenCall) -> str:
    """``illegal``: the original raises; ``refused``, ``taken``, ``wrong``."""
    try:
        with torch.no_grad():
            expected = module(*call.given)
    except Exception:  # foreign code: what it raises on is nobody's to answer
        return "illegal"
    try:
        found = optimized(*call.given)
    except Exception:  # foreign code: an engine that refuses answers nothing wrong
        return "refused"
    right = not differs(found, expected) or moves(module, call.given, expected, found, call.exact)
    return "taken" if right else "wrong"


def differs(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape or found.dtype is not expected.dtype:
        return True
    if not expected.is_floating_point():
        return not torch.equal(found, expected)
    if bool((found.isfinite() & ~expected.isfinite()).any()):
        return True
    return _apart(found, expected) > _APART[expected.dtype]


def _apart(found: Tensor, expected: Tensor) -> float:
    """Of what is finite in both, as a share of the largest number."""
    both = found.isfinite() & expected.isfinite()
    if not bool(both.any()):
        return 0.0
    largest = float(expected[both].abs().max().double())
    return float((found[both].double() - expected[both].double()).abs().max()) / max(largest, 1e-30)


def moves(module: nn.Module, given: list[Tensor], expected: Tensor, found: Tensor, exact: bool) -> bool:
    """Whether the original itself differs as much in float64, or where weights move by a rounding, and inputs that are
    not exact."""
    inputs = Inputs(tuple(given))
    for number in range(_NUDGES + 1):
        with torch.no_grad():
            if number == _NUDGES:
                with float64_arithmetic():
                    moved = widened(module)(*widened_inputs(inputs).args)
            else:
                moved = nudged(module, number)(*(inputs if exact else nudged_inputs(inputs, number)).args)
        if moved.shape != expected.shape or not expected.is_floating_point():
            if moved.shape != expected.shape or not torch.equal(moved, expected):
                return True
        elif (
            bool((moved.isfinite() != expected.isfinite()).any())
            or _apart(moved, expected) * 20 > _apart(found, expected) > 0
        ):
            return True
    return False


def table(found: list[dict[str, Any]], engines: list[str]) -> str:
    lines = ["| engine | artifacts | without bounds | refused | found wrong | calls taken | wrong answers |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for engine in engines:
        rows = [row for row in found if row["engine"] == engine]
        made = [row for row in rows if "taken" in row]
        lines.append(
            f"| {engine} | {len(made)} | {sum(not row['bounds'] for row in made)} "
            f"| {sum(row['end'].startswith('refused') for row in rows)} "
            f"| {sum(row['end'].startswith('found') for row in rows)} "
            f"| {sum(row['taken'] for row in made):,} | {sum(row['wrong'] for row in made):,} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
