"""The parts of a program, tuned one by one: what cannot be captured whole is made faster where it can be."""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from togi.artifact.manifest import PartEntry
from togi.artifact.save import write_manifest
from togi.core.errors import SubjectError
from togi.core.quantities import plural
from togi.core.records import REFERENCE, REFERENCE_RECIPE, Outcome, PartResult, ProgramTree, Recipe, Stage, Trial
from togi.core.settings import Settings
from togi.decide.choose import Chosen, latest
from togi.decide.faster import BETWEEN_PROCESSES
from togi.journal import Journal
from togi.program.parts import CutRequest, Cuts, Part
from togi.study.composed import Made, Tried, compose, fastest_before, fastest_of, work
from togi.study.conclusion import NOTHING_FASTER, conclude
from togi.study.finals import Decision, Finals
from togi.study.in_place import InPlace, by_torch, fastest_settings
from togi.study.open_study import OpenStudy
from togi.study.progress import PartProgress
from togi.study.runner import StudyRunner
from togi.study.tuned_subject import TunedSubject
from togi.techniques import all_techniques
from togi.worker.call import ChildCall
from togi.worker.launch import NoTimeLeft
from togi.worker.pool import WorkerPool
from togi.worker.protocol import Survey
from togi.worker.supervise import Limits, TrialEnded

_CUT_TIMEOUT_S = 600.0
_LONGEST_S = 900.0
"""For all parts where the study has no limit."""
_LEAST_S = 6.0
"""Below it a study of a part does not get past its reference."""
_LONGEST_OPENING_S, _OPENING_X = 20.0, 3.0
"""A part that is captured, proven and timed no sooner, or in so many times its share of the time, is left alone."""
_WHOLE_SHARE = 0.3
"""Of the time that is left when the program has been cut: for measuring and proving it whole."""
_WORTH_A_TRIAL = 0.1
"""The program is tried at once where its parts should save so much more of its time: it should soon have a gain."""
_RIVAL_X = 1.1
"""So much slower alone, another engine may be the faster one in the program."""
_UNKNOWN = 0.3 / 20
"""Of its time, a second: what is expected of a part that nothing is known of."""
_BESIDE_COMPILED = 2
"""So many trials without a gain are made of a part in blocks that repeat before these are compiled where they stand."""
_MOST_LEFT_OUT = 2
"""So many recipes of a part may make the program wrong before the original stays."""
_ENDED = (Outcome.FAILED, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY)
"""How a program may end with its parts in place, besides being wrong."""


CUT = ChildCall(function="togi.program.cuts:find_cuts", request=CutRequest, answer=Cuts, purpose="recorded")


def record_parts(pool: WorkerPool) -> Cuts:
    """The parts of the pool's program with their calls, on which artifacts of parts are proven from then on.

    Raises TogiError when the program cannot be recorded.
    """
    config = pool.config
    request = CutRequest(
        folder=str(pool.folder),
        device=config.device,
        seed=config.seed,
        machine=Survey.read(pool.folder).facts.machine,
        callers=config.callers,
    )
    cuts = CUT.run(pool, request, Limits(timeout_s=_CUT_TIMEOUT_S))
    pool.prove_on((path, part.effects, pool.folder / file) for part in cuts.parts for path, file in part.proof.items())
    return cuts


TryComposed = Callable[[Recipe, Path], Trial | None]
"""Tries the program with an artifact of its tuned parts; None where no time is left."""


