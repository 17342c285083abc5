"""``togi report --repro``: the folder that repeats one trial of a recorded study without togi. That of a training step
(``repro_step``) holds a function to paste, since the step is the user's own code."""

from __future__ import annotations

import os
import time
from pathlib import Path

from togi.core.errors import OutputExistsError, TogiError, UnknownNameError, nearest
from togi.core.quantities import seconds
from togi.core.recipe import ProgramRecipe, Recipe
from togi.core.records import Facts, Record, Study
from togi.machine.describe import machine
from togi.study.progress import Progress
from togi.study.repro_step import write_step_repro
from togi.subject.locator import check_locator
from togi.subject.signature import Signature
from togi.worker.call import ChildCall
from togi.worker.deadline import Deadline
from togi.worker.launch import NoTimeLeft
from togi.worker.pool import WorkerPool
from togi.worker.protocol import SubjectRef
from togi.worker.supervise import Limits, TrialEnded

_LONGEST_S = 900.0
"""For all of it."""


class ReproRequest(Record):
    recipe: Recipe
    facts: Facts
    signature: Signature
    subject: str
    """How it is named in the script."""
    out: str
    """The folder to write."""


class ReproWritten(Record):
    """The folder is complete."""


WRITE = ChildCall(
    function="togi.study.repro_folder:write",
    request=ReproRequest,
    answer=ReproWritten,
    purpose="written as a script",
)


def write_repro(study: Study, name: str, out: Path, progress: Progress) -> Path:
    """Load the study's subject again and write ``out``, in a quarter of an hour at most. Raises as ``togi.api.repro``
    says."""
    recipe = _find(study, name)
    if isinstance(recipe, ProgramRecipe):
        raise TogiError(
            f"'{recipe.label}' has no repro script: its parts run inside of the program, which is Python code"
        )
    if os.path.lexists(out):
        raise OutputExistsError(f"{out} exists already: give another folder")
    if recipe.trains:
        return write_step_repro(study, recipe, out, progress)
    check_locator(study.subject)
    facts = study.facts
    ref, seed = SubjectRef.here("locator", study.subject), int(study.settings.get("seed", 0))
    deadline, limits = Deadline(time.monotonic() + _LONGEST_S, progress.message), Limits(timeout_s=_LONGEST_S)
    try:
        with WorkerPool(ref, machine(facts.device), device=facts.device, seed=seed, deadline=deadline) as pool:
            survey, _ = pool.survey(limits, progress.message)
            request = ReproRequest(
                recipe=recipe,
                facts=survey.facts,
                signature=survey.signature,
                subject=study.subject,
                out=str(out.absolute()),
            )
            WRITE.run(pool, request, limits)
    except TrialEnded as ended:
        raise TogiError(f"'{recipe.label}' has no repro script: {ended}.") from None
    except NoTimeLeft:
        raise TogiError(
            f"'{recipe.label}' has no repro script: loading {study.subject} again took more than "
            f"{seconds(_LONGEST_S)}. Run its factory by itself to see where it waits"
        ) from None
    return out


def _find(study: Study, name: str) -> Recipe:
    known = {trial.recipe.id: trial.recipe for trial in study.trials}
    matches = [recipe for id, recipe in known.items() if id.startswith(name) or recipe.label == name]
    if len(matches) != 1:
        labels = [recipe.label for recipe in known.values()]
        raise UnknownNameError(
            f"{len(matches) or 'no'} recipes of the study are called '{name}'{nearest(name, labels) or '.'} "
            "'togi report --json' lists them with their ids."
        )
    return matches[0]
