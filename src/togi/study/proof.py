"""The proof of what is saved: loaded from its files in a fresh process, verified, and measured next to the original."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from togi.artifact.manifest import Saved, in_turn, part_folder
from togi.artifact.save import copy_files, serve_in_turn
from togi.core.records import Outcome, Recipe, Timing, Trial
from togi.decide.faster import BETWEEN_PROCESSES
from togi.machine.limits import is_running
from togi.measure import together
from togi.study.open_study import OpenStudy
from togi.study.time_budget import building_s
from togi.worker.launch import NoTimeLeft
from togi.worker.messages import Purpose
from togi.worker.supervise import AT_ONCE, RunningTrial, TrialEnded

_AT_ONCE = {Outcome.TIMED_OUT: "hangs", Outcome.CRASHED: "ends its process"}
"""What becomes of an engine that cannot serve callers at once, besides wrong answers."""
_AGAIN_X = 2.0
"""Measuring on takes so many times as long as the turns at first, with what comes after it."""
_CALLERS = 2
"""So many at once try what was raced for one caller."""


class Prover:
    """Saves recipes of a study and proves what was saved. What cannot be is set aside with the reason."""

    def __init__(self, study: OpenStudy, keep: Path) -> None:
        """``keep``: the folder of the artifacts."""
        self._study, self._keep = study, keep
        self.proven: dict[Recipe, Path] = {}
        """Artifacts whose proof is the last trial of their recipe."""
        self.unusable: dict[Recipe, str] = {}
        """What was set aside, and why."""
        self.failed: dict[Recipe, str] = {}
        """What is wrong beyond its samples, or whose process hung or ended while it was saved or proven: no choice
        without files either, as what has merely no file form is."""

    def set_aside(self, candidate: Recipe, why: str, *, found: Outcome | None = None) -> None:
        """It is not a choice any more, and its last trial says so. ``found``: nor one of later studies, by this outcome
        of its last trial. The original is what it is: only its files can be wrong."""
        self.unusable[candidate] = why
        what = "The original was not saved" if candidate.is_reference else f"{candidate.label} was set aside"
        self._study.notes.append(f"{what}: {why}.")
        last = self._study.log.last(candidate)
        if last is not None:
            reason = f"{last.reason}; {why}" if last.reason and why not in last.reason else why
            outcome = last.outcome if found is None or candidate.is_reference else found
            self._study.log.append(last.model_copy(update={"reason": reason, "outcome": outcome}))

    def fails(self, candidate: Recipe, why: str, found: Outcome | None = None) -> None:
        """Set it aside, as a choice without files too."""
        if not candidate.is_reference:
            self.failed[candidate] = why
        self.set_aside(candidate, why, found=found)

    def save(self, candidate: Recipe, trial: Trial) -> Path | None:
        """Save it without a proof: for a part, the trial of the program is its proof. None where it cannot be saved."""
        folder = self._folder(candidate)
        try:
            running = self._study.processes.warm(candidate)
            if running is None:
                self.fails(candidate, "it could not be built again")
            elif self._saved(running, folder, trial) is not None:
                self._drop_earlier(candidate, folder)
                return folder
        except TrialEnded as ended:
            self.fails(candidate, f"it could not be saved: {ended}", _found(ended))
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def save_and_prove(self, candidate: Recipe) -> None:
        """Either its last trial measures what was saved, or it is set aside."""
        study = self._study
        study.progress.saving(candidate)
        folder = self._folder(candidate)
        try:
            trial = study.log.last(candidate)
            if trial is None:
                self.fails(candidate, "it was not tried")
            elif (saved := self._written(folder, trial)) is not None:
                proof, saved = self._prove(folder, candidate, trial, saved)
                study.subject.write_manifest(folder, proof, saved)
                study.log.append(proof)
                self.proven[candidate] = folder
                self._drop_earlier(candidate, folder)
                self._compare(candidate, trial, proof)
                return
        except (TrialEnded, NoTimeLeft, OSError) as ended:
            self.fails(candidate, f"it could not be saved: {ended}", _found(ended))
        shutil.rmtree(folder, ignore_errors=True)

    def stands(self, trial: Trial | None) -> bool:
        """Whether a trial is a proof by itself: of a program of parts, which ran from the files that are saved, and for
        which no half of the validation data waits."""
        if trial is None or trial.recipe not in self._study.processes.right_from_files:
            return False
        judged = trial.error is not None and trial.error.accuracy is None
        return judged and trial.outcome is Outcome.OK and trial.timing is not None

    def keep(self, trial: Trial) -> Path | None:
        """Save what ``stands`` without asking any process for anything. None where it does not stand."""
        if not self.stands(trial):
            return None
        folder = self._folder(trial.recipe)
        try:
            files = copy_files(self._study.processes.composed[trial.recipe], folder)
            self._study.subject.write_manifest(folder, trial, self._left_to_its_trial(folder, trial, files))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            self.fails(trial.recipe, f"it could not be saved: {error}")
            return None
        self.proven[trial.recipe] = folder
        self._drop_earlier(trial.recipe, folder)
        return folder

    def _folder(self, candidate: Recipe) -> Path:
        """An empty folder for its artifact, of this process: another may work on the same study."""
        own = f"{self._name(candidate)}-{os.getpid()}"
        names = itertools.chain([own], (f"{own}-{number}" for number in itertools.count(2)))
        folder = next(path for name in names if not (path := self._keep / f"{name}.togi").exists())
        folder.mkdir(parents=True)
        return folder

    def _name(self, candidate: Recipe) -> str:
        return f"{self._study.log.id[:12]}-{candidate.id}"

    def _drop_earlier(self, candidate: Recipe, folder: Path) -> None:
        """What earlier processes kept of the same recipe goes once ``folder`` takes its place."""
        name = self._name(candidate)
        for before in self._keep.glob(f"{name}*.togi"):
            owner = before.stem.removeprefix(name).removeprefix("-").partition("-")[0]
            own = not owner.isdigit() or int(owner) == os.getpid() or not is_running(int(owner))
            if own and before != folder:
                shutil.rmtree(before, ignore_errors=True)

    def _written(self, folder: Path, trial: Trial) -> Saved | None:
        """Its files and the manifest. None where it cannot be built again or has no files: it is set aside."""
        study, candidate = self._study, trial.recipe
        if (files := study.processes.composed.get(candidate)) is not None:  # they are there: nobody need be asked
            saved = copy_files(files, folder)
            study.subject.write_manifest(folder, trial, saved)
            return saved
        running = study.processes.reference() if candidate.is_reference else study.processes.warm(candidate)
        if running is None:
            self.fails(candidate, "it could not be built again")
            return None
        return self._saved(running, folder, trial)

    def _saved(self, running: RunningTrial, folder: Path, trial: Trial) -> Saved | None:
        """Write the files of each engine, and the manifest. None where there are none: the recipe is set aside."""
        study, recipe = self._study, running.recipe
        saved = running.save(folder, study.budget.ask_s)
        if saved.unsaveable:
            self.set_aside(recipe, f"it has no file form here: {saved.unsaveable}")
            return None
        if saved.wrong:
            self.fails(recipe, f"it is wrong beyond the samples: {saved.wrong}", Outcome.WRONG)
            return None
        study.notes.extend(saved.notes)
        if words := study.subject.signature.within(saved.domains).domains_in_words():
            where = " and ".join(words)
            study.notes.append(
                f"{recipe.label} refuses values for which it was not proven: it takes calls where {where}."
            )
        study.subject.write_manifest(folder, trial, saved)
        return saved

    def _prove(self, folder: Path, candidate: Recipe, trial: Trial, saved: Saved) -> tuple[Trial, Saved]:
        """Load the artifact in a fresh process, verify it, and measure its speed next to the original, and its memory.
        The original itself is not timed again, and what the time limit cut off is left to its trial: all of it, where
        that is a proof by itself. Returns the proof, and what is saved with what was learned of it.

        Raises TrialEnded when it cannot be loaded or is not as right as the candidate it was made of.
        """
        study, stands = self._study, self.stands(trial)
        if stands and study.budget.left_s < building_s(trial.phases_s):  # it would be cut off before it is verified
            return trial, self._left_to_its_trial(folder, trial, saved)
        try:
            return self._proven_anew(folder, candidate, trial, saved)
        except (TrialEnded, NoTimeLeft) as late:
            if not stands or (isinstance(late, TrialEnded) and not late.cut_off):
                raise
            return trial, self._left_to_its_trial(folder, trial, saved)

    def _left_to_its_trial(self, folder: Path, trial: Trial, saved: Saved) -> Saved:
        """What is saved where no time is left to load it once more."""
        self._study.notes.append(
            f"The time limit was over before {trial.recipe.label} could be loaded once more: in its trial it ran from "
            f"the same files and was verified, and its time there counts{self._one_by_one}."
        )
        return self._for_one_caller(folder, saved)

    @property
    def _one_by_one(self) -> str:
        """What becomes of callers that were not tried at once."""
        if self._study.subject.facts.callers > 1:
            return ""
        return ", and callers wait for each other, since it was not asked by two at once"

    def _for_one_caller(self, folder: Path, saved: Saved) -> Saved:
        """Where it was raced for one, and not asked by two at once: these wait for each other."""
        if self._study.subject.facts.callers > 1:
            return saved
        for number in range(len(saved.parts)):
            serve_in_turn(part_folder(folder, number))
        return saved.model_copy(update={"links": in_turn(saved.links)})

    def _proven_anew(self, folder: Path, candidate: Recipe, trial: Trial, saved: Saved) -> tuple[Trial, Saved]:
        """As ``_prove``, in any case in a fresh process."""
        study = self._study
        with self._loaded(folder, candidate) as loaded:
            try:
                return self._measured_again(loaded, folder, trial, saved)
            except TrialEnded as ended:
                if not ended.cut_off or candidate.is_reference:
                    raise
            # It is right, loaded from its files: how fast it is, its trial tells.
            if study.subject.facts.train:
                study.notes.append(
                    f"The time limit was over when the record of {candidate.label} had been applied in a fresh process "
                    "and verified: its time before that counts."
                )
                return self._as_loaded(loaded, trial), saved
            study.notes.append(
                f"The time limit was over when {candidate.label} had been loaded from its files and verified: its time "
                f"before that counts{self._one_by_one}."
            )
            return self._as_loaded(loaded, trial), self._for_one_caller(folder, saved)

    def _as_loaded(self, loaded: RunningTrial, trial: Trial) -> Trial:
        """How fast it is by its trial, and how right by its files: that it was set aside before is over."""
        reason = self._study.subject.accepted(loaded)[1] if trial.outcome is Outcome.OK else trial.reason
        return trial.model_copy(update={"error": loaded.error, "reason": reason})

    def _measured_again(self, loaded: RunningTrial, folder: Path, trial: Trial, saved: Saved) -> tuple[Trial, Saved]:
        study = self._study
        proof = trial.model_copy(update={"outcome": Outcome.OK, "reason": study.subject.accepted(loaded)[1]})
        if trial.recipe.is_reference:
            loaded.warm(limit_s=0.0)
        else:
            study.processes.make_ready(loaded, folder)
            proof = self._timed(loaded, trial, proof)
        if proof.timing is not None and proof.timing.start_ms is None:
            timing = proof.timing.model_copy(update={"start_ms": loaded.start_ms})
            proof = proof.model_copy(update={"timing": timing})
        proof = proof.model_copy(update={"error": loaded.error, "footprint": loaded.footprint()})
        one_caller = trial.recipe.is_reference or study.subject.facts.train
        if one_caller or study.subject.facts.callers > 1:  # else verification had them all
            return proof, saved
        notes, saved = self._for_callers(loaded, folder, trial, saved)
        return proof.model_copy(update={"notes": (*trial.notes, *notes)}), saved

    def _timed(self, loaded: RunningTrial, trial: Trial, proof: Trial) -> Trial:
        """The proof with the time of what was loaded, together with that of its trial where it does not stand alone;
        what the machine disturbed does not count."""
        study, candidate = self._study, loaded.recipe
        timing = study.stopwatch.time(loaded, study.processes.reference(), study.pace.proof_s)
        if doubt := study.stopwatch.doubt(timing):  # what was saved is right; how fast it is, its trial tells
            study.notes.append(
                f"{candidate.label} could not be timed again from its files ({doubt}), so its time before that counts."
            )
            return self._as_loaded(loaded, trial)
        from_these_files = candidate in study.processes.composed  # its trial ran from them too
        unsure = not timing.speedup_x.has_ends or BETWEEN_PROCESSES.points_to_faster(timing.speedup_x)
        if trial.timing is not None and trial.outcome is Outcome.OK and (from_these_files or unsure):
            both, sure = together(trial.timing, timing), BETWEEN_PROCESSES.faster(timing.speedup_x)
            # where each process is faster beyond doubt, and by how much differs, one interval of both may say nothing
            timing = timing if sure and BETWEEN_PROCESSES.points_to_faster(both.speedup_x) else both
        return proof.model_copy(update={"timing": self._longer(loaded, timing)})

    def _longer(self, loaded: RunningTrial, timing: Timing) -> Timing:
        """Measured on where it is faster by what is known, and not beyond doubt, as far as there is time."""
        study, reference = self._study, self._study.processes.reference()
        takes_s = _AGAIN_X * study.stopwatch.enough_s(study.pace.proof_s, [loaded, reference])
        if not BETWEEN_PROCESSES.points_to_faster(timing.speedup_x) or study.budget.left_s <= takes_s:
            return timing
        longer = study.stopwatch.time(loaded, reference, study.pace.proof_s, again=True, before=timing)
        return timing if study.stopwatch.doubt(longer, again=True) else longer

    @contextmanager
    def _loaded(self, folder: Path, candidate: Recipe) -> Iterator[RunningTrial]:
        """In a fresh process, from its files, and right. Raises TrialEnded where it is not."""
        subject = self._study.subject
        files = subject.pool.start_artifact(folder, candidate, subject.facts, subject.limits, check=Purpose.PROOF)
        with files as loaded:
            outcome, reason = subject.accepted(loaded)
            if outcome is not Outcome.OK:
                raise loaded.end(outcome, f"loaded from its files, {reason}", "proof")
            yield loaded

    def _for_callers(
        self, loaded: RunningTrial, folder: Path, trial: Trial, saved: Saved
    ) -> tuple[tuple[str, ...], Saved]:
        """What should be known of it where several call at once, and what is then saved. Where that hangs or ends it,
        callers wait for each other, by a lock round its calls, and it is verified and asked anew so. Raises TrialEnded
        where that fails too.
        """
        candidate = loaded.recipe
        try:
            return _served_at_once(loaded), saved
        except TrialEnded as ended:
            happens = _AT_ONCE.get(ended.ending.outcome)
            composed = candidate in self._study.processes.composed
            if happens is None or ended.cut_off or ended.ending.stage != AT_ONCE or composed:
                raise
        saved = saved.model_copy(update={"links": in_turn(saved.links)})
        self._study.subject.write_manifest(folder, trial, saved)
        with self._loaded(folder, candidate) as again:
            again.warm(limit_s=0.0)
            notes = _served_at_once(again)
        return (f"it {happens} where {_CALLERS} call at once, so callers wait for each other", *notes), saved

    def _compare(self, candidate: Recipe, before: Trial, proof: Trial) -> None:
        """Say where what was saved is no longer what was measured before."""
        if candidate.is_reference or before.timing is None or proof.timing is None:
            return
        was, now = before.timing.speedup_x, proof.timing.speedup_x
        if BETWEEN_PROCESSES.faster(was) and not BETWEEN_PROCESSES.faster(now):
            self._study.notes.append(
                f"{candidate.label} was {was.median:.2f} x as fast while it was built, but loaded from its files it is "
                f"not faster beyond doubt (between {now.low:.2f} and {now.high:.2f} x)."
            )


def waits_for_confirmation(trial: Trial) -> bool:
    """Whether it was accepted by one half of the validation data, and the other half has not judged it."""
    error = trial.error
    return error is not None and error.accuracy is not None and not error.accuracy.confirmation


def _found(ended: Exception) -> Outcome | None:
    """What will be so again: it hangs, or is wrong. Time that was over is none of its faults, and what else ended it
    may be missing here today."""
    if not isinstance(ended, TrialEnded) or ended.cut_off:
        return None
    return ended.ending.outcome if ended.ending.outcome in (Outcome.TIMED_OUT, Outcome.WRONG) else None


def _served_at_once(loaded: RunningTrial) -> tuple[str, ...]:
    """What should be known of it where several call at once, as a server's threads do with what was raced for one.
    Raises TrialEnded where they are given wrong answers and the original's would be right."""
    asked = loaded.asked_at_once(_CALLERS)
    if asked.problems:
        raise loaded.end(Outcome.WRONG, f"loaded from its files, {asked.problems[0]}", "proof")
    return (asked.note,) if asked.note else ()
