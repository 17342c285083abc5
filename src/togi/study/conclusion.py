"""The conclusion of a study: its record, the verdict in a sentence or two, and the command that repeats it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from togi.core.choices import Objective
from togi.core.errors import JournalError
from togi.core.quantities import bounds, milliseconds, plural, seconds, significant, times
from togi.core.records import Choice, ProgramTree, Recipe, Study, Timing, Trial
from togi.core.settings import Settings
from togi.decide.budget import Budget
from togi.decide.choose import nearest_of, nothing_gained, why_not
from togi.decide.faster import BETWEEN_PROCESSES
from togi.search.experience import crowded
from togi.study.finals import Decision
from togi.study.open_study import OpenStudy
from togi.techniques import all_techniques

NOTHING_FASTER = "nothing was faster beyond doubt"
"""Why a part of a program stays as it is, though engines were tried on it."""


def conclude(study: OpenStudy, decision: Decision, program: ProgramTree | None = None, *, untried: str = "") -> Study:
    """The study's record, kept in its journal and told to everybody. ``untried``: why nothing could be, where that is
    known."""
    subject, settings, excluded = study.subject, study.subject.settings, study.search.excluded
    trials = study.log.trials()
    chosen = decision.chosen.trial
    ended = {trial.recipe for trial in trials}
    given_up = {trial.recipe: trial for trial in study.given_up if trial.recipe not in ended}
    late = [trial for trial in given_up.values() if not trial.recipe.is_reference]
    untried = untried or _untried(study, trials, late, program)
    verdict = _verdict(decision, untried, settings, [*trials, *late], subject.facts.callers)
    record = study.log.header.model_copy(
        update={
            "facts": subject.facts,
            "settings": settings.as_json(),  # the journal has those with which the study began
            "trials": (*trials, *late, *excluded),
            "excluded": excluded,
            "calibration": study.log.calibration(),
            "left_out": study.log.left_out(),
            "finalists": decision.finalists,
            "best": None if chosen is None else chosen.recipe,
            "verdict": " ".join([verdict, *study.notes]),
            "notes": tuple(study.notes),
            "untried": study.search.untried() if program is None else (),
            "took_s": study.earlier_s + study.budget.elapsed_s,
            "command": shlex.join(["togi", "tune", subject.name, *settings.arguments()]),
            "program": program,
        }
    )
    try:
        study.log.decide(record)
    except JournalError as error:  # what was chosen and proven is there all the same
        note = f"The journal does not hold this conclusion: {error}"
        record = record.model_copy(update={"notes": (*record.notes, note), "verdict": f"{record.verdict} {note}"})
    study.progress.finished(record)
    return record


def _untried(study: OpenStudy, ended: Sequence[Trial], late: Sequence[Trial], program: ProgramTree | None) -> str:
    """Why nothing but the original was tried, or nothing to its end; empty where something was. ``late``: what the time
    limit cut off."""
    limit_s, search = study.budget.limit_s, study.search  # an effort's own may have been made longer
    parts = program.parts if program is not None else ()
    if any(not trial.recipe.is_reference and trial.recipe.choices for trial in ended):
        return ""
    if faster := [part for part in parts if part.speedup_x is not None]:
        return (
            f"{plural(len(faster), 'part')} became faster, and no time was left to try the program with "
            f"{'it' if len(faster) == 1 else 'them'}. Give a longer --time-limit"
        )
    if any(part.tried for part in parts):
        return ""
    if late and limit_s is not None:
        more = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
        return (
            f"Nothing was tried to its end: the time limit of {seconds(limit_s)} cut off {late[0].recipe.label}{more}. "
            "Give a longer --time-limit"
        )
    if reasons := [f"{part.key.path}: {part.reason}" for part in parts if part.reason]:
        longer = ". Give a longer --time-limit" if limit_s is not None else ""
        return f"Nothing could be tried on its parts ({'; '.join(reasons)}){longer}"
    if limit_s is None or search.planned <= len(search.space.originals):
        return "Nothing could be tried here: every technique is refused, left out or missing"
    if search.stopped and not search.out_of_time:
        return f"Nothing was tried: {search.stopped}"
    return (
        f"Nothing was tried: the time limit of {seconds(limit_s)} was over once the original had been run, proven "
        "and timed. Give a longer --time-limit"
    )


def _verdict(
    decision: Decision, untried: str, settings: Settings, trials: Sequence[Trial] = (), callers: int = 1
) -> str:
    """The choice in a sentence or two."""
    chosen = decision.chosen.trial
    if chosen is None:
        return f"Nothing could be chosen: {decision.chosen.reason}."
    if chosen.recipe.is_reference or chosen.timing is None:
        if untried:
            return f"{untried}. The original stays as it is{_as_it_runs(settings.train)}."
        return _kept(chosen, trials, settings)
    speedup = chosen.timing.speedup_x
    shown_right = chosen.error is None or chosen.error.shown_right
    right = "as right as plain eager" if shown_right else chosen.reason
    sentence = (
        f"{chosen.recipe.label} is {speedup.median:.2f} x as fast as the original"
        f"{_in_what(settings, callers, chosen.timing)} "
        f"(between {speedup.low:.2f} and {speedup.high:.2f} x) and {right}."
    )
    if crowded(chosen.timing):
        sentence += (
            f" Its threads waited for a core {chosen.timing.noise.waiting:.0%} of the time: with fewer neighbours the "
            "factor will be another."
        )
    if not BETWEEN_PROCESSES.faster(speedup):
        what = "its memory" if settings.max_memory_bytes is not None else "what it takes"
        sentence += f" It is chosen for {what}: {decision.chosen.reason.rpartition('; ')[2]}."
    return sentence if decision.folder is not None else f"{sentence} It could not be saved."


def _kept(chosen: Trial, trials: Sequence[Trial], settings: Settings) -> str:
    """The verdict where others were tried and the original stays."""
    near = nearest_of(trials)
    kept = f"{nothing_gained(near).capitalize()}{_as_it_runs(settings.train)}"
    if near is None:
        return f"{kept}."
    figures = f"{near.recipe.label}, {times(near.speedup_x.median)} the speed, {bounds(near.speedup_x)}"
    if not BETWEEN_PROCESSES.faster(near.speedup_x):
        return f"{kept} (nearest: {figures})."
    reason = why_not(near.trial, chosen, Budget.of(settings), trials=trials) or near.trial.reason
    keep = f"Keep your model{_as_it_runs(settings.train)}."
    return f"{keep} What was faster could not be used ({figures}): {reason.rstrip('.')}."


def _as_it_runs(train: bool) -> str:
    """What was raced as the original, where that is not how models are called by default."""
    return "" if train else ", under torch.no_grad"


def unsaved(trial: Trial) -> str:
    """Why there are no files of what was chosen, and what to do without them. ``trial``: its last one."""
    label = f"'{trial.recipe.label}'"
    if trial.timing is None:
        return f"{label} was not run, since the time limit was over before that. Give a longer one"
    if trial.recipe.is_reference:
        if trial.recipe.trains:
            return "what was chosen is the original's own training step: there is nothing to apply"
        return "what was chosen is the original, which needs no files: keep your model, called under torch.no_grad()"
    why = trial.reason.rstrip(".") or "the study's verdict says why"
    return f"{label} could not be saved: {why}. {_by_hand(trial.recipe)}"


def _by_hand(recipe: Recipe) -> str:
    return f"Its choices can be made by hand, before anything is called: {'; '.join(map(_how, recipe.listed))}"


def _how(choice: Choice) -> str:
    """The Python that makes a choice, or the page that explains it."""
    chosen = all_techniques().get(choice.technique)  # None: the parts of a program
    lines = chosen.repro_setting(choice.options) if chosen is not None and chosen.surrounds_calls else None
    if lines is None:
        return f"{choice.label}, as 'togi explain {choice.technique}' says"
    return lines.removeprefix("# ").replace("\n", "; ") or f"with torch.{choice.technique}() round the calls"


def _in_what(settings: Settings, callers: int, timing: Timing) -> str:
    """Where not the time of a single call was raced."""
    match settings.objective:
        case Objective.LATENCY:
            return ""
        case Objective.END_TO_END:
            return f" with the copies to the device and back, {milliseconds(timing.latency_ms.median)}"
        case Objective.THROUGHPUT:
            rate = significant(1e3 / timing.latency_ms.median)
            return f" with {callers} callers at once, {rate} requests per second"
        case Objective.FIRST_CALL:
            return f" from loading its files to the first answer, {milliseconds(timing.latency_ms.median)}"
