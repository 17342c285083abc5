"""What of a program can be compiled where it stands: modules that are not captured, and blocks that repeat in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from togi.artifact.weights import weights_hash
from togi.program.parts import Uncaptured
from togi.worker.protocol import Survey


@dataclass(frozen=True)
class CalledModule:
    """A module in one form of its calls."""

    module: nn.Module
    path: str
    share: float
    """Of the program's time."""
    calls: int
    survey: Survey | None = None
    """None: that of the program, which it is."""

    @property
    def compiles(self) -> bool:
        """An engine can stand for a module alone, and compile what is Python alone."""
        return not isinstance(self.module, torch.jit.ScriptModule)

    @property
    def as_record(self) -> Uncaptured:
        return Uncaptured(
            path=self.path,
            module=type(self.module).__name__,
            share=self.share,
            calls=self.calls,
            weights=weights_hash(self.module),
            survey=self.survey,
            compiles=self.compiles,
        )


def repeated(called: Iterable[CalledModule]) -> Iterator[tuple[Uncaptured, ...]]:
    """Two and more modules of one class that have parts of their own, such as the layers of a stack; none that is
    inside of another such. ``called``: from the top down."""
    by_class: dict[type[nn.Module], list[CalledModule]] = {}
    for use in called:
        if use.compiles and any(use.module.children()):
            by_class.setdefault(type(use.module), []).append(use)
    taken: list[str] = []
    for alike in by_class.values():
        outside = [use for use in alike if not _inside(use.path, taken)]
        blocks = [use for use in outside if not _inside(use.path, [other.path for other in outside])]
        if len({block.path for block in blocks}) > 1:
            taken += [block.path for block in blocks]
            yield tuple(block.as_record for block in blocks)


def _inside(path: str, others: Iterable[str]) -> bool:
    return any(path.startswith(f"{other}.") for other in others)
