"""A baseline: speeds of tests on one machine, in a file that is kept with the tests (``togi.pytest_plugin``).

Milliseconds of two runs are never compared. What is kept is how many times as fast as something else each was that took
turns with it: as another contestant, or as the yardstick.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from togi.core.errors import TogiError, UndecidedError
from togi.core.instructions import DECIDING
from togi.core.plain_files import read_plain
from togi.core.quantities import first_line, plural
from togi.core.records import Interval, Machine, Record
from togi.decide.faster import change
from togi.decide.gate import Answer, Case, slower_case
from togi.machine.describe import machine
from togi.measure import usable, why_unusable
from togi.study.assertions import unless_disturbed
from togi.study.comparison import Comparison

UPDATE = "--togi-baseline-update"
_LIMIT_BYTES = 64 << 20


class BaselineSpeed(Record):
    """What a test measured."""

    over: str
    """The name of what it is compared with."""
    speed_x: Interval
    """How many times as fast as that."""

    @classmethod
    def of(cls, comparison: Comparison) -> BaselineSpeed:
        """The first contestant next to the second. Raises UndecidedError where that is not known well enough."""
        speed_x = comparison.speed_x()
        if speed_x is None or not speed_x.has_ends or speed_x.low <= 0:
            raise UndecidedError(
                f"too few rounds to keep or compare a speed: {comparison.verdict} Measure longer: time_limit_s=60"
            )
        return cls(over=comparison.contestants[1].name, speed_x=speed_x)

    @classmethod
    def to_keep(cls, comparison: Comparison) -> BaselineSpeed:
        """As ``of``, for the file, with which later runs are compared. Raises UndecidedError also where the machine was
        too disturbed."""
        if not usable(comparison.noise):
            raise UndecidedError(
                f"the machine was too disturbed to keep a speed ({why_unusable(comparison.noise)}): write it on a "
                f"quiet machine with {UPDATE}"
            )
        return cls.of(comparison)


class Baseline(Record):
    """The content of the file."""

    schema_version: Literal[1] = 1
    kind: Literal["togi-baseline"] = "togi-baseline"
    machine: Machine
    speeds: dict[str, BaselineSpeed] = {}
    """By test, with a number where a test measures several."""


def read_baseline(path: Path) -> Baseline | None:
    """None where there is no file. Raises TogiError where it holds something else."""
    try:
        return Baseline.from_json(read_plain(path, _LIMIT_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # a ValidationError is a ValueError
        raise TogiError(
            f"{path} cannot be read as a baseline ({first_line(error)}): remove it, and write it again with {UPDATE}"
        ) from None


def next_to_baseline(path: Path, key: str, comparison: Comparison, share: float) -> Case:
    """Whether the first contestant is slower than it was by more than ``share``.

    Raises UndecidedError where the baseline does not tell: there is none, or it is another machine's.
    """
    was = _entry(path, key, comparison)
    now = BaselineSpeed.of(comparison)
    name = comparison.contestants[0].name
    ratio = change(now.speed_x, was.speed_x)
    case = unless_disturbed(slower_case(name, "it was", share, ratio, comparisons=2), comparison.noise, ratio)
    advice = {
        Answer.UNDECIDED: f" Repeat it on a quiet machine, or measure longer (time_limit_s=60), also with {UPDATE}.",
        Answer.FAILED: f" If that is meant, write the baseline again with {UPDATE}.",
    }.get(case.answer, "")
    return case.model_copy(update={"said": f"{case.said}, by {path.name}.{advice}"})


def write_speeds(path: Path, speeds: Mapping[str, BaselineSpeed]) -> str:
    """Write them into the file, next to those of other tests on this machine; says what became of all, in a sentence.

    Raises OSError where it cannot be written, and TogiError where the file is something else.
    """
    here, before = _lasting(machine()), read_baseline(path)
    kept = {} if before is None or here.differences(before.machine, python=True) else before.speeds
    baseline = Baseline(machine=here, speeds=dict(sorted({**kept, **speeds}.items())))
    part = path.with_name(f"{path.name}.part")
    part.write_text(f"{baseline.model_dump_json(indent=1)}\n", encoding="utf-8")
    part.replace(path)
    dropped = 0 if before is None or kept else len(before.speeds.keys() - speeds.keys())
    gone = f"; {plural(dropped, 'speed')} of another machine went" if dropped else ""
    return f"{plural(len(speeds), 'speed')} written to {path.name}{gone}"


def _entry(path: Path, key: str, comparison: Comparison) -> BaselineSpeed:
    baseline = read_baseline(path)
    if baseline is None or key not in baseline.speeds:
        raise UndecidedError(
            f"there is no speed of {key} in {path.name}, so nothing can be slower than it was: write it with {UPDATE}, "
            "on the machine that is to judge"
        )
    if different := comparison.machine.differences(baseline.machine, python=True):
        raise UndecidedError(
            f"the baseline in {path.name} comes from another machine ({'; '.join(different)}), and speeds of two "
            f"machines are not compared. Write one here with {UPDATE}, to a file of its own with --togi-baseline FILE"
        )
    was, over = baseline.speeds[key], comparison.contestants[1].name
    if was.over != over:
        raise UndecidedError(
            f"the speed of {key} in {path.name} is over {was.over}, and this one is over {over}: write it again with "
            f"{UPDATE}"
        )
    return was


def _lasting(here: Machine) -> Machine:
    """Without what is not compared: folders of compilers do not belong into a repository."""
    unused: dict[str, Any] = {
        "cpu_flags": tuple(flag for flag in here.cpu_flags if flag in DECIDING),
        "compiler": None,
        "c_compiler": None,
        "cuda_headers": None,
        "allocators": {},
    }
    return here.model_copy(update=unused)
