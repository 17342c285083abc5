from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from togi.core.records import Interval
from togi.fleet.answer import KindAnswer, conclude, per_million, read_kind
from togi.render.fleet_text import fleet_text


def kind(name: str, per_hour: float, low: float, median: float, high: float) -> KindAnswer:
    latency_ms = Interval(median=median, low=low, high=high)
    cost = per_million(latency_ms, per_hour)
    return KindAnswer(
        kind=name, per_hour=per_hour, state="ok", recipe="onnxruntime", latency_ms=latency_ms, per_million=cost
    )


LOST = KindAnswer(kind="gone", per_hour=1, state="lost", reason="no node")


def test_an_hour_of_calls_costs_the_price_of_an_hour() -> None:
    cost = per_million(Interval(median=3.6, low=3.0, high=float("inf")), 0.5)  # a million calls are an hour
    assert (cost.median, cost.low) == pytest.approx((0.5, 0.5 * 3.0 / 3.6))
    assert cost.high == float("inf")
    assert per_million(Interval(median=3.6, low=3.0, high=float("inf")), 0).high == 0


def test_the_front_leaves_out_what_another_kind_beats_in_both() -> None:
    found = conclude("m", "USD", [kind("fast", 8, 1, 1, 1), kind("bad", 9, 2, 2, 2), LOST, kind("slow", 1, 4, 4, 4)])
    assert [k.kind for k in found.kinds if k.on_front] == ["fast", "slow"]
    assert found.cheapest == "slow"
    assert found.verdict.startswith("slow costs least: 1.11 USD")
    assert found.verdict.endswith("There is no answer for gone")


def test_what_a_second_of_latency_costs_along_the_front() -> None:
    slow, fast = kind("slow", 1, 39, 40, 41), kind("fast", 10, 9.9, 10, 10.1)
    (step,) = conclude("m", "USD", [fast, slow]).steps
    assert (step.cheaper, step.faster) == ("slow", "fast")
    assert step.per_second_saved is not None
    more, saved_s = (10 * 10 - 1 * 40) / 3.6, 30 * 1e6 / 1e3
    assert step.per_second_saved.median == pytest.approx(more / saved_s)
    assert step.per_second_saved.low == pytest.approx((99 - 41) / 3.6 / ((41 - 9.9) * 1e3))
    assert step.per_second_saved.high == pytest.approx((101 - 39) / 3.6 / ((39 - 10.1) * 1e3))


def test_kinds_whose_intervals_meet_cannot_be_told() -> None:
    found = conclude("m", "USD", [kind("a", 1, 9, 10, 12), kind("b", 1.2, 8, 9, 11)])
    assert "a costs least in the median, not distinguishable from b" in found.verdict
    assert [step.per_second_saved for step in found.steps] == [None]
    close = conclude("m", "USD", [kind("a", 1, 10, 10, 10), kind("b", 1.03, 10, 10, 10)])  # as two processes may differ
    assert "not distinguishable from b" in close.verdict


def test_machines_that_cost_nothing() -> None:
    found = conclude("m", "USD", [kind("a", 0, 10, 10, 10), kind("b", 1, 5, 5, 5), kind("c", 0, 20, 20, 20)])
    assert "a costs least in the median, not distinguishable from c: 0 USD" in found.verdict
    assert [(step.cheaper, step.faster, step.per_second_saved is None) for step in found.steps] == [("a", "b", False)]


def test_where_no_kind_has_an_answer() -> None:
    found = conclude("m", "USD", [LOST])
    assert (found.cheapest, found.steps, found.verdict) == (None, (), "no kind of machine has an answer")


@pytest.mark.parametrize(("device", "shown"), [("cpu", "a CPU, 4 threads"), ("cuda", "a GPU, 4 threads")])
def test_a_gpu_that_had_no_part_in_it_is_not_shown(tmp_path: Path, device: str, shown: str) -> None:
    latency_ms = {"median": 4.0, "low": 3.9, "high": 4.1}
    chosen = {"chosen": True, "recipe": {"label": "openvino"}, "latency_ms": latency_ms}
    study = {"machine": {"cpu_model": "a CPU", "gpu": "a GPU", "threads": 4}, "facts": {"device": device}}
    (tmp_path / "study.json").write_text(json.dumps({**study, "trials": [chosen], "verdict": ""}), encoding="utf-8")
    found = read_kind(tmp_path, "large", 1.0)
    assert (found.gpu, found.device) == ("a GPU", device)
    console = Console(width=100, file=io.StringIO())
    console.print(fleet_text(conclude("m", "USD", [found])))
    assert shown in console.file.getvalue()  # type: ignore[attr-defined]
