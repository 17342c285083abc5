"""A study under way: its subject and journal, its time, its processes, and what it has to say in the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import Self

from togi.core.recipe import PLAIN_STEP, PLAIN_STEP_RECIPE
from togi.core.records import Facts, Recipe, Study, Trial, now
from togi.core.settings import Settings
from togi.decide.choose import latest
from togi.journal import Conditions, Journal, StudyLog, study_key
from togi.search import Experience, Search
from togi.search.experience import relevance
from togi.search.space import Space
from togi.study.measurement import Stopwatch
from togi.study.pace import USUAL, Pace
from togi.study.progress import Progress
from togi.study.time_budget import TimeBudget, building_s
from togi.study.tuned_subject import TunedSubject
from togi.study.warm_processes import WarmProcesses
from togi.techniques import Engine, all_techniques, recipe
from togi.worker.supervise import spared_bytes


@dataclass(frozen=True)
class OpenStudy:
    """What exploring, race, proof and verdict of one study share."""

    subject: TunedSubject
    log: StudyLog
    search: Search
    experience: Experience
    """What studies of other subjects in the journal taught."""
    budget: TimeBudget
    stopwatch: Stopwatch
    processes: WarmProcesses
    progress: Progress
    pace: Pace = USUAL
    clock: Callable[[], float] = time.monotonic
    """Seconds, monotonic: that of budget and stopwatch."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the verdict."""
    earlier_s: float = 0.0
    """What earlier commands took, with which this study goes on."""
    memory_bytes: float | None = None
    """What a trial may take next to the reference; None: it is not known."""
    given_up: list[Trial] = field(default_factory=list)
    """Ended because the study has no more time for them: not kept, a study with more time tries them again."""

    @classmethod
    def open(
        cls,
        subject: TunedSubject,
        fingerprint: str,
        journal: Journal,
        progress: Progress,
        *,
        calibration: str = "",
        started: float,
        loaded: float | None = None,
        resume: bool,
        firsts: Sequence[Recipe] | None = None,
        listed: Callable[[Facts], Collection[Recipe]] | None = None,
        pace: Pace = USUAL,
    ) -> Self:
        """Go on with what the journal has of this study, and learn from its others; without ``resume`` neither.

        Args:
            fingerprint: of weights and inputs, where the subject's name does not pin them.
            calibration: hash of the inputs on which recipes are calibrated. Trials of recipes that are calibrated on
                others are done anew; all others stay.
            started: when the study began, by ``time.monotonic``. ``loaded``: when its subject was.
            firsts: what is tried before all else. None: what ``_firsts`` says.
            listed: all that may be tried. None: whatever the techniques offer.
        """
        facts, settings = subject.facts, subject.settings
        header = Study(id="", subject=subject.name, facts=facts, settings=settings.as_json(), started=now())
        key = study_key(subject.name, facts, settings, fingerprint)
        log = journal.study(key, header, fresh=not resume, conditions=Conditions(calibration, _calibrates))
        trials = log.news()
        experience = _learned_before(journal, log, facts, settings) if resume else Experience()
        budget = TimeBudget(
            settings,
            pass_ms=facts.latency_ms,
            export_s=subject.pool.export_s,
            in_parts=facts.program and not facts.exportable,
            started=started,
            loaded=loaded,
            pace=pace,
        )
        if (reference := log.last(subject.reference)) is not None:
            budget.know_reference(reference.phases_s)
        for trial in trials:
            budget.know_validation(trial.phases_s)
        beside = [t.timing.reference_ms for t in trials if t.timing is not None and not t.recipe.is_reference]
        deadline = subject.pool.deadline
        stopwatch = Stopwatch(settings, budget, pace=pace, earlier_ms=beside, deadline_s=lambda: deadline.left_s)
        notes = list(log.notes)
        processes = WarmProcesses(subject, budget, notes, progress.trial_phase)
        startable = [trial for trial in trials if processes.can_start(trial.recipe)]
        timeout_s, memory_bytes = settings.trial_timeout_s, _memory_bytes(facts, settings, log.last(subject.reference))
        again = {t.recipe: t for t in latest(startable) if not t.settled(timeout_s, memory_bytes)}
        search = Search(
            facts,
            settings,
            all_techniques(),
            [trial for trial in startable if trial.recipe not in again],
            disturbed=again.values(),
            space=None if listed is None else Space.listing(listed(facts), facts, all_techniques()),
            firsts=_firsts(facts, settings) if firsts is None and listed is None else firsts,
            experience=experience,
            max_trials=pace.max_trials,
        )
        parts = (subject, log, search, experience, budget, stopwatch, processes, progress, pace)
        return cls(*parts, notes=notes, earlier_s=_took_s(log, trials), memory_bytes=memory_bytes)

    def make_truth(self) -> None:
        """What every trial is compared with, once. Raises SubjectError when the subject cannot be run.

        With all validation data where an earlier session chose by them: its choice may be proven without a trial."""
        judged = any(trial.error is not None and trial.error.accuracy is not None for trial in self.log.trials())
        self.subject.make_truth(self.progress.message, whole=judged)

    def allow_for_best(self) -> None:
        """Time for the proof of the recipe that would be saved now is not given to trials."""
        best = next(iter(self.search.finalists(1)), None)
        self.budget.know_best(self.compiled_when_loaded(best), self.rebuilding_s(best))

    def rebuilding_s(self, recipe: Recipe | None) -> float:
        """How long it takes until a process of it can race or be saved: as long as its trial was built, unless one is
        warm. The reference's stays."""
        trial = None if recipe is None or recipe.is_reference else self.log.last(recipe)
        return 0.0 if trial is None or self.processes.is_warm(trial.recipe) else building_s(trial.phases_s)

    def compiled_when_loaded(self, recipe: Recipe | None) -> Mapping[str, float]:
        """How long each phase of its trial took, if loading it from its files will take as long; else none."""
        trial = None if recipe is None else self.log.last(recipe)
        if trial is None or not any(_compiles_when_loaded(choice.technique) for choice in trial.recipe.every_choice):
            return {}
        return trial.phases_s

    def settles(self, trial: Trial) -> bool:
        """Whether it need not be tried again in this session."""
        return trial.settled(self.subject.settings.trial_timeout_s, self.memory_bytes)

    def trials(self) -> list[Trial]:
        """Those of the log from which can be chosen."""
        return [trial for trial in self.log.trials() if self.processes.can_start(trial.recipe)]


