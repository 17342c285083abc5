"""A comparison as a gate: who is slower than the first, or than in an earlier comparison, by more than is allowed."""

from __future__ import annotations

import math

from togi.core.errors import SubjectError
from togi.core.records import Outcome
from togi.decide.faster import change
from togi.decide.gate import Answer, Case, slower_case, speed
from togi.study.comparison import Comparison
from togi.study.contestants import BestSize, Contestant


def cases_of(comparison: Comparison, share: float | None = None, before: Comparison | None = None) -> tuple[Case, ...]:
    """One case for each contestant; with batch sizes, one for the best size of each.

    Args:
        share: by how much one may be slower; None: whatever was measured passes.
        before: an earlier comparison. Then one may be slower than it was there: speed-ups over the first are compared,
            since the milliseconds of two runs cannot be.

    Raises SubjectError where ``before`` compared others, or did not measure one of them.
    """
    if comparison.best:
        return tuple(_best(size) for size in comparison.best)
    if before is not None:
        _check(comparison, before)
    earlier = {contestant.name: contestant for contestant in (() if before is None else before.contestants)}
    first = comparison.contestants[0]
    return tuple(
        _case(comparison, contestant, first, share, earlier.get(contestant.name))
        for contestant in comparison.contestants
    )


def _best(size: BestSize) -> Case:
    answer = Answer.ERROR if size.batch is None else Answer.PASSED
    return Case(name=size.name, said=size.verdict, answer=answer)


def _case(
    comparison: Comparison, contestant: Contestant, first: Contestant, share: float | None, was: Contestant | None
) -> Case:
    if contestant.outcome is not Outcome.OK:
        return Case(name=contestant.name, said=f"{contestant.outcome.value}: {contestant.reason}", answer=Answer.ERROR)
    if contestant is first:
        return Case(name=contestant.name, said=comparison.verdict)
    if contestant.speedup_x is None:
        return Case(
            name=contestant.name, said=f"not measured: {contestant.reason or comparison.verdict}", answer=Answer.ERROR
        )
    if share is None:
        return Case(name=contestant.name, said=f"{speed(contestant.speedup_x)} of the first. {comparison.verdict}")
    if was is None or was.speedup_x is None:
        case = slower_case(
            contestant.name, first.name, share, contestant.speedup_x, comparisons=int(contestant.own_process)
        )
    else:
        case = slower_case(contestant.name, "it was", share, change(contestant.speedup_x, was.speedup_x), comparisons=2)
    if case.answer is not Answer.UNDECIDED:
        return case
    advice = "Repeat it when the machine is quiet, or give a longer --time-limit"
    return case.model_copy(update={"said": f"{case.said}. {advice}"})


def _check(comparison: Comparison, before: Comparison) -> None:
    if comparison.train != before.train:
        was_of, is_of = ("calls", "training steps") if comparison.train else ("training steps", "calls")
        raise SubjectError(f"the earlier comparison is of {was_of}, and this one of {is_of}: compare the same")
    if _names(comparison) != _names(before):
        raise SubjectError(
            f"the earlier comparison is of {', '.join(_names(before))}, and this one of "
            f"{', '.join(_names(comparison))}: compare the same in the same order"
        )
    for contestant in before.contestants[1:]:
        if contestant.speedup_x is None or not 0 < contestant.speedup_x.median < math.inf:
            raise SubjectError(
                f"the earlier comparison did not measure {contestant.name}, so nothing can be slower than it was: "
                "make it again"
            )


def _names(comparison: Comparison) -> list[str]:
    return [contestant.name for contestant in comparison.contestants]
