"""``togi memory --predict``: what a run would need, here or on a device that is not here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from togi.core.errors import TogiError

KIND = "prediction"


def must_predict(predict: bool, limit: int | None, device: str) -> bool:
    """It was asked for, or the device is not here."""
    from togi.machine.describe import machine

    return predict or limit is not None or (device != "cpu" and machine(device).gpu is None)


def memory_of_prediction(
    subject: str,
    *,
    options: Mapping[str, Any],
    device: str,
    limit: int | None,
    seed: int,
    fail_over: int | None,
    json: bool,
    meaningless: Mapping[str, bool],
) -> int:
    """Exit code 1 when the peak, at its most, is above ``fail_over``."""
    from togi import api
    from togi.cli.output import print_json, print_text, stdout
    from togi.core.quantities import size
    from togi.render.memory_text import prediction_text

    if given := [option for option, is_given in meaningless.items() if is_given]:
        raise TogiError(
            f"{', '.join(given)}: not for a prediction, which has no timeline and no lines to compare. Leave it out, "
            "or run the model (without --predict and --memory, on a device that is here)"
        )
    found = api.predict_memory(subject, device=device, memory=limit, seed=seed, **options)
    if json:
        print_json({"kind": KIND, **found.model_dump(mode="json"), "device_high_bytes": found.device_high_bytes})
    else:
        print_text(stdout(), prediction_text(found))
    if fail_over is None or found.device_high_bytes <= fail_over:
        return 0
    typer.echo(
        f"togi memory: {size(found.device_high_bytes)}, the most it may need, is above --fail-over {size(fail_over)}",
        err=True,
    )
    return 1
