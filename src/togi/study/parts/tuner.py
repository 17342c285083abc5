"""The order in which the parts of a program are tuned, and the program is tried with them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from togi.core.quantities import plural
from togi.core.recipe import Recipe
from togi.core.records import ProgramTree, Trial
from togi.journal import Journal
from togi.program.parts import Cuts, Part
from togi.study.open_study import OpenStudy
from togi.study.parts.assembly import Assembly, fastest_before, write_assembly
from togi.study.parts.in_place import InPlace, fastest_settings
from togi.study.parts.part_runner import PartRunner
from togi.study.parts.part_study import LEAST_S, PartStudy
from togi.study.parts.program_trials import ProgramTrials
from togi.study.parts.recording import record_parts
from togi.techniques import is_exact, technique

_LONGEST_S = 900.0
"""For all parts where the study has no limit."""
_WHOLE_SHARE = 0.3
"""Of the time that is left when the program has been cut: for trials of it whole. What these have taken is taken from
it, as far as one more is left, with what parts gain until then."""
_WORTH_A_TRIAL = 0.1
"""The program is tried at once where its parts should save so much more of its time: it should soon have a gain."""
_BESIDE_COMPILED = 2
"""So many trials without a gain are made of a part in blocks that repeat before these are compiled where they stand."""


TryComposed = Callable[[Recipe, Path], Trial | None]
"""Tries the program with an artifact of its tuned parts; None where no time is left."""


class PartsTuner:
    """Cuts a program and tunes its parts: all to their first gain, so that the program is soon faster, then always the
    one of which most is expected."""

    def __init__(self, whole: OpenStudy, try_composed: TryComposed, journal: Journal, *, resume: bool) -> None:
        """``whole``: the study of the program. ``try_composed``: tries it with tuned parts in place."""
        self._whole, self._try_composed, self._journal, self._resume = whole, try_composed, journal, resume
        self._cuts: Cuts | None = None
        self._studies: list[PartStudy] = []
        self._in_place: list[InPlace] = []  # both are filled when the program has been cut
        self._programs = ProgramTrials(self._studies, self._in_place, self._attempt, whole.budget)
        self._ends = math.inf
        """When the time is over for parts and the program with them, where the study has no limit."""
        self._for_whole_s = 0.0
        """What of the time is kept for the program with them."""
        self._took_s = math.inf
        """The shortest of these trials so far: the first starts the original next to it, too."""

    def run(self, left_s: float, why: str = "cannot be captured whole") -> None:
        """``why`` it is cut. Raises TogiError when the program cannot be recorded, or does not run for its truth."""
        self._ends = time.monotonic() + (left_s if math.isfinite(left_s) else _LONGEST_S)
        self._whole.progress.message(f"{self._whole.subject.name} {why}: looking for its parts")
        self._cuts = cuts = record_parts(self._whole.subject.pool)  # next to the truth, which was begun with capturing
        self._whole.make_truth()
        before = fastest_before(self._whole.log.trials())
        self._studies += [PartStudy(part, self._open, before=before.get(part.key)) for part in cuts.parts]
        self._in_place += [InPlace(self._whole, *blocks) for blocks in cuts.repeated]  # first: soon compiled
        self._in_place += [InPlace(self._whole, module) for module in cuts.uncaptured]
        self._for_whole_s = (self._ends - time.monotonic()) * _WHOLE_SHARE
        try:
            self._explore_each()
            self._explore_most_promising()
            self._programs.try_parts()
            self._programs.try_rivals()
            self._programs.try_in_place()
        finally:
            for study in self._studies:
                study.close()
        self._whole.notes.extend(self._calibrated_on())
        for study in self._studies:
            study.conclude(self._programs.fastest.parts.get(study.key))

    def try_settings(self) -> None:
        """What settings alone make faster beyond doubt has no file form: they are put round the calls of the modules
        that are not captured."""
        settings = fastest_settings(self._whole.log.trials(), self._whole.subject.facts)
        if settings is not None:
            self._programs.try_settings(settings)

    def tree(self, chosen: Trial | None) -> ProgramTree | None:
        """The program's calls and parts, with what is in their places. ``chosen``: the trial of the program. None where
        it was not recorded in time."""
        if self._cuts is None:
            return None
        places: list[PartStudy | InPlace] = [*self._studies, *self._in_place]
        tuned, assemblies = self._programs.chosen(chosen).parts, self._programs.assemblies
        results = [place.result(tuned.get(place.key), assemblies) for place in places]
        parts = tuple(part for part in results if part is not None)
        return self._cuts.tree.model_copy(update={"parts": parts, "obstacles": self._cuts.obstacles})

    @property
    def _left_s(self) -> float:
        """For trials of parts. The study learns meanwhile how long race and proof will take."""
        left_s = self._whole.budget.explore_s()
        return (left_s if math.isfinite(left_s) else self._ends - time.monotonic()) - self._for_whole_s

    def _explore_each(self) -> None:
        """To its first gain, most worth first."""
        for study, share_s in self._shares():
            if share_s < LEAST_S:
                study.reason = f"only {max(0.0, share_s):.0f} s were left for it"
                continue
            self._announce(study.part)
            repeats = any(place.repeats and place.holds(study.key.path) for place in self._in_place)
            trials = _BESIDE_COMPILED if repeats else None
            study.explore(share_s, self._winners, first_gain=True, trials=trials)
            self._programs.try_parts(_WORTH_A_TRIAL)
            self._programs.try_in_place(first=True)

    def _explore_most_promising(self) -> None:
        """One trial after the other, of whichever part it is expected to save most."""
        announced = None
        while self._studies and (left_s := self._left_s) > 0:
            study = max(self._studies, key=lambda study: study.promises(left_s))
            if study.promises(left_s) <= 0:
                break
            if study is not announced:
                self._announce(study.part)
                announced = study
            study.explore(left_s, self._winners, trials=1)
            self._programs.try_parts(_WORTH_A_TRIAL)

    @property
    def _winners(self) -> tuple[Recipe, ...]:
        """The faithful ones: what is approximate waits for these in each part."""
        best = [study.best.recipe for study in self._studies if study.best is not None]
        return tuple(dict.fromkeys(filter(is_exact, best)))

    def _calibrated_on(self) -> Iterator[str]:
        """What is not said elsewhere: data for the whole program are not those of a part."""
        choices = (choice for tuned in self._programs.fastest.parts.values() for choice in tuned.recipe.choices)
        if any(technique(choice.technique).calibrates for choice in choices):
            yield (
                "Parts in 8 bits are calibrated on the calls that the program makes of them with its samples, not on "
                "calibration data of the program."
            )

    def _announce(self, part: Part) -> None:
        self._whole.progress.message(
            f"part {part.key.label}: {plural(part.calls, 'call')}, {part.share:.0%} of the time"
        )

    def _open(self, part: Part, firsts: Iterable[Recipe], limit_s: float) -> PartRunner:
        return PartRunner.open(self._whole, self._journal, part, firsts, limit_s, resume=self._resume)

    def _attempt(self, assembly: Assembly) -> Trial | None:
        began = time.monotonic()
        trial = self._try_composed(assembly.recipe, write_assembly(self._whole, assembly))
        took_s = time.monotonic() - began
        self._took_s = min(self._took_s, took_s)
        self._for_whole_s = max(self._for_whole_s - took_s, self._took_s)
        return trial

    def _shares(self) -> Iterator[tuple[PartStudy, float]]:
        """Each with its share of the seconds that are then left, by its share of the program's time, and enough for a
        trial while there is time; most worth first. What one leaves is for all."""
        every = sum(study.part.share for study in self._studies)
        for study in self._studies:
            left_s = self._left_s
            yield study, max(left_s * study.part.share / every, min(LEAST_S, left_s / 4))
