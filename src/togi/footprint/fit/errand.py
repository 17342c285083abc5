"""The plan for a subject, as an errand: runs in the child."""

from __future__ import annotations

from togi.footprint.fit.make import fit_step
from togi.footprint.step import make_step
from togi.subject.inputs import Subject
from togi.worker.protocol import Message


def fit(subject: Subject, payload: Message) -> Message:
    """``payload``: optimizer, batch, dtype, device as ``make_step`` takes them; budget_bytes, allow_approximate,
    seed, time_limit_s as ``fit_step`` does."""
    step = make_step(
        subject,
        train=True,
        optimizer=payload["optimizer"],
        batch=payload["batch"],
        dtype=payload["dtype"],
        device=payload["device"],
    )
    return fit_step(
        step,
        payload["budget_bytes"],
        allow_approximate=payload["allow_approximate"],
        device=payload["device"],
        seed=payload["seed"],
        time_limit_s=payload["time_limit_s"],
    ).model_dump(mode="json")
