"""Prices of precision: what each takes, and how right it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.api.given import by_name_and_live
from togi.core.caches import default_journal
from togi.core.choices import AccuracyMeasure, Direction, Mode
from togi.core.needs_torch import need_torch
from togi.core.settings import Settings
from togi.journal import Journal
from togi.render.progress import as_asked
from togi.study.progress import Progress
from togi.techniques import all_techniques
from togi.worker.hand_over import handed_over

if TYPE_CHECKING:
    from togi.study.price_records import PriceList
    from togi.subject.inputs import Dynamic
    from togi.subject.validation import Validation


def precision(
    subject: Any,
    inputs: Any = None,
    *,
    data: Validation | str | None = None,
    metric: Callable[..., float] | AccuracyMeasure | str | None = None,
    better: Direction | str | None = None,
    calibration: Any = None,
    dynamic: Dynamic | None = None,
    mode: Mode | str | None = None,
    device: str = "cpu",
    time_limit_s: float | str | None = None,
    only: str | Sequence[str] = (),
    without: str | Sequence[str] = (),
    seed: int = 0,
    journal: str | Path | None = None,
    resume: bool = True,
    progress: Progress | bool | None = None,
) -> PriceList:
    """List what each precision takes and how right it is on your data, and which kinds of operators are sensitive.

    Nothing is chosen. ``togi.tune`` chooses, within a budget of the same measure.

    Args:
        subject, inputs, dynamic, mode: as for ``tune``.
        data: validation data: ``FILE:function``, or a ``togi.Validation``. None: those of the subject.
        metric, better, calibration: as for ``tune``. By default agreement with the original, which needs no labels.
        time_limit_s: stop after this long; None: 5 minutes after loading. The same call goes on with what is left.
        only, without: techniques, as for ``tune``.
        journal, resume, progress: as for ``tune``.

    Raises TogiError: bad subject, no validation data, a metric that cannot judge; nothing was tried then.
    """
    given = locals()
    need_torch("precision")
    from togi.study.price_list import ANYTHING, run_price_list

    named, extras = by_name_and_live(metric, data, calibration, judged=True)
    named["metric"] = named["metric"] or AccuracyMeasure.AGREEMENT
    settings = Settings.of({**given, **named, "max_drop": ANYTHING}, techniques=all_techniques())
    extras |= {"dynamic": dynamic, "mode": mode} | ({} if isinstance(subject, str) else {"better": better})
    began = time.monotonic()
    with (
        handed_over(subject, inputs, extras, judging=settings.judging, data=settings.data) as (ref, name),
        Journal.open(journal or default_journal()) as opened,
    ):
        return run_price_list(
            ref,
            name,
            settings,
            journal=opened,
            resume=resume,
            progress=as_asked(progress, name),
            started=began,
        )
