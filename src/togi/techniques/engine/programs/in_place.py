"""Programs that stand for the ``forward`` of a live module, and are made of it where it stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from togi.core.errors import NotSaveable, TogiError
from togi.graph.candidate import Program
from togi.techniques.engine.programs.stored import LOADED


class InPlaceProgram(Program):
    """A way to make such a program, without what is made."""

    in_place = True

    def __init__(self, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """``make``: of the module's own ``forward``."""
        self._make = make

    def of(self, original: Callable[..., Any]) -> Callable[..., Any]:
        return self._make(original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TogiError(
            "this artifact is made of a live module where it stands and holds nothing that could be called: put it "
            "into the program with togi.load(path).into(program)"
        )

    def save(self, folder: Path) -> dict[str, Any]:
        raise NotSaveable(LOADED)
