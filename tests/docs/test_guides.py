"""The guides and the notebook do what they say: their commands are run, then their Python. Comparisons and
studies take less time.

A block with a title is a file. ``console`` holds commands after ``$``; all of a page's other Python is one program.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.offline import OFFLINE

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(python|console)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
GUIDES = [ROOT / "docs" / "start.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
TUNED_S = 30
"""Enough for some recipes, their race and the proof, next to another worker, where guides say up to twice as long."""
TOGI = """
togi() {
    local code=0
    for try in 1 2 3; do  # on a busy machine nothing is found in time, and the next one goes on where that ended
        code=0
        "$PYTHON" -m togi "$@" | tee answered || code=$?
        [ $code = 1 ] && grep -q -e "nothing is faster beyond doubt" -e "time limit was over" answered || break
    done
    return $code
}
python() { "$PYTHON" "$@"; }
"""


@pytest.mark.thorough(60)
@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_the_guide_runs(guide: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TOGI_HOME": str(tmp_path / "home"), "PYTHON": sys.executable}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(tmp_path), OFFLINE])
    program, commands = "", f"set -eu -o pipefail{TOGI}"
    # on a busy machine a gate decides nothing
    commands += 'pytest() { "$PYTHON" -m pytest -p togi.pytest_plugin "$@" | tee said || grep UndecidedError said; }\n'
    for language, title, code in BLOCK.findall(guide.read_text(encoding="utf-8")):
        if title:
            (tmp_path / title).write_text(code, encoding="utf-8")
        elif language == "python":
            program += code
        else:
            commands += "".join(f"{line[2:]}\n" for line in code.splitlines() if line.startswith("$ "))
    assert re.search(r"^(togi|pytest) ", commands, re.MULTILINE)
    # it is shown that they work, not what they find and measure
    commands = re.sub(r"(togi (?:bench|verify) .* --time-limit) \d+s", r"\1 3s --exit-undecided 0", commands)
    commands = re.sub(r"(togi (?:tune|run|precision) .*--time-limit) \d+s", rf"\1 {TUNED_S}s", commands)
    program = re.sub(r"\btime_limit_s=\d+", f"time_limit_s={TUNED_S}", program)
    for command in (["bash", "-c", commands], [sys.executable, "-c", program]):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.thorough(60)
def test_the_notebook_runs_and_its_results_show_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    for name in ("TOGI_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), OFFLINE]))
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        output.data["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == "execute_result"
    ]
    study, raced, account, fitted, checked = shown
    assert '<th scope="col">speed-up</th>' in study  # of whatever this machine had the time to try
    assert "fast(x)" in raced
    assert "memory alive, MiB" in account
    assert "fits 14.0 MiB: peak" in fitted
    assert "training-mode" in checked
