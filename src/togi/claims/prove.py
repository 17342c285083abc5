"""Proves claims: those of techniques by one experiment for all (``technique``), any other as its own file says.

A claim is proven in processes of its own, so that what it needs is gone afterwards and nothing else is counted.
"""

from __future__ import annotations

import inspect
import time
import traceback

from togi.claims.claim import HEADINGS, ClaimVerdict, MeasuredClaim, all_claims
from togi.claims.parts import prove_parts
from togi.claims.technique import LONGEST_S, limits, prove_technique
from togi.core.docstring import split_docstring
from togi.core.errors import SubjectError, TogiError, UnknownNameError, nearest
from togi.core.quantities import first_line
from togi.core.records import Record
from togi.techniques import Technique, all_remedies
from togi.techniques import base as techniques
from togi.worker.call import ChildCall
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import OnPhase


class ProofRequest(Record):
    claim: str


_MEASURE = ChildCall(
    function="togi.claims.prove:measure", request=ProofRequest, answer=MeasuredClaim, purpose="measured"
)


def prove(
    id: str, *, on: str = "", device: str = "cpu", seed: int = 0, on_phase: OnPhase = lambda _: None
) -> MeasuredClaim:
    """Measure a claim of ``all_claims`` or what a technique claims, here; dashes and underscores are the same.

    Args:
        on: locator of the subject on which a technique is measured, instead of a small model of its own.

    Raises:
        UnknownNameError: no such claim or technique.
        SubjectError: the subject cannot be loaded.
        TogiError: ``on`` for a claim, which is about code of its own.
    """
    started = time.monotonic()
    if (claim := id.replace("_", "-")) in all_claims():
        if on:
            raise TogiError(f"{claim} is a claim about code of its own: leave --on {on} out. It is for techniques")
        proof, says = _prove_claim(claim, seed, on_phase), _says(all_claims()[claim], HEADINGS, "What is claimed")
    elif (name := id.replace("-", "_")) in all_remedies():
        remedy = all_remedies()[name]
        if isinstance(remedy, Technique):
            proof = prove_technique(remedy, on=on, device=device, seed=seed, on_phase=on_phase)
        else:
            proof = prove_parts(remedy, on=on, device=device, seed=seed, on_phase=on_phase)
        says = _says(remedy, techniques.HEADINGS, "Claim")
    else:
        known = (*all_claims(), *all_remedies())
        raise UnknownNameError(
            f"'{id}' is neither a claim nor a technique, so there is nothing to measure{nearest(id, known) or '.'} "
            "'togi explain' lists them"
        )
    return proof.model_copy(update={"says": says, "took_s": time.monotonic() - started})


def every_id() -> tuple[str, ...]:
    """Every id that ``prove`` takes: techniques in their order, then claims."""
    return (*all_remedies(), *all_claims())


def attempt(id: str, *, on: str = "", device: str = "cpu", seed: int = 0) -> MeasuredClaim:
    """``prove`` for one of many: where it raises, the proof says so, and the next can be measured."""
    try:
        return prove(id, on=on, device=device, seed=seed)
    except Exception as error:  # a third party's technique, or a process that could not be started
        sentence = f"Proving it raised {type(error).__name__}: {first_line(error)}"
        trace = traceback.format_exc()
        return MeasuredClaim(claim=id, verdict=ClaimVerdict.UNTESTED, sentence=sentence, setting="", traceback=trace)


def measure(_: object, request: ProofRequest) -> MeasuredClaim:
    """Runs in the child."""
    return all_claims()[request.claim].prove()


def _prove_claim(claim: str, seed: int, on_phase: OnPhase) -> MeasuredClaim:
    request, bounds = ProofRequest(claim=claim), limits(LONGEST_S)
    try:
        return _MEASURE(SubjectRef.here("nothing"), request, seed=seed, limits=bounds, on_phase=on_phase)
    except SubjectError as error:  # its process: out of memory, killed, too slow
        return MeasuredClaim(claim=claim, verdict=ClaimVerdict.UNTESTED, sentence=str(error), setting="")


def _says(of: object, headings: tuple[str, ...], heading: str) -> str:
    _, sections = split_docstring(inspect.getdoc(type(of)) or "", headings)
    return " ".join(sections.get(heading, "").split())
