"""By what approximate results are judged, besides their error."""

from __future__ import annotations

from togi.core.choices import AccuracyMeasure, Direction
from togi.core.errors import TogiError
from togi.core.record import Record


class Judging(Record):
    """A measure of accuracy, and by how much it may get worse."""

    measure: AccuracyMeasure | None = None
    """On validation data. None: the subject's own metric, on its samples."""
    max_drop: float
    metric: str = ""
    """Locator of the function of the measure ``own``. Empty: the subject's own metric."""
    better: Direction | None = None
    """Which values of the user's metric are better, where that was declared with the budget."""

    seed: int | None = None
    """Of the study: it says which half of the data chose, and ``togi verify`` must not confirm by that one. None: the
    command's own."""
    named: tuple[str, ...] = ()
    """Ids of exact techniques, or their beginnings: these may err beyond rounding, within the budget."""
    by_all: bool = False
    """All of the data judge, since nothing is chosen by them. Else one half chooses and the other confirms."""

    @property
    def on_data(self) -> bool:
        return self.measure is not None

    @property
    def by_own_metric(self) -> bool:
        """The user's function judges: on validation data, or on the samples."""
        return self.measure in (None, AccuracyMeasure.OWN)

    def check(self, given: str) -> None:
        """Raises TogiError for a budget that whatever runs keeps. ``given``: the option and its value.

        Messages count points, so that ``1`` is easily written for one of them."""
        if self.on_data and self.max_drop >= 1:
            raise TogiError(
                f"{given} lets every answer be lost: on validation data a drop is from 0 to 1, and one point is 1% or "
                "0.01. 'togi precision' lists what each recipe loses, and needs no budget"
            )