@final
@dataclass
class _PartStudy:
    """A part with what came of it so far."""

    part: Part
    runner: StudyRunner | None = None
    finals: Finals | None = None
    decision: Decision | None = None
    best: Made | None = None
    """None where nothing was faster."""
    reason: str = ""
    left_out: set[Recipe] = field(default_factory=set)
    """With these the program was not right."""
    ended: bool = False
    """It could not be opened, or its reference ended."""

    @property
    def label(self) -> str:
        """``encoder``; ``decoder#1`` for its second form of calls."""
        return self.part.path if self.part.form == 0 else f"{self.part.path}#{self.part.form}"

    def saves(self, made: Made | None) -> float:
        """The share of the program's time that it should save."""
        if made is None:
            return 0.0
        return self.part.share * (1.0 - made.time) * len(made.folders) / len(self.part.copies)

    @property
    def should_save(self) -> float:
        """The same of the fastest of its trials, which may not be saved yet."""
        chosen = None if self.finals is None or self.given_up else self.finals.choice().trial
        if chosen is None or chosen.recipe.is_reference or (self.decision and self.decision.chosen.trial == chosen):
            return self.saves(self.best)
        return self.part.share * (1.0 - Made(chosen, {}).time)

    @property
    def tried(self) -> int:
        """How many recipes."""
        trials = () if self.runner is None else self.runner.study.log.trials()
        return len({trial.recipe for trial in trials if not trial.recipe.is_reference})

    @property
    def had_turn(self) -> bool:
        return self.ended or self.tried > 0

    @property
    def given_up(self) -> bool:
        return self.ended or len(self.left_out) >= _MOST_LEFT_OUT

    def promises(self, left_s: float) -> float:
        """The share of the program's time, a second, that one more trial is expected to save; 0 where none is left."""
        if self.given_up:
            return 0.0
        if self.runner is None:
            return self.part.share * _UNKNOWN if left_s >= _LEAST_S else 0.0
        return (self.part.share - self.saves(self.best)) * self.runner.promises(left_s)

    def rivals(self, made: Made | None) -> list[Made]:
        """The fastest with each engine that ``made`` (None: the original) does not have, where it is nearly as fast
        alone. Next to other parts in an engine it may be the faster one: the original's threads are in their way."""
        if self.runner is None or self.finals is None or self.given_up:
            return []
        found = {() if made is None else _engines(made.recipe): made}
        slowest = _RIVAL_X if made is None else min(1.0, made.time * _RIVAL_X)
        every = [Made(trial, {}) for trial in latest(self.runner.study.log.trials()) if trial.eligible]
        for each in sorted(every, key=lambda each: each.time):
            if each.recipe not in self.finals.unusable and each.time < slowest:
                found.setdefault(_engines(each.recipe), each)
        return [rival for rival in found.values() if rival is not None and rival is not made]

    def leave_out(self, reason: str) -> None:
        """Run the original again; what is second best may be right."""
        assert self.best is not None
        assert self.finals is not None
        self.left_out.add(self.best.recipe)
        self.finals.set_aside(self.best.recipe, reason)
        self.best, self.reason = None, reason
        self.decision = Decision(Chosen(trial=None, reason=reason), None, ())

    def placed(self, made: Made) -> Iterator[tuple[PartEntry, Path]]:
        """For the artifact of the program, each with the folder of its own."""
        for path, folder in made.folders.items():
            part = self.part
            weights = part.weights[path]
            yield PartEntry(path=path, module=part.module, folder="", effects=part.effects, weights=weights), folder

    def result(self, made: Made | None, tried: Sequence[Tried]) -> PartResult:
        """``made``: what is in its place. ``tried``: the programs that were."""
        shown, reason = made or self.best, self.reason
        if made is not None:
            alike, done = len(self.part.copies), len(made.folders)
            reason = f"in {done} of {alike} alike: it could not be built and proven for the others" * (done < alike)
        elif self.best is not None:
            fates = [each.fate() for each in tried if each.recipes.get(self.label) == self.best.recipe]
            fate = fates[-1] if fates else "it was not tried in the program"
            reason = f"{self.best.recipe.label} is faster alone, and {fate}"
        return PartResult(
            **{name: getattr(self.part, name) for name in ("path", "module", "copies", "form", "calls", "share")},
            recipe=None if made is None else made.recipe,
            speedup_x=None if shown is None else shown.speedup_x,
            reason=reason,
            tried=self.tried,
        )


