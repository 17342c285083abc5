"""--fix: rounds until nothing is left, files replaced whole or not at all, everything else preserved."""

from __future__ import annotations

import codecs
import json
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from togi.lint import check_file
from togi.lint import fix as fixing
from togi.lint.finding import Edit, Finding, Fix, Place
from togi.lint.fix import FixResult, fix_paths
from togi.lint.rule import SourceRule
from togi.lint.source.model import Source
from togi.render.findings.lines import exact_text, plain_text
from togi.render.findings.text import diff

BEFORE = "import torch\nx = old(old(1))\n"
AFTER = "import torch\nx = new(new(1))\n"
Change = Callable[[str], str | None]


class Renaming(SourceRule):
    """Reports lines with a word, and replaces the whole line."""

    id = "torchscript"

    def __init__(self, change: Change, safe: bool = True) -> None:
        self.change = change
        self.safe = safe

    def check(self, source: Source) -> Iterable[Finding]:
        for number, line in enumerate(source.text.split("\n"), start=1):
            text = self.change(line)
            if text is not None:
                edit = Edit(line=number, column=1, end_line=number, end_column=len(line) + 1, text=text)
                fix = Fix(title="Change it", edits=(edit,), safe=self.safe)
                place = Place(path=source.path, line=number)
                yield Finding(rule=self.id, message="m", remedy="r", place=place, fix=fix)


def one_at_a_time(line: str) -> str | None:
    return line.replace("old", "new", 1) if "old" in line else None


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.py"
    path.write_text(BEFORE, encoding="utf-8")
    return path


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def use(change: Change, safe: bool = True) -> None:
        monkeypatch.setattr(check_file, "source_rules", lambda: (Renaming(change, safe),))

    return use


def fixed(path: Path, **options: bool) -> FixResult:
    return fix_paths([path], cache=False, **options)


def test_rounds_until_nothing_is_left(file: Path, use: Callable[..., None]) -> None:
    use(one_at_a_time)
    done = fixed(file)
    assert file.read_text(encoding="utf-8") == AFTER
    assert (done.result.fixed, len(done.result), done.result.exit_code) == (2, 0, 0)


def test_unsafe_fixes_are_asked_for(file: Path, use: Callable[..., None]) -> None:
    use(one_at_a_time, safe=False)
    assert (fixed(file).result.fixed, file.read_text(encoding="utf-8")) == (0, BEFORE)
    assert (fixed(file, unsafe=True).result.fixed, file.read_text(encoding="utf-8")) == (2, AFTER)


def test_a_dry_run_writes_nothing_and_shows_it(file: Path, use: Callable[..., None]) -> None:
    use(one_at_a_time)
    done = fixed(file, dry=True)
    assert file.read_text(encoding="utf-8") == BEFORE
    assert len(done.result) == 1
    assert exact_text(diff(done.changes)) == (
        "--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n import torch\n-x = old(old(1))\n+x = new(new(1))\n"
    )


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program patch")
@pytest.mark.parametrize("change", [("\n", "\r\n"), ("import torch", "import torch  "), ("1))\n", "1))")])
def test_the_diff_is_a_patch_that_gives_what_fix_gives(
    change: tuple[str, str], file: Path, use: Callable[..., None]
) -> None:
    """Line ends, spaces at the ends of lines, no line end at the end of the file."""
    use(one_at_a_time)
    file.write_bytes(BEFORE.replace(*change).encode())
    patch = exact_text(diff(fixed(file, dry=True).changes))
    done = subprocess.run(["patch", "--binary", str(file)], input=patch.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    assert file.read_bytes() == AFTER.replace(*change).encode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: "x = (" if "old" in line else None, "could not be parsed"),
        (lambda line: f"{line}1" if "x = " in line else None, "did not settle"),
        (lambda line: "x = '\ud800'" if "old" in line else None, "surrogates not allowed"),
    ],
    ids=["broken", "endless", "surrogate"],
)
def test_what_cannot_be_fixed_stays_untouched(
    change: Change, said: str, file: Path, use: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixing, "MAX_ROUNDS", 3)
    file.write_text("import torch\nx = 1 + old + 1\n", encoding="utf-8")
    use(change)
    done = fixed(file)
    assert said in done.result.problems[-1].message
    assert file.read_text(encoding="utf-8") == "import torch\nx = 1 + old + 1\n"
    assert done.result.exit_code == 2


