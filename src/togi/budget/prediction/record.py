"""What a prediction says."""

from __future__ import annotations

from togi.budget.account.record import Category, Moment
from togi.records import SCHEMA_VERSION, Record


class BatchNeed(Record):
    """What a batch of that size would need."""

    batch: int
    peak_bytes: int
    reserved_bytes: int
    """With everything that the device must have; on the CPU the same as the peak."""


class Prediction(Record):
    """The memory of a run that has not happened."""

    schema_version: int = SCHEMA_VERSION
    subject: str = ""
    device: str = "cpu"
    train: bool = False
    peak_bytes: int
    """Handed out by torch's allocator at the peak, what is there before the run included."""
    low_bytes: int
    high_bytes: int
    """The peak with what is not known for sure at its least and at its most."""
    reserved_bytes: int
    """What the device must have: the caching allocator's segments and the context. On the CPU the same as the peak."""
    reserved_low_bytes: int
    reserved_high_bytes: int
    baseline_bytes: int
    """Parameters, buffers, inputs and optimizer state."""
    peak: Moment
    by_category: dict[Category, int]
    """Bytes at the peak; sums to ``peak_bytes``."""
    memory_bytes: int | None = None
    """The limit that was asked for."""
    largest_batch: int | None = None
    """The largest that fits ``memory_bytes``, judged by ``reserved_high_bytes``; 0 where not even one row does."""
    batches: tuple[BatchNeed, ...] = ()
    """The largest batch and its halvings, or those of the sample where no limit was given."""
    seconds: float = 0.0
    """How long the prediction took."""
    notes: tuple[str, ...] = ()
