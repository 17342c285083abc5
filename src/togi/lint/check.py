"""``togi check``: tells paths and subjects apart, and checks both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from togi.core.errors import TogiError, nearest
from togi.lint.check_paths import check_paths
from togi.lint.finding import CheckResult
from togi.lint.settings import Overrides, SubjectOptions

_LOCATOR = re.compile(r"[^:]{2,}:[^\\/].*", re.DOTALL)
"""``name:name``, and not a drive's letter with a path."""
_MODEL = re.compile(r".*\.(?:togi|pt2|ts|pt|pth)(?:\?.*)?", re.DOTALL)


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


def paths_and_subjects(targets: Sequence[str]) -> tuple[list[str], list[str]]:
    """What exists is a path unless it holds a model; a mistyped path is said to be missing."""
    paths: list[str] = []
    subjects: list[str] = []
    for target in targets:
        is_model = _MODEL.fullmatch(target) is not None
        is_subject = is_model or (_LOCATOR.fullmatch(target) is not None and not Path(target).exists())
        (subjects if is_subject else paths).append(target)
    for path in paths:
        if not Path(path).exists() and not Path(path).is_symlink():
            raise TogiError(_missing(path))
    return paths, subjects


def _missing(path: str) -> str:
    folder = Path(path).absolute().parent
    near = nearest(Path(path).name, (entry.name for entry in folder.iterdir())) if folder.is_dir() else ""
    return (
        f"there is no file or folder {path}{near or '.'} Nothing was checked. "
        "A subject is named file.py:factory, package.module:factory, timm:NAME, ..."
    )
