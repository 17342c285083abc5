"""Rows of the sweep: what a part yields."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from togi.worker.supervise import Limits

Row = dict[str, Any]
"""``row``, ``result`` (pass, fail, skip), ``figure``, ``bound``, ``seconds``, and ``proves``: the marks of
``togi.core.proven`` that it is evidence for."""
MIB = 1 << 20
LIMITS = Limits(timeout_s=120.0)
"""Of a process that a part starts."""


def row(name: str, ok: bool | None, figure: str, bound: str = "", seconds: float = 0.0) -> Row:
    result = "skip" if ok is None else "pass" if ok else "fail"
    return {"row": name, "result": result, "figure": figure, "bound": bound, "seconds": round(seconds, 1)}


def attempt(
    name: str, bound: str, check: Callable[..., tuple[bool | None, str]], *given: Any, proves: Sequence[str] = ()
) -> Row:
    """The row of ``check(*given)``, which returns whether it holds (None where it cannot be asked here) and the figure.
    An error is a failure of this row alone."""
    began = time.monotonic()
    try:
        ok, figure = check(*given)
    except Exception as error:  # foreign code: backends; the log has the traceback
        traceback.print_exc()
        ok, figure = False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return {**row(name, ok, figure, bound, time.monotonic() - began), "proves": list(proves)}


def ignore(_: object) -> None:
    """What a process is doing."""
