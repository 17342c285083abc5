"""Every technique for CUDA that is no engine: right on the device, with each option, on the small model of its claim.

How fast it is there the part ``claims`` measures, on models of the device's size.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator

import torch
from benchmarks.gpu_parts.row import LIMITS, Row, attempt, ignore

from togi.claims.experiments import DEFAULT, EXPERIMENTS
from togi.core.errors import Refused
from togi.core.recipe import PARTS
from togi.core.records import ErrorReport, Facts, Outcome, Recipe
from togi.decide.faithful import accept
from togi.graph.candidate import Candidate
from togi.machine.describe import machine
from togi.subject.inputs import Subject
from togi.techniques import Refuses, all_techniques, recipe
from togi.techniques.base import Engine, Options, Technique
from togi.techniques.build import StepFailed, build, first_candidate
from togi.verify.reference import make_truth
from togi.verify.truth import Truth
from togi.verify.verdict import verify
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.survey import survey

MOST_ERROR = 0.03
"""Relative, of what is approximate: three times what 16 bits are allowed in the part ``tune``, since weights are random
here and nothing averages."""
_KNOWN: dict[str, tuple[Candidate, Truth]] = {}
"""By model: several techniques share one."""


def rows(device: str) -> Iterator[Row]:
    """Right with every option that can be built: up to rounding, or near where it is approximate by design."""
    for one in all_techniques().values():
        if {device, "cuda"} <= one.devices and not isinstance(one, Engine):
            limit = "as right as plain eager" if one.exact else f"relative error at most {MOST_ERROR:g}"
            yield attempt(f"{one.id}, every option", limit, checked, one, device, proves=(one.id,))
    yield attempt(f"{PARTS}, of a program", "as right as plain eager", of_parts, device, proves=(PARTS,))


def checked(one: Technique, device: str) -> tuple[bool | None, str]:
    if missing := next((what for package in one.packages if (what := package.missing())), None):
        return None, missing
    candidate, truth = _subject(EXPERIMENTS.get(one.id, DEFAULT).model, device)
    if isinstance(refusal := one.applies(candidate.facts), Refuses):
        return None, refusal.reason
    told: list[str] = []
    right = tried = 0
    for options in one.options(candidate.facts):
        name = ", ".join(f"{key}={value}" for key, value in options.items())
        report = _report(one, options, candidate, truth, device)
        if isinstance(report, str):
            told.append(f"{name} refused: {report}" if name else report)
            continue
        outcome, why = accept(report, exact=one.exact, max_error=MOST_ERROR)
        right, tried = right + (outcome is Outcome.OK), tried + 1
        figure = f"{report.units:.3g} units" if one.exact else f"relative error {report.rmse:.1e}"
        told.append(f"{name} {figure}".strip() + (f" ({why})" if outcome is not Outcome.OK else ""))
    return (right == tried if tried else None), "; ".join(told)


def _subject(model: str, device: str) -> tuple[Candidate, Truth]:
    if model not in _KNOWN:
        began = time.monotonic()
        torch.manual_seed(0)
        module, sample = getattr(importlib.import_module("togi.claims.formulas.models"), model)()
        subject = Subject(module, [(sample,), (sample * 0.5,)])
        found = survey(subject, device=device, machine=machine(device))
        candidate = first_candidate(subject, found.facts, found.signature)
        surveyed = time.monotonic()
        _KNOWN[model] = (
            candidate,
            make_truth(candidate.module, candidate.samples, found.signature, seed=0, samples=2, device=device),
        )
        took = f"surveyed in {surveyed - began:.1f} s, its truth made in {time.monotonic() - surveyed:.1f} s"
        print(f"{model}: {took}", file=sys.stderr, flush=True)
    return _KNOWN[model]


def _recipe(one: Technique, options: Options, facts: Facts) -> Recipe:
    """With what provides what it needs, and with its grad mode or plain no_grad."""
    others = all_techniques().values()
    provided = (next(each for each in others if need in each.provides) for need in sorted(one.needs))
    needed = {each.id: dict(next(iter(each.options(facts)))) for each in provided}
    grad_mode: dict[str, Options] = {} if "grad_mode" in one.provides else {"no_grad": {}}
    return recipe(**needed, **{one.id: options}, **grad_mode)


def _report(one: Technique, options: Options, candidate: Candidate, truth: Truth, device: str) -> ErrorReport | str:
    """How right it is; why not, where building it showed that it does not apply."""
    chosen = _recipe(one, options, candidate.facts)
    if one.environment(candidate.facts, options):
        return _in_a_process(chosen, EXPERIMENTS[one.id].locator, device)
    try:
        call = build(chosen, candidate).runnable()
    except StepFailed as failed:
        if isinstance(failed.__cause__, Refused):
            return str(failed.__cause__)
        raise
    return verify(call, truth, candidate.samples, candidate.signature, seed=0, exact=one.exact)


def _in_a_process(chosen: Recipe, locator: str, device: str) -> ErrorReport | str:
    """What must be set before a process starts."""
    with WorkerPool(SubjectRef.here("locator", locator), machine(device), device=device, seed=0) as pool:
        facts = pool.make_truth(pool.survey(LIMITS, ignore)[0].facts, LIMITS, ignore)
        with pool.start(chosen, facts, LIMITS, ignore) as running:
            return running.error or "it was not verified"


def of_parts(device: str) -> tuple[bool | None, str]:
    """As ``togi explain parts --prove``; whether it is faster is not asked here."""
    from togi.claims.prove import prove

    found = prove(PARTS, device=device)
    return found.right, found.sentence
