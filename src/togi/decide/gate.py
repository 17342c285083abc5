"""Gates: whether what was measured keeps a limit, with an answer of its own for figures that do not decide.

Whoever gates makes one ``Case`` for each question. The text, the exit code, the JUnit XML and the JSON are rendered
from these cases alone, so no two of them can contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.backports import StrEnum
from togi.core.quantities import TOO_FEW_ROUNDS, bounds, exact_percent, percent, times
from togi.core.records import Interval, Record
from togi.decide.faster import MARGIN, PROCESS_BIAS, Criterion, Speed, conclusive

FINDING = 1
"""The exit code where a limit is not kept, or where something could not be measured."""


class Answer(StrEnum):
    """What a gate answers."""

    PASSED = "passed"
    FAILED = "failed"
    """The limit is not kept, beyond doubt."""
    UNDECIDED = "undecided"
    """It was measured, and what was measured does not tell."""
    ERROR = "error"
    """It could not be measured."""


class Case(Record):
    """One question that a gate asks."""

    name: str
    said: str
    """The answer, in a sentence."""
    answer: Answer = Answer.PASSED


def exit_code(cases: Iterable[Case], undecided: int = FINDING) -> int:
    """0 where all passed. ``undecided``: the exit code where nothing is worse than undecided."""
    answers = {case.answer for case in cases}
    if answers & {Answer.FAILED, Answer.ERROR}:
        return FINDING
    return undecided if Answer.UNDECIDED in answers else 0


def slower_than(share: float, speedup_x: Interval, *, comparisons: int = 1) -> Answer:
    """Whether something is slower by more than ``share`` of the time.

    Args:
        share: less than the smallest difference that matters (1 %) is taken as that.
        comparisons: from how many the interval was made that had processes of their own, with a bias of their own. 0:
            all ran in one process.
    """
    criterion = _criterion(share, comparisons)
    if criterion.slower(speedup_x):
        return Answer.FAILED
    same = criterion.speed(speedup_x) is Speed.SAME
    fast_enough = criterion.at_least_same(speedup_x) and conclusive(speedup_x)
    return Answer.PASSED if same or fast_enough else Answer.UNDECIDED


def faster_than(share: float, speedup_x: Interval, *, comparisons: int = 1) -> Answer:
    """Whether something has more than ``1 + share`` times the speed. The arguments are those of ``slower_than``."""
    criterion = _criterion(share, comparisons)
    if criterion.faster(speedup_x):
        return Answer.PASSED
    same = criterion.speed(speedup_x) is Speed.SAME
    too_slow = criterion.at_most_same(speedup_x) and conclusive(speedup_x)
    return Answer.FAILED if same or too_slow else Answer.UNDECIDED


def _criterion(share: float, comparisons: int) -> Criterion:
    return Criterion(margin=max(share, MARGIN), process_bias=PROCESS_BIAS * comparisons)


def below(limit: float, low: float, high: float) -> Answer:
    """Whether a quantity between ``low`` and ``high`` keeps a limit."""
    if low > limit:
        return Answer.FAILED
    return Answer.PASSED if high <= limit else Answer.UNDECIDED


def slower_case(name: str, than: str, share: float, ratio: Interval, *, comparisons: int) -> Case:
    """Whether ``name`` is slower than ``than`` by more than ``share``: the answer, in a sentence without its full stop.
    ``comparisons``: as for ``slower_than``."""
    answer = slower_than(share, ratio, comparisons=comparisons)
    least_x, most_x = (1 / end if end > 0 else 0.0 for end in (ratio.high, ratio.low))
    beyond_x = {Answer.PASSED: most_x, Answer.UNDECIDED: least_x}.get(answer, 0.0)
    by_more = _by_more(than, share, beyond_x, comparisons)
    sentences = {
        Answer.FAILED: f"{name} is slower {by_more} beyond doubt",
        Answer.PASSED: f"{name} is not slower {by_more}",
        Answer.UNDECIDED: f"The figures do not show whether {name} is slower {by_more}",
    }
    return Case(name=name, said=f"{sentences[answer]}: {speed(ratio)}", answer=answer)


def faster_case(name: str, than: str, share: float, ratio: Interval, *, comparisons: int) -> Case:
    """Whether ``name`` has more than ``1 + share`` times the speed of ``than``, in the same way."""
    answer = faster_than(share, ratio, comparisons=comparisons)
    beyond_x = {Answer.FAILED: ratio.high, Answer.UNDECIDED: ratio.low}.get(answer, 0.0)
    by_more = _by_more(than, share, beyond_x, comparisons)
    sentences = {
        Answer.FAILED: f"{name} is not faster {by_more}",
        Answer.PASSED: f"{name} is faster {by_more} beyond doubt",
        Answer.UNDECIDED: f"The figures do not show whether {name} is faster {by_more}",
    }
    return Case(name=name, said=f"{sentences[answer]}: {speed(ratio)}", answer=answer)


def _by_more(than: str, share: float, beyond_x: float, comparisons: int) -> str:
    """``than A by more than 5%``; and what a gate forgives besides, where ``beyond_x``, the end that the sentence is
    about, is forgiven by that alone: "not slower by more than 5 %" would contradict the 0.93x the speed next to it."""
    by_more, limit_x = f"than {than} by more than {exact_percent(share)}", _criterion(share, comparisons).band_x
    if not 1 + share < beyond_x <= limit_x:
        return by_more
    return f"{by_more} and the {percent(limit_x - 1 - share)} that measurements may differ by"


def speed(ratio: Interval) -> str:
    """``1.20x the speed (1.17-1.24)``."""
    ends = bounds(ratio)
    if ends == TOO_FEW_ROUNDS:
        ends = f"{ends} for an interval"
    return f"{times(ratio.median)} the speed ({ends})"
