"""Asks a program for values that no sample shows, and says for which it answers as the original does.

What is not so becomes a bound: a ``Domain`` of the input, beyond which the artifact refuses calls. What no bound on an
input can say (ties between some of its elements) is a problem of the program.

The original decides what is legal: values on which it raises need no answer. Where it holds operators that jump, values
that lead to their steps are searched (``steering``) and asked as well.
"""

from __future__ import annotations

import functools
import itertools
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from togi.decide.faithful import MAX_UNITS
from togi.subject.domain import Domain, Number
from togi.subject.inputs import Inputs
from togi.torch_internals.float32 import ieee_float32
from togi.verify.jury import Call, Jury, Verdict
from togi.verify.leaves import clone, copy_inputs, has_opaque, with_layout_of
from togi.verify.original import Original
from togi.verify.probes import (
    Change,
    Ladder,
    Rung,
    Shown,
    drawn_from,
    equal_rows,
    equal_values,
    larger_integers,
    magnitudes,
    masks,
    not_finite,
    one_sign,
    one_value,
    signs,
    smaller_integers,
)
from togi.verify.steering import Steering

_ENOUGH, _MOST_DRAWS, _STEERED_DRAWS = 1024, 16, 4
"""Of a small input values are drawn again while there is time, up to so many elements and so often: few of them may be
answered wrongly."""
_MOST_RAISES = 6
"""After so many, and nothing but them, it is the rung on which the original raises."""
_DRAWS_IN_PART = 4
"""Where single columns or elements are changed, which of them is chance."""
_LONGER_X = 3.0
"""Where even the first rungs take so many times as long as there is time, the rest is not asked at all."""
_OTHERS_SHARE = 0.5
"""Of the time, for calls that are made of it besides the samples."""
_FEWEST_TOGETHER = 3
"""Inputs of one form are asked together from so many on ..."""
_ALONE_SHARE = 0.5
"""... and each of them alone in so much of the time."""
_CPU_CANNOT_TELL = (
    "no values beyond the samples were asked for: the CPU cannot run the original, and on a GPU an index out of range "
    "would end the process"
)
_AS_MADE = Rung("values of other calls", (), Domain())


@dataclass(frozen=True)
class Reach:
    """The reach of a proof beyond the samples."""

    domains: tuple[Domain, ...]
    """Of every flat input; empty where all values that the original takes were answered rightly."""
    problems: tuple[str, ...] = ()
    """What is wrong with it, and cannot be kept out by a domain."""
    notes: tuple[str, ...] = ()
    """What was not asked, and why."""


def reach_of(
    call: Call,
    original: Original,
    samples: Sequence[Inputs],
    *,
    others: Sequence[Inputs] = (),
    exact: bool = True,
    max_units: float = MAX_UNITS,
    nan: bool = True,
    limit_s: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
) -> Reach:
    """Climb the ladders of every input of ``call``, which was verified on the samples.

    Args:
        original: what ``call`` stands for.
        others: calls that are made of it, too. Those that it answers rightly show values as the samples do.
        exact: no technique of its recipe is approximate, so that one of these that it answers wrongly is a fault. Else
            the measure of the whole program judges them.
        max_units: largest error of a faithful answer, in units of plain eager's own.
        nan: what the original shows as NaN must not be a number.
        limit_s: for rungs beyond the first of each ladder; three times as long for all of it.
        clock: in seconds.
    """
    if has_opaque(original.signature):
        return Reach((), notes=("no other values were asked for: an argument is an object that togi cannot vary",))
    with ieee_float32():
        return _Climb(Jury(call, original, max_units), samples, others, exact, limit_s, nan, clock).reach()


