"""A study full of techniques that crash, hang, lie and litter: each gets its outcome, nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from togi import api
from togi.core.records import Outcome, Study
from togi.techniques import registry

pytestmark = [pytest.mark.thorough, pytest.mark.starts_servers, pytest.mark.usefixtures("brief_studies")]

HERE = Path(__file__).parent / "hostile"
NAMES = [
    "raises",
    "hangs",
    "segfaults",
    "aborts",
    "allocates",
    "exits",
    "writes",
    "mutates",
    "forks",
    "nan",
    "stale",
    "aliased",
    "inputs",
    "sticky",
    "slow",
]


@pytest.fixture(scope="module")
def hostile_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The family installed the way a third party's techniques are: by entry point."""
    site = tmp_path_factory.mktemp("site")
    info = site / "togi_hostile-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: togi-hostile\nVersion: 1.0\n", encoding="utf-8")
    lines = [f"hostile_{name} = hostile_family:Hostile{name.title()}" for name in NAMES]
    (info / "entry_points.txt").write_text(
        "\n".join([f"[{registry.ENTRY_POINT_GROUP}]", *lines]) + "\n", encoding="utf-8"
    )
    (site / "hostile_family.py").write_text((HERE / "hostile_family.py").read_text(encoding="utf-8"), encoding="utf-8")
    sys.path.insert(0, str(site))
    registry.all_techniques.cache_clear()
    yield site
    sys.path.remove(str(site))
    registry.all_techniques.cache_clear()


@pytest.fixture(scope="module")
def study(hostile_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    assert hostile_path.exists()
    folder = tmp_path_factory.mktemp("study")
    (folder / "tiny.py").write_text(
        "import torch\n"
        "def subject():\n"
        "    torch.manual_seed(0)\n"
        "    m = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))\n"
        "    return m, torch.randn(8, 16)\n",
        encoding="utf-8",
    )
    os.environ["TOGI_HOME"] = str(folder / "home")
    result = api.tune(
        f"{folder}/tiny.py:subject",
        only=[f"hostile_{name}" for name in NAMES],
        effort="thorough",
        time_limit_s=240,
        trial_timeout_s=4,
        trial_memory=600 << 20,
    )
    return result.record


MEASURED = (Outcome.OK, Outcome.UNSTABLE)
"""Right, and measured; how well depends on what else the machine is doing while the tests run."""
EXPECTED: dict[str, tuple[Outcome | tuple[Outcome, ...], str]] = {
    "raises": (Outcome.FAILED, "hostile_raises raised ValueError: deliberately unhelpful"),
    "hangs": (Outcome.TIMED_OUT, "build"),
    "segfaults": (Outcome.CRASHED, "SIGSEGV"),
    "aborts": (Outcome.CRASHED, "SIGABRT"),
    "allocates": (Outcome.OUT_OF_MEMORY, "more than the 600 MiB that it may take here"),
    "exits": (Outcome.CRASHED, "exit status 0"),
    "writes": (MEASURED, ""),
    "mutates": (Outcome.WRONG, "changed the user's module"),
    "forks": (Outcome.FAILED, "left two behind"),
    "nan": (Outcome.WRONG, ""),
    "stale": (Outcome.WRONG, ""),
    "aliased": (Outcome.WRONG, ""),
    "inputs": (Outcome.WRONG, ""),
    "sticky": (Outcome.FAILED, "device-side assert triggered"),
    "slow": (MEASURED, ""),
}


@pytest.mark.parametrize("name", NAMES)
def test_each_gets_its_outcome(study: Study, name: str) -> None:
    outcome, words = EXPECTED[name]
    expected = outcome if isinstance(outcome, tuple) else (outcome,)
    trials = [t for t in study.trials if f"hostile_{name}" in t.recipe.techniques]
    assert trials, f"hostile_{name} was never tried"
    for trial in trials:
        assert trial.outcome in expected, trial.reason
        assert words in trial.reason


def test_the_original_wins(study: Study) -> None:
    assert study.best is not None
    assert "hostile_slow" not in study.best.techniques
    assert all(study.best.find(f"hostile_{name}") is None for name in ("nan", "stale", "aliased", "inputs", "mutates"))


def test_what_a_program_tells_of_its_calls_is_a_note_of_its_trial(study: Study) -> None:
    """On a busy machine it may be tried again beside another one; each trial is told once."""
    assert {t.notes for t in study.trials if "hostile_slow" in t.recipe.techniques} == {("slept at every call",)}


def test_tracebacks_and_output_are_kept(study: Study) -> None:
    raised = next(t for t in study.trials if "hostile_raises" in t.recipe.techniques)
    assert "hostile_family.py" in raised.traceback
    assert "second line" in raised.traceback


def test_no_process_is_left(study: Study) -> None:
    assert study.trials
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "togi-hostile-orphan" not in listing
    assert "togi.worker.server" not in listing
