"""``togi check --fix`` and ``--diff``: find, mend, and say what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from togi.lint.check_source import check_paths
from togi.lint.files import discover
from togi.lint.mend import Mended, mend, write
from togi.lint.result import CheckResult, Problem
from togi.lint.settings import Overrides


@dataclass(frozen=True)
class FixResult:
    result: CheckResult
    """What is left; with ``dry``, what there is."""
    mended: tuple[Mended, ...]


def fix_paths(
    paths: Sequence[str | Path],
    settings: Overrides | None = None,
    *,
    unsafe: bool = False,
    dry: bool = False,
    cache: bool = True,
) -> FixResult:
    """Apply fixes to files (``dry``: to none of them). Files that cannot be fixed stay as they are, with a problem."""
    given = settings or Overrides()
    before = check_paths(paths, given, cache=cache)
    wanted = {f.place.path for f in before.findings if f.place and f.fix and (f.fix.safe or unsafe)}
    files = [file for file in discover([Path(path) for path in paths], given).files if file.shown in wanted]
    answers = [mend(file, unsafe=unsafe) for file in files]
    mended = [answer for answer in answers if isinstance(answer, Mended)]
    problems = [answer for answer in answers if isinstance(answer, Problem)]
    if dry:
        return FixResult(_with(before, problems, fixed=0), tuple(mended))
    outcomes = [(one, write(one)) for one in mended]
    problems += [problem for _, problem in outcomes if problem is not None]
    done = [one for one, problem in outcomes if problem is None]
    after = check_paths(paths, given, cache=cache) if done else before
    return FixResult(_with(after, problems, fixed=sum(one.count for one in done)), tuple(done))


def _with(result: CheckResult, problems: Sequence[Problem], fixed: int) -> CheckResult:
    return result.model_copy(update={"problems": (*result.problems, *problems), "fixed": fixed})
