"""``togi check``: tells paths and subjects apart, and checks both."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from togi.core.errors import TogiError, nearest
from togi.lint.check_paths import check_paths
from togi.lint.files import MODEL
from togi.lint.finding import CheckResult
from togi.lint.settings import Overrides, SubjectOptions

_LOCATOR = re.compile(r"[^:]{2,}:[^\\/].*", re.DOTALL)
"""``name:name``, and not a drive's letter with a path."""


def check_targets(
    targets: Sequence[str | Path], given: Overrides, options: SubjectOptions, *, cache: bool = True
) -> CheckResult:
    """Source rules on paths, module and trace rules on subjects. Raises TogiError for what does not exist."""
    paths, subjects = paths_and_subjects([str(target) for target in targets])
    return with_subjects(check_paths(paths, given, cache=cache), subjects, given, options, cache=cache)


def with_subjects(
    result: CheckResult, subjects: Sequence[str], given: Overrides, options: SubjectOptions, *, cache: bool = True
) -> CheckResult:
    """``result`` joined with what is found in ``subjects``."""
    for subject in subjects:
        from togi.lint.check_subject import check_subject

        result = result.joined(check_subject(subject, given, options, cache=cache))
    return result


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
