"""Makes the truth: runs the original in float64 and as it is, and learns how it behaves.

Runs of the original, for n inputs: n + 1 as it is, 2 more of the first for repeatability, 1 with autograd on, n in
float64; n with nudged weights where an output is discrete, 8 n where the outputs hold few numbers. On a CUDA device
they multiply in IEEE float32, and n more as torch's flags have it, where these say TensorFloat-32; float64 runs there,
besides one input on the CPU.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.choices import Direction
from togi.core.errors import SubjectError
from togi.core.quantities import first_line, plural
from togi.subject.behaviour import kept_buffers
from togi.subject.inputs import Inputs
from togi.subject.plain_tensors import plain
from togi.subject.program import ProgramModule
from togi.subject.signature import Signature
from togi.torch_internals.float32 import ieee_float32, tf32_operators
from togi.verify.compare import continuous, difference, identical
from togi.verify.float64 import (
    float64_arithmetic,
    nudged,
    nudged_inputs,
    wide,
    widened,
    widened_inputs,
    with_nudged_tables,
)
from togi.verify.leaves import input_tensors, may_be_index
from togi.verify.metric import AskedMetric, Metric
from togi.verify.observe import Observation, ObservedCalls, observe, overlaps
from togi.verify.original import CPU_CANNOT
from togi.verify.repeatability import varying, with_repeatability
from togi.verify.truth import OriginalAnswer, Truth, TruthFacts, answer_of
from togi.verify.units import FEW, NUDGES_FEW, epsilon_of, leaf_error, needs_nudges, units_of

SUSPICIOUS_ROUNDINGS = 1000.0
"""Eager's own error, in roundings, from which its float64 form is doubted ..."""
SUSPICIOUS_RATIO = 100.0
"""... if eager is also this many times nearer to itself under nudged weights: then float64 takes another branch."""

SAME_FLOAT64 = 1e-9
"""Relative root-mean-square difference up to which float64 on a device and on the CPU are the same answer: far above
float64's roundings, far below those of float32."""
CHECKED_FLOPS = 2e11
"""Work of a call that is repeated in float64 on the CPU: some seconds on a few cores."""

_SHOWS_NOTHING = (
    "nothing that the original returns can be compared, so nothing can be proven equal to it: it is another one in "
    "each call, or shows no values"
)
_NEEDS_INPUTS = "togi needs inputs on which the original runs."
_ONE_PROCESS = (
    "A study runs it in several processes at once: what one alone may hold (a port, a lock on a file) has to be opened "
    "for each call, or outside of it."
)
_MOST_NAMED = 5
"""So many parts that are left out are named, each in a note."""


def make_truth(
    module: nn.Module,
    inputs: Sequence[Inputs],
    signature: Signature,
    *,
    seed: int,
    device: str | None = None,
    samples: int = 1,
    metric: Metric | None = None,
    better: Direction | None = None,
    damage: bool = False,
    flops: float | None = None,
    gradients: bool = True,
) -> Truth:
    """The truth of ``module`` on ``inputs`` (``variants``), of which the first ``samples`` are the user's own.

    ``module`` is left as it is. ``device`` is where eager runs (default: where the signature says the inputs are), and
    float64 too where it fits there; the first input's answer is then compared with the CPU's, unless its ``flops``
    (None: not known, taken as few) are too many for that. ``gradients``: ask which outputs require some.

    ``better``: which values of the metric are, where it was declared. ``damage``: approximate candidates are judged by
    it, so what it says of damaged models is found out too (``togi.verify.metric``).

    Derived inputs on which the original raises, or stops being finite where the samples are, are dropped with a note.

    Raises:
        SubjectError: the original raises on one of the user's own samples.
    """
    asked = None if metric is None else AskedMetric(metric, better, damage)
    making = _Making(module, list(inputs), signature, seed, device or signature.device, samples, flops, gradients)
    return making.truth(asked)


