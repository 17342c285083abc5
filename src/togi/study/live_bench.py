"""``togi.bench`` of live objects: they take turns in this process, on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from togi.core.errors import SubjectError
from togi.core.quantities import bounds, plural, times
from togi.core.records import Interval, Outcome
from togi.core.user_code import user_place
from togi.decide.faster import WITHIN_PROCESS, Speed, conclusive
from togi.machine.describe import machine
from togi.measure import LocalRunner, RaceResult, race, rounds_needed
from togi.measure.race_result import of_each
from togi.study.comparison import Comparison, with_doubt
from togi.study.contestants import Contestant
from togi.study.live import device_of, live_objects
from togi.study.yardstick import NAME, Yardstick
from togi.subject.behaviour import changes_arguments, kept_buffers, kept_generators
from togi.subject.inputs import Inputs, apart, given_anew, samples_of
from togi.verify.leaves import fresh

_RACE_S = 10.0
_WARM_SHARE, _WARM_S = 0.1, 3.0
_SHARP_X = 1.01
"""Ends of an interval that differ by less need no more rounds: a tenth of it is noise to whoever asks for percents."""
_CLEAR_X = 2.0
"""Nor does a factor that lies beyond every share that can be asked for (100 %)."""


def run_live_bench(
    subjects: Sequence[Any],
    inputs: Any,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    gradients: bool = False,
    native: bool = True,
    yardstick: bool = False,
) -> Comparison:
    """Race live objects until each speed-up over the first is known to half a percent, or is beyond doubt.

    Modules and functions run as they are, and their buffers are put back. The random generators stay as they were.

    Args:
        time_limit_s: of the race, after all are warm. None: 10 seconds, and as many rounds as an interval needs.
        gradients: leave autograd as it is here. Without it they run under ``no_grad``.
        yardstick: the last contestant is a fixed piece of work (``togi.study.yardstick``).

    Raises:
        SubjectError: there is nothing to compare, or one of them cannot be called, or does not run on the inputs.
        ArtifactError: a folder cannot be loaded here.
    """
    objects = live_objects(subjects, native=native)
    if len(objects) + yardstick < 2:
        raise SubjectError("there is nothing to compare: give at least two subjects, and then the inputs")
    samples = samples_of(inputs)
    device = device_of(objects, samples)
    copied = fresh if gradients else apart  # each has its own: one may write into them
    runners = [LocalRunner(found.name, found.call, [copied(each) for each in samples], device) for found in objects]
    if yardstick:
        runners.append(LocalRunner(NAME, Yardstick(device), [Inputs()], device))
    with ExitStack() as stack:
        stack.enter_context(kept_generators())
        for found in objects:
            stack.enter_context(kept_buffers(found.module))
        stack.enter_context(torch.set_grad_enabled(gradients and torch.is_grad_enabled()))
        if any(_changes(runner, copied, gradients) for runner in runners):
            # all alike, so that all find their inputs in the same caches
            runners = [replace(runner, given_as=given_anew(copied)) for runner in runners]
        _warm(runners, time_limit_s or _RACE_S, gradients)
        result = race(
            runners[1:],
            runners[0],
            budget_s=time_limit_s or _RACE_S,
            least_rounds=1 if time_limit_s else rounds_needed(of_each(WITHIN_PROCESS.confidence, len(runners))),
            seed=seed,
            criterion=WITHIN_PROCESS,
            enough=_sharp if yardstick else _sharp_or_clear,
        )
    return _comparison(result, device)


def _changes(runner: LocalRunner, copied: Callable[[Inputs], Inputs], gradients: bool) -> bool:
    """Whether its calls write into their arguments: the next would work on what this one left there. Raises as
    ``_warm`` does."""
    given = copied(runner.samples[0])
    if not (given.args or given.kwargs):
        return False
    with _running(runner, gradients):
        runner.call(*given.args, **given.kwargs)
    return changes_arguments(runner.samples[0], given)


def _warm(runners: Sequence[LocalRunner], race_s: float, gradients: bool) -> None:
    """Raises SubjectError where one does not run."""
    for runner in runners:
        with _running(runner, gradients):
            runner.warm(min(_WARM_S, _WARM_SHARE * race_s))


@contextmanager
def _running(runner: LocalRunner, gradients: bool) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # foreign code: the user's
        missing = "require grad" in str(error) and not gradients
        autograd = ". It uses autograd: give gradients=True" if missing else ""
        raise SubjectError(f"{runner.name} does not run on the inputs: {user_place(error)}{autograd}") from error


def _sharp(speedup_x: Interval) -> bool:
    return speedup_x.low > 0 and speedup_x.high / speedup_x.low <= _SHARP_X


def _sharp_or_clear(speedup_x: Interval) -> bool:
    clear = conclusive(speedup_x) and (speedup_x.low > _CLEAR_X or speedup_x.high < 1 / _CLEAR_X)
    return clear or _sharp(speedup_x)


def _comparison(result: RaceResult, device: str) -> Comparison:
    contestants = tuple(
        Contestant(
            name=entry.name,
            outcome=Outcome.FAILED if entry.traceback else Outcome.OK,
            reason=entry.left_because if entry.traceback else "",
            latency_ms=entry.latency_ms,
            speedup_x=None if entry.name == result.reference else entry.speedup_x,
            own_process=False,
        )
        for entry in result.entries
    )
    found = Comparison(
        contestants=contestants, machine=machine(device), device=device, noise=result.noise, rounds=result.rounds
    )
    found = found.model_copy(update={"verdict": _verdict(found)})
    return found if any(entry.traceback for entry in result.entries) else with_doubt(found)


def _verdict(found: Comparison) -> str:
    """The first next to each of the others, in a sentence."""
    failed = [contestant for contestant in found.contestants if contestant.outcome is not Outcome.OK]
    if failed:
        return f"Nothing is known: {failed[0].name} failed in its turn ({failed[0].reason})."
    first, *others = (contestant.name for contestant in found.contestants)
    said = [_stands(first, other, found.speed_x(other)) for other in others]
    return f"{'; '.join(said)}, after {plural(found.rounds, 'round')} in turns."


def _stands(name: str, other: str, speed_x: Interval | None) -> str:
    if speed_x is None:
        return f"{name} and {other} were not measured in one round"
    ratio = f"{times(speed_x.median)} the speed ({bounds(speed_x)})"
    return {
        Speed.FASTER: f"{name} is faster than {other} beyond doubt: {ratio}",
        Speed.SLOWER: f"{name} is slower than {other} beyond doubt: {ratio}",
        Speed.SAME: f"{name} is as fast as {other}: {ratio}",
        Speed.UNCLEAR: f"the figures do not show whether {name} is faster than {other}: {ratio}",
    }[WITHIN_PROCESS.speed(speed_x)]