@final
class PartsTuner:
    """Cuts a program and tunes its parts: all to their first gain, so that the program is soon faster, then always the
    one of which most is expected."""

    def __init__(self, whole: OpenStudy, try_composed: TryComposed, journal: Journal, *, resume: bool) -> None:
        """``whole``: the study of the program. ``try_composed``: tries it with tuned parts in place."""
        self.whole, self.try_composed, self.journal, self.resume = whole, try_composed, journal, resume
        self.pool, self.settings, self.progress = whole.subject.pool, whole.subject.settings, whole.progress
        self._cuts: Cuts | None = None
        self._studies: list[_PartStudy] = []
        self._in_place: list[InPlace] = []
        self._tried: list[Tried] = []
        self._before: dict[str, str] = {}
        """By label, what was done to the parts of the fastest program that the journal knows."""

    def run(self, left_s: float) -> None:
        """Raises TogiError when the program cannot be recorded, or does not run for its truth."""
        until = time.monotonic() + (left_s if math.isfinite(left_s) else _LONGEST_S)
        self.progress.message(f"{self.whole.subject.name} cannot be captured whole: looking for its parts")
        self._cuts = cuts = record_parts(self.pool)  # next to the truth, which was begun with capturing
        self.whole.subject.make_truth(self.progress.message)
        self._studies = studies = [_PartStudy(part) for part in cuts.parts]
        self._in_place = [InPlace(self.whole, *blocks) for blocks in cuts.repeated]  # first: soon compiled
        self._in_place += [InPlace(self.whole, found) for found in cuts.uncaptured]
        self._before = fastest_before(self.whole.log.trials())
        until -= (until - time.monotonic()) * _WHOLE_SHARE
        try:
            for study, share_s in _shares(studies, until):
                if share_s < _LEAST_S:
                    study.reason = f"only {max(0.0, share_s):.0f} s were left for it"
                    continue
                self._tell(study)
                repeats = any(found.repeats and found.holds(study.part.path) for found in self._in_place)
                self._explore(study, share_s, first_gain=True, trials=_BESIDE_COMPILED if repeats else None)
                self._try_whole(_WORTH_A_TRIAL)
                self._try_in_place(first=True)
            self._explore_most_promising(until)
            self._try_whole()
            self._try_rivals()
            self._try_in_place()
        finally:
            for study in studies:
                if study.runner is not None:
                    study.runner.study.processes.close()
                    study.runner.study.subject.pool.close()
        for study in studies:
            if study.runner is not None and study.decision is not None:
                made = self._fastest.made.get(study.label)
                placed = made and Decision(Chosen(trial=made.trial, reason="it is in the program"), None, ())
                conclude(study.runner.study, placed or study.decision)

    def tree(self, chosen: Trial | None) -> ProgramTree | None:
        """The program's calls and parts, with what is in their places. ``chosen``: the trial of the program. None where
        it was not recorded in time."""
        if self._cuts is None:
            return None
        made: Mapping[str, Made] = {}
        for each in self._tried:
            if chosen is not None and each.trial is not None and each.trial.recipe == chosen.recipe:
                made = each.made
        parts = [each.result(made.get(each.label), self._tried) for each in self._every]
        found = tuple(part for part in parts if part is not None)
        return self._cuts.tree.model_copy(update={"parts": found, "obstacles": self._cuts.obstacles})

    def _tell(self, study: _PartStudy) -> None:
        part = study.part
        self.progress.message(f"part {study.label}: {plural(part.calls, 'call')}, {part.share:.0%} of the time")

    def _explore_most_promising(self, until: float) -> None:
        """One trial after the other, of whichever part it is expected to save most."""
        told = None
        while self._studies and (left_s := until - time.monotonic()) > 0:
            study = max(self._studies, key=lambda each: each.promises(left_s))
            if study.promises(left_s) <= 0:
                break
            if study is not told:
                self._tell(study)
                told = study
            self._explore(study, left_s, trials=1)
            self._try_whole(_WORTH_A_TRIAL)

    def _explore(
        self, study: _PartStudy, seconds: float, *, first_gain: bool = False, trials: int | None = None
    ) -> None:
        until = time.monotonic() + seconds
        try:
            if study.runner is None:
                winners = {other.best.recipe: None for other in self._studies if other.best is not None}
                with self.pool.deadline.within(max(_LONGEST_OPENING_S, _OPENING_X * seconds)):
                    study.runner, study.reason = self._open(study, winners), ""
                    study.finals = Finals(study.runner.study, self.pool.folder)
                    study.runner.try_reference()
            study.runner.explore(max(0.0, until - time.monotonic()), first_gain=first_gain, trials=trials)
        except (SubjectError, TrialEnded, NoTimeLeft) as error:
            study.reason, study.ended = str(error), True

    def _open(self, study: _PartStudy, winners: Iterable[Recipe]) -> StudyRunner:
        """``winners``: what was best for other parts is likely good for this one."""
        part = study.part
        pool = self._pool(part, part.path)
        try:
            survey = pool.capture(part.survey, self.whole.subject.limits, lambda _: None)
            name, settings = f"{self.whole.subject.name}[{study.label}]", _for_parts(self.settings)
            opened = OpenStudy.open(
                TunedSubject(pool, name, survey.facts, survey.signature, settings),
                part.weights[part.path],
                self.journal,
                PartProgress(self.progress, study.label),
                started=self.whole.budget.started,
                loaded=self.whole.budget.loaded,
                resume=self.resume,
                firsts=(REFERENCE_RECIPE, *winners),
                pace=self.whole.pace,
            )
            opened.subject.make_truth(opened.progress.message)
        except BaseException:
            pool.close()
            raise
        return StudyRunner(opened)

    def _save(self, study: _PartStudy, first: Recipe | None = None) -> None:
        """What is now its best, or ``first``; where the journal knows programs with it, what it was in the fastest."""
        if study.finals is None or study.runner is None or study.given_up:
            return
        if (before := self._before.pop(study.label, None)) is not None:
            first = next(
                (trial.recipe for trial in study.runner.study.log.trials() if work(trial.recipe) == before), None
            )
        last, study.decision = study.decision, study.finals.save_only(first)
        if study.decision is last:
            return
        trial, folder = study.decision.chosen.trial, study.decision.folder
        if folder is None or trial is None:
            if not study.tried:
                study.reason = f"nothing was tried on it: {study.runner.study.search.stopped or 'its time was over'}"
            elif not study.left_out:
                aside = [f"{each.label} was set aside: {why}" for each, why in study.finals.unusable.items()]
                study.reason = "; ".join(aside) or NOTHING_FASTER
            return
        folders = {study.part.path: folder}
        for path in study.part.copies:
            if path == study.part.path or self.whole.budget.explore_s() < self.whole.budget.proof_s:
                continue
            if (made := self._copy(study, path, trial.recipe)) is not None:
                folders[path] = made
        study.best, study.reason = Made(trial, folders), ""

    def _pool(self, part: Part, path: str) -> WorkerPool:
        return self.pool.part(path, part.effects, self.pool.folder / part.inputs, part.survey)

    def _copy(self, study: _PartStudy, path: str, best: Recipe) -> Path | None:
        """The same recipe for a module that is alike, with its own weights: built and verified, not measured again."""
        assert study.runner is not None
        pool, limits = self._pool(study.part, path), self.whole.subject.limits
        folder = self.pool.folder / f"{path}#{study.part.form}-{best.id}.togi"
        try:
            survey = pool.capture(study.part.survey, limits, lambda _: None, rewrites=False)
            facts = pool.make_truth(survey.facts, limits, lambda _: None)
            with pool.start(best, facts, limits, lambda _: None) as running:
                if study.runner.study.subject.accepted(running)[0] is not Outcome.OK:
                    return None
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                saved = running.save(folder, study.runner.study.budget.ask_s)
                proof = Trial(recipe=best, outcome=Outcome.OK, error=running.error)
        except (TrialEnded, NoTimeLeft):
            return None
        finally:
            pool.close()
        if saved.unsaveable or saved.wrong:
            return None
        write_manifest(
            folder,
            subject=f"{self.whole.subject.name}[{path}]",
            recipe=best,
            signature=survey.signature.within(saved.domains),
            facts=facts,
            proof=proof,
            chain=saved.links,
            environment={},
        )
        return folder

    def _untried(self) -> float:
        """The share of the program's time that parts should save with what they have now, next to what they had when it
        was last tried."""
        last = self._tried[-1].made if self._tried else {}
        return sum(max(0.0, study.should_save - study.saves(last.get(study.label))) for study in self._studies)

    def _try_whole(self, if_saves: float = 0.0) -> None:
        """The program with all parts that became faster, until it is right and fast, or the time is over: unless less
        of its time than ``if_saves`` is to be gained."""
        if if_saves and self._untried() <= if_saves:
            return
        for study in self._studies:
            self._save(study)
        while self._try_together() and self.whole.budget.explore_s() > 0:
            pass

    def _try_together(self) -> bool:
        """The program with what its parts have now, unless it was tried so. True where they have something else then:
        where it was wrong or ended, what is second best for the one that is to blame, or the original; where it was
        slower than its parts by themselves promise, what they had before."""
        now = Tried({study.label: study.best for study in self._studies if study.best is not None})
        alike = [each for each in self._tried if each.recipes == now.recipes]
        judged = len(alike) > 1 or any(
            each.trial is None or each.trial.outcome is not Outcome.UNSTABLE for each in alike
        )
        if not now.made or judged:
            return False
        now.trial = self.try_composed(now.recipe, compose(self.whole, now.recipe, self._placed(now)))
        if now.trial is not None and now.trial.outcome is Outcome.OUT_OF_MEMORY and self._free_memory():
            return True
        self._tried.append(now)
        if now.trial is None or now.trial.outcome not in (Outcome.WRONG, *_ENDED):
            return self._go_back()
        what = "was not right" if now.trial.outcome is Outcome.WRONG else "ended"
        guilty = self._to_blame(now)
        guilty.leave_out(f"the program {what} with it: {now.trial.reason or now.trial.outcome.value}")
        self._save(guilty)
        return True

    def _free_memory(self) -> bool:
        """End what is kept of the parts' trials. False where that is nothing."""
        return (
            sum(study.runner.study.processes.free_memory() for study in self._studies if study.runner is not None) > 0
        )

    def _to_blame(self, now: Tried) -> _PartStudy:
        """The part whose error is largest on the calls that the original makes, where these were looked at; else of
        those with which the program was not right before, the one that errs most by itself."""
        assert now.trial is not None
        forced = {} if now.trial.error is None else {each.path: each for each in now.trial.error.forced}
        right = {(label, made) for each in self._tried if each.speedup_x for label, made in each.recipes.items()}

        def guilt(study: _PartStudy) -> tuple[float, bool, float]:
            made = now.made[study.label]
            seen = [forced[path].units for path in made.folders if path in forced and not forced[path].faithful]
            own = made.trial.error.units if made.trial.error is not None else 0.0
            return max(seen, default=0.0), (study.label, made.recipe) not in right, own

        return max((study for study in self._studies if study.label in now.made), key=guilt)

    @property
    def _fastest(self) -> Tried:
        return fastest_of(self._tried)

    def _go_back(self) -> bool:
        """To what parts had when the program was fastest, where those that joined since should have made it faster than
        it is: a part's trial is not its work in the program. False where there is nothing to go back to."""
        *earlier, now = self._tried
        before = fastest_of(earlier)
        joined = [s for s in self._studies if s.label in now.made.keys() - before.made.keys()]
        joined_save = sum(study.saves(now.made[study.label]) for study in joined)
        changed = {
            study.label: made
            for study in self._studies
            if (made := before.made.get(study.label)) is not None
            and made.recipe != now.recipes.get(study.label, made.recipe)
            and made.recipe not in study.left_out
        }
        if not changed or not joined or not now.speedup_x or not before.speedup_x:
            return False
        if BETWEEN_PROCESSES.band_x / now.speedup_x <= 1 / before.speedup_x - joined_save:
            return False
        for study in self._studies:
            study.best = changed.get(study.label, study.best)
        return True

    def _try_in_place(self, *, first: bool = False) -> None:
        """The fastest program with what is not captured compiled where it stands, instead of the parts inside of it.
        ``first``: only where most of these had their turn, and other engines than torch's own save nothing there, and
        until one is faster."""
        for found in self._in_place:
            inside = [study for study in self._studies if found.holds(study.part.path)]
            if first and not _left_to_torch(inside):
                continue
            while (made := found.next()) is not None:
                kept = {study.label for study in self._studies if study not in inside}
                kept |= {other.label for other in self._in_place if not found.meets(other)}
                beside = {label: made for label, made in self._fastest.made.items() if label in kept}
                now = Tried({**beside, found.label: made})
                self._try(now)
                if first and now is self._fastest and now.speedup_x > 1.0:
                    return

    def try_settings(self) -> None:
        """What settings alone make faster beyond doubt has no file form: they are put round the calls of the modules
        that are not captured."""
        chosen = fastest_settings(self.whole.log.trials(), self.whole.subject.facts)
        places = [found for found in self._in_place if not found.repeats]
        if chosen is None or not places:
            return
        now = Tried({found.label: found.made(chosen) for found in places})
        if now.recipe not in self.whole.processes.composed:
            self._try(now)

    def _try(self, now: Tried) -> None:
        now.trial = self.try_composed(now.recipe, compose(self.whole, now.recipe, self._placed(now)))
        self._tried.append(now)

    @property
    def _every(self) -> list[_PartStudy | InPlace]:
        return [*self._studies, *self._in_place]

    def _placed(self, now: Tried) -> Iterator[tuple[PartEntry, Path]]:
        """All that is in place, with the folder of its own artifact."""
        for each in self._every:
            if (made := now.made.get(each.label)) is not None:
                yield from each.placed(made)

    def _try_rivals(self) -> None:
        """The fastest program with another engine for a part that is nearly as fast with it alone, most worth first:
        which of them is faster in the program, the program tells."""
        if not self._fastest.made:
            return
        for study in self._studies:
            for rival in study.rivals(self._fastest.made.get(study.label)):
                if self.whole.budget.explore_s() < rival.trial.cost_s + self.whole.budget.proof_s:
                    continue
                for each in self._studies:
                    each.best = self._fastest.made.get(each.label)
                self._save(study, rival.recipe)
                self._try_together()


