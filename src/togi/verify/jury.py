"""The jury: whether one answer of a program is the original's, for one call.

An answer is compared with plain eager's; where it is further away than roundings explain, with the original in float64,
in units of eager's own error.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from togi.decide.faithful import within
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.verify.compare import continuous, hides, plain
from togi.verify.float64 import float64_arithmetic, nudged, nudged_inputs, wide, widened, widened_inputs
from togi.verify.leaves import may_be_index
from togi.verify.observe import Named, Observation, observe
from togi.verify.output_structure import unlike
from togi.verify.probes import Rung
from togi.verify.reference import branches, may_branch
from togi.verify.units import NUDGES_FEW, leaf_error, measure_own_error

Call = Callable[..., Any]


class Verdict(enum.Enum):
    RIGHT = "right"
    WRONG = "wrong"
    ILLEGAL = "illegal"
    """The original raises on it."""


@final
@dataclass
class Jury:
    """Compares one answer of the program with the original's."""

    call: Call
    original: nn.Module
    signature: Signature
    seed: int
    max_units: float
    _wide: nn.Module | None = None
    _on_cpu: nn.Module | None = None

    def verdict(self, given: Inputs, rung: Rung) -> Verdict:
        with torch.no_grad():
            try:
                self._try_on_cpu_first(given)
                eager = observe(self.original, given, self.signature, seed=self.seed)
            except Exception:  # foreign code: a model's forward may raise anything
                return Verdict.ILLEGAL
            try:
                found = observe(self.call, given, self.signature, seed=self.seed)
            except Exception:  # foreign code: an engine that refuses answers nothing wrong
                return Verdict.RIGHT
            return Verdict.RIGHT if self._same(given, found, eager, rung) else Verdict.WRONG

    def run(self, given: Inputs) -> None:
        """One call of the original and nothing else, so that its operators can be watched."""
        self._try_on_cpu_first(given)
        self.original(*given.args, **given.kwargs)

    def run_in_float64(self, given: Inputs) -> None:
        """The same in float64."""
        wider = widened_inputs(given, self.signature.device)
        with float64_arithmetic():
            self._widened()(*wider.args, **wider.kwargs)

    def _widened(self) -> nn.Module:
        if self._wide is None:
            self._wide = widened(self.original, self.signature.device)
        return self._wide

    def _try_on_cpu_first(self, given: Inputs) -> None:
        """An index out of range raises on the CPU, but on a GPU it ends the process's use of the device."""
        if self.signature.device == "cpu" or not any(map(may_be_index, given.tensors())):
            return
        if self._on_cpu is None:
            self._on_cpu = copy.deepcopy(self.original).to("cpu")
        on_cpu = given.to("cpu")
        self._on_cpu(*on_cpu.args, **on_cpu.kwargs)

    def _same(self, given: Inputs, found: Observation, eager: Observation, rung: Rung) -> bool:
        if unlike(eager.structure, found.structure, "output") or not _alike(eager.leaves, found.leaves):
            return False
        pairs = [(plain(f), plain(e)) for (_, f), (_, e) in zip(found.leaves, eager.leaves, strict=True)]
        doubtful = [i for i, (f, e) in enumerate(pairs) if not self._near(f, e, e, [])]
        if not doubtful or rung.strict:
            return not doubtful
        eagers = [e for _, e in pairs]
        truth = self._truth(given, eagers)
        doubtful = [i for i in doubtful if may_branch(eagers[i], truth[i]) or not self._near(*pairs[i], truth[i], [])]
        moved = self._nudged(given, eagers, inputs=not rung.exact) if doubtful else []
        return all(
            self._near(*pairs[i], _trusted(eagers[i], truth[i], nudges), nudges)
            for i in doubtful
            for nudges in [[leaves[i] for leaves in moved]]
        )

    def _near(self, found: Tensor, eager: Tensor, truth: Tensor, moved: Sequence[Tensor]) -> bool:
        """NaN and infinity may be more where there are any: what is near them does not answer either."""
        if continuous(eager) and not bool(eager.isfinite().all()):
            if hides(found, truth, eager):
                return False
            found = torch.where(found.isfinite(), found, eager)
        ((unit, _, threshold),) = measure_own_error([eager], [truth], [moved])
        error, misplaced = leaf_error("", found, truth, eager, unit, threshold)
        return not misplaced and within(error.units, self.max_units)

    def _truth(self, given: Inputs, eager: Sequence[Tensor]) -> Sequence[Tensor]:
        """In float64; eager's own where that is none."""
        try:
            wider = widened_inputs(given, self.signature.device)
            with float64_arithmetic():
                seen = observe(self._widened(), wider, self.signature, seed=self.seed)
        except Exception:  # foreign code: a forward may insist on its own dtype
            return [wide(e) for e in eager]
        return _of_shapes(seen, eager) or [wide(e) for e in eager]

    def _nudged(self, given: Inputs, eager: Sequence[Tensor], *, inputs: bool) -> list[list[Tensor]]:
        moved = []
        for number in range(NUDGES_FEW):
            try:
                module = nudged(self.original, self.seed + number)
                asked = nudged_inputs(given, self.seed + number) if inputs else given
                moved.append(_of_shapes(observe(module, asked, self.signature, seed=self.seed), eager))
            except Exception:  # foreign code: a module may insist on exact values
                break
        return [leaves for leaves in moved if leaves]


def _alike(one: Named, other: Named) -> bool:
    return [(name, t.shape, t.dtype) for name, t in one] == [(name, t.shape, t.dtype) for name, t in other]


def _trusted(eager: Tensor, truth: Tensor, moved: Sequence[Tensor]) -> Tensor:
    """The truth; eager itself where the truth is further away than roundings move eager."""
    return wide(eager) if may_branch(eager, truth) and branches(eager, truth, moved) else truth


def _of_shapes(seen: Observation, like: Sequence[Tensor]) -> list[Tensor]:
    leaves = [plain(tensor) for _, tensor in seen.leaves]
    return leaves if [t.shape for t in leaves] == [t.shape for t in like] else []
