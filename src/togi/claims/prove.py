"""Proves claims in processes of their own, so that what they need is gone afterwards and nothing else is counted."""

from __future__ import annotations

from togi.claims.claim import Proof, all_claims
from togi.claims.technique import prove_technique
from togi.core.errors import UnknownNameError, nearest
from togi.techniques import all_techniques
from togi.worker.errand import run_errand
from togi.worker.protocol import Message, SubjectRef
from togi.worker.supervise import OnPhase


def prove(id: str, *, device: str = "cpu", seed: int = 0, on_phase: OnPhase = lambda _: None) -> Proof:
    """Measure a claim of ``all_claims`` or what a technique claims, here; dashes and underscores are the same.

    Raises UnknownNameError, or SubjectError when its process failed.
    """
    if (claim := id.replace("_", "-")) in all_claims():
        return _prove_claim(claim, seed, on_phase)
    if (name := id.replace("-", "_")) in all_techniques():
        return prove_technique(all_techniques()[name], device=device, seed=seed, on_phase=on_phase)
    known = (*all_claims(), *all_techniques())
    raise UnknownNameError(
        f"'{id}' is neither a claim nor a technique, so there is nothing to measure{nearest(id, known) or '.'} "
        "'togi explain' lists them"
    )


def _prove_claim(id: str, seed: int, on_phase: OnPhase) -> Proof:
    answer = run_errand(
        SubjectRef.here("nothing"),
        "togi.claims.prove:answer",
        {"id": id},
        purpose="measured",
        seed=seed,
        on_phase=on_phase,
    )
    return Proof.model_validate(answer)


def answer(_: object, payload: Message) -> Message:
    """The errand: runs in the child."""
    return all_claims()[payload["id"]].prove().model_dump(mode="json")
