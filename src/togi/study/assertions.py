"""Assertions on the speeds of a comparison: the first contestant next to each of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from togi.core.errors import UndecidedError
from togi.core.records import Interval, Noise, Outcome
from togi.decide.faster import beyond_disturbance
from togi.decide.gate import Answer, Case, faster_case, faster_than, slower_case, slower_than
from togi.measure import usable, why_unusable
from togi.study.contestants import Contestant

_WHOLE = range(1, 101)
"""Shares in per cent that are advised."""


def not_slower(contestants: Sequence[Contestant], share: float, noise: Noise, verdict: str) -> list[Case]:
    """That the first takes no longer than each other by more than ``share``. ``verdict``: of the comparison."""

    def case(name: str, other: str, speed_x: Interval, comparisons: int) -> Case:
        found = slower_case(name, other, share, speed_x, comparisons=comparisons)
        passed = (p for p in _WHOLE if slower_than(p / 100, speed_x, comparisons=comparisons) is Answer.PASSED)
        return _with_advice(unless_disturbed(found, noise, speed_x), "assert_not_slower", next(passed, None))

    return _cases(contestants, verdict, case)


def faster(contestants: Sequence[Contestant], share: float, noise: Noise, verdict: str) -> list[Case]:
    """That the first has more than ``1 + share`` times the speed of each other. ``verdict``: of the comparison."""

    def case(name: str, other: str, speed_x: Interval, comparisons: int) -> Case:
        found = faster_case(name, other, share, speed_x, comparisons=comparisons)
        passed = (p for p in _WHOLE[::-1] if faster_than(p / 100, speed_x, comparisons=comparisons) is Answer.PASSED)
        return _with_advice(unless_disturbed(found, noise, speed_x), "assert_faster", next(passed, None))

    return _cases(contestants, verdict, case)


def unless_disturbed(case: Case, noise: Noise, speed_x: Interval) -> Case:
    """Undecided where the machine was mostly not ours: threads of one contestant that wait for each other lose a factor
    of a hundred next to busy processes, and the other one nothing. What fails by more than that fails."""
    if usable(noise) or case.answer not in (Answer.PASSED, Answer.FAILED):
        return case
    if case.answer is Answer.FAILED and beyond_disturbance(speed_x):
        return case
    said = f"The machine was too disturbed to tell ({why_unusable(noise)}): it looks as if {case.said}"
    return case.model_copy(update={"answer": Answer.UNDECIDED, "said": said})


def check(cases: Sequence[Case], noise: Noise) -> None:
    """Raises AssertionError for cases that failed or were not measured, else UndecidedError for those that the figures
    do not decide, with the noise of the measurement."""
    __tracebackhide__ = True
    meanwhile = "; ".join(noise.warnings) or f"none to speak of (times vary by {noise.spread:.1%})"
    for answers, error in (((Answer.FAILED, Answer.ERROR), AssertionError), ((Answer.UNDECIDED,), UndecidedError)):
        if said := [case.said for case in cases if case.answer in answers]:
            raise error(f"{' '.join(said)} Noise meanwhile: {meanwhile}.")


def _cases(
    contestants: Sequence[Contestant], verdict: str, case: Callable[[str, str, Interval, int], Case]
) -> list[Case]:
    first, *others = contestants
    cases = []
    for other in others:
        speed_x = other.firsts_speed_x
        if speed_x is None or not first.outcome is other.outcome is Outcome.OK:
            cases.append(Case(name=first.label, said=_not_measured(contestants, verdict), answer=Answer.ERROR))
        else:
            cases.append(case(first.label, other.label, speed_x, int(other.own_process)))
    return cases


def _with_advice(case: Case, assertion: str, holds: int | None) -> Case:
    """``holds``: the per cent nearest to what was asked for with which the assertion would hold."""
    advice = ""
    if case.answer is Answer.UNDECIDED:
        advice = " Repeat it when the machine is quiet, or measure longer: togi.bench(..., time_limit_s=60)."
    elif case.answer is Answer.FAILED and holds is not None:
        advice = f' If that is meant, {assertion}("{holds}%") holds with these figures.'
    return case.model_copy(update={"said": f"{case.said}.{advice}"})


def _not_measured(contestants: Sequence[Contestant], verdict: str) -> str:
    failed = next((each for each in contestants if each.outcome is not Outcome.OK), None)
    if failed is None:
        return f"It was not measured. {verdict}"
    return f"It was not measured: {failed.name} ended early ({failed.outcome.value}: {failed.reason})."
