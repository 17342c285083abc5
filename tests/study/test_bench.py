"""``togi.bench``: subjects side by side; an artifact beside its subject is what ``togi verify`` compares."""

from __future__ import annotations

from pathlib import Path

import pytest

import togi
from togi.core.errors import SubjectError
from togi.core.records import Outcome
from togi.study.bench import as_sentence


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


def test_a_verdict_writes_a_file_as_it_is_called() -> None:
    assert as_sentence("fast.togi is the fastest", ["model.py:f", "fast.togi"]) == "fast.togi is the fastest."
    assert as_sentence("cannot tell a and b apart", ["a", "b"]) == "Cannot tell a and b apart."


@pytest.mark.thorough
def test_a_slower_one_is_found_slower_one_given_twice_has_two_names_and_a_broken_one_keeps_its_place(
    subjects: Path,
) -> None:
    names = [f"{subjects}:{name}" for name in ("fast", "broken", "slow", "slow (2)")]
    found = togi.bench(*names[:3], names[2], time_limit_s=60)
    assert [contestant.name for contestant in found.contestants] == names
    fast, broken, *slow = found.contestants
    assert fast.outcome is Outcome.OK
    assert fast.speedup_x is not None
    assert broken.outcome is not Outcome.OK
    assert "(4, 3)" in broken.reason
    assert broken.speedup_x is None
    for each in slow:
        assert each.outcome is Outcome.OK
        assert each.speedup_x is not None
        assert each.speedup_x.median < 0.5
        assert each.latency_ms is not None
        assert each.latency_ms.median > 20


@pytest.mark.thorough
def test_without_the_first_nothing_is_compared(subjects: Path) -> None:
    names = [f"{subjects}:{name}" for name in ("broken", "fast", "slow")]
    found = togi.bench(*names, time_limit_s=5)
    assert [contestant.name for contestant in found.contestants] == names
    assert [contestant.speedup_x for contestant in found.contestants] == [None] * 3
    broken, fast, slow = found.contestants
    assert broken.outcome is not Outcome.OK
    assert "(4, 3)" in broken.reason
    assert fast.outcome is slow.outcome is Outcome.OK
    assert "nothing could be loaded that would take turns" in fast.reason
    assert f"compared with {names[0]}, which could not be loaded" in found.verdict


@pytest.mark.thorough
def test_subjects_that_take_different_inputs_are_refused_unless_asked_for(subjects: Path) -> None:
    with subjects.open("a", encoding="utf-8") as file:
        file.write("def wide():\n    return torch.nn.Linear(8, 8), torch.randn(400, 8)\n")
        file.write("class Renamed(torch.nn.Linear):\n    def forward(self, y):\n        return super().forward(y)\n")
        file.write("def renamed():\n    return make(Renamed)\n")
    fast, wide, renamed = (f"{subjects}:{name}" for name in ("fast", "wide", "renamed"))
    with pytest.raises(SubjectError, match=r"\(float32 4x8\), and .*wide takes \(float32 400x8\): their work differs"):
        togi.bench(fast, renamed, wide, time_limit_s=1)
    for given in ({"different_inputs": True}, {"batch_sizes": [4]}):
        found = togi.bench(fast, wide, time_limit_s=1, **given)  # type: ignore[arg-type]
        assert [each.outcome for each in found.contestants] == [Outcome.OK] * 2
