"""The teacher-forced proof of a program in parts: every call that the original makes, with its own decisions.

Where a program decides by values (the next token, the boxes that are kept), an engine that rounds differently decides
otherwise where two values are as good as equal, and all that follows differs: a comparison of the results cannot tell
that from a fault. So the parts are called with what the original called them with, and every answer is compared in
plain eager's units. A note says what was decided differently, and where first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from togi.artifact.installed import Installed
from togi.artifact.part_engine import PartEngine
from togi.core.choices import Mode
from togi.core.records import ErrorReport, ForcedCalls
from togi.decide.faithful import MAX_UNITS
from togi.subject.behaviour import same, seed_all
from togi.subject.inputs import Inputs, Subject
from togi.subject.pure import Pure
from togi.subject.structure import Structure, tensors_in, with_floats_as_tensors
from togi.techniques.build import first_candidate
from togi.verify.decisions import rounding_decides
from togi.verify.output_structure import unlike
from togi.verify.reference import make_truth
from togi.verify.truth import Truth
from togi.verify.verdict import verify


def needed(report: ErrorReport, truth: Truth) -> bool:
    """Whether the results of a program alone do not tell if it is right: they differ from the original's, or the
    original's own differ as much from one rounding to the next, so that a fault may hide in them."""
    alike = report.decisions is None or report.decisions.sample is None
    return not report.faithful or not alike or rounding_decides(truth)


def divergence(installed: Installed, samples: Sequence[Inputs], seed: int) -> str:
    """The first decision that the program with its parts takes otherwise than the original: a difference in what it
    returns besides floating-point numbers. Empty where there is none, or where it differs from itself (no tie does)."""
    for sample in samples:
        found = _run(installed, sample, seed)
        with installed.suspended():
            expected = _run(installed, sample, seed)
        if different := _decided_otherwise(expected, found):
            return "" if _decided_otherwise(found, _run(installed, sample, seed)) else different
    return ""


def _run(installed: Installed, sample: Inputs, seed: int) -> Any:
    given = sample.clone()
    seed_all(seed)
    with torch.no_grad():
        return installed.program(*given.args, **given.kwargs)


def _decided_otherwise(expected: Any, found: Any) -> str:
    expected, found = with_floats_as_tensors(expected), with_floats_as_tensors(found)
    if different := unlike(Structure.of(expected), Structure.of(found), "output"):
        return different
    for number, (one, other) in enumerate(zip(tensors_in(expected), tensors_in(found), strict=True)):
        name = "output" if number == 0 else f"tensor {number} of the output"
        if one.shape != other.shape:
            return f"{name} has the sizes {tuple(other.shape)}, the original's {tuple(one.shape)}"
        if not one.is_floating_point() and not one.is_complex() and not torch.equal(one, other):
            differs = (one != other).nonzero()
            return f"{name} differs in {len(differs)} of {one.numel()} places, first at {differs[0].tolist()}"
    return ""


def forced_calls(
    subject: Subject,
    path: str,
    optimized: PartEngine,
    seed: int,
    device: str,
    limit_units: Callable[[Truth], float] = lambda _: MAX_UNITS,
) -> ForcedCalls | None:
    """Of one part. ``subject``: the original part with the calls that the program makes of it; ``limit_units``: largest
    error of a faithful call. None where the engine serves none of them."""
    signature = optimized.signature
    calls = [call for call in subject.samples if _serves(optimized, call)]  # there may have been no room to keep any
    if not calls:
        return None
    start = first_candidate(Subject(subject.module, calls, mode=Mode.AS_IS), optimized.manifest.facts, signature)
    truth = make_truth(start.module, start.samples, signature, seed=seed, device=device, samples=len(calls))
    report = verify(optimized, truth, start.samples, signature, seed=seed, max_units=limit_units(truth))
    problem = next(iter(report.problems), "") or _written_back_otherwise(start.module, start.samples)
    return ForcedCalls(
        path=path,
        calls=len(calls),
        units=report.units,
        faithful=report.faithful and not problem,
        problem=problem,
    )


def _serves(optimized: PartEngine, call: Inputs) -> bool:
    try:
        optimized.signature.checked(call.args, call.kwargs)
    except (TypeError, ValueError):
        return False
    return True


def _written_back_otherwise(part: Any, calls: Sequence[Inputs]) -> str:
    """Whether the changes that a call makes are made as the original makes them, to the bit."""
    if not isinstance(part, Pure):
        return ""
    for call in calls:
        one, other = call.clone(), call.clone()
        with torch.no_grad():
            expected = part.module(*one.args, **one.kwargs)
            found = part.effects.finish(part(*other.args, **other.kwargs), other.args, other.kwargs)
        there, here = [expected, one.args, dict(one.kwargs)], [found, other.args, dict(other.kwargs)]
        if Structure.of(there) != Structure.of(here) or not same(tensors_in(there), tensors_in(here)):
            return "what a call changes in its arguments is not written back as the original does"
    return ""
