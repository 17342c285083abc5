"""Reports are written whole, and through no link that waits beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from togi.cli.output import check_report_path, write_whole
from togi.core.errors import OutputExistsError


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
