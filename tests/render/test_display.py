"""Results show themselves when they are printed and in a notebook."""

from __future__ import annotations

from made_up_study import HOSTILE, hostile_study, machine, made_up_study

from togi.api import Best, StudyResult
from togi.core.records import Interval
from togi.study.comparison import Comparison, Contestant


def test_a_study_is_its_table_in_print_and_in_a_notebook() -> None:
    study = made_up_study()
    assert study.best is not None
    result = StudyResult(study, Best(study.best, study.trials[-1], None))
    said = str(result)
    assert "Chosen: fold_batch_norm + openvino + inference_mode" in said
    assert "3.14x" in said
    assert "\x1b" not in said
    page = result._repr_html_()
    assert page is not None
    assert page.startswith("<div")
    assert "3.14x (3.08-3.20)" in page
    assert "<script" not in page


def test_a_notebook_is_not_steered_by_names() -> None:
    page = hostile_study()._repr_html_()
    assert page is not None
    assert HOSTILE not in page
    assert "<script" not in page
    assert "<img" not in page


def test_a_comparison_is_its_table() -> None:
    first = Contestant(name="a.togi", latency_ms=Interval(median=10, low=9.9, high=10.1))
    second = Contestant(
        name="<b>.togi",
        latency_ms=Interval(median=5, low=4.9, high=5.1),
        speedup_x=Interval(median=2, low=1.95, high=2.05),
    )
    found = Comparison(contestants=(first, second), verdict="b is faster", machine=machine(), rounds=30)
    assert "2.00x" in str(found)
    page = found._repr_html_()
    assert page is not None
    assert "2.00x (1.95-2.05)" in page
    assert "&lt;b&gt;.togi" in page


def test_other_records_are_their_fields() -> None:
    interval = Interval(median=2, low=1, high=3)
    assert str(interval) == "median=2.0 low=1.0 high=3.0"
    assert interval._repr_html_() is None
