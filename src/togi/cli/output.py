"""Writes results to standard output, progress and messages to standard error, reports to files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from togi.core.errors import OutputExistsError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from togi.core.records import Study


def stdout() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_text(console: Console, text: RenderableType) -> None:
    """Without the spaces that pad lines to the console's width."""
    with console.capture() as capture:
        console.print(text)
    console.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def print_json(document: dict[str, Any]) -> None:
    from togi.render.json import dumps

    sys.stdout.write(dumps(document))


def check_report_path(path: Path, force: bool) -> None:
    """Before anything is measured: the folder is there, and nothing but an earlier report would be overwritten."""
    if path.is_dir():
        raise OutputExistsError(f"{path} is a folder: give the name of a file, such as {path / 'report.html'}")
    if not path.absolute().parent.is_dir():
        raise OutputExistsError(
            f"the folder {path.absolute().parent} does not exist: create it, or choose another place"
        )
    if path.exists() and not force and not _is_report(path):
        raise OutputExistsError(f"{path} exists and is not a report of togi: choose another name, or give --force")


def write_report(study: Study, path: Path) -> None:
    """The offline HTML report of a study."""
    from togi.render.html import study_html

    write_html(study_html(study), path)


def write_html(page: str, path: Path) -> None:
    """The file appears whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(page.encode("utf-8", errors="replace"))
    part.replace(path)


def _is_report(path: Path) -> bool:
    with path.open("rb") as file:
        return b'name="generator" content="togi' in file.read(2000)
