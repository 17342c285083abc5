"""What is given to a function of the public ones: by name, or as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from togi.core.choices import AccuracyMeasure


def by_name_and_live(
    metric: Any, data: Any, calibration: Any, *, judged: bool
) -> tuple[dict[str, str | None], dict[str, Any]]:
    """What names something is a setting; what is something is part of a live subject, under the name it has there.
    ``judged``: a drop on the data is limited, so that it is known what judges them."""
    given = {"metric": metric, "data": data, "calibration": calibration}
    by_name = {name: str(value) if isinstance(value, (str, Path)) else None for name, value in given.items()}
    live = {name: None if isinstance(value, (str, Path)) else value for name, value in given.items()}
    if judged and data is not None and live["metric"] is not None:
        by_name["metric"] = AccuracyMeasure.OWN
    if judged and live["data"] is not None and metric is None:
        by_name["metric"] = AccuracyMeasure.AGREEMENT
    return by_name, {"validation" if name == "data" else name: value for name, value in live.items()}
