"""Asks a program for values that no sample shows, and says for which it answers as the original does.

What is not so becomes a bound: a ``Domain`` of the input, beyond which the artifact refuses calls. What no bound on an
input can say (ties between some of its elements) is a problem of the program.

The original decides what is legal: values on which it raises need no answer. An answer is compared with plain eager's;
where it is further away than roundings explain, with the original in float64, in units of eager's own error.
"""

from __future__ import annotations

import copy
import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from togi.decide.faithful import MAX_UNITS, within
from togi.subject.domain import Domain
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.torch_internals.float32 import ieee_float32
from togi.verify.compare import continuous, hides, plain
from togi.verify.float64 import float64_arithmetic, nudged, nudged_inputs, wide, widened, widened_inputs
from togi.verify.leaves import copy_inputs, may_be_index, with_layout_of
from togi.verify.observe import Named, Observation, observe
from togi.verify.output_structure import unlike
from togi.verify.probes import (
    Change,
    Ladder,
    Rung,
    Shown,
    equal_values,
    larger_integers,
    magnitudes,
    masks,
    one_sign,
    one_value,
    signs,
    smaller_integers,
)
from togi.verify.reference import branches, may_branch
from togi.verify.units import NUDGES_FEW, leaf_error, measure_own_error

_ENOUGH, _MOST_DRAWS = 1024, 16
"""Of a small input values are drawn again while there is time, up to so many elements and so often: few of them may be
answered wrongly."""
_LONGER_X = 3.0
"""Where even the first rungs take so many times as long as there is time, the rest is not asked at all."""

Call = Callable[..., Any]


@final
@dataclass(frozen=True)
class Reach:
    """How far a program was proven beyond the samples."""

    domains: tuple[Domain, ...]
    """Of every flat input; empty where all values that the original takes were answered rightly."""
    problems: tuple[str, ...] = ()
    """What is wrong with it, and cannot be kept out by a domain."""
    notes: tuple[str, ...] = ()
    """What was not asked, and why."""


