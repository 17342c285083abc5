"""The prediction of a run's memory, as a record."""

from __future__ import annotations

from togi.core.records import SCHEMA_VERSION, Record
from togi.footprint.account.record import Category, PeakMoment


class BatchNeed(Record):
    """The need of a batch of that size."""

    batch: int
    peak_bytes: int
    reserved_bytes: int
    device_high_bytes: int
    """What is judged: all that the device must have, at its most."""


class Prediction(Record):
    """The memory of a run that has not happened."""

    schema_version: int = SCHEMA_VERSION
    subject: str = ""
    device: str = "cpu"
    train: bool = False
    compiled: bool = False
    """By ``torch.compile``: the module, not the loss and the optimizer."""
    peak_bytes: int
    """Handed out by torch's allocator at the peak, what is there before the run included."""
    low_bytes: int
    high_bytes: int
    """The peak with what is not known for sure at its least and at its most."""
    reserved_bytes: int
    """The caching allocator's segments. On the CPU, which has none, the same as the peak."""
    reserved_low_bytes: int
    reserved_high_bytes: int
    context_low_bytes: int = 0
    context_high_bytes: int = 0
    """What the device takes besides the allocator for having a process at all."""
    baseline_bytes: int
    """Parameters, buffers, inputs and optimizer state."""
    peak: PeakMoment
    by_category: dict[Category, int]
    """Bytes at the peak; sums to ``peak_bytes``."""
    memory_bytes: int | None = None
    """The limit that was asked for."""
    largest_batch: int | None = None
    """The largest that fits ``memory_bytes``, judged by ``device_high_bytes``; 0 where not even one row does."""
    batches: tuple[BatchNeed, ...] = ()
    """With a limit: the largest batch and what each halving of it needs."""
    seconds: float = 0.0
    """How long the prediction took."""
    notes: tuple[str, ...] = ()

    @property
    def device_low_bytes(self) -> int:
        """All that the device must have, at its least."""
        return self.reserved_low_bytes + self.context_low_bytes

    @property
    def device_high_bytes(self) -> int:
        """All that the device must have, at its most."""
        return self.reserved_high_bytes + self.context_high_bytes
