"""What came of one part of a program so far, what is in its place, and what more may be expected of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from togi.core.errors import SubjectError
from togi.core.recipe import PartKey, Recipe
from togi.core.records import PartResult, Trial
from togi.decide.choose import Chosen, latest
from togi.program.parts import Part
from togi.study.conclusion import NOTHING_FASTER
from togi.study.finals import Decision
from togi.study.parts.assembly import Assembly, TunedPart, relative_time
from togi.study.parts.part_runner import PartRunner
from togi.techniques import is_exact
from togi.worker.launch import NoTimeLeft
from togi.worker.supervise import TrialEnded

LEAST_S = 6.0
"""Below it a study of a part does not get past its reference."""
_LONGEST_OPENING_S, _OPENING_X = 20.0, 3.0
"""A part that is captured, proven and timed no sooner, or in so many times its share of the time, is left alone."""
_RIVAL_X = 1.1
"""So much slower alone, another engine may be the faster one in the program."""
_UNKNOWN = 0.3 / 20
"""Of its time, a second: what is expected of a part that nothing is known of."""
_MOST_LEFT_OUT = 2
"""So many faithful recipes of a part may make the program wrong before the original stays."""
_MOST_APPROXIMATE = 3
"""And so many approximate ones before faithful ones alone are left."""


OpenPart = Callable[[Part, Iterable[Recipe], float], PartRunner]
"""Makes a part ready for trials, with recipes to try first, in so many seconds. Raises SubjectError, TrialEnded or
NoTimeLeft."""


class PartStudy:
    """A part of a program, and what was found for it."""

    def __init__(
        self,
        part: Part,
        open_part: OpenPart,
        *,
        before: Recipe | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``before``: what it had in the fastest program that the journal knows."""
        self.part = part
        self.best: TunedPart | None = None
        """What it has now; None: the original."""
        self.reason = ""
        """Why the original stays."""
        self._open, self._before, self._clock = open_part, before, clock
        self._runner: PartRunner | None = None
        self._decision: Decision | None = None
        self._left_out: set[Recipe] = set()
        """With these the program was not right."""
        self._ruin = math.inf
        """The program is not right with what is approximate and errs so much alone, by its relative RMS error."""
        self._ended = False
        """It could not be opened, or its reference ended."""

    @property
    def key(self) -> PartKey:
        return self.part.key

    def explore(
        self,
        seconds: float,
        firsts: Iterable[Recipe] = (),
        *,
        first_gain: bool = False,
        trials: int | None = None,
    ) -> None:
        """Try recipes until the seconds are over, or (``first_gain``) one is faster beyond doubt, or so many ``trials``
        have ended. ``firsts``: what is tried first, if the part is new: what was best for others is likely good here.
        """
        until = self._clock() + seconds
        try:
            if self._runner is None:
                self._runner = self._open(self.part, firsts, max(_LONGEST_OPENING_S, _OPENING_X * seconds))
                self.reason = ""
            self._runner.explore(max(0.0, until - self._clock()), first_gain=first_gain, trials=trials)
            self._drop_ruin()
        except (SubjectError, TrialEnded, NoTimeLeft) as error:
            self.reason, self._ended = str(error), True

    def save(self, first: Recipe | None = None) -> None:
        """Save what its trials choose, or ``first``; but once what it had in the fastest program before."""
        if self._runner is None or self._given_up:
            return
        first, self._before = self._before or first, None
        last, self._decision = self._decision, self._runner.save(first)
        if self._decision is last:
            return
        trial, folder = self._decision.chosen.trial, self._decision.folder
        if folder is None or trial is None:
            self.reason = self._why_nothing(self._runner)
            return
        folders: dict[str, Path | None] = {self.key.path: folder}
        folders |= {path: self._runner.copy(path, trial.recipe) for path in self.part.copies if path != self.key.path}
        saved = tuple((self.part.entry(path), folder) for path, folder in folders.items() if folder is not None)
        self.best, self.reason = TunedPart(trial, saved), ""

    def _why_nothing(self, runner: PartRunner) -> str:
        if not self._tried:
            return f"nothing was tried on it: {runner.stopped or 'its time was over'}"
        if self._left_out:
            return self.reason
        aside = [f"{recipe.label} was set aside: {why}" for recipe, why in runner.unusable.items()]
        return "; ".join(aside) or NOTHING_FASTER

    def leave_out(self, reason: str, *, errs: bool = True) -> None:
        """Run the original again; what is second best may be right. ``errs``: the program was wrong with it, so that
        what is approximate and errs as much alone goes too."""
        assert self.best is not None
        assert self._runner is not None
        self._left_out.add(self.best.recipe)
        error = self.best.trial.error
        if len(self._left_out) - self._faithful_left_out >= _MOST_APPROXIMATE:
            self._ruin = 0.0
        elif errs and error is not None and not is_exact(self.best.recipe):
            self._ruin = min(self._ruin, error.rmse)
        self._runner.set_aside(self.best.recipe, reason, wrong=errs)
        self._drop_ruin()
        self.best, self.reason = None, reason
        self._decision = Decision(Chosen(trial=None, reason=reason), None, ())

    def _drop_ruin(self) -> None:
        """The approximate recipes with which the program would not be right either."""
        assert self._runner is not None
        if self._ruin == 0.0:
            self._runner.leave_approximate()
        for trial in latest(self._runner.trials()) if self._ruin < math.inf else ():
            known = trial.recipe in self._runner.unusable or is_exact(trial.recipe)
            if trial.eligible and not known and trial.error is not None and trial.error.rmse >= self._ruin:
                self._runner.set_aside(trial.recipe, "it errs as much as what made the program wrong", wrong=True)

    @property
    def _faithful_left_out(self) -> int:
        return sum(map(is_exact, self._left_out))

    def dismiss(self, reason: str, instead: TunedPart | None) -> None:
        """Another engine than it has is to have its turn. ``instead``: what it has meanwhile."""
        assert self.best is not None
        assert self._runner is not None
        self._runner.dismiss(self.best.recipe, reason)
        self.best, self.reason = instead, reason
        self._decision = Decision(Chosen(trial=None, reason=reason), None, ())

    def may_return_to(self, tuned: TunedPart) -> bool:
        """Whether the program was never wrong with it."""
        return tuned.recipe not in self._left_out

    def saves(self, tuned: TunedPart | None) -> float:
        """The share of the program's time that it should save."""
        if tuned is None:
            return 0.0
        return self.part.share * (1.0 - tuned.time) * len(tuned.artifacts) / len(self.part.copies)

    @property
    def should_save(self) -> float:
        """The same of the fastest of its trials, which may not be saved yet."""
        chosen = None if self._runner is None or self._given_up else self._runner.choice().trial
        saved = self._decision is not None and self._decision.chosen.trial == chosen
        if chosen is None or chosen.recipe.is_reference or saved:
            return self.saves(self.best)
        return self.part.share * (1.0 - relative_time(chosen))

    def promises(self, left_s: float) -> float:
        """The share of the program's time, a second, that one more trial is expected to save; 0 where none is left."""
        if self._given_up:
            return 0.0
        if self._runner is None:
            return self.part.share * _UNKNOWN if left_s >= LEAST_S else 0.0
        return (self.part.share - self.saves(self.best)) * self._runner.promises(left_s)

    def rivals(self, tuned: TunedPart | None) -> list[Trial]:
        """The fastest with each engine that ``tuned`` (None: the original) does not have, where it is nearly as fast
        alone. Next to other parts in an engine it may be the faster one: the original's threads are in their way."""
        if self._runner is None or self._given_up:
            return []
        slowest = _RIVAL_X if tuned is None else min(1.0, tuned.time * _RIVAL_X)
        usable = (trial for trial in latest(self._runner.trials()) if trial.eligible)
        near = [t for t in usable if t.recipe not in self._runner.unusable and relative_time(t) < slowest]
        fastest: dict[str, Trial] = {}
        for trial in sorted(near, key=relative_time):
            fastest.setdefault(trial.recipe.engine, trial)
        fastest.pop("" if tuned is None else tuned.recipe.engine, None)
        return list(fastest.values())

    @property
    def _tried(self) -> int:
        """How many recipes."""
        trials = [] if self._runner is None else self._runner.trials()
        return len({trial.recipe for trial in trials if not trial.recipe.is_reference})

    @property
    def had_turn(self) -> bool:
        return self._ended or self._tried > 0

    @property
    def _given_up(self) -> bool:
        return self._ended or self._faithful_left_out >= _MOST_LEFT_OUT

    def free_memory(self) -> bool:
        """End what is kept of its trials. False where there is nothing."""
        return self._runner is not None and self._runner.free_memory()

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()

    def conclude(self, tuned: TunedPart | None) -> None:
        """Keep its study in the journal. ``tuned``: what it has in the fastest program."""
        if self._runner is None or self._decision is None:
            return
        placed = tuned and Decision(Chosen(trial=tuned.trial, reason="it is in the program"), None, ())
        self._runner.conclude(placed or self._decision)

    def result(self, tuned: TunedPart | None, assemblies: Sequence[Assembly]) -> PartResult:
        """``tuned``: what is in its place in the chosen program. ``assemblies``: all programs that were tried."""
        shown = tuned or self.best
        return PartResult(
            key=self.key,
            module=self.part.module,
            copies=self.part.copies,
            calls=self.part.calls,
            share=self.part.share,
            recipe=None if tuned is None else tuned.recipe,
            speedup_x=None if shown is None else shown.speedup_x,
            reason=self._why_not(assemblies) if tuned is None else self._why_not_all(tuned),
            tried=self._tried,
        )

    def _why_not(self, assemblies: Collection[Assembly]) -> str:
        """Why the original runs."""
        if self.best is None:
            return self.reason
        mine = (assembly for assembly in assemblies if self.key in assembly.parts)
        tried = [assembly for assembly in mine if assembly.parts[self.key].recipe == self.best.recipe]
        fate = tried[-1].fate() if tried else "it was not tried in the program"
        return f"{self.best.recipe.label} is faster alone, and {fate}"

    def _why_not_all(self, tuned: TunedPart) -> str:
        """Why the original runs some of the copies; empty where it does not."""
        alike, served = len(self.part.copies), len(tuned.artifacts)
        return f"in {served} of {alike} alike: it could not be built and proven for the others" * (served < alike)
