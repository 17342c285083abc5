"""Writes results to standard output, progress and messages to standard error, reports to files."""

from __future__ import annotations

import codecs
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from togi.core.errors import OutputExistsError, TogiError
from togi.core.plain_files import NotPlainError, read_plain
from togi.core.printable import encodable, printable, to_nobody

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from togi.core.records import Study
    from togi.decide.gate import Case

DEBUG = "--debug"
"""The option that shows the traceback of an error."""


def stdout() -> Console:
    from togi.render.terminal import SafeConsole

    return SafeConsole()


def stderr() -> Console:
    from togi.render.terminal import SafeConsole

    return SafeConsole(stderr=True)


@contextmanager
def for_readers(stream: IO[str]) -> Iterator[IO[str]]:
    """For the block to write to. ``togi check src | head``: whoever read it and is gone has what it wanted, and the
    command goes on to its own exit code."""
    try:
        yield stream
    except BrokenPipeError:
        to_nobody(stream)


def say(text: str) -> None:
    """A line on standard error."""
    with for_readers(sys.stderr) as written:
        written.write(f"{printable(text)}\n")  # a script that was run may have replaced print
        written.flush()


def tell(text: str, *, end: str = "\n") -> None:
    """A result on standard output."""
    with for_readers(sys.stdout) as written:
        written.write(f"{encodable(printable(text), written)}{end}")
        written.flush()


def print_text(console: Console, text: RenderableType) -> None:
    """Print without the spaces that pad lines to the console's width."""
    with console.capture() as capture:
        console.print(text)
    with for_readers(console.file) as file:
        file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def print_json(document: dict[str, Any], stream: IO[str] | None = None) -> None:
    """``stream``: None for standard output."""
    from togi.render.json import dumps

    with for_readers(stream or sys.stdout) as written:
        written.write(dumps(document))
        written.flush()  # a script that leaves by os._exit leaves nobody behind who does


def check_report_path(path: Path, force: bool) -> None:
    """Before anything is measured: the folder is there, and nothing but an earlier report would be overwritten."""
    if path.is_dir():
        raise OutputExistsError(f"{path} is a folder: give the name of a file, such as {path / 'report.html'}")
    if not path.absolute().parent.is_dir():
        raise OutputExistsError(
            f"the folder {path.absolute().parent} does not exist: create it, or choose another place"
        )
    if _is_special(path):
        raise OutputExistsError(f"{path} is not a plain file, and writing would replace it: give the name of a file")
    if path.exists() and not force and not _is_report(path):
        raise OutputExistsError(f"{path} exists and is not a report of togi: choose another name, or give --force")


def write_report(study: Study, path: Path) -> None:
    """The offline HTML report of a study."""
    from togi.render.html import study_html

    write_whole(study_html(study), path)


def write_whole(text: str, path: Path) -> None:
    """The file appears whole or not at all. A link in its place is replaced, and none is written through."""
    import tempfile  # --help needs none

    handle, part = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            file.write(text.encode("utf-8", errors="replace"))
        os.chmod(part, 0o666 & ~_umask())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def _umask() -> int:
    """The permissions that new files lack; mkstemp makes them private."""
    os.umask(before := os.umask(0o077))
    return before


@contextmanager
def junit_report(path: Path | None, gate: str, name: str, undecided: int = 1) -> Iterator[list[Case]]:
    """For the block to fill: the cases that ``path`` then shows as JUnit XML. What the block raises is an error among
    them, of that name. An earlier report is removed first, lest it be taken for this run's; None: nothing is written.
    ``undecided``: the exit code if the figures do not decide."""
    from togi.decide.gate import Answer, Case
    from togi.render.junit import junit_xml

    cases: list[Case] = []
    if path is not None:
        check_report_path(path, force=True)
        if path.exists() and not _begins(path, b"", b"<?xml", b"<testsuite"):
            raise OutputExistsError(f"{path} exists and is not JUnit XML: choose another name")
        path.unlink(missing_ok=True)
    began = time.monotonic()
    try:
        yield cases
    except Exception as error:  # whatever the cases say by now, the command does not end as they do
        said = str(error) if isinstance(error, TogiError) else f"{type(error).__name__}: {error}".rstrip(": ")
        cases.append(Case(name=name, said=said, answer=Answer.ERROR))
        raise
    except BaseException:
        cases.clear()  # it was interrupted: there is no result
        raise
    finally:
        if path is not None and cases:
            write_whole(junit_xml(gate, cases, time.monotonic() - began, undecided), path)


def _is_special(path: Path) -> bool:
    """A pipe, a device, or what stands for an open file, as ``/dev/stdout`` does."""
    folder = os.path.realpath(path.absolute().parent)
    return (path.exists() and not path.is_file()) or folder == "/dev" or folder.startswith("/proc/")


def _is_report(path: Path) -> bool:
    with suppress(NotPlainError):
        return b'name="generator" content="togi' in read_plain(path, 2000)
    return False


def _begins(path: Path, *beginnings: bytes) -> bool:
    """Whether a file begins with one of these; with none: it is empty."""
    with suppress(NotPlainError):
        beginning = read_plain(path, 200).removeprefix(codecs.BOM_UTF8).lstrip()
        return any(beginning.startswith(each) if each else not beginning for each in beginnings)
    return False
