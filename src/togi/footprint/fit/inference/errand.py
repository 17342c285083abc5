"""The plan for one inference pass of a subject, as an errand: runs in the child."""

from __future__ import annotations

from togi.footprint.fit.inference.make import fit_inference
from togi.footprint.step import make_step
from togi.subject.inputs import Subject
from togi.worker.protocol import Message


def fit(subject: Subject, payload: Message) -> Message:
    """``payload``: batch, dtype, device as ``make_step`` takes them; budget_bytes, seed, time_limit_s as
    ``fit_inference`` does."""
    step = make_step(subject, train=False, batch=payload["batch"], dtype=payload["dtype"], device=payload["device"])
    return fit_inference(
        step,
        payload["budget_bytes"],
        device=payload["device"],
        seed=payload["seed"],
        time_limit_s=payload["time_limit_s"],
    ).model_dump(mode="json")
