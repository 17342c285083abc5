"""The parent's view of one trial: ask its child for things, and turn whatever happens instead into an outcome."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, overload

from typing_extensions import Self, assert_never

from togi.artifact.manifest import Saved
from togi.core.records import Ending, ErrorReport, Footprint, Outcome, Recipe, Trial
from togi.machine.limits import available_bytes
from togi.measure.turn import Turn, Warmup, choose_passes, untimed_passes
from togi.worker import endings, messages
from togi.worker.channel import Timeout, Unreadable
from togi.worker.child_process import Child, Died, TooMuchMemory
from togi.worker.launch import ForkServer
from togi.worker.protocol import AskedAtOnce

OnPhase = Callable[[str], None]
A = TypeVar("A", bound=messages.ChildAnswer)
B = TypeVar("B", bound=messages.ChildAnswer)
_LONGEST_ANSWER_S = 60.0
"""Of what a warm trial is asked, where the limit of a trial is not more."""
_LEAST_ANSWER_S = 15.0
_SLOWER_X = 50.0
"""So many times as long as expected may an answer take: threads that wait for each other next to a busy process make a
call thirty times as long."""
_AT_ONCE_S = 0.5
"""What asking by several callers takes besides two calls of each."""
ASKED_S = 10.0
"""For values beyond the samples, at most."""
_SAVING_S, _SAVING_SHARE = 0.3, 0.1
"""What saving takes, and in what building took: the fallback is built, and files are written."""
AT_ONCE = "several callers at once"
"""The phase in which a trial is asked by them."""
_OUTPUT_LIMIT = 4000
_SPARED = 0.8
_DRAIN_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The time and memory that one trial may take before it is ended."""

    timeout_s: float = 300.0
    """For build, verification and warm-up together."""
    memory_bytes: int | None = None
    """Anonymous resident memory of the child and its descendants, beyond what it shares with the server that it was
    forked from. None: 80 % of what is free when it starts, so that a runaway leaves the machine alive."""
    gives_way: bool = False
    """When its time is over it is paused instead, and may go on later."""


def spared_bytes() -> int | None:
    """The memory that a trial without a limit of its own may take now; None where nobody knows what is free."""
    free = available_bytes()
    return None if free is None else max(1, int(_SPARED * free))


class TrialEnded(Exception):
    """The trial is over, and its child is gone."""

    def __init__(self, ending: Ending, trial: RunningTrial, *, cut_off: bool = False) -> None:
        """``cut_off``: it timed out because the time for all of the study was over, not by a limit of its own."""
        super().__init__(ending.reason)
        self.ending = ending
        self.trial = trial
        self.cut_off = cut_off

    def record(self) -> Trial:
        """The trial as far as it got."""
        return Trial(
            recipe=self.trial.recipe,
            outcome=self.ending.outcome,
            reason=self.ending.reason,
            fix=self.ending.fix,
            stage=self.ending.stage,
            traceback=self.ending.traceback,
            output=self.trial.child.log_tail(_OUTPUT_LIMIT),
            error=self.trial.error,
            cost_s=sum(self.trial.phases_s.values()),
            phases_s=self.trial.phases_s,
            notes=self.trial.notes,
            memory_bytes=self.trial.limits.memory_bytes if self.ending.outcome is Outcome.OUT_OF_MEMORY else None,
        )


class GaveWay(Exception):
    """A trial was not built and verified in the time that it had, and waits, paused."""

    def __init__(self, trial: RunningTrial) -> None:
        super().__init__(f"it was still in {trial.phase} after {trial._limit_s:.0f} s, and gave way to other trials")
        self.trial = trial


