"""Next steps after a study: load what was chosen, keep it, make more recipes possible, accept more."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from togi.core.quantities import plural, relative, significant
from togi.core.recipe import REFERENCES, ProgramRecipe, Recipe
from togi.core.records import ErrorReport, Outcome, Stage, Study, Trial, Unused
from togi.core.settings import ALL
from togi.decide.choose import set_aside
from togi.decide.faithful import may_be_approximate
from togi.decide.paired import Standing, standing, times_in_words, times_the_data
from togi.render.rows import rows


def how_to_apply(artifact: str, *, own_loop: bool) -> str:
    """A line of Python that puts the record of a training step on a model. ``own_loop``: it was proven in a loop body
    of the user's own, which goes on."""
    return f"togi.TrainingRecipe.read({artifact!r}).apply(model, optimizer{'' if own_loop else ', step=loss'})"


def how_to_load(artifact: str, recipe: Recipe | None = None, *, own_loop: bool = False) -> str:
    """Three lines of Python for the artifact of a recipe. ``own_loop``: as of ``how_to_apply``."""
    if isinstance(recipe, ProgramRecipe):
        return (
            f"import togi\nparts = togi.load({artifact!r}).into(program)  # the program that was tuned\n"
            "parts.remove()  # as it was"
        )
    if recipe is not None and recipe.trains:
        runs = "# your own loop goes on" if own_loop else "loss = applied.step(sample)  # or your own loop"
        return (
            f"import togi\napplied = {how_to_apply(artifact, own_loop=own_loop)}\n{runs}; applied.remove() takes it off"
        )
    return f"import togi\nfast = togi.load({artifact!r})\noutput = fast(...)  # called like the original"


def has_files(study: Study) -> bool:
    """Whether what was chosen could be saved."""
    chosen = None if study.best is None else study.trial(study.best)
    return chosen is not None and not set_aside(chosen)


_MOST_TIMES_THE_DATA = 20.0
"""More nobody gathers."""


@dataclass(frozen=True)
class NextStep:
    """Something to do after a study: what to type, and what that brings."""

    type: str
    """Short: what to add to the same command, a command, or Python."""
    brings: str
    command: str = ""
    """All of it, where ``type`` is not."""

    def __str__(self) -> str:
        return f"{self.command or self.type}  {self.brings}"


def next_steps(study: Study, artifact: str | None = None) -> Iterator[NextStep]:
    """The most useful first."""
    gained = study.best is not None and not study.best.is_reference
    if gained and has_files(study) and artifact is None and study.command:
        yield _option(study, "--out NAME.togi", "keeps it; resumes, nothing is tried twice")
    yield from _held_back_by_error(study)
    yield from _held_back_by_few_data(study)
    if waiting := [untried for untried in study.untried if untried.unused is Unused.NO_TIME]:
        minutes = math.ceil(2 * (study.took_s or 0.0) / 60) or 1
        brings = f"goes on where this stopped: {plural(len(waiting), 'technique')} had no turn"
        yield _option(study, f"--time-limit {minutes}m", brings)
    if any(trial.unused is Unused.NOT_ALLOWED and "--allow" in trial.reason for trial in study.trials):
        allow = f"--allow approximate --max-error {'50%' if study.facts.train else '1e-2'}"
        yield _option(study, allow, "tries approximate techniques within that error")
    for fix, reasons in fixes(study).items():
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        yield NextStep(fix, f"makes possible what was missing: {reasons[0]}{more}")
    if any(row.trial.outcome is Outcome.UNSTABLE for row in rows(study)):
        yield NextStep(
            "the same command", "when it is quiet: some recipes could not be judged on this busy machine", study.command
        )
    report = f"togi report {study.id}"
    if any(row.trial.traceback for row in rows(study)):
        yield NextStep(f"{report} --html report.html", "tracebacks and the children's output")
    elif study.trials:
        yield NextStep(f"{report} --html report.html", "every trial with its details")


def _option(study: Study, option: str, brings: str) -> NextStep:
    """The same command with an option."""
    return NextStep(option, brings, f"{study.command} {option}" if study.command else "")


def _held_back_by_error(study: Study) -> Iterator[NextStep]:
    """What was held back only because its error was not allowed: by how much it errs, and the option that allows it."""
    trials = [row.trial for row in rows(study)]
    held_back = [(error, trial.recipe) for trial in trials if (error := _held_back(trial)) is not None]
    if held_back and _max_drop(study) is None:  # a budget of accuracy has to be kept whatever error is allowed
        error, recipe = min(held_back, key=lambda pair: (pair[0].rmse, pair[1].label))
        option = f"--allow {_to_allow(recipe)} --max-error {_allowing(error.rmse)}"
        size = f"a relative error of {relative(error.rmse)}, {significant(error.units, 2)} x eager's own"
        yield _option(study, option, f"accepts {recipe.label}: {size}")


def _max_drop(study: Study) -> float | None:
    """The budget of accuracy, if there is one."""
    max_drop: float | None = study.settings.get("max_drop")
    min_agreement: float | None = study.settings.get("min_agreement")
    return max_drop if min_agreement is None else 1 - min_agreement


def _held_back_by_few_data(study: Study) -> Iterator[NextStep]:
    """What validation data neither proved to be within the budget nor outside of it: how many more would likely do for
    the one that needs the fewest."""
    max_drop, needs = _max_drop(study), list[tuple[float, float, str]]()
    for trial in (row.trial for row in rows(study)):
        accuracy = trial.error.accuracy if trial.error is not None and trial.outcome is Outcome.WRONG else None
        if max_drop is None or accuracy is None or standing(accuracy.drop, max_drop) is not Standing.UNDECIDED:
            continue
        least, most = times_the_data(accuracy.drop, max_drop)
        if 1 < most <= _MOST_TIMES_THE_DATA:
            needs.append((most, least, trial.recipe.label))
    if needs:
        most, least, label = min(needs)
        times = times_in_words(least, most)
        yield NextStep(f"{times} x the validation data", f"would likely prove {label}, which these do not")


def _held_back(trial: Trial) -> ErrorReport | None:
    """What was timed had been accepted: it was found wrong in other ways when it was saved."""
    error = trial.error if trial.outcome is Outcome.WRONG and trial.timing is None else None
    return error if error is not None and may_be_approximate(error) else None


def _to_allow(recipe: Recipe) -> str:
    """A technique of the recipe for which ``--allow`` accepts all of it: what lowers precision, else the engine, else
    the first that is applied."""
    choices = [choice for choice in recipe.every_choice if choice.technique not in REFERENCES]
    likeliest = sorted(choices, key=lambda choice: _LIKELIEST.index(choice.stage) if choice.stage in _LIKELIEST else 9)
    return likeliest[0].technique if likeliest else ALL


_LIKELIEST = (Stage.PRECISION, Stage.ENGINE)


def _allowing(error: float) -> str:
    """A bound that the error keeps with a tenth to spare, in one digit: another run may round otherwise."""
    exponent = math.floor(math.log10(error * 1.1)) if error > 0 else -7
    return f"{math.ceil(error * 1.1 / 10.0**exponent) * 10.0**exponent:.0e}"


def fixes(study: Study) -> dict[str, tuple[str, ...]]:
    """Commands that would make more recipes possible -> the reasons why those were missing."""
    reasons: dict[str, dict[str, None]] = {}
    for trial in study.trials:
        if trial.fix:
            reasons.setdefault(trial.fix, {})[trial.reason or trial.recipe.label] = None
    return {fix: tuple(whys) for fix, whys in reasons.items()}
