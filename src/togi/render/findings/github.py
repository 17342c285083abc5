"""Annotations of GitHub Actions: workflow commands that the runner reads from standard output.

Source of the format and of its escaping: GitHub's "Workflow commands for GitHub Actions" and the toolkit's command.ts.
Lines of a notebook's cell are not lines of its file, so annotations of notebooks name the cell in their text.
"""

from __future__ import annotations

from collections.abc import Iterator

from togi.core.printable import printable
from togi.lint.finding import CheckResult, Finding, Note, Problem
from togi.render.findings.lines import read_more, sentence


def workflow_commands(result: CheckResult) -> Iterator[str]:
    for finding in result.findings:
        message = (
            f"{_cell(finding)}{sentence(finding.message)} Instead: {finding.remedy}\nMore: {read_more(finding.rule)}"
        )
        yield _command("warning", _place(finding), message)
    for problem in result.problems:
        yield _command("error", _file(problem, "not checked"), f"{problem.path} {problem.message}")
    for note in result.notes:
        yield _command("notice", _file(note, "note"), note.message)


def _place(finding: Finding) -> dict[str, object]:
    place = finding.place
    title: dict[str, object] = {"title": f"togi: {finding.rule}"}
    if place is None:
        return title
    if place.cell is not None:
        return {"file": place.path, **title}
    # GitHub shows columns only of a range within one line.
    columns = {"col": place.column, "endColumn": place.end_column} if place.end_line in (None, place.line) else {}
    return {"file": place.path, "line": place.line, "endLine": place.end_line, **columns, **title}


def _cell(finding: Finding) -> str:
    place = finding.place
    if place is None:
        return f"{finding.layer}: " if finding.layer else ""
    return f"cell {place.cell}, line {place.line}: " if place.cell is not None else ""


def _file(said: Problem | Note, title: str) -> dict[str, object]:
    line = said.line if said.cell is None else None
    return {"file": said.path, "line": line, "title": f"togi: {title}"}


def _command(level: str, properties: dict[str, object], message: str) -> str:
    given = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items() if value is not None)
    return f"::{level} {given}::{_data(message)}"


def _data(text: str) -> str:
    return printable(text.replace("\r", "\n")).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
