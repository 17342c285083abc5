"""The end of a study: the finalists race, the fastest is saved, and what was saved is proven."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from togi.artifact.manifest import Link
from togi.artifact.save import write_manifest
from togi.core.records import Outcome, Recipe, Trial
from togi.decide.faster import BETWEEN_PROCESSES
from togi.measure import RaceEntry, RaceResult, Verdict, race
from togi.study.course import REFERENCE, Course, enough_s
from togi.techniques import recipe
from togi.worker.stable import environment_of
from togi.worker.supervise import Limits, RunningTrial, TrialEnded

_FINALISTS = 4
_PROOF_BUDGET_S = 5.0


@dataclass(frozen=True)
class Saved:
    """A proven artifact: where it lies, and its trial, measured as loaded from its files."""

    recipe: Recipe
    folder: Path
    proof: Trial


class Finals:
    """Race and proof of one course."""

    def __init__(self, course: Course, keep: Path) -> None:
        self.course = course
        self.keep = keep

    def race(self, budget_s: float) -> tuple[Recipe, ...]:
        """Finalists, the best first. Their trials are recorded again with what the race measured.

        The reference always runs, and wins where nobody is faster beyond doubt.
        """
        course = self.course
        runners = [running for recipe in self._candidates() if (running := course.standing(recipe)) is not None]
        reference = course.reference()
        if not runners:
            return (reference.recipe,)
        by_name = {running.name: running.recipe for running in (reference, *runners)}
        result = race(
            [reference, *runners],
            reference,
            budget_s=enough_s(budget_s, [reference, *runners]),
            seed=course.settings.seed,
            on_round=lambda number, standing: course.progress.race_round(
                number, {by_name[name]: interval for name, interval in standing.items()}
            ),
        )
        timings = [timing for running in runners if (timing := result.timing(running.name)) is not None]
        doubt = next((found for timing in timings if (found := course.doubt(timing))), "")
        if not any(math.isfinite(timing.speedup_x.high) for timing in timings):
            doubt = f"{result.rounds} rounds are too few to conclude anything"
        if doubt:
            course.notes.append(f"The race does not count ({doubt}): the trials before it decide.")
            return self._by_trials([running.recipe for running in runners])
        for running in runners:
            self._record(running, result)
        course.notes.append(f"The race: {result.sentence}.")
        return tuple(by_name[name] for name in ranking(result, by_name))

    def _by_trials(self, raced: Sequence[Recipe]) -> tuple[Recipe, ...]:
        """Those whose trials, measured beside the reference in calmer moments, found them faster beyond doubt."""
        found = {
            recipe: trial.timing.speedup_x for recipe in raced if (trial := self.course.last(recipe)) and trial.timing
        }
        faster = [r for r, speedup_x in found.items() if BETWEEN_PROCESSES.faster(speedup_x)]
        return (*sorted(faster, key=lambda r: -found[r].median), recipe(**REFERENCE))

    def _candidates(self) -> Sequence[Recipe]:
        unraced = (recipe(**REFERENCE), Recipe())
        return [found for found in self.course.search.finalists(_FINALISTS + len(unraced)) if found not in unraced][
            :_FINALISTS
        ]

    def _record(self, running: RunningTrial, result: RaceResult) -> None:
        """Append the finalist's race to the journal: its last trial, timed anew."""
        timing = result.timing(running.name)
        before = self.course.last(running.recipe)
        if timing is None or before is None or before.timing is None:
            return
        kept = {"first_call_ms": before.timing.first_call_ms, "build_s": before.timing.build_s}
        self.course.log.append(before.model_copy(update={"timing": timing.model_copy(update=kept)}))

    def save(self, ranking: Sequence[Recipe]) -> Saved | None:
        """The first of the ranking that can be saved, loaded again, and stands the proof."""
        for candidate in ranking:
            self.course.progress.saving(candidate)
            saved = self._save(candidate)
            if saved is not None:
                return saved
        return None

    def _save(self, candidate: Recipe) -> Saved | None:
        course = self.course
        folder = self.keep / f"{course.log.id[:12]}-{candidate.id}.togi"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            running = course.reference() if candidate == recipe(**REFERENCE) else course.standing(candidate)
            links = self._links(running, folder) if running else None
            trial = course.last(candidate)
            if links is not None and trial is not None:
                self._manifest(folder, candidate, trial, links)
                proof = self._prove(folder, candidate, trial)
                self._manifest(folder, candidate, proof, links)
                course.log.append(proof)
                return Saved(candidate, folder, proof)
        except TrialEnded as ended:
            course.notes.append(f"{candidate.label} could not be saved: {ended}")
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def _links(self, running: RunningTrial, folder: Path) -> tuple[Link, ...] | None:
        answer = running.save(folder)
        if "unsaveable" in answer:
            self.course.notes.append(f"{running.recipe.label} has no file form here: {answer['unsaveable']}")
            return None
        self.course.notes += answer["notes"]
        return tuple(Link.model_validate(link) for link in answer["links"])

    def _manifest(self, folder: Path, candidate: Recipe, proof: Trial, links: tuple[Link, ...]) -> None:
        course = self.course
        write_manifest(
            folder,
            subject=course.subject,
            recipe=candidate,
            signature=course.signature,
            facts=course.facts,
            proof=proof,
            chain=links,
            environment=environment_of(candidate, course.facts),
        )

    def _prove(self, folder: Path, candidate: Recipe, trial: Trial) -> Trial:
        """Load the artifact in a fresh process, verify it, and measure it against the original.

        Raises TrialEnded when it cannot be loaded or is not as right as the candidate it was made of.
        """
        course = self.course
        limits = Limits(timeout_s=course.settings.trial_timeout_s)
        with course.stable.start_artifact(folder, candidate, course.facts, limits, check=True) as loaded:
            outcome, reason = course.verdict(loaded)
            if outcome is not Outcome.OK:
                raise loaded.end(outcome, f"loaded from its files, {reason}", "proof")
            loaded.warm()
            timing = course.time(loaded, course.reference(), _PROOF_BUDGET_S)
            return trial.model_copy(update={"timing": timing, "error": loaded.error})


def ranking(result: RaceResult, recipes: Mapping[str, Recipe]) -> list[str]:
    """Names in the order in which they should be chosen; nobody behind the reference.

    Where several cannot be told apart, those whose medians differ by less than what matters are ranked by how few
    choices they are made of (less can break), the others by their medians: the best guess there is.
    """
    criterion = result.criterion
    faster = [lane for lane in result.entries if lane.speedup_x is not None and criterion.faster(lane.speedup_x)]
    standing = {lane.name for lane in faster if lane.left_at is None and result.verdict is Verdict.EQUIVALENT}

    speeds = {lane.name: lane.speedup_x.median for lane in faster if lane.speedup_x is not None}
    best = max((speeds[name] for name in standing), default=math.inf)

    def order(lane: RaceEntry) -> tuple[bool, int, float]:
        level = lane.name in standing and speeds[lane.name] * (1.0 + criterion.margin) >= best
        return not level, len(recipes[lane.name].choices) if level else 0, -speeds[lane.name]

    return [*(lane.name for lane in sorted(faster, key=order)), result.reference]


def race_budget_s(limit_s: float | None, started: float) -> float:
    """What is left for the race: most of what remains of the limit, within sensible bounds."""
    if limit_s is None:
        return 60.0
    return max(8.0, min(45.0, started + limit_s - time.monotonic() - 2 * _PROOF_BUDGET_S))
