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
from togi.subject.behaviour import same, seed_all
from togi.subject.compared import as_compared
from togi.subject.inputs import Inputs, Subject
from togi.subject.nested import tensors_in
from togi.subject.pure import Pure
from togi.subject.structure import Structure
from togi.techniques.build import first_candidate
from togi.verify.decisions import rounding_decides
from togi.verify.output_structure import unlike
from togi.verify.reference import make_truth
from togi.verify.truth import Truth
from togi.verify.verdict import verify
from togi.worker.protocol import PartRef, changed


def needed(report: ErrorReport, truth: Truth) -> bool:
    """Return whether the results of a program alone do not tell if it is right: they differ from the original's, or the
    original's own differ as much from one rounding to the next, so that a fault may hide in them."""
    alike = report.decisions is None or report.decisions.sample is None
    return not report.faithful or not alike or rounding_decides(truth)


def with_forced_calls(
    report: ErrorReport,
    truth: Truth,
    installed: Installed,
    samples: Sequence[Inputs],
    parts: Sequence[PartRef],
    part_of: Callable[[PartRef], Subject],
    *,
    seed: int,
    device: str,
    exact: bool = False,
) -> ErrorReport:
    """The report of a program in parts; where its results do not tell whether it is right, with what it decides
    otherwise than the original, and with its parts on the calls that the original makes.

    Args:
        parts: the calls that the original makes of each; ``part_of`` reads them as a subject.
        exact: no technique of the recipe is approximate.
    """
    if not needed(report, truth):
        return report
    different = divergence(installed, samples, seed)
    if not different and not report.faithful:
        return report
    forced: list[ForcedCalls] = []
    with installed.suspended():  # a program that cannot be copied is its own original
        for path, form in [(switch.path, form) for switch in installed.switches for form in switch.forms]:
            of_form = [
                forced_calls(part_of(part), path, form, seed, device, exact)
                for part in parts
                if path == part.key.path and form.entry.effects == part.effects
            ]
            if not any(of_form):
                return report
            forced += filter(None, of_form)
    return changed(report, divergence=different, forced=tuple(forced))


def divergence(installed: Installed, samples: Sequence[Inputs], seed: int) -> str:
    """The first decision that the program with its parts takes otherwise than the original: a difference in what it
    returns besides floating-point numbers. Empty where there is none, or where it differs from itself (no tie does)."""
    for sample in samples:
        with_parts = _run(installed, sample, seed)
        with installed.suspended():
            expected = _run(installed, sample, seed)
        if different := _decided_otherwise(expected, with_parts):
            return "" if _decided_otherwise(with_parts, _run(installed, sample, seed)) else different
    return ""


def _run(installed: Installed, sample: Inputs, seed: int) -> Any:
    fresh = sample.clone()
    seed_all(seed)
    with torch.no_grad():
        return installed.program(*fresh.args, **fresh.kwargs)


def _decided_otherwise(expected: Any, result: Any) -> str:
    expected, result = as_compared(expected), as_compared(result)
    if different := unlike(Structure.of(expected), Structure.of(result), "output"):
        return different
    for number, (wanted, actual) in enumerate(zip(tensors_in(expected), tensors_in(result), strict=True)):
        name = "output" if number == 0 else f"tensor {number} of the output"
        if wanted.shape != actual.shape:
            return f"{name} has the sizes {tuple(actual.shape)}, the original's {tuple(wanted.shape)}"
        if not wanted.is_floating_point() and not wanted.is_complex() and not torch.equal(wanted, actual):
            differs = (wanted != actual).nonzero()
            return f"{name} differs in {len(differs)} of {wanted.numel()} places, first at {differs[0].tolist()}"
    return ""


def forced_calls(
    subject: Subject,
    path: str,
    optimized: PartEngine,
    seed: int,
    device: str,
    exact: bool = False,
) -> ForcedCalls | None:
    """Prove one part. None if the engine serves none of the calls.

    Args:
        subject: the original part with the calls that the program makes of it.
        exact: no technique of the recipe is approximate.
    """
    signature = optimized.signature
    calls = [call for call in subject.samples if _serves(optimized, call)]  # there may have been no room to keep any
    if not calls:
        return None
    start = first_candidate(Subject(subject.module, calls, mode=Mode.AS_IS), optimized.manifest.facts, signature)
    truth = make_truth(start.module, start.samples, signature, seed=seed, device=device, samples=len(calls))
    report = verify(optimized, truth, start.samples, signature, seed=seed, exact=exact)
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
    """Compare the changes that a call makes with those of the original, to the bit."""
    if not isinstance(part, Pure):
        return ""
    for call in calls:
        of_module, of_pure = call.clone(), call.clone()
        with torch.no_grad():
            expected = part.module(*of_module.args, **of_module.kwargs)
            written_back = part.effects.finish(part(*of_pure.args, **of_pure.kwargs), of_pure.args, of_pure.kwargs)
        there, here = (
            [expected, of_module.args, dict(of_module.kwargs)],
            [written_back, of_pure.args, dict(of_pure.kwargs)],
        )
        if Structure.of(there) != Structure.of(here) or not same(tensors_in(there), tensors_in(here)):
            return "what a call changes in its arguments is not written back as the original does"
    return ""
