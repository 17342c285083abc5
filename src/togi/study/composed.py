"""A program with its tuned parts in place: what was made of each part, and one artifact of all of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from togi.artifact.manifest import PARTS, Link, PartEntry
from togi.artifact.save import write_manifest
from togi.core.records import REFERENCE, Interval, Outcome, Recipe, Trial
from togi.decide.choose import latest
from togi.decide.faster import BETWEEN_PROCESSES
from togi.study.open_study import OpenStudy
from togi.techniques import recipe
from togi.techniques.base import Options


@final
@dataclass(frozen=True)
class Made:
    """A recipe of a part, and the artifacts that were made with it."""

    trial: Trial
    """The last of this recipe, of the part alone."""
    folders: dict[str, Path]
    """By path of the copy; of what is compiled where it stands, by number."""

    @property
    def recipe(self) -> Recipe:
        return self.trial.recipe

    @property
    def speedup_x(self) -> Interval | None:
        return None if self.trial.timing is None else self.trial.timing.speedup_x

    @property
    def time(self) -> float:
        """In that of the original."""
        return 1.0 if self.speedup_x is None else 1.0 / self.speedup_x.median


@final
@dataclass
class Tried:
    """The program with parts in place."""

    made: dict[str, Made]
    """By label."""
    trial: Trial | None = None

    @property
    def recipes(self) -> dict[str, Recipe]:
        return {label: each.recipe for label, each in self.made.items()}

    @property
    def recipe(self) -> Recipe:
        """Of the program."""
        options: Options = {label: work(made.recipe) for label, made in self.made.items()}
        return recipe(**{PARTS: options, REFERENCE: {}})

    @property
    def speedup_x(self) -> float:
        """0 where it is not right, or was not timed."""
        found = None if self.trial is None else self.trial.measured
        return found.speedup_x.median if found is not None and found.eligible else 0.0

    def fate(self) -> str:
        """What became of the program."""
        if self.trial is None:
            return "no time was left for the program with it"
        if self.speedup_x:
            faster = self.trial.timing is not None and BETWEEN_PROCESSES.faster(self.trial.timing.speedup_x)
            return "the program is faster without it" if faster else "the program was not faster with it"
        return f"the program ended with it: {self.trial.reason or self.trial.outcome.value}"


def compose(whole: OpenStudy, composed: Recipe, parts: Iterable[tuple[PartEntry, Path]]) -> Path:
    """One artifact of ``parts``, each with the folder of its own artifact."""
    folder = whole.subject.pool.folder / f"{composed.id}.togi"
    shutil.rmtree(folder, ignore_errors=True)
    entries: list[PartEntry] = []
    for entry, source in parts:
        inside = str(len(entries))
        shutil.copytree(source, folder / PARTS / inside, copy_function=os.link)
        entries.append(entry.model_copy(update={"folder": inside}))
    write_manifest(
        folder,
        subject=whole.subject.name,
        recipe=composed,
        signature=whole.subject.signature,
        facts=whole.subject.facts,
        proof=Trial(recipe=composed, outcome=Outcome.OK, reason="not yet proven as a whole"),
        chain=(Link(engine=PARTS, folder=PARTS, meta={"parts": [entry.model_dump(mode="json") for entry in entries]}),),
        environment={},
    )
    return folder


def work(chosen: Recipe) -> str:
    """``fold_batch_norm+openvino``: what is done to a part, without the reference's ``no_grad``."""
    return "+".join(choice.label for choice in chosen.choices if choice.technique != REFERENCE)


def fastest_before(trials: Iterable[Trial]) -> dict[str, str]:
    """What was done to its parts, by label, in the fastest program put together before. ``trials``: of the program."""
    composed = [trial for trial in latest(trials) if trial.eligible and trial.recipe.find(PARTS) is not None]
    fastest = fastest_of([Tried({}, trial) for trial in composed]).trial
    choice = None if fastest is None else fastest.recipe.find(PARTS)
    return {} if choice is None else {label: str(work) for label, work in choice.options.items()}


def fastest_of(tried: Iterable[Tried]) -> Tried:
    return max(tried, key=lambda each: each.speedup_x, default=Tried({}))
