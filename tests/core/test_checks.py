"""Lines that only check something are told from lines that decide something."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from togi.core.checks import only_raises

ANSWERS: list[bool] = []
OUTSIDE = "outside.py"
"""Where what matters was called from; pytest's own ``try`` is beyond it."""


class Asked:
    """Asks about the line that asks for its truth."""

    def __init__(self, truth: bool) -> None:
        self.truth = truth

    def __bool__(self) -> bool:
        frame: FrameType = sys._getframe(1)
        ANSWERS.append(only_raises(frame, OUTSIDE))
        return self.truth

    def __gt__(self, other: Any) -> Asked:
        return self


TRUE, FALSE = Asked(truth=True), Asked(truth=False)


def raises_by_condition() -> None:
    if FALSE > 1:
        raise ValueError("too large")


def raises_by_either() -> None:
    if (1 > 2) or FALSE:
        raise ValueError("too large")


def raises_in_a_loop() -> None:
    for _ in range(1):
        if not TRUE:
            raise ValueError("too small")


def branches() -> int:
    if TRUE > 1:
        return 1
    return 2


def chooses() -> int:
    return 1 if TRUE else 2


def writes_before_it_raises(log: list[int]) -> None:
    if FALSE:
        log.append(1)
        raise ValueError("too large")


def is_caught() -> None:
    try:
        if FALSE:
            raise ValueError("too large")
    except ValueError:
        return


def calls_a_check_that_is_caught() -> None:
    try:
        raises_by_condition()
    except ValueError:
        return


def answers_of(function: Callable[..., Any], *args: Any) -> list[bool]:
    ANSWERS.clear()
    eval(compile("function(*args)", OUTSIDE, "eval"), {"function": function, "args": args})
    return list(ANSWERS)


def test_a_condition_of_nothing_but_raise_only_raises() -> None:
    assert answers_of(raises_by_condition) == [True]
    assert answers_of(raises_by_either) == [True]
    assert answers_of(raises_in_a_loop) == [True]


def test_an_assertion_only_raises(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"  # pytest rewrites those of this file
    path.write_text("def compares(x):\n    assert x > 1, 'no'\n\ndef asks(x):\n    assert x\n", encoding="utf-8")
    scope = runpy.run_path(str(path))
    assert answers_of(scope["compares"], TRUE) == [True]
    assert answers_of(scope["asks"], TRUE) == [True]
    assert answers_of(runs_without_source(), TRUE) == [False]


def runs_without_source() -> Callable[..., Any]:
    scope: dict[str, Any] = {}
    exec(compile("def asks(x):\n    assert x\n", "gone.py", "exec"), scope)
    asks: Callable[..., Any] = scope["asks"]
    return asks


def test_what_goes_another_way_decides() -> None:
    assert answers_of(branches) == [False]
    assert answers_of(chooses) == [False]
    assert answers_of(writes_before_it_raises, []) == [False]


def test_what_is_caught_decides() -> None:
    assert answers_of(is_caught) == [False]
    assert answers_of(calls_a_check_that_is_caught) == [False]
