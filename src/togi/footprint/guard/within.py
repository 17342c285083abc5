"""``togi.within("8GiB")``: a function on tensors, kept within a budget by splitting the batch, on the same device.

Predicted before it runs: what would not fit is split at once. What the device refuses all the same is split further.
A batch is only split where its rows are shown to be independent, and never moved to another device.
"""

from __future__ import annotations

import copy
import functools
import gc
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from togi.core.errors import BudgetError
from togi.core.quantities import first_line, parse_size, size
from togi.core.records import Record
from togi.footprint.dry_run import dry_run_of
from togi.footprint.guard.estimate import Estimate, estimate, why_not_in_turn
from togi.footprint.prediction.cpu import AllocationProbe
from togi.graph.dependence.proof import RowProof
from togi.measure.memory import is_out_of_memory
from togi.subject.batch import shared_rows, sliced_rows
from togi.subject.behaviour import kept_generators
from togi.subject.inputs import Inputs
from togi.torch_internals.autograd import stands_for_another
from togi.torch_internals.tensors import TreeSpec, tree_flatten, tree_unflatten


def within(budget: int | str) -> Callable[[Callable[..., Any]], Guarded]:
    """A decorator: ``@togi.within("8GiB")`` over a function of tensors, or ``togi.within(n)(model)``.

    Args:
        budget: bytes, or ``"8GiB"``, for what a call takes above what is there when it begins: results and everything
            on the way to them, not the arguments and the parameters.

    The guarded function raises BudgetError where not even one row at a time keeps to the budget, or where the batch may
    not be split. It may not if rows depend on each other, results take part in autograd (``togi.fit`` is for training)
    or are other objects than tensors and numbers, the function writes to what outlives it, or a call leaves something
    for the next one.

    A call that predicts runs the function on tensors without values, and copies of its modules. What other objects that
    it reaches keep of that call is put back; where something keeps such a tensor and is not found, BudgetError says so.
    A function that cannot be predicted (it leaves torch, or branches by values) runs as it is, with one RuntimeWarning.
    """
    limit = parse_size(budget, "budget")
    return lambda function: Guarded(function, limit)


class WithinReport(Record):
    """One call of a guarded function."""

    budget_bytes: int
    rows: int | None = None
    """Size of dimension 0 of the inputs; None where they share none."""
    rows_per_part: int | None = None
    parts: int = 1
    """How many times the function was called for the result."""
    predicted_bytes: int | None = None
    """Of one call with all rows, above what was there; None where it could not be predicted."""
    predicted_part_bytes: int | None = None
    """Of the way it was run, the results of all parts included."""
    out_of_memory: int = 0
    """How many attempts the device refused."""
    notes: tuple[str, ...] = ()


class Guarded:
    """The function under guard. ``report`` says what the last call did; of a method, that of the class knows those of
    all objects."""

    _of_class: Guarded | None = None

    def __init__(self, function: Callable[..., Any], budget_bytes: int) -> None:
        self.function, self.budget_bytes = function, budget_bytes
        self._probe = AllocationProbe(limit_bytes=budget_bytes)  # what it has measured serves the next calls
        self._warned: set[str] = set()
        self.report: WithinReport | None = None
        functools.update_wrapper(self, function, updated=())

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        bind = getattr(type(self.function), "__get__", None)
        if instance is None or bind is None:
            return self
        bound = copy.copy(self)
        bound.function, bound._of_class = bind(self.function, instance, owner), self
        functools.update_wrapper(bound, bound.function, updated=())
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return _outside_compilation(self._call, args, kwargs)
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        sample = Inputs(args, kwargs)
        if any(map(stands_for_another, sample.tensors())):
            self._reports(WithinReport(budget_bytes=self.budget_bytes, notes=(_TRACED,)))
            return self.function(*args, **kwargs)
        call = _GuardedCall(self.function, sample, self.budget_bytes, self._probe)
        try:
            result = call.run()
        finally:
            self._reports(call.report)
        if call.unpredicted:
            self._warn(call.unpredicted)
        return result

    def _reports(self, report: WithinReport) -> None:
        self.report = report
        if self._of_class is not None:
            self._of_class.report = report

    def _warn(self, reason: str) -> None:
        """Once for each reason."""
        if reason not in self._warned:
            self._warned.add(reason)
            name = getattr(self.function, "__name__", type(self.function).__name__)
            warnings.warn(
                f"togi.within runs {name} as it is, and does not keep to {size(self.budget_bytes)}. {reason} Guard a "
                "part of it that can be predicted, or take togi.within away.",
                RuntimeWarning,
                stacklevel=4,
            )