def test_a_character_that_the_declared_encoding_has_not(file: Path, use: Callable[..., None]) -> None:
    file.write_bytes(b"# coding: latin-1\nimport torch\nx = 'old \xe9'\n")
    use(lambda line: line.replace("old", "\u20ac") if "old" in line else None)
    assert "cannot be written as iso-8859-1" in fixed(file).result.problems[0].message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (codecs.BOM_UTF8 + BEFORE.encode(), codecs.BOM_UTF8 + AFTER.encode()),
        (BEFORE.replace("\n", "\r\n").encode(), AFTER.replace("\n", "\r\n").encode()),
        (b"#coding:latin-1\n#\xe9 torch\nx = old  #\xe9", b"#coding:latin-1\n#\xe9 torch\nx = new  #\xe9"),
        (b"import torch\n\x0cx = old\r\n'\t'\r\r\n", b"import torch\n\x0cx = new\r\n'\t'\r\r\n"),
    ],
    ids=["bom", "crlf", "latin-1", "mixed"],
)
def test_bytes_that_no_fix_touches_stay(before: bytes, after: bytes, file: Path, use: Callable[..., None]) -> None:
    use(one_at_a_time)
    file.write_bytes(before)
    fixed(file)
    assert file.read_bytes() == after


def test_mode_and_links_stay(file: Path, use: Callable[..., None]) -> None:
    use(one_at_a_time)
    file.chmod(0o754)
    link = file.with_name("link.py")
    link.symlink_to(file)
    fixed(link)
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o754
    assert file.read_text(encoding="utf-8") == AFTER
    assert [path.name for path in sorted(file.parent.iterdir())] == ["a.py", "link.py"]


def test_a_file_that_changed_meanwhile_is_not_overwritten(
    file: Path, use: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(one_at_a_time)
    real = fixing.write

    def write(change: fixing.FileChange) -> object:
        file.write_text("import torch\nmine = 1\n", encoding="utf-8")
        return real(change)

    monkeypatch.setattr(fixing, "write", write)
    assert "changed by somebody else" in fixed(file).result.problems[0].message
    assert file.read_text(encoding="utf-8") == "import torch\nmine = 1\n"


def test_ignored_findings_are_not_fixed(file: Path, use: Callable[..., None]) -> None:
    use(one_at_a_time)
    file.write_text("import torch\nx = old  # togi: ignore[torchscript]\ny = old\n", encoding="utf-8")
    fixed(file)
    assert file.read_text(encoding="utf-8") == "import torch\nx = old  # togi: ignore[torchscript]\ny = new\n"


def test_cells_of_notebooks_are_fixed_in_place(file: Path, use: Callable[..., None]) -> None:
    use(one_at_a_time)
    path = file.with_name("n.ipynb")
    cells = [
        {"cell_type": "code", "source": ["import torch\n", "%matplotlib inline"], "outputs": [{"text": "old"}]},
        {"cell_type": "markdown", "source": "old"},
        {"cell_type": "code", "source": ["!ls\n", "x = old(old)"], "outputs": []},
    ]
    text = json.dumps({"cells": cells, "metadata": {}}, indent=1)
    path.write_text(text, encoding="utf-8")
    shown = plain_text(diff(fixed(path, dry=True).changes))
    assert shown.startswith("--- n.ipynb:cell 3\n+++ n.ipynb:cell 3\n")
    assert fixed(path).result.fixed == 2
    assert path.read_text(encoding="utf-8") == text.replace("x = old(old)", "x = new(new)")
