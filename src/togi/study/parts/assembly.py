"""Assemblies: a program with tuned parts in place, tried as a whole, and the one artifact that holds them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from togi.artifact.manifest import PartEntry, part_folder
from togi.artifact.save import write_manifest
from togi.core.recipe import PartKey, ProgramRecipe, Recipe
from togi.core.records import Interval, Outcome, Trial, measured
from togi.decide.choose import latest
from togi.decide.faster import BETWEEN_PROCESSES
from togi.study.open_study import OpenStudy


@dataclass(frozen=True)
class TunedPart:
    """A recipe of a part, with the artifacts that were made with it."""

    trial: Trial
    """The last of this recipe, of the part alone."""
    artifacts: tuple[tuple[PartEntry, Path], ...]
    """One for each module that it serves, with its folder."""

    @property
    def recipe(self) -> Recipe:
        return self.trial.recipe

    @property
    def speedup_x(self) -> Interval | None:
        timed = self.trial.measured
        return None if timed is None else timed.speedup_x

    @property
    def time(self) -> float:
        return relative_time(self.trial)


@dataclass
class Assembly:
    """The program with tuned parts in place."""

    parts: dict[PartKey, TunedPart]
    trial: Trial | None = None
    """Of the whole; None where no time was left for it."""

    @property
    def recipe(self) -> ProgramRecipe:
        return ProgramRecipe.of({key: part.recipe for key, part in self.parts.items()})

    @property
    def speedup_x(self) -> float:
        """0 where it is not right, or was not timed."""
        timed = None if self.trial is None else self.trial.measured
        return timed.speedup_x.median if timed is not None and timed.eligible else 0.0

    def fate(self) -> str:
        """What became of the program."""
        if self.trial is None:
            return "no time was left for the program with it"
        if (timed := self.trial.measured) is not None and timed.eligible:
            if BETWEEN_PROCESSES.faster(timed.speedup_x):
                return "the program is faster without it"
            sure = "" if not BETWEEN_PROCESSES.points_to_faster(timed.speedup_x) else " beyond doubt"
            return f"the program was not faster{sure} with it"
        return f"the program ended with it: {self.trial.reason or self.trial.outcome.value}"


NOTHING_TUNED = Assembly({})


def fastest_of(assemblies: Iterable[Assembly]) -> Assembly:
    return max(assemblies, key=lambda assembly: assembly.speedup_x, default=NOTHING_TUNED)


def fastest_before(trials: Iterable[Trial]) -> dict[PartKey, Recipe]:
    """What was done to each part in the fastest program that was put together before. ``trials``: of the program."""
    speedups_x = {
        trial.recipe: trial.speedup_x.median
        for trial in measured(latest(trials))
        if trial.eligible and isinstance(trial.recipe, ProgramRecipe)
    }
    return dict(max(speedups_x, key=speedups_x.__getitem__).parts) if speedups_x else {}


def write_assembly(whole: OpenStudy, assembly: Assembly) -> Path:
    """Write one artifact of all parts, which share the files of their own artifacts. Returns its folder."""
    recipe, subject = assembly.recipe, whole.subject
    folder = subject.pool.folder / f"{recipe.id}.togi"
    shutil.rmtree(folder, ignore_errors=True)
    artifacts = [artifact for part in assembly.parts.values() for artifact in part.artifacts]
    for number, (_, source) in enumerate(artifacts):
        shutil.copytree(source, part_folder(folder, number), copy_function=os.link)
    write_manifest(
        folder,
        subject=subject.name,
        recipe=recipe,
        signature=subject.signature,
        facts=subject.facts,
        proof=Trial(recipe=recipe, outcome=Outcome.OK, reason="not yet proven as a whole"),
        parts=tuple(entry for entry, _ in artifacts),
    )
    return folder


def relative_time(trial: Trial) -> float:
    """The time of a part next to that of the original, which is 1."""
    timed = trial.measured
    return 1.0 if timed is None else 1.0 / timed.speedup_x.median
