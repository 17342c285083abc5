"""Files that cannot be checked: each is reported, the rest goes on, and the exit code says so."""

from __future__ import annotations

import codecs
import os
import subprocess
import sys
from pathlib import Path

import pytest

from togi.lint.check_paths import check_paths
from togi.lint.finding import CheckResult

CALL = "torch.nn.init.xavier_uniform(w)\n"
GOOD = f"import torch\n{CALL}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.py").write_text(GOOD, encoding="utf-8")
    return tmp_path


def check(folder: Path) -> CheckResult:
    return check_paths([folder], cache=False)


BAD = {
    "syntax.py": (b"import torch\nx = (\n", "not Python that this version can parse"),
    "python2.py": (b"import torch\nprint 'loss', loss\n", "Python 2?"),
    "exec2.py": (b"import torch\nexec 'x'\n", "not Python"),
    "indent.py": (b"import torch\n  x\n", "unexpected indent"),
    "utf16.py": ("import torch\n".encode("utf-16") + b"torch", "UTF-16"),
    "utf16_without_mark.py": ("torch\n".encode("utf-16-le") + b"torch", "null byte"),
    "null.py": (b"import torch\nx = '\0'\n", "null byte at offset 18"),
    "not_utf8.py": (b"import torch\n# caf\xe9\n", "byte 0xe9 in line 2"),
    "unknown_encoding.py": (b"# coding: utf-42\nimport torch\n", "unknown encoding"),
    "not_text_encoding.py": (b"# coding: hex\nimport torch\n", "not a text encoding"),
    "two_encodings.py": (codecs.BOM_UTF8 + b"# coding: latin-1\nimport torch\n", "encoding"),
    "nested.py": (b"import torch\nx = " + b"(" * 5000 + b")" * 5000, ""),
    "chain.py": (b"import torch\nx = " + b"-" * 50_000 + b"1\n", "nested too deeply"),
    "sum.py": (b"import torch\nx = " + b"1+" * 20_000 + b"1\n", "nested too deeply"),
    "calls.py": (b"import torch\nx = a" + b".b()" * 5_000 + b"\n", ""),
    "huge.py": (b"import torch\n" + b"x = 1\n" * 400_000, "larger than 2,000,000 bytes"),
    "broken.ipynb": (b'{"cells": [torch', "not JSON"),
    "old.ipynb": (b'{"worksheets": ["torch"]}', "nbconvert"),
}


@pytest.mark.parametrize("name", BAD)
def test_it_is_reported_and_the_rest_goes_on(name: str, folder: Path) -> None:
    data, said = BAD[name]
    (folder / name).write_bytes(data)
    result = check(folder)
    assert [problem.path for problem in result.problems] == [name]
    assert said in result.problems[0].message
    assert [finding.place.path for finding in result if finding.place] == ["good.py"]
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("data", "line", "column"),
    [
        (codecs.BOM_UTF8 + GOOD.encode(), 2, 1),
        (GOOD.replace("\n", "\r\n").encode(), 2, 1),
        (GOOD.replace("\n", "\r").encode(), 2, 1),
        (b"# -*- coding: latin-1 -*-\nimport torch\ns = '\xe9'; " + CALL.encode(), 3, 10),
        ("import torch\ns = 'é\U0001f600'; ".encode() + CALL.encode(), 2, 11),
        (b"import torch\n\x0c\ns = '\\d'\n" + CALL.encode(), 4, 1),
        ("import torch\ns = '\u2028\x85\x1c'\n".encode() + CALL.encode(), 3, 1),
        (b"import torch\n" + b"\n" * 70_000 + CALL.encode(), 70_002, 1),
    ],
    ids=["bom", "crlf", "cr", "latin-1", "wide", "form feed", "separators", "long"],
)
def test_odd_files_are_checked_at_the_right_place(data: bytes, line: int, column: int, folder: Path) -> None:
    (folder / "good.py").write_bytes(data)
    (finding,) = check(folder)
    assert finding.place is not None
    assert (finding.place.line, finding.place.column) == (line, column)


@pytest.mark.parametrize("data", [b"", b"\n", codecs.BOM_UTF8, b"# torch", b"print 'no framework at all'\n"])
def test_files_in_which_nothing_could_be(data: bytes, folder: Path) -> None:
    (folder / "good.py").write_bytes(data)
    assert check(folder).exit_code == 0


def test_the_limit_can_be_raised(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.togi.check]\nmax-file-bytes = 20\n", encoding="utf-8")
    assert "larger than 20 bytes" in check(folder).problems[0].message
    (folder / "pyproject.toml").write_text("[tool.togi.check]\nmax-file-bytes = 20000\n", encoding="utf-8")
    assert not check(folder).problems


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(folder: Path) -> None:
    (folder / "secret.py").write_text(GOOD, encoding="utf-8")
    (folder / "secret.py").chmod(0)
    assert "Permission denied" in check(folder).problems[0].message


def test_a_file_that_goes_away_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from togi.lint import check_paths as module
    from togi.lint.files import Discovery

    def discover(*arguments: object) -> Discovery:
        discovery = real(*arguments)  # type: ignore[arg-type]
        (folder / "good.py").unlink()
        return discovery

    real = module.discover
    monkeypatch.setattr(module, "discover", discover)
    assert "cannot be read" in check(folder).problems[0].message


def test_a_rule_that_stumbles_does_not_take_the_others_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from togi.lint.rules.source.torchscript import Torchscript

    monkeypatch.setattr(Torchscript, "check", lambda *_: 1 / 0)
    result = check(folder)
    assert "the rule torchscript failed (ZeroDivisionError" in result.problems[0].message
    assert len(result.findings) == 1


def test_nothing_is_executed_and_torch_is_not_imported(folder: Path) -> None:
    (folder / "good.py").write_text(f"{GOOD}open('executed', 'w')\n", encoding="utf-8")
    code = (
        "import sys; from togi.lint.check_paths import check_paths; assert len(check_paths(['.'])) == 1; "
        "print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
    assert not (folder / "executed").exists()
