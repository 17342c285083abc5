"""The plan of ``togi fit`` for a subject: runs in a child process."""

from __future__ import annotations

from togi.footprint.step import make_step
from togi.subject.inputs import Subject
from togi.worker.protocol import Message


def fit(subject: Subject, payload: Message) -> Message:
    """``payload``: train, optimizer, batch, dtype, device as ``make_step`` takes them; budget_bytes, seed, time_limit_s
    and, in training, allow_approximate as ``fit_training`` and ``fit_inference`` do."""
    options = {name: payload[name] for name in ("optimizer", "batch", "dtype", "device")}
    step = make_step(subject, train=payload["train"], **options)
    limits = {name: payload[name] for name in ("device", "seed", "time_limit_s")}
    if payload["train"]:
        from togi.footprint.fit.training.planner import fit_training

        found = fit_training(step, payload["budget_bytes"], allow_approximate=payload["allow_approximate"], **limits)
    else:
        from togi.footprint.fit.inference.planner import fit_inference

        found = fit_inference(step, payload["budget_bytes"], **limits)
    return found.model_dump(mode="json")
