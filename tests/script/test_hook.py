"""A script is watched from the moment at which it has imported torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.script.run_scripts import environment, run_togi, written

LOOKED_UP = """
import importlib.util
for _ in range(2):
    assert importlib.util.find_spec("torch").origin.endswith("__init__.py")
assert "torch" not in sys.modules and not seen
"""
"""As libraries do to see whether it is installed."""
ASKED_BY_ANOTHER = """
import importlib.abc, importlib.util
class Asking(importlib.abc.MetaPathFinder):
    asked = False
    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.asked:
            return None
        self.asked = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.asked = False
sys.meta_path.insert({place}, Asking())
"""
"""Another library's hook, before or behind it."""
FAILED = """
import importlib
attempts = []
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "torch._C" and not attempts:
            attempts.append(name)
            raise ImportError("not now")
        return None
sys.meta_path.insert(1, Broken())
try:
    import torch
except ImportError:
    assert "torch" not in sys.modules and not seen
else:
    raise AssertionError
for name in [name for name in sys.modules if name.startswith("torch")]:
    del sys.modules[name]
"""


@pytest.mark.parametrize(
    "before",
    ["", LOOKED_UP, ASKED_BY_ANOTHER.format(place=0), ASKED_BY_ANOTHER.format(place=1), FAILED],
    ids=["", "looked up", "behind another hook", "before another hook", "failed once"],
)
def test_torch_is_watched_from_the_moment_when_the_script_imports_it(before: str, tmp_path: Path) -> None:
    code = f"""
import sys
from togi.script.hook import when_torch_is_imported
seen = []
when_torch_is_imported(lambda: seen.append(sys.modules["torch"].nn.Module))
assert "torch" not in sys.modules and not seen
{before}
import torch
assert seen == [torch.nn.Module]
import torch.nn
when_torch_is_imported(lambda: seen.append(1))
assert seen[1:] == [1]
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("togi")]
assert "exec_module" not in vars(torch.__loader__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=environment(tmp_path)
    )
    assert done.returncode == 0, done.stderr


def test_a_script_that_looks_torch_up_before_it_imports_it_is_watched(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """
        import importlib.util
        assert importlib.util.find_spec("torch") is not None
        import torch
        with torch.no_grad():
            torch.nn.Linear(3, 3).eval()(torch.ones(2, 3))
        """,
    )
    assert "float32 2x3" in run_togi(script).stderr
