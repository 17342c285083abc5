"""``togi bench --batch-sizes``: at which size most samples a second are answered, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import togi
from tests.study.made_artifacts import made_artifact
from togi.cli.app import run
from togi.core.errors import SubjectError
from togi.core.records import Interval, Noise, Outcome
from togi.decide.faster import BETWEEN_PROCESSES
from togi.machine.describe import machine
from togi.measure import RaceEntry, RaceResult, RaceVerdict
from togi.measure.interval import ratio_interval, times_interval
from togi.study.batch_sizes import by_size
from togi.study.comparison import Comparison
from togi.study.contestants import BestSize, Contestant

MODELS = """
import time, torch

class Served(torch.nn.Linear):
    def forward(self, x):
        if len(x) > 16:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        time.sleep(0.004 + 0.001 * len(x))
        return super().forward(x)

def make(kind):
    torch.manual_seed(0)
    return kind(8, 8), torch.ones(4, 8)

def served():
    return make(Served)

def plain():
    return make(torch.nn.Linear)

def unclear():
    return torch.nn.Linear(8, 8), [torch.ones(1, length, 8) for length in (4, 9)]

def broken():
    return torch.nn.Linear(8, 8), torch.ones(4, 3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.py").write_text(MODELS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.thorough
def test_each_size_is_measured_or_says_why_not_and_the_best_keeps_the_limit(folder: Path) -> None:
    made_artifact(folder / "fixed.togi", "models.py:plain")
    sizes = (1, 4, 16, 64)
    found = togi.bench("models.py:served", "fixed.togi", batch_sizes=sizes, max_latency="18ms", time_limit_s=60)
    assert found.batch_sizes == sizes
    assert found.max_latency_s == pytest.approx(0.018)
    by_label = {each.label: each for each in found.contestants}
    served = [by_label[f"models.py:served, batch {size}"] for size in sizes]
    fixed = [by_label[f"fixed.togi, batch {size}"] for size in sizes]
    assert [each.outcome for each in served] == [Outcome.OK] * 3 + [Outcome.OUT_OF_MEMORY]
    assert [each.outcome for each in fixed] == [Outcome.REFUSED, Outcome.OK, Outcome.REFUSED, Outcome.REFUSED]
    assert "has shape (1, 8), but was tuned and proven for (4, 8)" in fixed[0].reason
    one, four, sixteen, _ = served
    assert one.latency_ms
    assert one.latency_ms.median >= 5
    assert four.latency_ms
    assert four.samples_per_s
    assert four.samples_per_s.median == pytest.approx(4e3 / four.latency_ms.median)
    assert sixteen.latency_ms
    assert sixteen.latency_ms.median >= 20
    assert sixteen.reason == "over the limit of 18.0 ms"
    assert four.footprint is not None
    assert fixed[1].error is not None
    assert fixed[1].error.faithful
    assert fixed[1].speedup_x
    assert fixed[1].speedup_x.low > 2
    assert [(each.name, each.batch) for each in found.best] == [("models.py:served", 4), ("fixed.togi", 4)]
    assert "At these sizes fixed.togi answers" in found.verdict
    assert found.notes == ("models.py:served: a batch is dimension 0 of x",)


@pytest.mark.thorough
@pytest.mark.usefixtures("folder")
def test_the_command_prints_a_document_with_the_best_size(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "models.py:served", "--batch-sizes", "16, 1", "--time-limit", "30s"]
    assert run([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["batch_sizes"] == [16, 1]
    assert [each["batch"] for each in document["contestants"]] == [16, 1]
    assert all(each["samples_per_s"]["median"] > 0 for each in document["contestants"])
    (best,) = document["best"]
    assert (best["name"], best["batch"], best["same"], best["unclear"]) == ("models.py:served", 16, [], [])
    assert document["verdict"] == best["verdict"]


@pytest.mark.thorough
@pytest.mark.usefixtures("folder")
def test_a_batch_that_is_not_clear_is_no_table_but_an_error() -> None:
    with pytest.raises(SubjectError, match=r"models.py:unclear: it is not clear which dimension is the batch"):
        togi.bench("models.py:unclear", batch_sizes="1,2", time_limit_s=5)


@pytest.mark.thorough
@pytest.mark.usefixtures("folder")
def test_a_subject_that_cannot_be_run_says_so_at_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "models.py:broken", "--batch-sizes", "1,2", "--time-limit", "5s"]) == 1
    shown = capsys.readouterr().out
    assert "There is nothing to compare." in shown
    assert shown.count("(4, 3)") == 2


def raced(times_ms: dict[str, list[float]], limit_ms: float | None = None) -> Comparison:
    """What is made of a race with these times per sample, by ``NAME, batch SIZE``; the first is the reference."""
    reference, base = next(iter(times_ms.items()))
    entries = [
        RaceEntry(
            name=name,
            rounds_ms=tuple(rounds),
            latency_ms=times_interval(rounds),
            speedup_x=ratio_interval(base, rounds),
            noise=Noise(),
        )
        for name, rounds in times_ms.items()
    ]
    result = RaceResult(
        reference=reference,
        winner=reference,
        verdict=RaceVerdict.CANNOT_TELL,
        order="",
        sentence="",
        entries=tuple(entries),
        rounds=len(base),
        wall_s=1.0,
        criterion=BETWEEN_PROCESSES,
    )
    cells, limit_s = [], None if limit_ms is None else limit_ms / 1e3
    for entry in entries:
        name, _, size = entry.name.partition(", batch ")
        cells.append(Contestant(name=name, batch=int(size), latency_ms=entry.latency_ms))
    sizes = tuple(dict.fromkeys(cell.batch for cell in cells if cell.batch is not None))
    made = Comparison(
        contestants=tuple(cells), machine=machine(), batch_sizes=sizes, max_latency_s=limit_s, rounds=len(base)
    )
    return by_size(made, result)


def best(times_ms: dict[str, list[float]], limit_ms: float | None = None) -> BestSize:
    return raced(times_ms, limit_ms).best[0]


SURE, NOISY = [1.0] * 20, [0.85, 1.25] * 10


def test_of_sizes_that_are_as_fast_the_smallest_is_best() -> None:
    found = best({"a, batch 1": [2.0] * 20, "a, batch 8": SURE, "a, batch 4": [1.01] * 20, "a, batch 16": [0.99] * 20})
    assert (found.batch, found.same, found.unclear) == (4, (8, 16), ())
    assert "answers the most samples at batch 4: 990 a second" in found.verdict
    assert "Batch 8 and 16 are within 4.0 % of that, but a smaller batch is answered sooner." in found.verdict


def test_sizes_that_cannot_be_told_apart_are_named() -> None:
    found = best({"a, batch 1": [2.0] * 20, "a, batch 8": SURE, "a, batch 4": NOISY})
    assert (found.batch, found.same, found.unclear) == (8, (), (4,))
    assert "Batch 4 cannot be distinguished from it on this machine now." in found.verdict


def test_after_too_few_rounds_nothing_is_told_apart() -> None:
    found = best({"a, batch 1": [2.0] * 3, "a, batch 8": [1.0] * 3})
    assert (found.batch, found.unclear) == (8, (1,))
    assert "too few rounds" in found.verdict


def test_the_limit_is_of_a_call_and_may_leave_nothing() -> None:
    times_ms = {"a, batch 1": [2.0] * 20, "a, batch 8": SURE}
    assert best(times_ms, limit_ms=8).batch == 8
    kept = best(times_ms, limit_ms=7.9)
    assert kept.batch == 1
    assert kept.verdict.startswith("Within 7.90 ms a call, a answers the most samples at batch 1: 500 a second")
    none = best(times_ms, limit_ms=1.9)
    assert none.batch is None
    assert none.verdict == "a answers within 1.90 ms at none of these sizes."


def test_speed_ups_relate_to_the_first_at_the_same_size_and_the_best_sizes_are_compared() -> None:
    found = raced({"a, batch 1": [2.0] * 20, "a, batch 8": SURE, "b, batch 8": [0.5] * 20, "b, batch 4": [0.6] * 20})
    ratios = {each.label: each.speedup_x for each in found.contestants}
    assert ratios["b, batch 8"] == Interval(median=2, low=2, high=2)
    assert ratios["a, batch 8"] is ratios["b, batch 4"] is None
    assert found.verdict.endswith("At these sizes b answers 2.00x (2.00-2.00) as many samples a second as a.")
    slower = raced({"a, batch 1": SURE, "b, batch 1": NOISY})
    assert "b and a cannot be distinguished on this machine now" in slower.verdict
