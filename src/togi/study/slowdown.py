"""A comparison as a gate: who is slower than the first, or than in an earlier comparison, by more than is allowed."""

from __future__ import annotations

import math

from togi.core.errors import SubjectError
from togi.core.quantities import TOO_FEW_ROUNDS, bounds, percent, times
from togi.core.records import Interval, Outcome
from togi.decide.faster import change
from togi.decide.gate import Answer, Case, slower_than
from togi.study.comparison import BestSize, Comparison, Contestant


def cases_of(found: Comparison, share: float | None = None, before: Comparison | None = None) -> tuple[Case, ...]:
    """One case for each contestant; with batch sizes, one for the best size of each.

    Args:
        share: by how much one may be slower; None: whatever was measured passes.
        before: an earlier comparison. Then one may be slower than it was there: speed-ups over the first are compared,
            since the milliseconds of two runs cannot be.

    Raises SubjectError where ``before`` compared others, or did not measure one of them.
    """
    if found.best:
        return tuple(_best(each) for each in found.best)
    if before is not None:
        _check(found, before)
    earlier = dict[str, Contestant]() if before is None else {each.name: each for each in before.contestants}
    first = found.contestants[0]
    return tuple(_case(found, each, first, share, earlier.get(each.name)) for each in found.contestants)


def _best(found: BestSize) -> Case:
    answer = Answer.ERROR if found.batch is None else Answer.PASSED
    return Case(name=found.name, said=found.verdict, answer=answer)


def _case(found: Comparison, each: Contestant, first: Contestant, share: float | None, was: Contestant | None) -> Case:
    if each.outcome is not Outcome.OK:
        return Case(name=each.name, said=f"{each.outcome.value}: {each.reason}", answer=Answer.ERROR)
    if each is first:
        return Case(name=each.name, said=found.verdict)
    if each.speedup_x is None:
        return Case(name=each.name, said=f"not measured: {each.reason or found.verdict}", answer=Answer.ERROR)
    if share is None:
        return Case(name=each.name, said=f"{_speed(each.speedup_x)} of the first. {found.verdict}")
    if was is None or was.speedup_x is None:
        return _slower(each.name, first.name, share, each.speedup_x, comparisons=1)
    return _slower(each.name, "it was", share, change(each.speedup_x, was.speedup_x), comparisons=2)


def _slower(name: str, than: str, share: float, ratio: Interval, *, comparisons: int) -> Case:
    answer = slower_than(share, ratio, comparisons=comparisons)
    said = {
        Answer.FAILED: f"{name} is slower than {than} by more than {percent(share)} beyond doubt: {_speed(ratio)}",
        Answer.PASSED: f"{name} is not slower than {than} by more than {percent(share)}: {_speed(ratio)}",
        Answer.UNDECIDED: (
            f"The figures do not show whether {name} is slower than {than} by more than {percent(share)}: "
            f"{_speed(ratio)}. Repeat it when the machine is quiet, or give a longer --time-limit"
        ),
    }
    return Case(name=name, said=said[answer], answer=answer)


def _speed(ratio: Interval) -> str:
    found = bounds(ratio)
    ends = f"{found} for an interval" if found == TOO_FEW_ROUNDS else found
    return f"{times(ratio.median)} the speed ({ends})"


def _check(found: Comparison, before: Comparison) -> None:
    if _names(found) != _names(before):
        raise SubjectError(
            f"the earlier comparison is of {', '.join(_names(before))}, and this one of {', '.join(_names(found))}: "
            "compare the same in the same order"
        )
    for each in before.contestants[1:]:
        if each.speedup_x is None or not 0 < each.speedup_x.median < math.inf:
            raise SubjectError(
                f"the earlier comparison did not measure {each.name}, so nothing can be slower than it was: make it "
                "again"
            )


def _names(comparison: Comparison) -> list[str]:
    return [contestant.name for contestant in comparison.contestants]
