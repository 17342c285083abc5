"""The jury: decides for one call whether the answer of a program is the original's.

An answer is compared with plain eager's; where it is further away than roundings explain, with the original in float64,
in units of eager's own error.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from togi.decide.faithful import within
from togi.subject.inputs import Inputs
from togi.subject.plain_tensors import plain
from togi.verify.compare import continuous, hides
from togi.verify.float64 import wide
from togi.verify.observe import Named, Observation
from togi.verify.original import Original
from togi.verify.output_structure import unlike
from togi.verify.probes import Rung
from togi.verify.reference import branches, may_branch
from togi.verify.units import error_in_units

Call = Callable[..., Any]


class Verdict(enum.Enum):
    RIGHT = "right"
    WRONG = "wrong"
    ILLEGAL = "illegal"
    """The original raises on it."""
    UNASKED = "unasked"
    """No time was left, so nothing is proven of it."""


@dataclass
class Jury:
    """Compares one answer of the program with the original's."""

    call: Call
    original: Original
    max_units: float

    def verdict(self, given: Inputs, rung: Rung) -> Verdict:
        with torch.no_grad():
            try:
                eager = self.original.answer(given)
            except Exception:  # foreign code: a model's forward may raise anything
                return Verdict.ILLEGAL
            try:
                answer = self.original.observe(self.call, given)
            except Exception:  # foreign code: an engine that refuses answers nothing wrong
                return Verdict.RIGHT
            return Verdict.RIGHT if self._same(given, answer, eager, rung) else Verdict.WRONG

    def _same(self, given: Inputs, found: Observation, eager: Observation, rung: Rung) -> bool:
        if unlike(eager.structure, found.structure, "output") or not _alike(eager.leaves, found.leaves):
            return False
        pairs = [(plain(f), plain(e)) for (_, f), (_, e) in zip(found.leaves, eager.leaves, strict=True)]
        rows = _rows(given)
        pairs = [(_as_near(f, e, rows), e) for f, e in pairs]
        doubtful = [i for i, (f, e) in enumerate(pairs) if not self._near(f, e, e, [])]
        return not doubtful or (not rung.strict and self._explained(doubtful, pairs, given, rung))

    def _explained(
        self, doubtful: list[int], pairs: Sequence[tuple[Tensor, Tensor]], given: Inputs, rung: Rung
    ) -> bool:
        """By float64, and by how far roundings move eager: it is moved until that explains all differences."""
        eagers = [e for _, e in pairs]
        truths = self._truths(doubtful, eagers, given)
        moved: list[list[Tensor]] = []

        def not_near() -> list[int]:
            return [i for i in doubtful if not self._near(*pairs[i], truths[i], [leaves[i] for leaves in moved])]

        # What roundings explain they explain however many more there are.
        doubtful = not_near()
        nudged = self.original.nudged(given, eagers, inputs=not rung.exact, alike=rung.alike)
        for leaves in nudged if doubtful else ():
            moved.append(leaves)
            doubtful = not_near()
            if not doubtful:
                break
        return not doubtful

    def _truths(self, doubtful: Sequence[int], eagers: Sequence[Tensor], given: Inputs) -> list[Tensor]:
        """In float64; eager itself where that takes another branch. To tell, inputs are moved by roundings too: how
        they change what is computed is another question than how far off an answer may be."""
        truths = list(self.original.truth(given, eagers))
        branched = [i for i in doubtful if may_branch(eagers[i], truths[i])]
        for leaves in self.original.nudged(given, eagers, inputs=True, alike=False) if branched else ():
            branched = [i for i in branched if branches(eagers[i], truths[i], leaves[i : i + 1])]
            if not branched:
                break
        for i in branched:
            truths[i] = wide(eagers[i])
        return truths

    def _near(self, found: Tensor, eager: Tensor, truth: Tensor, moved: Sequence[Tensor]) -> bool:
        if continuous(eager) and hides(found, truth, eager):
            return False
        return within(error_in_units(found, truth, eager, moved), self.max_units)


def _rows(given: Inputs) -> set[int] | None:
    """Numbers of rows of what was given, if it holds NaN or infinity; None where it does not."""
    tensors = [plain(tensor) for tensor in given.tensors()]
    if all(bool(tensor.isfinite().all()) for tensor in tensors if continuous(tensor)):
        return None
    return {len(tensor) for tensor in tensors if tensor.dim() > 1}


def _as_near(found: Tensor, eager: Tensor, rows: set[int] | None) -> Tensor:
    """``found``, with eager's answers in place of NaN and infinity that may be there: what is near them does not answer
    either.

    Where ``rows`` of what was given hold them, that is what shares its row, and no infinity is the other one. Where
    eager's are sums that overflow, the order of their terms decides which.
    """
    if not continuous(eager) or bool(eager.isfinite().all()):
        return found
    lost = ~eager.isfinite()
    near = torch.ones_like(lost)
    if rows is not None:
        near = found.double() != -eager.double()
        if eager.dim() and len(eager) in rows:
            near &= lost.reshape(len(eager), -1).any(1).reshape(-1, *[1] * (eager.dim() - 1))
    return torch.where(near & ~found.isfinite(), eager, found)


def _alike(one: Named, other: Named) -> bool:
    return [(name, t.shape, t.dtype) for name, t in one] == [(name, t.shape, t.dtype) for name, t in other]
