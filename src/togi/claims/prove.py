"""Proves a claim in a process of its own, so that what it needs is gone afterwards and nothing else is counted."""

from __future__ import annotations

from togi.claims.claim import Proof, all_claims
from togi.core.errors import UnknownNameError, nearest
from togi.worker.errand import run_errand
from togi.worker.protocol import Message, SubjectRef
from togi.worker.supervise import OnPhase


def prove(id: str, *, seed: int = 0, on_phase: OnPhase = lambda _: None) -> Proof:
    """Measure the claim ``id`` here. Raises UnknownNameError, or SubjectError when its process failed."""
    if id not in all_claims():
        raise UnknownNameError(
            f"'{id}' is no claim that can be proven by itself{nearest(id, all_claims()) or '.'} "
            f"These can: {', '.join(all_claims())}. What a technique brings depends on the model: "
            "'togi tune SUBJECT --only ID' measures it on yours."
        )
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
