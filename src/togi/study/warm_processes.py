"""The processes that a study keeps: the reference as long as it lasts, and the fastest recipes until the race."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from togi.core.choices import Objective
from togi.core.recipe import ProgramRecipe
from togi.core.records import Outcome, Recipe, Trial
from togi.study.time_budget import TimeBudget
from togi.study.tuned_subject import TunedSubject
from togi.worker.launch import NoTimeLeft
from togi.worker.messages import Purpose
from togi.worker.supervise import GaveWay, RunningTrial, TrialEnded


class WarmProcesses:
    """Starts processes of recipes, makes them ready for their turns, and keeps them paused."""

    def __init__(
        self,
        subject: TunedSubject,
        budget: TimeBudget,
        notes: list[str],
        on_phase: Callable[[Recipe, str], None] = lambda _recipe, _phase: None,
    ) -> None:
        """``notes``: takes a sentence for what could not be built again. ``on_phase``: takes what a process does."""
        self._subject, self._budget = subject, budget
        self._notes, self._on_phase = notes, on_phase
        self.composed: dict[Recipe, Path] = {}
        """Artifacts that stand for a recipe: a program's tuned parts, put together."""
        self.right_from_files: set[Recipe] = set()
        """Of these, what was loaded from its files here, and verified."""
        self._warm: dict[Recipe, RunningTrial] = {}
        self._waiting: RunningTrial | None = None
        """One that gave way while it was built: the last."""
        self._reference: RunningTrial | None = None

    def can_start(self, candidate: Recipe) -> bool:
        """Whether it can be built here: a program that another process put together of tuned parts cannot."""
        return candidate in self.composed or not isinstance(candidate, ProgramRecipe)

    def start(self, candidate: Recipe, timeout_s: float | None = None) -> RunningTrial:
        """Build and verify, or go on where it gave way.

        Args:
            timeout_s: None is that of a trial. Less than that is what the study spares: then it gives way.

        Raises TrialEnded or GaveWay.
        """
        subject, limits = self._subject, self._subject.limits
        if timeout_s is not None:
            limits = replace(limits, timeout_s=timeout_s, gives_way=timeout_s < limits.timeout_s)
        if (folder := self.composed.get(candidate)) is not None:
            whole = replace(limits, gives_way=False)  # a program with its parts is built in a moment
            loaded = subject.pool.start_artifact(
                folder, candidate, subject.facts, whole, check=Purpose.TRIAL, name=candidate.label
            )
            if subject.accepted(loaded)[0] is Outcome.OK:
                self.right_from_files.add(candidate)
            return loaded
        try:
            if (waiting := self._taken_from_waiting(candidate)) is not None:
                return subject.pool.go_on(waiting, limits)
            return subject.pool.start(candidate, subject.facts, limits, lambda phase: self._on_phase(candidate, phase))
        except GaveWay as paused:
            if self._waiting is not None:
                self._waiting.close()
            self._waiting = paused.trial
            raise

    def _taken_from_waiting(self, candidate: Recipe) -> RunningTrial | None:
        waiting = self._waiting
        if waiting is None or waiting.recipe != candidate:
            return None
        self._waiting = None
        return waiting

    def gave_way(self, candidate: Recipe) -> bool:
        """Whether it waits to go on."""
        return self._waiting is not None and self._waiting.recipe == candidate

    def end(self, candidate: Recipe) -> None:
        """End one that gave way."""
        if (waiting := self._taken_from_waiting(candidate)) is not None:
            waiting.close()

    def reference(self) -> RunningTrial:
        """The reference's process; started (again) when there is none."""
        if self._reference is None or self._reference.ended is not None:
            self._reference = self.start(self._subject.reference)
            self.make_ready(self._reference)
        return self._reference

    def warm(self, candidate: Recipe) -> RunningTrial | None:
        """The candidate, built, verified and warm; built again where it was not kept, or its process has ended since.
        None if it now fails."""
        if candidate not in self._warm or self._warm[candidate].ended is not None:
            try:
                running = self.start(candidate)
                self.make_ready(running)
            except (TrialEnded, NoTimeLeft) as ended:
                self._notes.append(f"{candidate.label} could not be built again: {ended}")
                return None
            self._warm[candidate] = running
        return self._warm[candidate]

    def is_warm(self, candidate: Recipe) -> bool:
        """Whether its process is kept and alive."""
        return candidate in self._warm and self._warm[candidate].ended is None

    def keep(self, running: RunningTrial) -> None:
        """Until it is pruned or closed: rebuilding it would cost its compilation again."""
        self._warm[running.recipe] = running

    def make_ready(self, running: RunningTrial, folder: Path | None = None) -> None:
        """For its turns: warm, and where the first call is raced, with files to be started from.

        ``folder``: those it was loaded from; None: it is saved. Raises TrialEnded, also where it has no file form.
        """
        subject = self._subject
        if subject.settings.objective is not Objective.FIRST_CALL:
            running.warm()
            return
        files = folder or self._saved(running)
        start = functools.partial(
            subject.pool.start_artifact, files, running.recipe, subject.facts, subject.limits, check=None
        )
        running.take_starts(start, files if folder is None else None, subject.facts.samples)

    def _saved(self, running: RunningTrial) -> Path:
        files = Path(tempfile.mkdtemp(prefix="start-", dir=self._subject.pool.folder))
        saved = running.save(files, self._budget.ask_s)
        if saved.unsaveable:
            reason = f"it has no file form that could be started from: {saved.unsaveable}"
            raise running.end(Outcome.REFUSED, reason, "save")
        self._subject.write_manifest(files, Trial(recipe=running.recipe, outcome=Outcome.OK), saved)
        return files

    def compose(self, composed: Recipe, folder: Path) -> None:
        """From now on ``folder`` stands for this recipe; what ran of it before is ended."""
        self.composed[composed] = folder
        self.right_from_files.discard(composed)
        if (before := self._warm.pop(composed, None)) is not None:
            before.close()

    def free_memory(self) -> bool:
        """End the finalists that are kept, whose memory stays taken while they are paused: what did not fit next to
        them may fit alone. They are built again for the race. False where there are none to end, or where it was the
        user's limit that did not suffice."""
        alive = [running for running in (*self._warm.values(), self._waiting) if running and running.ended is None]
        limited = self._subject.facts.device != "cuda" and self._subject.limits.memory_bytes is not None
        if not alive or limited:
            return False
        self._end_all()
        return True

    def prune(self, wanted: Collection[Recipe]) -> None:
        """End all that are kept but these, and the reference."""
        for candidate in [kept for kept in self._warm if kept not in wanted]:
            self._warm.pop(candidate).close()

    def _end_all(self) -> None:
        self.prune(())
        if self._waiting is not None:
            self.end(self._waiting.recipe)

    def close(self) -> None:
        """End all."""
        self._end_all()
        if self._reference is not None:
            self._reference.close()
            self._reference = None
