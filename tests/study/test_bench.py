"""``togi.bench``: subjects and artifacts side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

import togi
from togi.core.errors import UnknownNameError
from togi.core.records import Outcome


@pytest.fixture
def subjects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOGI_HOME", str(tmp_path / "home"))
    (tmp_path / "models.py").write_text(
        "import time, torch\n"
        "class Slow(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        time.sleep(0.02)\n"
        "        return super().forward(x)\n"
        "def make(kind):\n"
        "    torch.manual_seed(0)\n"
        "    return kind(8, 8), torch.randn(4, 8)\n"
        "def fast():\n"
        "    return make(torch.nn.Linear)\n"
        "def slow():\n"
        "    return make(Slow)\n"
        "def broken():\n"
        "    return torch.nn.Linear(8, 8), torch.randn(4, 3)\n",
        encoding="utf-8",
    )
    return tmp_path / "models.py"


def test_a_slower_one_is_found_slower(subjects: Path) -> None:
    found = togi.bench(f"{subjects}:fast", f"{subjects}:slow", time_limit_s=20)
    fast, slow = found.contestants
    assert fast.outcome is slow.outcome is Outcome.OK
    assert fast.speedup_x is not None
    assert slow.speedup_x is not None
    assert slow.speedup_x.high < 0.5
    assert slow.latency_ms is not None
    assert slow.latency_ms.median > 20


def test_one_given_twice_has_two_names_and_no_winner(subjects: Path) -> None:
    found = togi.bench(f"{subjects}:slow", f"{subjects}:slow", time_limit_s=10)
    assert [c.name for c in found.contestants] == [f"{subjects}:slow", f"{subjects}:slow (2)"]
    assert "fastest beyond doubt" not in found.verdict


def test_an_artifact_is_verified_against_the_subject_beside_it(subjects: Path, tmp_path: Path) -> None:
    out = tmp_path / "fast.togi"
    togi.tune(f"{subjects}:fast", only=["torchscript"], effort="quick", time_limit_s=30, out=out)
    found = togi.bench(f"{subjects}:fast", str(out), time_limit_s=5)
    artifact = found.contestants[1]
    assert artifact.outcome is Outcome.OK
    assert artifact.error is not None
    assert artifact.error.faithful


def test_a_subject_that_does_not_run_is_said(subjects: Path) -> None:
    with pytest.raises(UnknownNameError, match="It has fast, slow, broken"):
        togi.bench(f"{subjects}:nowhere", f"{subjects}:fast")
    found = togi.bench(f"{subjects}:broken", f"{subjects}:fast", time_limit_s=5)
    assert found.contestants[0].outcome is not Outcome.OK
    assert "(4, 3)" in found.contestants[0].reason
