"""Notebooks cell by cell: magics, places, broken cells, and edits that touch nothing else."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from togi.lint.check_file import check_bytes
from togi.lint.notebooks import NotebookError, read_notebook, without_magics, write_cells


def notebook(*cells: Any, **more: Any) -> str:
    documents = [cell if isinstance(cell, dict) else {"cell_type": "code", "source": cell} for cell in cells]
    return json.dumps({"cells": documents, "metadata": {}, "nbformat": 4, "nbformat_minor": 5, **more}, indent=1)


PROSE = {"cell_type": "markdown", "source": ["# Title\n", "import nothing("]}


def test_names_flow_from_cell_to_cell_and_findings_name_theirs() -> None:
    text = notebook(["import torch\n", "from torch.nn import init"], PROSE, ["x = 1\n", "init.xavier_uniform(w)"])
    report = check_bytes(text.encode(), "n.ipynb")
    (finding,) = report.findings
    assert finding.place is not None
    assert (finding.place.cell, finding.place.line, finding.place.column) == (3, 2, 1)
    assert finding.fix is not None
    assert {edit.line for edit in finding.fix.edits} == {2}


def test_a_broken_cell_is_reported_and_the_others_are_checked() -> None:
    text = notebook("import torch", "print 'old'", "torch.nn.init.xavier_uniform(w)")
    report = check_bytes(text.encode(), "n.ipynb")
    assert [finding.place.cell for finding in report.findings if finding.place] == [3]
    assert [(problem.cell, problem.line) for problem in report.problems] == [(2, 1)]


def test_ignore_comments_speak_for_their_cell() -> None:
    call = "torch.nn.init.xavier_uniform(w)"
    report = check_bytes(
        notebook("import torch", f"{call}  # togi: ignore[deprecated-function]", call).encode(), "n.ipynb"
    )
    (ignore,) = report.ignores
    assert (ignore.cell, ignore.first, ignore.last) == (2, 1, 1)


@pytest.mark.parametrize(
    ("code", "python"),
    [
        ("%matplotlib inline\nx = 1", "pass\nx = 1"),
        ("!pip install torch \\\n  timm\nx = 1", "pass\n\nx = 1"),
        ("if x:\n    !ls\n", "if x:\n    pass\n"),
        ("%%time\ny = f(x)", "\ny = f(x)"),
        ("%%bash\nls -l\nif", "\n\n"),
        ("files = !ls *.py\nx = 1", "files = None\nx = 1"),
        ("torch.add?", "pass"),
        ("?torch.add", "pass"),
        ("%time y = f(x)", "0;    y = f(x)"),
        ("a = %timeit -o f(x)", "a = None"),
        ("%timeit -n 3 f(x)", "pass"),
        ("torch.*load*??", "pass"),
        ("layers[0].weight?", "pass"),
        ("x = [\n  1,  # is it?\n  7\n  % 4,\n]  # or?\n!ls", "x = [\n  1,  # is it?\n  7\n  % 4,\n]  # or?\npass"),
        ('s = """\n!ls\n%time\nwhat?\n"""\n!ls', 's = """\n!ls\n%time\nwhat?\n"""\npass'),
        ("x = 7 \\\n% 4\n!ls", "x = 7 \\\n% 4\npass"),
        ("s = '(\\'(', \"it's [\"  # ({\n!ls", "s = '(\\'(', \"it's [\"  # ({\npass"),
        ("s = 'a\\\n!ls'\n!ls", "s = 'a\\\n!ls'\npass"),
        ("%time y = f(\n    7\n    % 4)\n!ls", "0;    y = f(\n    7\n    % 4)\npass"),
    ],
)
def test_magics_become_python_of_the_same_lines(code: str, python: str) -> None:
    assert without_magics(code) == python
    ast.parse(python)


def test_python_that_only_looks_like_magic_is_left_alone() -> None:
    code = 's = """\n!ls\n%time\n"""\nz = ("%d"\n% 3)'
    assert read_notebook(notebook(code)).cells[0].python == code


@given(st.lists(st.text(alphabet="ab%!?\n\\ =(){}'\"#\t", max_size=30), max_size=5))
def test_every_cell_keeps_its_number_of_lines(cells: list[str]) -> None:
    read = read_notebook(notebook(*cells))
    for cell in read.cells:
        assert cell.python.count("\n") == cell.code.count("\n")
        assert read.cell_at(cell.first) is cell
    assert read.text.count("\n") == sum(cell.lines for cell in read.cells)
    ast.parse(read.text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "format 4"),
        ('{"worksheets": []}', "nbconvert"),
        ('{"cells": {}}', "format 4"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_file_that_is_not_a_notebook_is_reported(text: str, said: str) -> None:
    with pytest.raises(NotebookError, match=said):
        read_notebook(text)


def test_unusual_notebooks_are_read() -> None:
    odd = [
        None,
        3,
        {},
        {"cell_type": "code"},
        {"cell_type": "code", "source": [1, "x = 1"]},
        {"cell_type": "code", "source": 3},
    ]
    assert [cell.code for cell in read_notebook(json.dumps({"cells": odd, "metadata": 3})).cells] == ["", "x = 1", ""]
    julia = {"kernelspec": {"language": "julia"}}
    assert read_notebook(notebook("x = 1 end", metadata=julia)).cells == ()


FORMS = [
    pytest.param({"indent": 1}, id="jupyter"),
    pytest.param({"indent": 4}, id="indent"),
    pytest.param({"indent": None}, id="one line"),
    pytest.param({"indent": None, "separators": (",", ":")}, id="compact"),
    pytest.param({"indent": "\t"}, id="tabs"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("source", [["a = 'é'\n", "b = 2"], "a = 'é'\nb = 2"], ids=["list", "string"])
def test_only_the_changed_cell_is_rewritten(form: dict[str, Any], ascii_only: bool, source: Any) -> None:
    def document(code: Any) -> str:
        cells = [{"source": "x", "cell_type": "code"}, PROSE, {"cell_type": "code", "id": "q", "source": code}]
        extra = {"metadata": {"source": [1.0, "é"], "n": 1e400}, "nbformat": 4}
        return json.dumps({"z": {}, "cells": cells, **extra}, ensure_ascii=ascii_only, **form) + "\n"

    new = "a = 'é'\nb = 3\nc = '\"'\n"
    after = new.splitlines(keepends=True) if isinstance(source, list) else new
    assert write_cells(document(source), {3: new}) == document(after)
    assert write_cells(document(source), {}) == document(source)


@given(st.dictionaries(st.integers(1, 3), st.text(max_size=20)), st.sampled_from([None, 1, 4]))
def test_written_cells_are_read_back(changed: dict[int, str], indent: int | None) -> None:
    before = json.dumps({"cells": [{"cell_type": "code", "source": ["a\n", "b"]}] * 3}, indent=indent)
    written = json.loads(write_cells(before, changed))
    for number, cell in enumerate(written["cells"], start=1):
        assert "".join(cell["source"]) == changed.get(number, "a\nb")
