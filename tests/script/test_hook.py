"""A script is watched from the moment at which it has imported torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.script.run_scripts import environment


def test_torch_is_watched_from_the_moment_when_the_script_imports_it(tmp_path: Path) -> None:
    code = """
import sys
from togi.script.hook import when_torch_is_imported
seen = []
when_torch_is_imported(lambda: seen.append(sys.modules["torch"].nn.Module))
assert "torch" not in sys.modules and not seen
import torch
assert seen == [torch.nn.Module]
import torch.nn
when_torch_is_imported(lambda: seen.append(1))
assert seen[1:] == [1]
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("togi")]
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, env=environment(tmp_path)
    )
    assert done.returncode == 0, done.stderr
