"""The prediction for a subject, with the largest batch that fits a memory limit. Runs in a child process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from togi.footprint.prediction.cpu import predict_cpu
from togi.footprint.prediction.cuda import predict_cuda
from togi.footprint.prediction.record import BatchNeed, Prediction
from togi.footprint.step import make_step, with_batch
from togi.subject.batch import shared_rows
from togi.subject.inputs import Subject, samples_of_step

_HALVINGS = 6
_MOST_RUNS = 14
_MOST_ROWS = 1 << 22


def prediction_of(
    subject: Subject,
    *,
    device: str = "cpu",
    batch: int | None = None,
    memory_bytes: int | None = None,
    compile: bool = False,
    **options: Any,
) -> Prediction:
    """The prediction of one step; with ``memory_bytes`` also the largest batch that fits, and its halvings.

    Raises:
        SubjectError: the run depends on values, or cannot be compiled; with ``batch`` or ``memory_bytes``: the inputs
            share no batch dimension.
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

    prediction = at(batch)
    if memory_bytes is not None:
        sample = samples_of_step(subject)[0]
        with_batch(sample, 1)  # raises where the inputs share no batch dimension
        rows = batch or shared_rows(sample) or 1
        largest = largest_batch(lambda size: at(size).device_high_bytes, memory_bytes, start=rows)
        needs = tuple(_need(size, at(size)) for size in halvings(max(largest, 1))[:_HALVINGS])
        prediction = prediction.model_copy(
            update={"memory_bytes": memory_bytes, "largest_batch": largest, "batches": needs}
        )
    return prediction.model_copy(update={"seconds": time.perf_counter() - started})


def _need(batch: int, prediction: Prediction) -> BatchNeed:
    return BatchNeed(
        batch=batch,
        peak_bytes=prediction.peak_bytes,
        reserved_bytes=prediction.reserved_bytes,
        device_high_bytes=prediction.device_high_bytes,
    )


def largest_batch(need_bytes: Callable[[int], int], limit_bytes: int, *, start: int = 1) -> int:
    """The largest ``batch`` with ``need_bytes(batch) <= limit_bytes``; 0 where 1 does not fit.

    The need is nearly linear in the batch, so the next size is interpolated; where that stalls, halved. It ends when
    two neighbours are found or after 14 runs, with a size that fits.
    """
    if need_bytes(1) > limit_bytes:
        return 0
    low, low_need = 1, need_bytes(1)
    high, high_need = 0, 0
    guess = max(2, start)
    for run in range(_MOST_RUNS):
        need = need_bytes(guess)
        if need <= limit_bytes:
            slope = (need - low_need) / (guess - low)
            low, low_need = guess, need
        else:
            slope = (need - low_need) / (guess - low)
            high, high_need = guess, need
        if high == low + 1 or low >= _MOST_ROWS:
            break
        if high:
            share = (limit_bytes - low_need) / (high_need - low_need)
            guess = low + int(share * (high - low)) if run % 3 < 2 else (low + high) // 2
            guess = min(max(guess, low + 1), high - 1)
        else:
            ahead = int((limit_bytes - low_need) / slope) if slope > 0 else low
            guess = min(low + max(1, ahead), 64 * low, _MOST_ROWS)
    return low


def halvings(batch: int) -> list[int]:
    """``batch`` and its halves, down to 1."""
    sizes = []
    while batch >= 1:
        sizes.append(batch)
        batch //= 2
    return sizes
