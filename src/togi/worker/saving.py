"""Files of a trial: those of a recipe are written and proven beyond the samples, those of an artifact are copied."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any, final

from togi.artifact.links import EAGER, write_links
from togi.artifact.manifest import MANIFEST, Link, Saved, read_manifest
from togi.artifact.reach import Ask, Call, proven
from togi.core.errors import NotSaveable, Refused
from togi.core.records import Stage
from togi.subject.prepare import prepare
from togi.verify.beyond import reach_of
from togi.worker.checking import Check
from togi.worker.contender import BuiltRecipe
from togi.worker.job import ChildJob


@final
class Saving:
    def __init__(self, built: BuiltRecipe, check: Check) -> None:
        self._built = built
        self._check = check
        self._trial: ChildJob[Any] = built.trial
        self._surveyed = self._trial.surveyed

    def save(self, folder: Path, ask_s: float) -> Saved:
        """Write the artifact's runnable files. A program without a file form is an answer, not a failure.

        ``ask_s``: about how long to ask for values that no sample shows.
        """
        recipe, candidate = self._built.recipe, self._built.candidate
        try:
            links, notes = write_links(candidate, self._trial.start(), recipe, folder)
        except (NotSaveable, Refused) as error:
            return Saved(unsaveable=str(error))
        written = Saved(links=links, notes=notes)
        facts = self._surveyed.facts
        if facts.buffers_change or facts.random or not facts.repeatable:
            untried = "Its answers depend on earlier calls or chance: no values beyond the samples were tried."
            # plain settings leave the original as it is
            settings = all(choice.stage is Stage.RUNTIME for choice in recipe.choices)
            return written if settings else written.model_copy(update={"notes": (*notes, untried)})
        live = None if links[0].engine == EAGER else self._built.call  # else its files are asked
        exported = candidate.program is None or candidate.program.stores_export
        stored = functools.partial(self._stored, folder)
        return proven(written, live, stored, self._ask(), ask_s, exported=exported)

    def _ask(self) -> Ask:
        """How to ask for values beyond the samples."""
        config = self._trial.config
        return functools.partial(
            reach_of,
            original=prepare(self._trial.subject, device=config.device).module,
            samples=self._built.samples,
            signature=self._surveyed.signature,
            seed=config.seed,
            max_units=self._check.lasting_units(),
            nan=not config.nan_differences,
        )

    def _stored(self, folder: Path, link: Link) -> Call | None:
        """Load what a link has written, and verify it on the samples. None: it is the original.

        Raises Refused where it is wrong there.
        """
        from togi.artifact.load import load_link

        loaded = load_link(folder, self._surveyed.signature, self._surveyed.facts, link, native=True)
        if loaded.program is None or loaded.program.in_place:
            return None
        call = loaded.runnable()
        self._check.verify_stored(call)
        return call


def copy_artifact(artifact: Path, folder: Path) -> Saved:
    """What was loaded is saved as it is."""
    shutil.copytree(artifact, folder, dirs_exist_ok=True)
    (folder / MANIFEST).unlink()
    return Saved(links=read_manifest(artifact).chain)
