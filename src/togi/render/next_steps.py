"""Next steps after a study: load what was chosen, keep it, make more recipes possible, accept more."""

from __future__ import annotations

from collections.abc import Iterator

from togi.core.recipe import ProgramRecipe, Recipe
from togi.core.records import Outcome, Study
from togi.decide.choose import set_aside
from togi.decide.faithful import may_be_approximate
from togi.render.rows import rows


def how_to_load(artifact: str, recipe: Recipe | None = None) -> str:
    """Three lines of Python for the artifact of a recipe."""
    if isinstance(recipe, ProgramRecipe):
        return (
            f"import togi\nparts = togi.load({artifact!r}).into(program)  # the program that was tuned\n"
            "parts.remove()  # as it was"
        )
    return f"import togi\nfast = togi.load({artifact!r})\noutput = fast(...)  # called like the original"


def has_files(study: Study) -> bool:
    """Whether what was chosen could be saved."""
    chosen = None if study.best is None else study.trial(study.best)
    return chosen is not None and not set_aside(chosen)


def next_steps(study: Study, artifact: str | None = None) -> Iterator[str]:
    """Commands with what each would bring, the most useful first."""
    if has_files(study) and artifact is None and study.command:
        yield f"keep it: {study.command} --out NAME.togi  (resumes: nothing is tried twice)"
    for fix, reasons in fixes(study).items():
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        yield f"{fix}  makes possible what was missing: {reasons[0]}{more}"
    yield from _approximate(study)
    if any(row.trial.outcome is Outcome.UNSTABLE for row in rows(study)):
        yield "some recipes could not be judged on this busy machine: run the same command again when it is quiet"
    crashed = next((row for row in rows(study) if row.trial.traceback), None)
    if crashed is not None:
        yield f"tracebacks and the children's output: togi report {study.id} --html report.html"
    elif study.trials:
        yield f"every trial with its details: togi report {study.id} --html report.html"


def _approximate(study: Study) -> Iterator[str]:
    """Recipes that were only held back because their error was not allowed."""
    if study.settings.get("allow"):
        return
    trials = [row.trial for row in rows(study)]
    errors = [trial.error for trial in trials if trial.outcome is Outcome.WRONG and trial.error]
    if acceptable := [error.rmse for error in errors if may_be_approximate(error)]:
        least = min(acceptable)
        yield f"if a relative error of {least:.0e} is acceptable: --allow approximate --max-error {least * 2:.0e}"
    elif any("--allow" in trial.reason for trial in trials):
        yield "approximate techniques were left out: --allow approximate --max-error 1e-2 tries them within that error"


def fixes(study: Study) -> dict[str, tuple[str, ...]]:
    """Commands that would make more recipes possible -> the reasons why those were missing."""
    reasons: dict[str, dict[str, None]] = {}
    for trial in study.trials:
        if trial.fix:
            reasons.setdefault(trial.fix, {})[trial.reason or trial.recipe.label] = None
    return {fix: tuple(whys) for fix, whys in reasons.items()}
