"""``togi tune --max-memory`` from the command line: what fits is chosen though it be slower, and nothing where nothing
fits. A third party's technique saves memory at the price of time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from togi.cli.app import run
from togi.techniques.registry import all_techniques

pytestmark = pytest.mark.usefixtures("brief_studies")

Command = Callable[..., tuple[int, dict[str, Any], str]]
"""Of its arguments: exit code, what it printed as JSON, standard error."""

SUBJECT = """
import torch

def subject():
    torch.manual_seed(0)
    wide = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 8))
    return wide, torch.randn(1024, 64)
"""
TECHNIQUE = '''
from togi.core.records import Stage
from togi.techniques.base import Applies, Technique


class Slices(Technique):
    """Runs the batch in slices, each four times: a sixteenth of the memory at several times the time."""

    id = "slices"
    stage = Stage.REWRITE

    def applies(self, facts):
        return Applies()

    def apply(self, candidate, options):
        import torch

        class InSlices(torch.nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, x):
                parts = x.chunk(16)
                return torch.cat([sum(self.inner(part) for _ in range(4)) / 4 for part in parts])

        return candidate.with_(module=InSlices(candidate.copy()).eval())
'''


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A subject whose eager pass needs 32 MiB and more, and an installed technique ``slices`` that needs less."""
    (tmp_path / "wide.py").write_text(SUBJECT, encoding="utf-8")
    site = tmp_path / "site"  # the working folder is not searched
    installed = site / "slices-1.0.dist-info"
    installed.mkdir(parents=True)
    (site / "slices.py").write_text(TECHNIQUE, encoding="utf-8")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: slices\nVersion: 1.0\n", encoding="utf-8")
    (installed / "entry_points.txt").write_text("[togi.techniques]\nslices = slices:Slices\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    all_techniques.cache_clear()
    yield tmp_path
    all_techniques.cache_clear()


@pytest.fixture
def togi(capsys: pytest.CaptureFixture[str]) -> Command:
    def command(*arguments: str) -> tuple[int, dict[str, Any], str]:
        code, said = run([*arguments, "--json"]), capsys.readouterr()
        assert said.out, said.err
        return code, json.loads(said.out), said.err

    return command


TUNE = "tune wide.py:subject --only slices --effort quick --time-limit 200s".split()


@pytest.mark.thorough
def test_what_fits_is_chosen_though_it_is_slower(workplace: Path, togi: Command) -> None:
    code, study, _ = togi(*TUNE, "--max-memory", "24MiB", "--out", "wide.togi")
    assert study["best"], study["verdict"]
    chosen = next(trial for trial in reversed(study["trials"]) if trial["recipe"]["id"] == study["best"])
    assert chosen["recipe"]["label"] == "slices + no_grad"
    assert chosen["verdict"] in ("chosen", "chosen (unstable)")  # a busy machine does not change what fits
    assert chosen["total_bytes"] <= 24 << 20
    assert chosen["speedup_x"]["median"] < 1  # few rounds fit beside a busy neighbour: then the interval is endless
    assert "plain eager itself does not fit" in study["verdict"]
    assert (workplace / "wide.togi" / "manifest.json").exists()
    assert code == 0


@pytest.mark.thorough
def test_where_nothing_fits_the_least_is_said_and_nothing_is_written(workplace: Path, togi: Command) -> None:
    code, study, stderr = togi(*TUNE, "--max-memory", "100KiB", "--out", "wide.togi", "--report", "wide.html")
    assert code == 1
    assert study["best"] is None
    measured = [trial for trial in study["trials"] if trial["total_bytes"]]
    least = min(measured, key=lambda trial: trial["total_bytes"])
    assert least["recipe"]["label"] in study["verdict"]
    assert f"{least['total_bytes']:,} bytes" in study["verdict"]
    assert not (workplace / "wide.togi").exists()
    assert "wide.togi was not written: nothing was chosen" in stderr
    assert least["recipe"]["label"] in (workplace / "wide.html").read_text(encoding="utf-8")
    code, again, _ = togi("report")
    assert (code, again["best"], again["verdict"]) == (1, None, study["verdict"])
