"""--add-ignores: one comment per statement, none twice, nothing else touched."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from togi.lint.add_ignores import add_ignores
from togi.lint.check_paths import check_paths
from togi.lint.fix import FixResult

CALL = "torch.nn.init.xavier_uniform(w)"
NAMED = "# togi: ignore[deprecated-function]"
CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "a.py"


def added(path: Path, **options: bool) -> FixResult:
    return add_ignores([path], cache=False, **options)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{CALL}\n", f"{CALL}  {NAMED}\n"),
        (CALL, f"{CALL}  {NAMED}"),
        (f"{CALL}  # why  \t\n", f"{CALL}  # why  {NAMED}\n"),
        (f"{CALL}; {CALL}\n", f"{CALL}; {CALL}  {NAMED}\n"),
        (f"x = (\n    {CALL},\n    {CALL},\n)\n", f"x = (\n    {CALL},\n    {CALL},\n)  {NAMED}\n"),
        (f"x = {CALL} + \\\n    1\n", f"x = {CALL} + \\\n    1  {NAMED}\n"),
        (f'x = """{{}}\n""".format({CALL})\n', f'x = """{{}}\n""".format({CALL})  {NAMED}\n'),
        (f"if {CALL}:\n    pass\n", f"if {CALL}:  {NAMED}\n    pass\n"),
        (f"if x: {CALL}\n", f"if x: {CALL}  {NAMED}\n"),
        (f"{CALL}  # togi: ignore[ Unsafe_Load,]\n", f"{CALL}  # togi: ignore[Unsafe_Load, deprecated-function]\n"),
        (f"# togi: ignore[unsafe-load]\n{CALL}\n", f"# togi: ignore[unsafe-load, deprecated-function]\n{CALL}\n"),
        (f"{CALL}  # togi: ignore-file[unsafe-load]\n", f"{CALL}  # togi: ignore-file[unsafe-load]  {NAMED}\n"),
        (f"s = '# togi: ignore[unsafe-load]'; {CALL}\n", f"s = '# togi: ignore[unsafe-load]'; {CALL}  {NAMED}\n"),
        (
            f"{CALL}; torch.jit.script(f)\n",
            f"{CALL}; torch.jit.script(f)  # togi: ignore[deprecated-function, torchscript]\n",
        ),
        (f"{CALL}\r\nx = 1 \r\n", f"{CALL}  {NAMED}\r\nx = 1 \r\n"),
    ],
)
def test_where_the_comment_goes(before: str, after: str, file: Path) -> None:
    file.write_bytes(f"import torch\n{before}".encode())
    done = added(file)
    assert file.read_bytes().decode() == f"import torch\n{after}"
    assert (done.result.ignores_added, len(done.result), done.result.exit_code) == (1, 0, 0)
    assert added(file).result.ignores_added == 0, "a second run has nothing to add"
    assert file.read_bytes().decode() == f"import torch\n{after}"


def test_only_what_counts_gets_a_comment(file: Path) -> None:
    file.with_name("pyproject.toml").write_text(
        '[tool.togi.check]\nignore = ["deprecated-function"]\n', encoding="utf-8"
    )
    file.write_text(text := f"import torch\n{CALL}\n", encoding="utf-8")
    assert added(file).result.ignores_added == 0
    assert file.read_text(encoding="utf-8") == text


def test_a_dry_run_writes_nothing(file: Path) -> None:
    file.write_text(text := f"import torch\n{CALL}\n", encoding="utf-8")
    done = added(file, dry=True)
    assert file.read_text(encoding="utf-8") == text
    assert [change.after.decode() for change in done.changes] == [f"import torch\n{CALL}  {NAMED}\n"]
    assert len(done.result) == 1


def test_a_declared_encoding_stays(file: Path) -> None:
    file.write_bytes(f"# coding: latin-1\nimport torch\ns = 'é'; {CALL}\n".encode("latin-1"))
    added(file)
    assert file.read_bytes() == f"# coding: latin-1\nimport torch\ns = 'é'; {CALL}  {NAMED}\n".encode("latin-1")


def test_ignore_comments_are_added_to_notebooks(file: Path) -> None:
    path = file.with_suffix(".ipynb")
    cells = [
        {"cell_type": "code", "source": ["import torch\n", "%matplotlib inline"], "outputs": [{"text": CALL}]},
        {"cell_type": "markdown", "source": CALL},
        {"cell_type": "code", "source": ["!ls\n", f"%time {CALL}\n", "x = [\n", f"{CALL}\n", "]"], "outputs": []},
    ]
    text = json.dumps({"cells": cells, "metadata": {}}, indent=1)
    path.write_text(text, encoding="utf-8")
    assert added(path).result.ignores_added == 2
    expected = text.replace(f"%time {CALL}", f"%time {CALL}  {NAMED}").replace('"]"', f'"]  {NAMED}"')
    assert path.read_text(encoding="utf-8") == expected
    assert check_paths([path], cache=False).exit_code == 0
    assert added(path).result.ignores_added == 0


def test_files_of_every_rule(file: Path) -> None:
    """One file with findings of each rule: all are silenced, and only comments were added."""
    originals = sorted(CORPUS.glob("*/pos_*.py"))[::4]
    assert len(originals) >= 20
    for number, original in enumerate(originals):
        (file.parent / f"f{number}.py").write_bytes(original.read_bytes())
    before = check_paths([file.parent], cache=False)
    done = added(file.parent)
    assert len(before) >= len(originals)
    assert (len(done.result), done.result.problems) == (0, ())
    assert len(done.result.suppressed) == len(before) + len(before.suppressed)
    for number, original in enumerate(originals):
        new = (file.parent / f"f{number}.py").read_text(encoding="utf-8")
        assert ast.dump(ast.parse(new)) == ast.dump(ast.parse(original.read_text(encoding="utf-8")))
    assert added(file.parent).result.ignores_added == 0
