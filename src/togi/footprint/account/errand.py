"""The account of a subject, as an errand: runs in the child."""

from __future__ import annotations

from togi.footprint.account.make import account_of
from togi.footprint.step import make_step
from togi.subject.inputs import Subject
from togi.worker.protocol import Message


def account(subject: Subject, payload: Message) -> Message:
    """``payload``: train, optimizer, batch, dtype, device, as ``make_step`` takes them."""
    step = make_step(subject, **payload)
    return account_of(step, device=payload["device"]).model_dump(mode="json")