_TRACED = "It ran as it is, inside of a transform or a tracer of torch, where nothing is computed."


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _outside_compilation(call: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Any:
    """Called from a compiled function: a graph break."""
    return call(args, kwargs)


class _GuardedCall:
    """One call: its plan, its attempts, its report."""

    def __init__(self, function: Callable[..., Any], sample: Inputs, budget_bytes: int, probe: AllocationProbe) -> None:
        self.function, self.sample, self.budget_bytes, self.probe = function, sample, budget_bytes, probe
        self.rows = shared_rows(sample)
        found = estimate(function, sample, None, probe)
        self.whole = found if isinstance(found, Estimate) else None
        self.unpredicted = found if isinstance(found, str) else ""
        """Why there is no estimate."""
        self.report = WithinReport(
            budget_bytes=budget_bytes,
            rows=self.rows,
            rows_per_part=self.rows,
            predicted_bytes=self.whole.peak_bytes if self.whole else None,
            notes=(self.unpredicted,) if self.unpredicted else (),
        )
        self.proof: RowProof | None = None
        self.proven: set[int] = set()
        """Numbers of rows that a part may have."""
        self._in_turn: str | None = None
        self._kept: list[Tensor] = []
        """What the last call that was recorded left in objects."""

    def run(self) -> Any:
        part = self._planned_rows()
        while True:
            try:
                return self._in_parts(part) if part else self.function(*self.sample.args, **self.sample.kwargs)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                refusal = first_line(error)
            self._say(out_of_memory=self.report.out_of_memory + 1)
            part = self._fewer_rows(part, refusal)
            gc.collect()

    def _planned_rows(self) -> int | None:
        """Rows of one part; None for all at once."""
        if self.whole is None or self.whole.peak_bytes <= self.budget_bytes:
            return None
        why = f"a call would take {size(self.whole.peak_bytes)}, predicted"
        self._must_be_splittable(why, _half(self.rows))
        assert self.rows is not None
        part, need = self.rows, self.whole.peak_bytes
        while need > self.budget_bytes:
            if part == 1:
                raise BudgetError(
                    f"the budget is {size(self.budget_bytes)}, and even one row at a time would take {size(need)} "
                    f"({size(self.whole.result_bytes)} of it the results of all {self.rows} rows). Raise the budget, "
                    "or make a row smaller."
                )
            part = _half(part)
            need = self._need(part)
        self._must_be_splittable(why, part)
        self._say(predicted_part_bytes=need)
        return part

    def _need(self, part: int) -> int:
        """Results of all rows, and one part on its way."""
        assert self.whole is not None
        part_estimate = estimate(self.function, self.sample, part, self.probe)
        if isinstance(part_estimate, str):  # it may insist on its sizes
            raise self._may_not_be_split("", f"{part} of its {self.rows} rows do not run. {part_estimate[:-1]}")
        return self.whole.result_bytes + part_estimate.peak_bytes

    def _fewer_rows(self, part: int | None, refusal: str) -> int:
        before = part or self.rows
        if before == 1:
            raise BudgetError(f"the device is out of memory with one row at a time ({refusal}). Free some of it.")
        self._must_be_splittable(f"the device is out of memory ({refusal})", _half(before))
        return _half(before)

    def _must_be_splittable(self, why: str, part: int) -> None:
        if reason := self._why_not(part):
            raise self._may_not_be_split(f"{why}, ", reason)

    def _may_not_be_split(self, why: str, reason: str) -> BudgetError:
        return BudgetError(f"{why}the budget is {size(self.budget_bytes)}, and it may not be split: {reason}.")

    def _why_not(self, part: int) -> str:
        if self.rows is None or self.rows < 2:
            return "the inputs share no dimension 0 of at least 2 rows"
        whole = self.whole
        if whole is None:
            return "it cannot be predicted, so nothing shows that it leaves other tensors alone"
        if whole.tracked:
            return (
                "the results take part in autograd, which keeps every part: torch.no_grad(), or togi.fit for training"
            )
        if whole.written:
            return f"it writes to a tensor that outlives the call ({whole.written}), which parts would do several times"
        if whole.changed:
            return f"it changes what it is given ({whole.changed}), and each part would be given its own"
        if whole.opaque:
            return f"it returns {whole.opaque}, which cannot be put together from parts"
        with kept_generators():
            return self._why_dependent({part, self.rows % part or part}) or self._why_not_in_turn(part)

    def _why_dependent(self, parts: set[int]) -> str:
        """The reason why parts of so many rows depend on each other, at their full size: on fake tensors, which take no
        memory."""
        if self.proof is None:
            tensors = self.sample.tensors()
            cut = [0 if tensor.dim() else None for tensor in tensors]
            self.proof = RowProof(self._flat, tensors, cut, kept=lambda: self._kept)
        verdict = self.proof.of(parts - self.proven)
        self.proven |= parts
        if not verdict.reason and set(verdict.along) - {0}:
            return "its results have their rows along another dimension than the first"
        return verdict.reason

    def _flat(self, *tensors: Tensor) -> Any:
        waiting = iter(tensors)
        given = self.sample.map(lambda _: next(waiting))
        with dry_run_of(self.function) as dry:
            answer = dry.program(*given.args, **given.kwargs)
            self._kept = dry.kept.tensors()
        return answer

    def _why_not_in_turn(self, part: int) -> str:
        if self._in_turn is None:
            self._in_turn = why_not_in_turn(self.function, self.sample, part)
        return self._in_turn

    def _in_parts(self, part: int) -> Any:
        assert self.rows is not None
        results: list[Any] = []
        structure = None
        for start in range(0, self.rows, part):
            structure = self._one_part(slice(start, start + part), results)
        assert structure is not None
        self._say(rows_per_part=part, parts=-(-self.rows // part))
        return tree_unflatten(results, structure)

    def _one_part(self, part: slice, results: list[Any]) -> TreeSpec:
        """Put its results into those of all rows, which the first part makes. None of them lives on."""
        assert self.rows is not None
        rows = sliced_rows(self.sample, part)
        leaves, structure = tree_flatten(self.function(*rows.args, **rows.kwargs))
        if not results:
            results += [
                leaf.new_empty((self.rows, *leaf.shape[1:])) if isinstance(leaf, Tensor) else leaf for leaf in leaves
            ]
        for whole, leaf in zip(results, leaves, strict=True):
            if isinstance(leaf, Tensor):
                whole[part] = leaf
        return structure

    def _say(self, **changes: Any) -> None:
        self.report = self.report.model_copy(update=changes)


def _half(rows: int | None) -> int:
    return -(-(rows or 0) // 2)
