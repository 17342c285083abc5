"""Rows of the sweep: what a part yields."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import Any

from togi.worker.supervise import Limits

Row = dict[str, Any]
"""``row``, ``result`` (pass, fail, skip), ``figure``, ``bound``, ``seconds``; ``proves``: the parts of
``togi.core.proven`` that it is evidence for; ``speed_of``: those whose claim of speed or memory it measured."""
MIB = 1 << 20
LIMITS = Limits(timeout_s=120.0)
"""Of a process that a part starts."""
LEFT_OUT = "left out"
"""The result of a row that this process was not asked for."""
_ASKED_FOR: dict[str, Any] = {"pattern": "", "known": (), "begins": None}


def ask_for(pattern: str, known: Collection[str] = (), begins: Callable[[Row], None] | None = None) -> None:
    """From now on only rows whose name matches the pattern from its start, and is not known, are run. ``begins`` is
    called with each that is about to be."""
    _ASKED_FOR.update(pattern=pattern, known=known, begins=begins)


def asked_for(name: str) -> bool:
    return re.match(_ASKED_FOR["pattern"], name) is not None and name not in _ASKED_FOR["known"]


def row(name: str, ok: bool | None, figure: str, bound: str = "", seconds: float = 0.0) -> Row:
    result = "skip" if ok is None else "pass" if ok else "fail"
    return {"row": name, "result": result, "figure": figure, "bound": bound, "seconds": round(seconds, 1)}


def attempt(
    name: str,
    bound: str,
    check: Callable[..., tuple[bool | None, str]],
    *given: Any,
    proves: Sequence[str] = (),
    speed_of: Sequence[str] = (),
) -> Row:
    """The row of ``check(*given)``, which returns whether it holds (None where it cannot be asked here) and the figure.
    An error is a failure of this row alone."""
    marks = {"proves": list(proves), **({"speed_of": list(speed_of)} if speed_of else {})}
    if not asked_for(name):
        return {"row": name, "result": LEFT_OUT, **marks}
    if _ASKED_FOR["begins"] is not None:
        _ASKED_FOR["begins"]({"row": name, "bound": bound, **marks})
    began = time.monotonic()
    try:
        ok, figure = check(*given)
    except Exception as error:  # foreign code: backends; the log has the traceback
        traceback.print_exc()
        ok, figure = False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return {**row(name, ok, figure, bound, time.monotonic() - began), **marks}


def ignore(_: object) -> None:
    """What a process is doing."""
