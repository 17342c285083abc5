"""Studies of the journal: read one, and write one of its trials as a script."""

from __future__ import annotations

from pathlib import Path

from togi.core.caches import default_journal
from togi.core.needs_torch import need_torch
from togi.core.records import Study
from togi.journal import Journal
from togi.study.progress import Progress


def repro(study: Study, recipe: str, out: str | Path, *, progress: Progress | None = None) -> Path:
    """Write a folder that repeats one trial of ``study`` without togi: script, model, inputs, expected outputs. Of a
    training step it is a script alone, with a function to paste.

    Args:
        recipe: its id, the first digits of it, or its label.

    Raises TogiError: no such trial, a live subject that would have to be loaded again, or a recipe that has no script
    form (with the reason).
    """
    need_torch("repro")
    from togi.study.repro import write_repro

    return write_repro(study, recipe, Path(out), progress or Progress())


def read_study(study: str | None = None, journal: str | Path | None = None) -> Study:
    """A study of the journal by id (or the first digits of it); the newest without one.

    Raises JournalError when there is none such.
    """
    with Journal.open(journal or default_journal(), create=False, read_only=True) as opened:
        return opened.read(study)