@dataclass
class RunningTrial:
    """A child whose recipe is built and verified. Paused whenever it is not asked for something.

    Every method raises TrialEnded when the child fails, dies, takes too long or too much memory, and from then on.
    """

    child: Child
    name: str
    recipe: Recipe
    limits: Limits
    on_phase: OnPhase = lambda _: None
    phase: str = "start"
    notes: tuple[str, ...] = ()
    error: ErrorReport | None = None
    found: str | None = None
    """The answer that it has so far (``messages.Found``)."""
    build_s: float = 0.0
    first_call_ms: float = 0.0
    energy_mj: float | None = None
    passes: int = 1
    """Passes that make a turn; known once it is warm."""
    turn_s: float = 0.1
    """About how long a turn takes, the untimed passes before it included."""
    call_ms: float | None = None
    """Of one caller, once it is warm."""
    start_again: Callable[[], RunningTrial] | None = None
    """Starts it anew from its files. Where it is set, a turn is such a start with its first answer."""
    files: Path | None = None
    """Made for that alone; they go with it."""
    ended: TrialEnded | None = None
    phases_s: dict[str, float] = field(default_factory=dict)
    _entered: float = field(default_factory=time.monotonic)
    """Its phase; since when it is paused, if it is."""
    _paused: bool = False
    _deadline: float = field(default_factory=time.monotonic)
    _limit_s: float = 0.0
    """Of what it is asked now."""
    _waited_s: float = 0.0
    """While it had given way, before it was built."""

    @classmethod
    def begin(
        cls, server: ForkServer, job: messages.Job, limits: Limits, name: str, on_phase: OnPhase = lambda _: None
    ) -> RunningTrial:
        """Start the child; what it is doing by itself is waited for with ``wait_for``."""
        started = time.monotonic()
        if limits.memory_bytes is None:
            limits = replace(limits, memory_bytes=spared_bytes())
        recipe = job.recipe if isinstance(job, messages.TryRecipe | messages.TryArtifact) else Recipe()
        trial = cls(server.start_child(job), name, recipe, limits, on_phase)
        trial._entered = started
        trial._deadline, trial._limit_s = started + limits.timeout_s, limits.timeout_s
        return trial

    @classmethod
    def start(
        cls, server: ForkServer, job: messages.Job, limits: Limits, name: str, on_phase: OnPhase = lambda _: None
    ) -> RunningTrial:
        """Start the child and let it build and verify. Raises GaveWay where ``limits`` say that it does."""
        trial = cls.begin(server, job, limits, name, on_phase)
        trial.wait_for(messages.Ready)
        return trial

    def go_on(self, limits: Limits) -> Self:
        """Let one that gave way build and verify on, for so long. Raises GaveWay as ``start`` does."""
        self.limits = replace(limits, memory_bytes=self.limits.memory_bytes)
        now = time.monotonic()
        self._waited_s += now - self._entered
        self._deadline, self._limit_s = now + limits.timeout_s, limits.timeout_s
        self._resume()
        self.wait_for(messages.Ready)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def warm(self, limit_s: float | None = None) -> Warmup:
        """``limit_s``: for the passes after the first call (``measure.warm``)."""
        warmed = self._ask(messages.Warm(limit_s=limit_s), Warmup)
        self.first_call_ms, self.energy_mj = warmed.first_call_ms, warmed.energy_mj
        self.passes = choose_passes(warmed.pass_ms)
        self.turn_s = (self.passes + untimed_passes(self.passes)) * warmed.pass_ms * 1e-3
        return warmed

    @property
    def start_ms(self) -> float:
        """The time from loading an artifact's files to its first answer."""
        return self.build_s * 1e3 + self.first_call_ms

    def take_starts(self, start_again: Callable[[], RunningTrial], files: Path | None, samples: int) -> None:
        """Make a turn a start, from now on. The first one is not counted: it reads the files from the disk."""
        warmed = self.warm()
        self.call_ms, self.start_again, self.files = warmed.pass_ms / samples, start_again, files
        self.turn_s, self.passes = self.turn(1).wall_s, 1

    def _turn_of_a_start(self, start_again: Callable[[], RunningTrial]) -> Turn:
        began = time.monotonic()
        with start_again() as loaded:
            loaded.warm(limit_s=0.0)
        wall_s = time.monotonic() - began
        return Turn(times_ms=(loaded.start_ms,), passes=1, wall_s=wall_s, call_ms=self.call_ms)

    def turn(self, passes: int) -> Turn:
        if self.start_again is not None:
            return self._turn_of_a_start(self.start_again)
        self._enter("measure")
        expected_s = self.turn_s * max(1.0, passes / self.passes)
        return self._ask_warm(messages.TakeTurn(passes=passes), Turn, expected_s)

    def footprint(self) -> Footprint:
        return self._ask_warm(messages.MeasureFootprint(), Footprint, 2 * self.turn_s)

    def phases_ms(self) -> dict[str, float]:
        """Of one training step, by phase (``measure.phases``), as one pass over the samples shows."""
        return self._ask_warm(messages.MeasurePhases(), messages.Phases, 2 * self.turn_s).phases_ms

    def asked_at_once(self, callers: int) -> AskedAtOnce:
        """Let so many callers ask what is right for one. Afterwards its memory is no longer that of one caller."""
        self._enter(AT_ONCE)
        expected_s = _AT_ONCE_S + 2 * callers * self.turn_s / self.passes
        return self._ask_warm(messages.AskAtOnce(callers=callers), AskedAtOnce, expected_s)

    def rest(self) -> None:
        """Before it is kept paused for long: what the allocator of its device keeps for its next call is given back."""
        self._ask_warm(messages.Rest(), messages.Rested, self.turn_s)

    def save(self, folder: Path, ask_s: float = ASKED_S) -> Saved:
        """Write its files, and ask it for about so long for values that no sample shows."""
        self._enter("save")
        asked_s = ask_s * 3 + self.phases_s.get("verify", 0.0)  # the fallback is verified on the samples as well
        expected_s = _SAVING_S + _SAVING_SHARE * self.build_s + asked_s / _SLOWER_X
        return self._ask_warm(messages.Save(folder=str(folder), ask_s=ask_s), Saved, expected_s)

    def close(self) -> None:
        self._leave_phase()
        self.child.kill()
        if self.ended is None:  # nobody will ask what it printed
            Path(self.child.job.log).unlink(missing_ok=True)
        if self.files is not None:
            shutil.rmtree(self.files, ignore_errors=True)

    def _ask_warm(self, message: messages.ToTrial, answer: type[A], expected_s: float) -> A:
        """Once it is warm, each answer has a time of its own, by what it should take."""
        longest_s = max(_LONGEST_ANSWER_S, self.limits.timeout_s)
        self._limit_s = min(longest_s, max(_LEAST_ANSWER_S, _SLOWER_X * expected_s))
        self._deadline = time.monotonic() + self._limit_s
        return self._ask(message, answer)

    def _ask(self, message: messages.ToTrial, answer: type[A]) -> A:
        if self.ended is not None:
            raise self.ended
        self._resume()
        try:
            self.child.send(message)
        except Died as error:
            raise self._ended(endings.died(error, self.phase)) from None
        return self.wait_for(answer)

    @overload
    def wait_for(self, answer: type[A], /) -> A: ...

    @overload
    def wait_for(self, answer: type[A], other: type[B], /) -> A | B: ...

    def wait_for(self, *answers: type[Any]) -> Any:
        """Take messages until one of these answers, then pause the child."""
        try:
            while True:
                left_s = self._deadline - time.monotonic()
                if left_s < -_DRAIN_S:  # messages without end
                    raise Timeout
                self.child.doing = f"{self.phase} of {self.name}"
                message = self.child.receive(left_s, self.limits.memory_bytes)
                if isinstance(message, answers):
                    self._pause()
                    return message
                if not isinstance(message, messages.ChildEvent):
                    raise Unreadable(f"{type(message).__name__}, which was not asked for")
                self._note(message)
        except Timeout:
            cut_off = time.monotonic() < self._deadline
            if self.limits.gives_way and messages.Ready in answers and not cut_off:
                self._pause()
                raise GaveWay(self) from None
            ending = endings.timed_out(self.phase, self._limit_s, cut_off=cut_off)
            raise self._ended(ending, cut_off=cut_off) from None
        except Died as error:
            ending = endings.died(error, self.phase)
        except Unreadable as error:
            ending = endings.unreadable(error, self.phase)
        except TooMuchMemory as error:
            ending = endings.too_much_memory(error, self.limits.memory_bytes, self.phase)
        raise self._ended(ending) from None

    def _note(self, event: messages.ChildEvent) -> None:
        match event:
            case messages.Entered():
                self._enter(event.phase)
                if event.limit_s is not None:
                    self._deadline, self._limit_s = time.monotonic() + event.limit_s, event.limit_s
                self.on_phase(self.phase)
            case messages.Built():
                self.build_s, self.notes = max(0.0, event.build_s - self._waited_s), event.notes
            case messages.Verified():
                self.error = event.report
                self.notes += event.notes
            case messages.Found():
                self.found = event.answer
            case Ending():
                raise self._ended(event)
            case _:
                assert_never(event)

    def _enter(self, phase: str) -> None:
        if phase != self.phase:
            self._leave_phase()
            self.phase = phase

    def _leave_phase(self) -> None:
        """A pause belongs to none."""
        now = time.monotonic()
        if not self._paused:
            self.phases_s[self.phase] = self.phases_s.get(self.phase, 0.0) + now - self._entered
        self._entered = now

    def _pause(self) -> None:
        self._leave_phase()
        self._paused = True
        self.child.pause()

    def _resume(self) -> None:
        self._entered, self._paused = time.monotonic(), False
        self.child.resume()

    def end(self, outcome: Outcome, reason: str, stage: str) -> TrialEnded:
        """End it on the parent's word; the caller raises what is returned."""
        return self._ended(Ending(outcome=outcome, reason=reason, stage=stage))

    def _ended(self, ending: Ending, *, cut_off: bool = False) -> TrialEnded:
        self.ended = TrialEnded(ending, self, cut_off=cut_off)
        self.close()
        return self.ended
