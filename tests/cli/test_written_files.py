"""Reports are written whole, in place of no device and through no link; text is written as far as it can be."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.text import Text

from togi.cli.output import check_report_path, junit_report, print_text, stdout, tell, write_whole
from togi.core.errors import OutputExistsError
from togi.decide.gate import Case


def test_no_link_is_written_through(tmp_path: Path) -> None:
    victim, report = tmp_path / "victim", tmp_path / "report.html"
    victim.write_text("mine", encoding="utf-8")
    for name in ("report.html.part", ".report.html.part", "report.html"):
        (tmp_path / name).symlink_to(victim)
    write_whole("a page", report)
    assert victim.read_text(encoding="utf-8") == "mine"
    assert report.read_text(encoding="utf-8") == "a page"
    assert not report.is_symlink()


def test_others_may_read_it_as_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    write_whole("a page", tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["report.html", "usual"]


def test_a_pipe_is_not_a_report(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report.html")
    with pytest.raises(OutputExistsError):
        check_report_path(tmp_path / "report.html", force=False)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/null", "/dev/fd/1", "/proc/self/fd/1"])
def test_no_device_is_replaced_by_a_report(name: str, force: bool) -> None:
    with pytest.raises(OutputExistsError, match="is not a plain file, and writing would replace it"):
        check_report_path(Path(name), force=force)


def test_a_pipe_is_not_removed_for_junit(tmp_path: Path) -> None:
    """An earlier file is, lest it be taken for this run's."""
    pipe, earlier = tmp_path / "pipe", tmp_path / "junit.xml"
    os.mkfifo(pipe)
    with pytest.raises(OutputExistsError), junit_report(pipe, "togi bench", "a / b"):
        pass
    assert pipe.is_fifo()
    for content in ("", "<?xml version='1.0'?>\n<testsuites/>"):
        earlier.write_text(content, encoding="utf-8")
        with junit_report(earlier, "togi bench", "a / b"):
            assert not earlier.exists()
    earlier.write_text("def model(): ...", encoding="utf-8")
    with pytest.raises(OutputExistsError, match="is not JUnit XML"), junit_report(earlier, "togi bench", "a / b"):
        pass
    assert earlier.read_text(encoding="utf-8") == "def model(): ..."


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "mod?le.py:f"), ("latin-1", "modèle.py:f")])
def test_what_the_terminal_cannot_say_ends_no_command(
    encoding: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study's subject may have any name, and its result is there when it is shown."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    print_text(stdout(), Text("modèle.py:f"))
    tell("artifact: modèle.py:f")
    sys.stdout.flush()
    assert written.getvalue().decode(encoding) == f"{shown}\nartifact: {shown}\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [(RuntimeError("a defect"), "RuntimeError: a defect"), (ValueError(), "ValueError"), (KeyboardInterrupt(), None)],
)
def test_what_ends_a_command_is_in_junit_whatever_the_gate_said(
    tmp_path: Path, error: BaseException, said: str | None
) -> None:
    """What was interrupted has no result."""
    path = tmp_path / "junit.xml"

    def gate() -> None:
        with junit_report(path, "togi bench", "a / b") as cases:
            cases.append(Case(name="b", said="b is not slower"))
            raise error

    with pytest.raises(type(error)):
        gate()
    shown = [*ElementTree.parse(path).getroot()[0]] if path.exists() else []
    assert [(each.get("name"), each[0].tag, each[0].text) for each in shown] == (
        [] if said is None else [("b", "system-out", "b is not slower"), ("a / b", "error", said)]
    )
