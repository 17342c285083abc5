"""Runs all source rules over one file, before any selection. Nothing of the file is executed or imported."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from togi.lint.finding import FileReport, Finding, Ignore, Note, Problem
from togi.lint.notebooks import SUFFIX, Notebook, NotebookError, read_notebook
from togi.lint.rule import SourceRule, rules_of
from togi.lint.selection import ignore_comments
from togi.lint.source.budget import TooManyStepsError
from togi.lint.source.model import Source
from togi.lint.source_text import UndecodableError, decode, parser_warnings_hidden

_NOT_WHOLE = (
    "its loops and branches are too many or too deep to be followed to the end, so rules may have been silent: "
    "exclude it if it was generated"
)


def check_bytes(data: bytes, path: str, hot: Sequence[str] = (), *, judged: str = "") -> FileReport:
    """The findings in a Python file or a notebook; ``path`` stands in their places; ``judged`` as in Source."""
    try:
        text = decode(data).text
        if path.endswith(SUFFIX):
            return _check_notebook(read_notebook(text), path, hot, judged)
        return check_text(text, path, hot, judged=judged)
    except (UndecodableError, NotebookError) as error:
        return FileReport(problems=(Problem(path=path, message=str(error)),))


def check_text(text: str, path: str, hot: Sequence[str] = (), *, judged: str = "") -> FileReport:
    """The findings in Python source with ``\\n`` line ends."""
    try:
        with parser_warnings_hidden():
            source = Source.parse(text, path, hot=hot, judged=judged)
    except SyntaxError as error:
        return FileReport(problems=(_syntax_problem(error, path),))
    except (ValueError, RecursionError, MemoryError) as error:
        message = f"is nested too deeply for Python's parser ({type(error).__name__}: {error}): exclude generated files"
        return FileReport(problems=(Problem(path=path, message=message),))
    findings, problems = _run(source)
    notes = () if source.is_whole else (Note(path=path, message=_NOT_WHOLE),)
    return FileReport(findings=findings, ignores=ignore_comments(text), problems=problems, notes=notes)


@functools.cache
def source_rules() -> tuple[SourceRule, ...]:
    return tuple(rule for rule in rules_of("source").values() if isinstance(rule, SourceRule))


def _run(source: Source) -> tuple[tuple[Finding, ...], tuple[Problem, ...]]:
    findings: list[Finding] = []
    problems: list[Problem] = []
    for rule in source_rules():
        try:
            findings += rule.check(source)
        except TooManyStepsError:  # what it found till then is lost, and a note says that not all was found
            continue
        except Exception as error:  # one rule that stumbles over one file must not take the others with it
            where = _innermost(error)
            message = f"the rule {rule.id} failed ({type(error).__name__}: {error}, {where}): a defect of togi"
            problems.append(Problem(path=source.path, message=message))
    return tuple(findings), tuple(problems)


def _innermost(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def _check_notebook(notebook: Notebook, path: str, hot: Sequence[str], judged: str) -> FileReport:
    report = check_text(notebook.text, path, hot, judged=judged)
    broken = [_syntax_problem(cell.error, path, cell.number) for cell in notebook.cells if cell.error is not None]
    return FileReport(
        findings=tuple(notebook.placed(finding) for finding in report.findings),
        ignores=tuple(_placed_ignore(ignore, notebook) for ignore in report.ignores),
        problems=(*broken, *report.problems),
        notes=report.notes,
    )


def _placed_ignore(ignore: Ignore, notebook: Notebook) -> Ignore:
    cell = notebook.cell_at(ignore.line)
    if cell is None:
        return ignore
    shift = cell.first - 1
    lines = {"line": ignore.line - shift, "first": ignore.first - shift, "last": ignore.last - shift}
    return ignore.model_copy(update={**lines, "cell": cell.number})


def _syntax_problem(error: SyntaxError, path: str, cell: int | None = None) -> Problem:
    line = (error.text or "").strip()[:80]
    old = " (Python 2?)" if line.startswith(("print ", "exec ")) or "Missing parentheses" in (error.msg or "") else ""
    message = f"is not Python that this version can parse{old}: {error.msg}" + (f": {line}" if line else "")
    return Problem(path=path, message=message, line=error.lineno, cell=cell)


def at_path(report: FileReport, path: str) -> FileReport:
    """The same report with ``path`` in its places: the user may stand in another folder than last time."""
    if all(f.place is None or f.place.path == path for f in report.findings) and not (report.problems or report.notes):
        return report
    findings = tuple(
        f if f.place is None else f.model_copy(update={"place": f.place.model_copy(update={"path": path})})
        for f in report.findings
    )
    problems = tuple(problem.model_copy(update={"path": path}) for problem in report.problems)
    notes = tuple(note.model_copy(update={"path": path}) for note in report.notes)
    return report.model_copy(update={"findings": findings, "problems": problems, "notes": notes})