def _shares(studies: Sequence[_PartStudy], until: float) -> Iterator[tuple[_PartStudy, float]]:
    """Each with its share of the seconds that are then left, by its share of the program's time, and enough for a trial
    while there is time; most worth first. What one leaves is for all."""
    every = sum(study.part.share for study in studies)
    for study in studies:
        left_s = until - time.monotonic()
        yield study, max(left_s * study.part.share / every, min(_LEAST_S, left_s / 4))


def _left_to_torch(inside: Sequence[_PartStudy]) -> bool:
    """Whether most of these parts had their turn and no engine besides torch's own is fastest for one."""
    every, had = (sum(study.part.share for study in s) for s in (inside, [s for s in inside if s.had_turn]))
    best = [study.best.recipe for study in inside if study.best is not None]
    return 2 * had >= every and all(map(by_torch, best))


def _engines(of: Recipe) -> tuple[str, ...]:
    return tuple(choice.technique for choice in of.at(Stage.ENGINE))


def _for_parts(settings: Settings) -> Settings:
    """Without settings of a whole process or thread, and inference mode, whose tensors the Python round a part may not
    use; and without a bound on the metric, which is the program's: it allows a part nothing."""
    of_the_process = [one.id for one in all_techniques().values() if one.stage is Stage.RUNTIME and one.id != REFERENCE]
    allow = settings.allow if settings.max_error is not None else ()
    without = (*settings.without, *of_the_process)
    return dataclasses.replace(settings, without=without, allow=allow, max_drop=None)