@dataclass
class _Making:
    module: nn.Module
    inputs: list[Inputs]
    signature: Signature
    seed: int
    device: str
    samples: int
    flops: float | None
    gradients: bool
    notes: list[str] = field(default_factory=list)
    varying: tuple[str, ...] = ()
    """As in ``TruthFacts``; found out first."""
    tried: set[int] = field(default_factory=set)
    """Inputs that the CPU took."""

    def truth(self, metric: AskedMetric | None) -> Truth:
        with ieee_float32():
            calls, run = self._eager()
            again = self._called(calls[:1] * 2, seeds=(self.seed, self.seed + 1))
            run, again, stateful = self._without_varying(run, again)
            noisy = not _alike(again.leaves[0], run.leaves[0])
            stateful = stateful and not noisy
            other_seed = self._called(calls[:1], seeds=(self.seed + 1,)) if stateful else again
            random = not noisy and not _alike(other_seed.leaves[-1], run.leaves[0])
            if not stateful:
                calls = calls[:-1]
                run = ObservedCalls(run.seen[:-1], run.leaves[:-1])
            if random:
                exact, fallback = None, "it draws random numbers, and other ones in float64"
            else:
                exact, fallback = self._float64(calls, run)
            answers, truths = self._answers(calls, run, exact)
        rounds = not random and bool(tf32_operators(self.device))
        answers = self._with_tf32_units(calls, answers, truths, run, rounds=rounds)
        first, second = again.seen
        facts = TruthFacts(
            samples=self.samples,
            answers=tuple(answers),
            schedule=tuple(range(len(answers))) if stateful else (*range(len(answers)), 0),
            precision="float64" if not fallback else "eager",
            fallback=fallback,
            tf32_units=max((leaf.tf32_units or 0.0 for answer in answers for leaf in answer.leaves), default=0.0),
            stateful=stateful,
            random=random,
            varying=self.varying,
            shared_between_calls=tuple(sorted(a for a, b in overlaps(first.leaves, second.leaves) if a == b)),
            metric=None if metric is None else metric.of(self.module, _outputs(run, self.samples), self._pass),
            notes=tuple(self.notes),
        )
        if run.seen[0].shows_nothing and metric is None:
            facts = facts.model_copy(update={"repeatable": False, "unrepeatable": _SHOWS_NOTHING})
        elif noisy:  # the second of the two had another seed
            facts = with_repeatability(facts, ObservedCalls(again.seen[:1], again.leaves[:1]), run)
        return Truth(facts=facts, truth=truths, eager=run.leaves)

    def _eager(self) -> tuple[list[int], ObservedCalls]:
        """The original as it is, on one input after the other and on the first again; and which inputs these are.

        Left out are those on which it raises, or stops being finite where the samples are. The others then run once
        more, on a fresh copy: a call that raised may have left something behind.
        """
        calls = [*range(len(self.inputs)), 0]
        while True:
            run, finite, left_out = ObservedCalls([], []), True, set[int]()
            module = self._copy()
            with torch.no_grad(), kept_buffers(module):
                for i in calls:
                    try:
                        self._try_on_cpu_first(i, self.inputs[i])
                        run.add(self._observed(module, self.inputs[i]))
                    except Exception as error:  # foreign code: a model's forward may raise anything
                        if i < self.samples:
                            raise SubjectError(
                                f"the module raises on sample {i + 1} of its own inputs: {first_line(error)}. "
                                f"{_ONE_PROCESS if isinstance(error, OSError) else _NEEDS_INPUTS}"
                            ) from error
                        left_out.add(i)
                        self._note(
                            f"derived input {i + 1} is left out: the original raises on it ({first_line(error)})"
                        )
                        continue
                    is_finite = all(map(_finite, run.leaves[-1]))
                    if i < self.samples:
                        finite = finite and is_finite
                    elif finite and not is_finite:
                        left_out.add(i)
                        self._note(f"derived input {i + 1} is left out: the original's output is not finite on it")
            if not left_out:
                return calls, run
            calls = [i for i in calls if i not in left_out]

    def _without_varying(self, run: ObservedCalls, again: ObservedCalls) -> tuple[ObservedCalls, ObservedCalls, bool]:
        """Both without what no call of the original has twice; and whether its answers follow the calls before. Then so
        may the floats in its objects, and they are compared."""
        first, last = run.seen[0], run.seen[-1]
        in_each, later = varying(first, again.seen[0]), varying(first, last)
        rest = run.without((*in_each, *later)).leaves
        stateful = not _alike(rest[-1], rest[0])
        if stateful:
            later = varying(first, last, numbers=False)
        self.varying = tuple(dict.fromkeys((*in_each, *later)))
        for path in self.varying[:_MOST_NAMED]:
            self._note(f"{path} is another one in each call of the original, and is not compared")
        if more := len(self.varying[_MOST_NAMED:]):
            self._note(f"the same holds for {plural(more, 'more part')} of what it returns or is given")
        return run.without(self.varying), again.without(self.varying), stateful

    def _try_on_cpu_first(self, i: int, one: Inputs) -> None:
        """An index out of range raises on the CPU, but on a GPU it ends the process's use of the device. Inputs without
        integers hold none, and large models take the CPU long."""
        if self.device == "cpu" or i < self.samples or i in self.tried or not any(map(may_be_index, one.tensors())):
            return
        try:
            given = widened_inputs(one)
            with float64_arithmetic(), kept_buffers(self._on_cpu):
                self._on_cpu(*given.args, **given.kwargs)
            self.tried.add(i)
        except (MemoryError, NotImplementedError):
            return
        except RuntimeError as error:
            if not CPU_CANNOT.search(str(error)):
                raise

    @functools.cached_property
    def _on_cpu(self) -> nn.Module:
        """In float64: made once, since copying a large module takes as long as running it."""
        return widened(self.module)

    def _copy(self) -> nn.Module:
        try:
            return copy.deepcopy(self.module)
        except Exception as error:  # foreign code: modules define how they are copied
            self._note(
                f"the module cannot be copied ({first_line(error)}): the original itself is run, "
                "its buffers are put back"
            )
            return self.module

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _called(self, calls: Sequence[int], seeds: Sequence[int]) -> ObservedCalls:
        """A fresh copy of the original on one input after the other, each with a seed of its own."""
        module, run = self._copy(), ObservedCalls([], [])
        with torch.no_grad(), kept_buffers(module):
            for i, seed in zip(calls, seeds, strict=True):
                run.add(self._observed(module, self.inputs[i], seed))
        return run

    def _observed(self, call: Callable[..., Any], inputs: Inputs, seed: int | None = None) -> Observation:
        seed = self.seed if seed is None else seed
        return observe(call, inputs, self.signature, seed=seed, varying=self.varying)

    def _pass(self, module: nn.Module) -> list[Any]:
        """The outputs of another module on the user's own samples."""
        with torch.no_grad(), ieee_float32():
            return _outputs(self._sequence(module, self.inputs[: self.samples]), self.samples)

    def _sequence(self, call: Callable[..., Any], inputs: Sequence[Inputs]) -> ObservedCalls:
        run = ObservedCalls([], [])
        for sample in inputs:
            run.add(self._observed(call, sample))
        return run

    def _float64(self, calls: Sequence[int], eager: ObservedCalls) -> tuple[list[list[Tensor]] | None, str]:
        """The answers in float64, or why there are none. The device first: a large model takes the CPU minutes."""
        failed = ""
        for device in dict.fromkeys((self.device, "cpu")):
            try:
                run = self._run_in_float64(calls, device)
            except Exception as error:  # foreign code: a forward may insist on its own dtype or device
                failed = failed or f"it does not run in float64 ({first_line(error)})"
                continue
            if device != "cpu" and (doubt := self._differs_on_cpu(calls, run)):
                failed = doubt
                self._note(f"{doubt}: the truth is the CPU's")
                continue
            different = different_form(eager, run)
            self._note_narrow(run)
            return (None, different) if different else self._trusted(calls, eager, run)
        return None, failed

    def _run_in_float64(self, calls: Sequence[int], device: str) -> ObservedCalls:
        module = widened(self.module, device)
        inputs = [widened_inputs(self.inputs[i], device) for i in calls]
        with torch.no_grad(), float64_arithmetic():
            return self._sequence(module, inputs)

    def _differs_on_cpu(self, calls: Sequence[int], run: ObservedCalls) -> str:
        """Say how the device's first answer differs from the CPU's; nothing where the CPU cannot tell, too."""
        if self.flops is not None and self.flops > CHECKED_FLOPS:
            self._note("float64 on the device was not compared with the CPU's: that would take minutes")
            return ""
        try:
            on_cpu = self._run_in_float64(calls[:1], "cpu")
        except Exception:  # foreign code: kernels of the device alone
            return ""
        for (name, _), one, other in zip(run.seen[0].leaves, run.leaves[0], on_cpu.leaves[0], strict=False):
            if one.shape != other.shape or (continuous(one) and difference(one, other, other).rmse > SAME_FLOAT64):
                return f"in float64 {name} on the device is not what it is on the CPU"
        return ""

    def _trusted(
        self, calls: Sequence[int], eager: ObservedCalls, exact: ObservedCalls
    ) -> tuple[list[list[Tensor]] | None, str]:
        """Whether float64 is the same function: a branch on the dtype would make eager's own error enormous."""
        doubtful = [
            (c, i)
            for c, leaves in enumerate(exact.leaves)
            for i, leaf in enumerate(leaves)
            if may_branch(eager.leaves[c][i], leaf)
        ]
        if doubtful:
            moved = self._nudged(calls, 0, tables=True)
            for c, i in doubtful:
                e = eager.leaves[c][i]
                if moved is None or moved[c][i].shape != e.shape:
                    continue
                if branches(e, exact.leaves[c][i], moved[c][i : i + 1]):
                    return None, f"in float64 it computes something else ({eager.seen[c].leaves[i][0]})"
        return exact.leaves, ""

    def _note_narrow(self, run: ObservedCalls) -> None:
        """Say which outputs were asked for in float64 and are none, where they follow the inputs. What does not is a
        table that is handed out."""
        for i, (name, first) in enumerate(run.seen[0].leaves):
            if not continuous(first) or wide(first).dtype is first.dtype:
                continue
            values = [leaves[i] for leaves in run.leaves if i < len(leaves)]
            if any(not _alike(values[:1], [other]) for other in values[1:]):
                dtype = str(first.dtype).removeprefix("torch.")
                self._note(f"{name} is {dtype} where float64 is asked for: what was computed in less counts as exact")

    def _nudged(self, calls: Sequence[int], number: int, *, tables: bool = False) -> list[list[Tensor]] | None:
        """Eager's answers with weights and inputs moved by a rounding, and ``tables`` that are neither; None where the
        original cannot be copied."""
        seed = self.seed + 1000 * (number + 1)
        try:
            module = nudged(self.module, seed)
            call = with_nudged_tables(module, seed) if tables else module
        except Exception:  # foreign code (copying); noted by _copy, and the unit then rests on eager's own error
            return None
        inputs = [nudged_inputs(self.inputs[i], seed) for i in calls]
        try:
            with torch.no_grad():
                return self._sequence(call, inputs).leaves
        except Exception as error:  # foreign code: a forward may insist on exact values
            self._note(f"eager's own error could not be sampled with inputs moved by a rounding ({first_line(error)})")
            return None

    def _answers(
        self, calls: Sequence[int], run: ObservedCalls, exact: list[list[Tensor]] | None
    ) -> tuple[list[OriginalAnswer], list[list[Tensor]]]:
        truths = [[wide(t) for t in leaves] for leaves in (exact or run.leaves)]
        is_exact = exact is not None and self._narrow()
        wanted = NUDGES_FEW if not is_exact or self._needs_nudges(run) else int(_has_discrete(run))
        nudges = [moved for k in range(wanted) if (moved := self._nudged(calls, k)) is not None]
        measured = units_of(run, truths, nudges, self._narrowest(), is_exact)
        gradients = self._requires_grad(calls[0]) if self.gradients else {}
        answers = [
            answer_of(calls[c], seen, run.leaves[c], truths[c], measured[c], gradients)
            for c, seen in enumerate(run.seen)
        ]
        return answers, truths

    def _with_tf32_units(
        self,
        calls: Sequence[int],
        answers: Sequence[OriginalAnswer],
        truths: list[list[Tensor]],
        run: ObservedCalls,
        *,
        rounds: bool,
    ) -> list[OriginalAnswer]:
        """With eager's worst error as torch's flags have it, output by output, over those that have a finite one: where
        it decides otherwise, or overflows, nobody may follow. ``rounds``: the flags let it round factors."""
        all_units: dict[str, list[float]] = {}
        as_it_is = self._called(calls, seeds=(self.seed,) * len(calls)).leaves if rounds else []
        for answer, *tensors in zip(answers, as_it_is, truths, run.leaves, strict=False):
            for leaf, tensor, truth, eager in zip(answer.leaves, *tensors, strict=False):
                if tensor.shape == eager.shape:
                    units = leaf_error(leaf.name, tensor, truth, eager, leaf.unit, leaf.threshold)[0].units
                    all_units.setdefault(leaf.name, []).append(units)
        worst = {name: max(filter(math.isfinite, of), default=0.0) for name, of in all_units.items()}
        return [
            answer.model_copy(
                update={
                    "leaves": tuple(
                        leaf.model_copy(update={"tf32_units": worst.get(leaf.name, 0.0)}) for leaf in answer.leaves
                    )
                }
            )
            for answer in answers
        ]

    def _needs_nudges(self, run: ObservedCalls) -> bool:
        """Whether the error of an output is sampled. Not of what a program decides: whether another decision is a tie,
        its parts tell (``worker/forced``). Discrete outputs of many numbers need one such run."""
        program = isinstance(self.module, ProgramModule)
        outputs: dict[str, list[Tensor]] = {}
        for seen, leaves in zip(run.seen, run.leaves, strict=True):
            for (name, _), tensor in zip(seen.leaves, leaves, strict=True):
                outputs.setdefault(name, []).append(tensor)
        for tensors in outputs.values():
            if continuous(tensors[0]):
                if any(t.numel() for t in tensors) and needs_nudges(tensors, self._narrowest()):
                    return True
            elif not program and 0 < sum(t.numel() for t in tensors) < FEW:
                return True
        return False

    def _floats(self) -> set[torch.dtype]:
        tensors = [*self.module.parameters(), *self.module.buffers()]
        tensors += [t for s in self.inputs[: self.samples] for _, t in input_tensors(s, self.signature)]
        return {t.dtype for t in tensors if t.is_floating_point() or t.is_complex()}

    def _narrow(self) -> bool:
        """Float64 is more precise than the original."""
        dtypes = self._floats()
        return not dtypes or bool(dtypes - {torch.float64, torch.complex128})

    def _narrowest(self) -> float:
        """Machine epsilon of the most precise type below float64 that the original computes in."""
        epsilons = [torch.finfo(d).eps for d in self._floats() if d not in (torch.float64, torch.complex128)]
        return min(epsilons, default=torch.finfo(torch.float64 if self._floats() else torch.float32).eps)

    def _requires_grad(self, first: int) -> dict[str, bool]:
        module = self._copy()
        try:
            with torch.enable_grad(), kept_buffers(module):
                seen = self._observed(module, self.inputs[first])
        except Exception as error:  # foreign code: some modules only run without autograd
            self.notes.append(f"the original does not run with autograd on ({first_line(error)})")
            return {}
        return {name: tensor.requires_grad for name, tensor in seen.leaves}


