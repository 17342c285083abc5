"""``%load_ext togi`` in IPython's own shell: the magics run commands and race the lines of a cell."""

from __future__ import annotations

import atexit
import re
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import togi
from togi.study.comparison import Comparison


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    pytest.importorskip("IPython", reason="magics need IPython: pip install ipython")
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    own = types.ModuleType("notebook")  # else it becomes the main module of this process
    vars(own)["time"] = time
    shell = InteractiveShell(user_module=own, config=Config({"HistoryManager": {"enabled": False}}))
    atexit.unregister(shell.atexit_operations)
    shell.run_line_magic("load_ext", "togi")
    yield shell
    monkeypatch.delitem(sys.modules, "notebook", raising=False)


def failure(shell: Any, magic: str, line: str, cell: str | None = None) -> str:
    from IPython.core.error import UsageError

    run, arguments = (shell.run_line_magic, ()) if cell is None else (shell.run_cell_magic, (cell,))
    with pytest.raises(UsageError) as caught:
        run(magic, line, *arguments)
    return str(caught.value)


def test_a_line_is_a_command_line(shell: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "slow file.py").write_text("import torch\ntorch.rfft(torch.rand(3))\n", encoding="utf-8")
    assert failure(shell, "togi", "check 'slow file.py'") == "togi check 'slow file.py' ended with exit code 1"
    assert "rfft" in capfd.readouterr().out
    (tmp_path / "slow file.py").write_text("x = 1\n", encoding="utf-8")
    assert shell.run_line_magic("togi", "check 'slow file.py'") is None
    assert "exit code 2" in failure(shell, "togi", "chek .")
    assert "No such command" in capfd.readouterr().err
    assert "cannot be read as a command line" in failure(shell, "togi", "check 'a")


def test_a_script_does_not_become_the_main_program_of_the_notebook(
    shell: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.py").write_text("print('as', __name__)\nraise SystemExit(3)\n", encoding="utf-8")
    assert "exit code 3" in failure(shell, "togi", "run --report script.py")
    assert "as __main__" in capfd.readouterr().out
    shell.run_cell("inside = __name__")
    assert shell.user_ns["inside"] == "notebook"


def test_the_lines_of_a_cell_take_turns(shell: Any) -> None:
    cell = "pause = 0.004\n\ntime.sleep(pause)  # the first\ntime.sleep(\n    5 * pause)\n"
    found = shell.run_cell_magic("togi", "bench --time-limit 2s", cell)
    assert isinstance(found, Comparison)
    slow = found.contestants[1]
    assert [one.name for one in found.contestants] == ["time.sleep(pause)", "time.sleep(5 * pause)"]
    assert slow.speedup_x.high < 0.5
    assert shell.user_ns["pause"] == 0.004
    found.assert_faster("50%")


def test_the_lines_of_a_cell_see_the_names_of_the_notebook(shell: Any) -> None:
    shell.run_cell("import torch\nmodel = torch.nn.Linear(4, 4).eval()\nx = torch.rand(2, 4)")
    found = shell.run_cell_magic("togi", "bench --time-limit 1s", "model(x)\nmodel(x) + 1")
    assert [one.name for one in found.contestants] == ["model(x)", "model(x) + 1"]


@pytest.mark.parametrize(
    ("line", "cell", "says"),
    [
        ("bench", "x = 1\n", "this one holds 0"),
        ("bench", "time.sleep(0)\n", "two expressions or more, one on a line"),
        ("bench --nonsense", "1\n2\n", "--nonsense.*--time-limit TIME"),
        ("bench --time-limit soon", "1\n2\n", "soon"),
        ("tune", "1\n2\n", "%%togi tune is not a magic for a cell: write %%togi bench"),
        ("", "1\n2\n", "%%togi is not a magic for a cell"),
    ],
)
def test_a_cell_that_cannot_be_raced_says_what_to_write(shell: Any, line: str, cell: str, says: str) -> None:
    assert re.search(says, failure(shell, "togi", line, cell), re.DOTALL)


def test_the_extension_can_be_taken_out_and_put_in_again(shell: Any) -> None:
    shell.run_line_magic("unload_ext", "togi")
    assert not [kind for kind, magics in shell.magics_manager.magics.items() if "togi" in magics]
    shell.run_line_magic("reload_ext", "togi")
    assert shell.find_line_magic("togi") is not None
    assert callable(togi.load_ipython_extension)
