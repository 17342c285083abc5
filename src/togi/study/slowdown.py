"""A comparison as a gate: who is slower than the first, or than in an earlier comparison, by more than is allowed."""

from __future__ import annotations

import math

from togi.core.errors import SubjectError
from togi.core.records import Outcome
from togi.decide.faster import change
from togi.decide.gate import Answer, Case, slower_case, speed
from togi.measure import usable, why_unusable
from togi.study.assertions import unless_disturbed
from togi.study.comparison import Comparison
from togi.study.contestants import BestSize, Contestant


def cases_of(comparison: Comparison, share: float | None = None, before: Comparison | None = None) -> tuple[Case, ...]:
    """One case for each contestant; with batch sizes, one for the best size of each.

    Args:
        share: by how much one may be slower; None: whatever was measured passes.
        before: an earlier comparison. Then one may be slower than it was there: speed-ups over the first are compared,
            since the milliseconds of two runs cannot be.

    Raises SubjectError where ``before`` compared others, or in another way, or did not measure one of them.
    """
    if comparison.best:
        return tuple(_best(size) for size in comparison.best)
    if before is not None:
        _check(comparison, before)
    return tuple(_case(comparison, contestant, share, before) for contestant in comparison.contestants)


def other_conditions(comparison: Comparison, before: Comparison) -> str:
    """How the earlier one was made, where that may be why speeds differ, in a sentence without its end; else empty."""
    different = comparison.machine.differences(before.machine, python=True)
    return f"The earlier comparison was made under other conditions: {'; '.join(different)}" if different else ""


def _best(size: BestSize) -> Case:
    answer = Answer.ERROR if size.batch is None else Answer.PASSED
    return Case(name=size.name, said=size.verdict, answer=answer)


def _case(comparison: Comparison, contestant: Contestant, share: float | None, before: Comparison | None) -> Case:
    first, name, now = comparison.contestants[0], contestant.name, contestant.speedup_x
    if contestant.outcome is not Outcome.OK:
        return Case(name=name, said=f"{contestant.outcome.value}: {contestant.reason}", answer=Answer.ERROR)
    if contestant is first:
        return Case(name=name, said=comparison.verdict)
    if now is None:
        return Case(name=name, said=f"not measured: {contestant.reason or comparison.verdict}", answer=Answer.ERROR)
    if share is None:
        return Case(name=name, said=f"{speed(now)} of the first. {comparison.verdict}")
    earlier = {} if before is None else {each.label: each.speedup_x for each in before.contestants}
    was = earlier.get(contestant.label)
    than, ratio, comparisons = first.name, now, int(contestant.own_process)
    if was is not None:
        than, ratio, comparisons = "it was", change(now, was), 2
    found = slower_case(name, than, share, ratio, comparisons=comparisons)
    case = unless_disturbed(found, comparison.noise, ratio)
    more = [] if before is None else [other_conditions(comparison, before)]
    if case.answer is Answer.UNDECIDED:
        more = ["Repeat it when the machine is quiet, or give a longer --time-limit", *more]
    return case.model_copy(update={"said": ". ".join(filter(None, [case.said, *more]))})


def _check(comparison: Comparison, before: Comparison) -> None:
    devices = {comparison.device, before.device} - {None}  # an earlier version did not write it
    was_of, is_of = (_what(each, device=len(devices) > 1) for each in (before, comparison))
    if was_of != is_of:
        raise SubjectError(f"the earlier comparison is of {was_of}, and this one of {is_of}: compare the same")
    if _names(comparison) != _names(before):
        raise SubjectError(
            f"the earlier comparison is of {', '.join(_names(before))}, and this one of "
            f"{', '.join(_names(comparison))}: compare the same in the same order"
        )
    if not usable(before.noise):
        raise SubjectError(
            f"the earlier comparison was made on a machine too disturbed to compare with ({why_unusable(before.noise)})"
            ": make it again"
        )
    for contestant in before.contestants[1:]:
        if contestant.speedup_x is None or not 0 < contestant.speedup_x.median < math.inf:
            raise SubjectError(
                f"the earlier comparison did not measure {contestant.name}, so nothing can be slower than it was: "
                "make it again"
            )


def _what(comparison: Comparison, *, device: bool) -> str:
    """What is timed, in words: the speed-ups of other calls are others."""
    what = "training steps" if comparison.train else "calls"
    callers = f" by {comparison.callers} at once" if comparison.callers > 1 else ""
    return f"{what}{callers} on {comparison.device}" if device else f"{what}{callers}"


def _names(comparison: Comparison) -> list[str]:
    return [contestant.label for contestant in comparison.contestants]