def _outputs(run: ObservedCalls, samples: int) -> list[Any]:
    return [seen.output for seen in run.seen[:samples]]


def _alike(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(identical(a, b) for a, b in zip(one, other, strict=True))


def _has_discrete(run: ObservedCalls) -> bool:
    return any(not continuous(tensor) for leaves in run.leaves for tensor in leaves)


def _finite(tensor: Tensor) -> bool:
    return not continuous(tensor) or bool(plain(tensor).float().isfinite().all())


def may_branch(eager: Tensor, exact: Tensor) -> bool:
    """Eager is so far from float64 that this may be another function: a branch on the dtype."""
    return continuous(exact) and difference(eager, exact, eager).rmse > SUSPICIOUS_ROUNDINGS * epsilon_of(eager)


def branches(eager: Tensor, exact: Tensor, moved: Sequence[Tensor]) -> bool:
    """Whether it branches: float64 is further away than ``moved``, eager's answers moved by a rounding, explain. Not
    relative to float64: what is zero in exact arithmetic does not branch."""
    movements = [difference(m, eager, eager) for m in moved]
    rounding = epsilon_of(eager) * difference(eager, eager, eager).scale
    return difference(eager, exact, eager).rms > SUSPICIOUS_RATIO * max([rounding, *(m.rms for m in movements)])


def branched(
    outputs: Iterable[int], eager: Sequence[Tensor], exact: Sequence[Tensor], moved: Iterable[Sequence[Tensor]]
) -> list[int]:
    """Which of these outputs float64 computes otherwise. ``moved``, eager's answers with weights and inputs moved by a
    rounding, are asked for while any is suspected."""
    suspected = [i for i in outputs if may_branch(eager[i], exact[i])]
    for leaves in moved if suspected else ():
        suspected = [i for i in suspected if branches(eager[i], exact[i], leaves[i : i + 1])]
        if not suspected:
            break
    return suspected


def different_form(eager: ObservedCalls, exact: ObservedCalls) -> str:
    """Say why answers in float64 cannot stand next to eager's; empty where they can."""
    for one, other in zip(eager.seen, exact.seen, strict=True):
        if [n for n, _ in one.leaves] != [n for n, _ in other.leaves]:
            return "in float64 its output has another structure"
        for (name, a), (_, b) in zip(one.leaves, other.leaves, strict=True):
            if a.shape != b.shape:
                return f"in float64 {name} has another shape (it depends on the values)"
            if continuous(a) != continuous(b):
                return f"in float64 {name} has another kind of dtype"
    return ""
