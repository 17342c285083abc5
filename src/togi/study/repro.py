"""``togi report --repro``: the folder that repeats one trial of a recorded study without togi."""

from __future__ import annotations

from pathlib import Path

from togi.core.errors import OutputExistsError, TogiError, UnknownNameError, nearest
from togi.core.records import Recipe, Study
from togi.machine.describe import machine
from togi.study.progress import Progress
from togi.subject.spec import check_spec
from togi.worker.protocol import SubjectRef
from togi.worker.stable import Stable
from togi.worker.supervise import Limits, TrialEnded

_LIMITS = Limits(timeout_s=900.0)


def write_repro(study: Study, name: str, out: Path, progress: Progress) -> Path:
    """Load the study's subject again and write ``out``. Raises as ``togi.api.repro`` says."""
    recipe = _find(study, name)
    if out.exists():
        raise OutputExistsError(f"{out} exists already: give another folder")
    check_spec(study.subject)
    facts = study.facts
    ref = SubjectRef.here("locator", study.subject)
    try:
        with Stable(ref, machine(facts.device), device=facts.device, seed=int(study.settings.get("seed", 0))) as stable:
            stable.survey(_LIMITS, progress.message)
            stable.write_repro(recipe, out.absolute(), _LIMITS)
    except TrialEnded as ended:
        raise TogiError(f"'{recipe.label}' has no repro script: {ended}.") from None
    return out


def _find(study: Study, name: str) -> Recipe:
    known = {trial.recipe.id: trial.recipe for trial in study.trials}
    found = [recipe for id, recipe in known.items() if id.startswith(name) or recipe.label == name]
    if len(found) != 1:
        labels = [recipe.label for recipe in known.values()]
        raise UnknownNameError(
            f"{len(found) or 'no'} recipes of the study are called '{name}'{nearest(name, labels) or '.'} "
            "'togi report --json' lists them with their ids."
        )
    return found[0]
