"""By what approximate results are judged, besides their error."""

from __future__ import annotations

from togi.core.choices import AccuracyMeasure
from togi.core.record import Record


class Judging(Record):
    """A measure of accuracy, and by how much it may get worse."""

    measure: AccuracyMeasure | None = None
    """On validation data. None: the subject's own metric, on its samples."""
    max_drop: float

    @property
    def on_data(self) -> bool:
        return self.measure is not None
