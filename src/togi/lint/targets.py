"""Separates the targets of ``togi check`` that it reads, paths, from those that it runs, subjects."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from togi.core.errors import TogiError, nearest
from togi.lint.files import MODEL

_LOCATOR = re.compile(r"[^:]{2,}:[^\\/].*", re.DOTALL)
"""``name:name``, and not a drive's letter with a path."""


def paths_and_subjects(targets: Sequence[str], named: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Splits ``targets`` into paths and subjects; ``named`` are subjects in any case (``--subject``).

    A subject is run, and a list of names may come from a shell's ``*`` or a list of changed files, in which a stranger
    chose the names. So among several targets nothing is a subject.

    Raises TogiError for a path that does not exist, and for what looks like a subject among several targets.
    """
    if len(targets) == 1 and not named and is_subject(targets[0]):
        return [], list(targets)
    for target in targets:
        if not os.path.lexists(target):
            raise TogiError(_unexpected(target))
    return list(targets), list(named)


def is_subject(target: str) -> bool:
    """Whether ``target`` names a subject where nothing else is named. What exists is a path, unless it is a model."""
    is_locator = _LOCATOR.fullmatch(target) is not None and not os.path.lexists(target)
    return is_locator or MODEL.fullmatch(target) is not None


def _unexpected(target: str) -> str:
    if not is_subject(target):
        return _missing(target)
    return (
        f"{target} stands next to other targets, and togi runs only what is named alone: give --subject {target}, or "
        "check it in a call of its own. Nothing was checked"
    )


def _missing(path: str) -> str:
    folder = Path(path).absolute().parent
    near = nearest(Path(path).name, (entry.name for entry in folder.iterdir())) if folder.is_dir() else ""
    return (
        f"there is no file or folder {path}{near or '.'} Nothing was checked. "
        "A subject is named file.py:factory, package.module:factory, timm:NAME, ..."
    )