@dataclass
class _Climb:
    jury: Jury
    samples: Sequence[Inputs]
    others: Sequence[Inputs]
    exact: bool
    limit_s: float
    nan: bool
    clock: Callable[[], float]
    domains: dict[int, Domain] = field(default_factory=dict)
    climbed: list[tuple[int, Ladder, int, Domain]] = field(default_factory=list)
    """The input, its ladder, the farthest rung that is answered rightly, and what is proven without any."""
    problems: dict[str, None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    answered_wrongly: list[Inputs] = field(default_factory=list)
    """Of the other calls."""

    def reach(self) -> Reach:
        self.began = self.clock()
        self.samples = [*self.samples, *self._answered_rightly()]
        flat = [self.jury.original.signature.flatten_inputs(s.args, s.kwargs) for s in self.samples]
        by_input = list(zip(*flat, strict=True))
        self.base = [next((n for n, tensor in enumerate(tensors) if tensor.numel()), 0) for tensors in by_input]
        self.flat = [tensors[n] for tensors, n in zip(by_input, self.base, strict=True)]
        shown = {i: values for i, tensors in enumerate(by_input) if (values := Shown.of(tensors)) is not None}
        for i in (i for i, tensor in enumerate(self.flat) if i not in shown and tensor.numel()):
            self._not_varied(i)
        self.domains = dict.fromkeys(range(len(self.flat)), Domain())
        floats = [i for i in shown if self.flat[i].is_floating_point()]
        self._integers_and_masks({i: values for i, values in shown.items() if i not in floats})
        self._floats({i: shown[i] for i in floats})
        if not self.problems:
            self._jumps({i: values for i, values in shown.items() if values.between.reach})
        self._wrong_calls_are_kept_out()
        domains = tuple(self.domains.values())
        everything = all(domain.everything for domain in domains)
        return Reach(() if everything else domains, tuple(self.problems), tuple(self.notes))

    def _answered_rightly(self) -> Iterator[Inputs]:
        """Of the other calls, as long as there is time for them. A state that is handed on from call to call has other
        values in each, and bounds of a few of them would refuse the rest. What the program refuses is not among them:
        nothing is proven of that."""
        by_quarters = sorted(range(len(self.others)), key=lambda number: number % 4)  # some of all, if not all of them
        for given in (self.others[number] for number in by_quarters):
            if not self._is_early(_OTHERS_SHARE):
                return
            verdict = self.jury.verdict(given, _AS_MADE)
            if verdict is Verdict.RIGHT:
                yield given
            elif verdict is Verdict.WRONG:
                self.answered_wrongly.append(given)

    def _wrong_calls_are_kept_out(self) -> None:
        """By the bounds that were found: what is answered wrongly in one of the calls that are made is a fault."""
        flatten = self.jury.original.signature.flatten_inputs
        for given in self.answered_wrongly if self.exact else ():
            tensors = enumerate(flatten(given.args, given.kwargs))
            if not any(self.domains[i].refusal(tensor) for i, tensor in tensors):
                self.problems["it answers otherwise than the original in a call that is made of it"] = None

    def _integers_and_masks(self, shown: dict[int, Shown]) -> None:
        for i, values in shown.items():
            dtype = self.flat[i].dtype
            for rung, otherwise in masks(values) if values.mask else ():
                if self._asked((i,), rung) is Verdict.WRONG:
                    self._narrow(i, otherwise)
                    if otherwise.low == otherwise.high is not None:
                        break  # nothing is left to ask for
            if dtype is not torch.bool:
                self._climb((i,), larger_integers(dtype, values), Domain(high=values.high))
                self._climb((i,), smaller_integers(dtype, values), Domain(low=values.low))

    def _floats(self, shown: dict[int, Shown]) -> None:
        """Inputs of one form together, as the caches of all layers are: to ask each of them for all would take longer
        than all else. Where anything is wrong of them all, each is asked; else as long as there is time."""
        by_form: dict[Any, list[int]] = {}
        for i in shown:
            tensor = self.flat[i]
            by_form.setdefault((tensor.shape, tensor.dtype, self.base[i]), []).append(i)
        together = [tuple(inputs) for inputs in by_form.values() if len(inputs) >= _FEWEST_TOGETHER]
        right = {i for inputs in together if self._right_together(inputs, shown) for i in inputs}
        for i in (i for i in shown if i not in right):
            self._float((i,), shown[i])
        for i in right:
            self._alone(i, shown[i])

    def _right_together(self, inputs: tuple[int, ...], shown: dict[int, Shown]) -> bool:
        """Ask for them together. Where not all is right, it is as if nothing had been asked: which of them is wrong is
        not known."""
        before = dict(self.domains), list(self.climbed), dict(self.problems)
        if self._float(inputs, Shown.of_all([shown[i] for i in inputs])):
            return True
        self.domains, self.climbed, self.problems = before
        return False

    def _alone(self, i: int, values: Shown) -> None:
        """What was right of all together, of one: as long as there is time."""
        for _, ladder, at, nearest in [climbed for climbed in self.climbed if climbed[0] == i]:
            self._lower(i, ladder, at, nearest, functools.partial(self._asked_if_early, i))
        if self._is_early(_ALONE_SHARE):
            self._few_values((i,), values)

    def _float(self, inputs: tuple[int, ...], values: Shown) -> bool:
        """Whether the first rung of each ladder is right, and all that is not on one."""
        signed = values.low < 0 or (values.high > 0 and self._asked(inputs, signs(values)) is Verdict.RIGHT)
        ladder = magnitudes(self.flat[inputs[0]].dtype, values, signed=signed, exact=self.exact)
        at = self._climb(inputs, ladder, values.domain)
        finite = [rung.domain for rung in ladder.rungs[: at + 1] if rung.domain.high is not None]
        for i, rung in itertools.product(inputs, not_finite() if self.nan else ()):  # one would hide another's
            verdict = self._asked_or_in_part((i,), rung)
            if verdict is Verdict.WRONG or (verdict is Verdict.UNASKED and finite):
                self._narrow(i, finite[-1] if finite else values.domain)
        right = at >= ladder.first
        if self.flat[inputs[0]].numel() == 1:
            return right
        right &= self._few_values(inputs, values)
        rows = equal_rows(values, self._within(inputs))
        return self._climb(inputs, rows, values.domain) >= rows.first and right

    def _few_values(self, inputs: tuple[int, ...], values: Shown) -> bool:
        """Whether what holds few values, or those of one sign, is right."""
        right = self._asked(inputs, one_value(values, self._within(inputs))) is not Verdict.WRONG
        for i in inputs if not right else ():
            self._narrow(i, Domain(constant=False))
        for rung in (equal_values(self._within(inputs), exact=self.exact), one_sign(self._within(inputs))):
            if self._asked(inputs, rung) is Verdict.WRONG:
                right = False
                self._cannot_be_kept_out(inputs[0], rung)
        return right

    def _within(self, inputs: tuple[int, ...]) -> Domain:
        return functools.reduce(operator.and_, (self.domains[i] for i in inputs))

    def _not_varied(self, i: int) -> None:
        name, dtype = self.jury.original.signature.inputs_facts[i].name, self.flat[i].dtype
        kinds = "sparse, quantized, complex or 8-bit floats, unsigned integers of 16 bits and more, nor NaN in a sample"
        self.notes[f"no other values of {name} ({dtype}) were asked for: togi varies no {kinds}"] = None

    def _cannot_be_kept_out(self, i: int, rung: Rung) -> None:
        name = self.jury.original.signature.inputs_facts[i].name
        self.problems[f"it answers otherwise than the original where {name} holds {rung.name}"] = None

    def _jumps(self, shown: dict[int, Shown]) -> None:
        """Ask again where the original jumps: between the values shown, then as far as the ladders were climbed."""
        until = max(self.began + self.limit_s, self.clock() + self.limit_s / 4)
        self.steering = Steering(
            self.jury.original.run,
            self.jury.original.run_in_float64,
            lambda: self.clock() < until,
            check=self.jury.original.check,
        )
        self.steering.look(self.samples[0])
        for i, values in shown.items():
            if self._steered(i, values.between) is Verdict.WRONG:
                self._cannot_be_kept_out(i, values.between)
                return
        of_one = {i: reach for i, values in shown.items() if (reach := values.between.reach) and not self.base[i]}
        if self._is_wrong_together(of_one):
            self.problems["it answers otherwise than the original where several inputs lead to a jump"] = None
            return
        for i, ladder, at, nearest in self.climbed:
            if i in shown:
                self._lower(i, ladder, at, nearest, functools.partial(self._steered, i))
        if self.steering.cut_short:
            self.notes["no time was left to look for all values at which the original jumps"] = None

    def _lower(self, i: int, ladder: Ladder, at: int, nearest: Domain, ask: Callable[[Rung], Verdict]) -> None:
        """Narrow an input further where what was proven of it is wrong by another question."""
        proven = at
        while proven >= 0 and ask(ladder.rungs[proven]) is Verdict.WRONG:
            proven -= 1
        if proven < at:
            self._narrow(i, ladder.rungs[proven].domain if proven >= 0 else nearest)

    def _climb(self, inputs: tuple[int, ...], ladder: Ladder, nearest: Domain) -> int:
        """Narrow inputs to what of the ladder is answered rightly (``nearest``: where that is nothing of it). The
        farthest such rung, -1 for none.

        What there was no time to ask at all is noted and not narrowed: bounds of one sample would refuse every other
        call.
        """
        if not ladder.rungs:
            return -1
        at, others = self._farthest(inputs, ladder)
        in_time = not others or Verdict.UNASKED in others
        for i in inputs:
            self.climbed.append((i, ladder, at, nearest))
            if Verdict.WRONG in others or (in_time and at >= 0):  # else: as far as the original goes
                self._narrow(i, ladder.rungs[at].domain if at >= 0 else nearest)
        return at

    def _farthest(self, inputs: tuple[int, ...], ladder: Ladder) -> tuple[int, set[Verdict]]:
        """The farthest rung that is answered rightly, -1 for none, and the verdicts on rungs that are not."""
        at, others = ladder.first, set[Verdict]()
        while (verdict := self._asked_or_in_part(inputs, ladder.rungs[at])) is not Verdict.RIGHT:
            others.add(verdict)
            if at == 0:
                return -1, others
            at -= 1
        if others:  # the next one was asked already
            return at, others
        while at + 1 < len(ladder.rungs) and not self._time_is_up(ladder.rungs[at + 1]):
            verdict = self._asked_or_in_part(inputs, ladder.rungs[at + 1])
            if verdict is not Verdict.RIGHT:
                return at, others | {verdict}
            at += 1
        return at, others

    def _asked_or_in_part(self, inputs: tuple[int, ...], rung: Rung) -> Verdict:
        """Where the original raises on all of it, one column may be what it raises on: a number of a category."""
        verdict = self._asked(inputs, rung)
        if verdict is Verdict.ILLEGAL and rung.in_part and self._is_early():
            return self._asked(inputs, replace(rung, changes=rung.in_part), least=_DRAWS_IN_PART)
        return verdict

    def _asked_if_early(self, i: int, rung: Rung) -> Verdict:
        return self._asked_or_in_part((i,), rung) if self._is_early(_ALONE_SHARE) else Verdict.UNASKED

    def _steered(self, i: int, rung: Rung) -> Verdict:
        """The verdict on values within the rung's reach at which the original jumps."""
        if rung.reach is None:
            return Verdict.RIGHT
        changes = self.steering.changes(
            self.flat[i], *rung.reach, lambda values: self._changed((i,), lambda *_: values, 0)
        )
        return self._asked((i,), Rung(rung.name, tuple(changes), rung.domain, exact=True), most=_STEERED_DRAWS)

    def _is_wrong_together(self, reaches: dict[int, tuple[Number, Number]]) -> bool:
        """Ask with several inputs changed: each alone may lead to no jump with what the sample holds of the others."""
        if len(reaches) < 2 or not self.steering.jumps:
            return False
        pools = {id(self.flat[i]): self.steering.pool(self.flat[i], *reach) for i, reach in reaches.items()}
        rung = Rung("simple values", (), Domain(), exact=True)
        return any(self.jury.verdict(self._of_pools(pools, n), rung) is Verdict.WRONG for n in range(_STEERED_DRAWS))

    def _of_pools(self, pools: dict[int, Tensor], number: int) -> Inputs:
        drawn = torch.Generator().manual_seed(self.jury.original.seed + number)

        def of(tensor: Tensor) -> Tensor:
            pool = pools.get(id(tensor), torch.empty(0))
            return with_layout_of(tensor, drawn_from(pool, tensor, drawn)) if len(pool) else clone(tensor)

        return copy_inputs(self.samples[0], of)

    def _is_early(self, share: float = 1.0) -> bool:
        return self.clock() < self.began + share * self.limit_s

    def _time_is_up(self, rung: Rung) -> bool:
        if self._is_early():
            return False
        self.notes[f"no time was left to ask for {rung.name}"] = None
        return True

    def _asked(self, inputs: tuple[int, ...], rung: Rung, least: int = 1, most: int = _MOST_DRAWS) -> Verdict:
        """WRONG if any of its values that are taken is answered wrongly, ILLEGAL if the original raises on all."""
        if self.clock() > self.began + _LONGER_X * self.limit_s:
            for i in inputs:
                name = self.jury.original.signature.inputs_facts[i].name
                self.notes[f"no time was left to ask for values of {name} beyond the samples"] = None
            return Verdict.UNASKED
        draws = max(least, min(most, -(-_ENOUGH // self.flat[inputs[0]].numel())))
        calls = (
            self._changed(inputs, change, draw)
            for change in rung.changes
            for draw in range(draws)
            if not draw or self._is_early()
        )
        verdicts = (self.jury.verdict(given, rung) for given in calls if self._is_taken(inputs, given))
        found: Counter[Verdict] = Counter()
        for verdict in verdicts:
            found[verdict] += 1
            if verdict is Verdict.WRONG:
                return verdict
            if verdict is Verdict.UNASKED:
                self.notes[_CPU_CANNOT_TELL] = None
                return verdict
            if found[Verdict.ILLEGAL] > _MOST_RAISES and set(found) == {Verdict.ILLEGAL}:
                break
        return Verdict.ILLEGAL if set(found) == {Verdict.ILLEGAL} else Verdict.RIGHT

    def _is_taken(self, inputs: tuple[int, ...], given: Inputs) -> bool:
        """Not: what was found to be wrong is refused already, as a tensor of one value."""
        tensors = self.jury.original.signature.flatten_inputs(given.args, given.kwargs)
        return not any(self.domains[i].refusal(tensors[i]) for i in inputs)

    def _changed(self, inputs: tuple[int, ...], change: Change, draw: int) -> Inputs:
        """A sample that holds some of each input, with others in their place. A tensor given twice stays one so
        given."""
        generator = torch.Generator().manual_seed(self.jury.original.seed + draw)
        changed = [self.flat[i] for i in inputs]

        def of(tensor: Tensor) -> Tensor:
            in_turn = any(tensor is each for each in changed)
            values = change(tensor.detach(), generator) if in_turn else tensor.detach()
            return with_layout_of(tensor, values)

        return copy_inputs(self.samples[self.base[inputs[0]]], of)

    def _narrow(self, i: int, more: Domain) -> None:
        self.domains[i] &= more