def reach_of(
    call: Call,
    original: nn.Module,
    samples: Sequence[Inputs],
    signature: Signature,
    *,
    seed: int,
    max_units: float = MAX_UNITS,
    nan: bool = True,
    limit_s: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> Reach:
    """Climb the ladders of every input of ``call``, which was verified on the samples.

    Args:
        original: what ``call`` stands for; repeatable, and without a state that calls change.
        max_units: largest error of a faithful answer, in units of plain eager's own.
        nan: what the original shows as NaN must not be a number.
        limit_s: for rungs beyond the first of each ladder; three times as long for all of it.
        clock: in seconds.
    """
    if any(leaf.kind == "opaque" for argument in signature.arguments for leaf in argument.leaves()):
        return Reach((), notes=("no other values were asked for: an argument is an object that togi cannot vary",))
    with ieee_float32():
        return _Climb(_Jury(call, original, signature, seed, max_units), samples, limit_s, nan, clock).reach()


class Verdict(enum.Enum):
    RIGHT = "right"
    WRONG = "wrong"
    ILLEGAL = "illegal"
    """The original raises on it."""


@final
@dataclass
class _Jury:
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
        """NaN and infinity may be more where there are any: what is near them is not an answer either."""
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
            if self._wide is None:
                self._wide = widened(self.original, self.signature.device)
            with float64_arithmetic():
                seen = observe(self._wide, widened_inputs(given, self.signature.device), self.signature, seed=self.seed)
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


@final
@dataclass
class _Climb:
    jury: _Jury
    samples: Sequence[Inputs]
    limit_s: float
    nan: bool
    clock: Callable[[], float]
    domains: dict[int, Domain] = field(default_factory=dict)
    problems: dict[str, None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)

    def reach(self) -> Reach:
        self.began = self.clock()
        flat = [self.jury.signature.flatten_inputs(s.args, s.kwargs) for s in self.samples]
        self.flat = flat[0]
        found = {i: Shown.of(tensors) for i, tensors in enumerate(zip(*flat, strict=True))}
        shown = {i: each for i, each in found.items() if each is not None}
        self.domains = dict.fromkeys(range(len(self.flat)), Domain())
        floats = [i for i in shown if self.flat[i].is_floating_point()]
        self._integers_and_masks({i: each for i, each in shown.items() if i not in floats})
        self._floats({i: shown[i] for i in floats})
        domains = tuple(self.domains.values())
        everything = all(domain.everything for domain in domains)
        return Reach(() if everything else domains, tuple(self.problems), tuple(self.notes))

    def _integers_and_masks(self, shown: dict[int, Shown]) -> None:
        for i, each in shown.items():
            dtype = self.flat[i].dtype
            for rung, otherwise in masks(each) if each.mask else ():
                if self._asked(i, rung) is Verdict.WRONG:
                    self._narrow(i, otherwise)
                    if otherwise.low == otherwise.high is not None:
                        break  # nothing is left to ask for
            if dtype is not torch.bool:
                self._climb(i, larger_integers(dtype, each), Domain(high=each.high))
                self._climb(i, smaller_integers(dtype, each), Domain(low=each.low))

    def _floats(self, shown: dict[int, Shown]) -> None:
        for i, each in shown.items():
            signed = each.low < 0 or (each.high > 0 and self._asked(i, signs(each)) is Verdict.RIGHT)
            ladder = magnitudes(self.flat[i].dtype, each, signed=signed, nan=self.nan)
            self._climb(i, ladder, each.domain)
            if self.flat[i].numel() == 1:
                continue
            if self._asked(i, one_value(each, self.domains[i])) is Verdict.WRONG:
                self._narrow(i, Domain(constant=False))
            for rung in (equal_values(self.domains[i]), one_sign(self.domains[i])):
                if self._asked(i, rung) is Verdict.WRONG:
                    name = self.jury.signature.inputs_facts[i].name
                    self.problems[f"it answers otherwise than the original where {name} holds {rung.name}"] = None

    def _climb(self, i: int, ladder: Ladder, nearest: Domain) -> None:
        """Narrow an input to what of the ladder is answered rightly; ``nearest``: where that is nothing of it.

        One input alone is changed at a time: NaN in another would hide that it is lost here.
        """
        if not ladder.rungs:
            return
        at, proven = ladder.first, nearest
        verdict = self._asked(i, ladder.rungs[at])
        while verdict is not Verdict.RIGHT and at > 0:
            at -= 1
            verdict = self._asked(i, ladder.rungs[at])
        while verdict is Verdict.RIGHT:
            proven, at = ladder.rungs[at].domain, at + 1
            if at == len(ladder.rungs) or self._time_is_up(ladder.rungs[at]):
                break
            verdict = self._asked(i, ladder.rungs[at])
        if verdict is not Verdict.ILLEGAL:  # else: as far as the original goes
            self._narrow(i, proven)

    def _time_is_up(self, rung: Rung) -> bool:
        if self.clock() < self.began + self.limit_s:
            return False
        self.notes[f"no time was left to ask for {rung.name}"] = None
        return True

    def _asked(self, i: int, rung: Rung) -> Verdict:
        """The worst verdict on the values of a rung that are taken; the first that is not right ends it."""
        if self.clock() > self.began + _LONGER_X * self.limit_s:
            name = self.jury.signature.inputs_facts[i].name
            self.notes[f"no time was left to ask for values of {name} beyond the samples"] = None
            return Verdict.ILLEGAL
        draws = min(_MOST_DRAWS, -(-_ENOUGH // self.flat[i].numel()))
        asked = (
            self._changed(i, change, draw)
            for change in rung.changes
            for draw in range(draws)
            if not draw or self.clock() < self.began + self.limit_s
        )
        verdicts = (self.jury.verdict(given, rung) for given in asked if self._is_taken(i, given))
        return next((verdict for verdict in verdicts if verdict is not Verdict.RIGHT), Verdict.RIGHT)

    def _is_taken(self, i: int, given: Inputs) -> bool:
        """Not: what was found to be wrong is refused already, as a tensor of one value."""
        tensor = self.jury.signature.flatten_inputs(given.args, given.kwargs)[i]
        return not self.domains[i].refusal(tensor)

    def _changed(self, i: int, change: Change, draw: int) -> Inputs:
        """The first sample with other values of one input. A tensor given twice stays one tensor given twice."""
        generator = torch.Generator().manual_seed(self.jury.seed + draw)

        def of(tensor: Tensor) -> Tensor:
            values = change(tensor.detach(), generator) if tensor is self.flat[i] else tensor.detach()
            return with_layout_of(tensor, values)

        return copy_inputs(self.samples[0], of)

    def _narrow(self, i: int, more: Domain) -> None:
        given = {name: value for name, value in dict(more).items() if value != getattr(Domain(), name)}
        self.domains[i] = Domain(**{**dict(self.domains[i]), **given})
