"""Proves claims in processes of their own, so that what they need is gone afterwards and nothing else is counted."""

from __future__ import annotations

from togi.claims.claim import Proof, all_claims
from togi.claims.technique import prove_technique
from togi.core.errors import UnknownNameError, nearest
from togi.core.records import Record
from togi.techniques import all_techniques
from togi.worker.call import ChildCall
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import OnPhase


class ProofRequest(Record):
    claim: str


_MEASURE = ChildCall(function="togi.claims.prove:measure", request=ProofRequest, answer=Proof, purpose="measured")


def prove(id: str, *, device: str = "cpu", seed: int = 0, on_phase: OnPhase = lambda _: None) -> Proof:
    """Measure a claim of ``all_claims`` or what a technique claims, here; dashes and underscores are the same.

    Raises UnknownNameError, or SubjectError when its process failed.
    """
    if (claim := id.replace("_", "-")) in all_claims():
        return _MEASURE(SubjectRef.here("nothing"), ProofRequest(claim=claim), seed=seed, on_phase=on_phase)
    if (name := id.replace("-", "_")) in all_techniques():
        return prove_technique(all_techniques()[name], device=device, seed=seed, on_phase=on_phase)
    known = (*all_claims(), *all_techniques())
    raise UnknownNameError(
        f"'{id}' is neither a claim nor a technique, so there is nothing to measure{nearest(id, known) or '.'} "
        "'togi explain' lists them"
    )


def measure(_: object, request: ProofRequest) -> Proof:
    """Runs in the child."""
    return all_claims()[request.claim].prove()