def _memory_bytes(facts: Facts, settings: Settings, reference: Trial | None) -> float | None:
    """What a trial may take next to the reference. None: it is not known, as of a GPU."""
    if facts.device == "cuda":
        return None
    if settings.trial_memory_bytes is not None:
        return settings.trial_memory_bytes
    spared, footprint = spared_bytes(), None if reference is None else reference.footprint
    return None if spared is None else spared - (0 if footprint is None else footprint.total_bytes)


def _calibrates(recipe: Recipe) -> bool:
    known = all_techniques()  # the journal may have trials of one that is no longer installed
    return any(known[choice.technique].calibrates for choice in recipe.every_choice if choice.technique in known)


def _compiles_when_loaded(id: str) -> bool:
    engine = all_techniques().get(id)  # the journal may have trials of one that is no longer installed
    return isinstance(engine, Engine) and engine.compiles_when_loaded


def _took_s(log: StudyLog, trials: Sequence[Trial]) -> float:
    """As the last command said that was not interrupted, or what is known of all: the cost of each recipe's trial,
    which the record of its race or proof repeats."""
    decided = log.decided()
    said_s = 0.0 if decided is None or decided.took_s is None else decided.took_s
    return max(said_s, sum(trial.cost_s for trial in latest(trials)))


def _firsts(facts: Facts, settings: Settings) -> list[Recipe] | None:
    """Of a training step what may be faster and is equal to the bit has its turn first: it is proven by a quarter of
    what others are. None: ``Search`` decides."""
    if not facts.train or settings.max_memory_bytes is not None:
        return None
    at_once = [technique for technique in all_techniques().values() if technique.step_to_the_bit]
    likeliest = max(at_once, key=lambda technique: technique.speedup)
    return [PLAIN_STEP_RECIPE, recipe(**{likeliest.id: {}, PLAIN_STEP: {}})]


def _learned_before(journal: Journal, log: StudyLog, facts: Facts, settings: Settings) -> Experience:
    """Not from the study of ``log``, whose trials are known. Nothing is raised for studies that cannot be read."""
    earlier = journal.earlier(lambda study: relevance(study, facts, settings) > 0, but=log.id)
    return Experience.of(
        earlier.studies,
        facts,
        settings,
        all_techniques(),
        left_out=earlier.left_out,
        unreadable=earlier.unreadable,
    )
