"""The prediction for a subject, as an errand: runs in the child."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from togi.footprint.prediction.cuda import predict_cuda
from togi.footprint.prediction.largest_batch import halvings, largest_batch
from togi.footprint.prediction.predict import predict_cpu
from togi.footprint.prediction.record import BatchNeed, Prediction
from togi.footprint.step import make_step, with_batch
from togi.subject.inputs import Subject
from togi.worker.protocol import Message

_HALVINGS = 6


def predict(subject: Subject, payload: Message) -> Message:
    """``payload``: train, optimizer, batch, dtype, device as for ``make_step``; memory (bytes or None); compile."""
    return prediction_of(subject, **payload).model_dump(mode="json")


def prediction_of(
    subject: Subject,
    *,
    device: str = "cpu",
    batch: int | None = None,
    memory: int | None = None,
    compile: bool = False,
    **options: Any,
) -> Prediction:
    """The prediction of one step; with ``memory`` (bytes) also the largest batch that fits, and its halvings.

    Raises:
        SubjectError: the run depends on values, or cannot be compiled; with ``batch`` or ``memory``: the inputs share
            no batch dimension.
    """
    started = time.perf_counter()
    known: dict[int | None, Prediction] = {}

    def at(rows: int | None) -> Prediction:
        if rows not in known:
            step = make_step(subject, **options)
            known[rows] = (
                predict_cpu(step, batch=rows, compile=compile) if device == "cpu" else predict_cuda(step, batch=rows)
            )
        return known[rows]

    found = at(batch)
    if memory is not None:
        sample = subject.inputs[0]
        with_batch(sample, 1)
        rows = batch or next(leaf.shape[0] for leaf in tree_leaves(_leaves(sample)) if _has_rows(leaf))
        largest = largest_batch(lambda size: at(size).device_high_bytes, memory, start=rows)
        needs = tuple(_need(size, at(size)) for size in halvings(max(largest, 1))[:_HALVINGS])
        found = found.model_copy(update={"memory_bytes": memory, "largest_batch": largest, "batches": needs})
    return found.model_copy(update={"seconds": time.perf_counter() - started})


def _need(batch: int, found: Prediction) -> BatchNeed:
    return BatchNeed(
        batch=batch,
        peak_bytes=found.peak_bytes,
        reserved_bytes=found.reserved_bytes,
        device_high_bytes=found.device_high_bytes,
    )


def _leaves(sample: Any) -> list[Any]:
    return [getattr(sample, field.name) for field in dataclasses.fields(sample)]


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0
