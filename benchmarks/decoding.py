"""A decoder's step with its cache outside and inside of OpenVINO, by the number of rows and the length of the cache.

    python -m benchmarks.decoding [--json benchmarks/data/decoding.json]

The GPT-2-like model of ``program_subjects.py`` (23 million weights, 6 layers), whose step is given a cache and returns
it one token longer. All three take turns of sixteen steps that follow one another, in one process; ``error`` is the
largest difference from eager's scores over a turn.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.rows import measured_here, measured_on, put_rows
from torch import Tensor

from togi.core.records import Choice, Recipe, Scalar, Stage
from togi.graph.candidate import FlatProgram
from togi.subject.effects import Effects
from togi.subject.inputs import Inputs, Subject
from togi.subject.pure import Pure
from togi.techniques.build import build, first_candidate
from togi.worker.survey import survey

STEPS, TURNS = 16, 9
CASES = ((1, 64), (1, 400), (4, 64), (4, 400))


@dataclass
class Row:
    """Medians, in ms a step."""

    case: str
    eager_ms: float
    outside_ms: float
    inside_ms: float
    error: float
    measured: str = field(default_factory=measured_here)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for count, length in CASES:
        rows.append(asdict(_measured(count, length)))
        if options.json:
            put_rows(options.json, rows, "case")
    print(table(rows))


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| rows, cache | eager | cache outside | cache inside | over outside | error |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row['case']} | {row['eager_ms']:.1f} | {row['outside_ms']:.1f} | {row['inside_ms']:.1f} | "
        f"{row['outside_ms'] / row['inside_ms']:.2f} x | {row['error']:.1e} |"
        for row in rows
    ]
    return "\n".join([*lines, "", measured_on(rows)])


def _measured(count: int, length: int) -> Row:
    sys.path.insert(0, str(Path(__file__).parent))
    import program_subjects

    model = program_subjects._gpt2()
    samples = [_step(model, count, size) for size in (length, length + STEPS)]
    with torch.no_grad():
        effects, _ = Effects.of(model, samples[0].clone())
    subject = Subject(Pure(model, effects), samples)
    found = survey(subject)
    start = first_candidate(subject, found.facts, found.signature)
    first = start.flat_samples()[0]
    recipes: tuple[dict[str, Scalar], ...] = ({}, {"stateful": True})
    programs = [build(Recipe(choices=(_openvino(options),)), start).program for options in recipes]
    module = start.flat()
    ways: list[Callable[[list[Tensor]], Sequence[Tensor]]] = [lambda given: module(*given)]
    for program in programs:
        assert isinstance(program, FlatProgram)
        ways.append(program.run)
    places = _cache_places(found.signature)
    times: list[list[float]] = [[] for _ in ways]
    answers: list[list[Tensor]] = [[] for _ in ways]
    with torch.inference_mode():
        for turn in range(TURNS):
            for number, way in enumerate(ways):
                times[number].append(_turn(way, first, places, answers[number] if turn == 0 else []))
    error = max(float((a - b).abs().max()) for a, b in zip(answers[0], answers[2], strict=True))
    medians = [statistics.median(each) for each in times]
    return Row(f"{count}, {length}", *medians, error)


def _openvino(options: dict[str, Scalar]) -> Choice:
    return Choice(technique="openvino", stage=Stage.ENGINE, options=options)


def _step(model: Any, rows: int, length: int) -> Inputs:
    """A step after ``length`` tokens; in all rows but the first the oldest five are padding."""
    from transformers import DynamicCache

    tokens, mask = torch.randint(3, 8192, (rows, length)), torch.ones(rows, length + 1, dtype=torch.long)
    mask[1:, :5] = 0
    names = inspect.signature(model.forward).parameters
    cache = {next(name for name in ("cache", "past_key_values") if name in names): DynamicCache()}  # since 5.24, before
    with torch.no_grad():
        model(input_ids=tokens, attention_mask=mask[:, :-1], use_cache=True, **cache)
    return Inputs(
        (),
        {
            "input_ids": tokens[:, :1],
            "attention_mask": mask,
            "position_ids": torch.full((rows, 1), length),
            **cache,
            "use_cache": True,
            "return_dict": True,
        },
    )


def _cache_places(signature: Any) -> tuple[dict[int, int], int]:
    """Which output is which input of the next step; and which input is the mask."""
    caches = [number for number, facts in enumerate(signature.inputs_facts) if len(facts.shape) == 4]
    grown = [number for number, facts in enumerate(signature.outputs_facts) if len(facts.shape) == 4]
    (mask,) = (number for number, facts in enumerate(signature.inputs_facts) if facts.name.startswith("attention"))
    return dict(zip(grown, caches, strict=True)), mask


def _turn(
    way: Callable[[list[Tensor]], Sequence[Tensor]],
    first: list[Tensor],
    places: tuple[dict[int, int], int],
    answers: list[Tensor],
) -> float:
    """ms a step, the first, which brings the cache, apart."""
    caches, mask = places
    given, began = list(first), 0.0
    for number in range(STEPS + 1):
        if number == 1:
            began = time.perf_counter()
        found = way(given)
        for output, place in caches.items():
            given[place] = found[output]
        given[mask] = torch.cat([given[mask], given[mask][:, -1:]], dim=1)
        answers.append(found[0].clone())
    return (time.perf_counter() - began) / STEPS * 1e3


if __name__ == "__main__":
    main()
