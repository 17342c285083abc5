"""Results show themselves when they are printed and in a notebook."""

from __future__ import annotations

from tests.render.made_up_study import HOSTILE, hostile_study, machine, made_up_study
from togi.core.records import Interval
from togi.footprint.fit.plan import Plan
from togi.footprint.fit.result import FitResult, Point, StepProof
from togi.lint.finding import CheckResult, Finding, Problem
from togi.render.display import show_results
from togi.study.comparison import Comparison
from togi.study.contestants import Contestant
from togi.study.result import Best, StudyResult

show_results()


def test_a_study_is_its_table_in_print_and_in_a_notebook() -> None:
    study = made_up_study()
    assert study.best is not None
    result = StudyResult(study, Best(study.best, study.trials[-1], None))
    said = str(result)
    assert "Chosen: fold_batch_norm + openvino + inference_mode" in said
    assert "3.14x" in said
    assert "\x1b" not in said
    bundle = result._repr_mimebundle_()
    assert bundle is not None
    assert bundle["text/plain"] == said
    page = bundle["text/html"]
    assert page is not None
    assert page.startswith("<div")
    assert "3.14x (3.08-3.20)" in page
    assert "best trade-offs" in page
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


def test_a_comparison_of_training_steps_says_where_their_time_goes() -> None:
    phases = {"forward": 3.25, "loss": 0.5, "backward": 6.5, "optimizer": 1.0, "the rest": 0.25}
    compiled = {"forward and loss": 2.75, "backward": 6.5, "optimizer": 1.0, "the rest": 0.25}
    ten = Interval(median=10, low=9.9, high=10.1)
    first = Contestant(name="a", latency_ms=ten, phases_ms=phases)
    found = Comparison(
        contestants=(first, Contestant(name="b", latency_ms=ten, speedup_x=ten, phases_ms=compiled)),
        machine=machine(),
        train=True,
    )
    assert found.phases == ("forward", "loss", "forward and loss", "backward", "optimizer", "the rest")
    text, page = str(found), found._repr_html_()
    assert page is not None
    for shown in ("3.25", "2.75", "forward and loss"):
        assert shown in text
        assert shown in page
    assert "of a training step" in text


def test_findings_are_a_table() -> None:
    finding = Finding(rule="training-mode", message="<b> is in training mode", remedy="x.eval()", layer="head")
    found = CheckResult(findings=(finding,), problems=(Problem(path="a.py", message="<i>"),))
    assert "head: training-mode <b> is in training mode" in str(found)
    page = found._repr_html_()
    assert page is not None
    assert "<td>head</td><td>training-mode</td><td>&lt;b&gt; is in training mode</td><td>x.eval()</td>" in page
    assert "a.py: not checked: &lt;i&gt;" in page
    assert "1 finding; 1 problem" in page


def test_a_plan_is_its_front_with_what_fits() -> None:
    plain, chosen = (
        Point(peak_bytes=2**30, recompute_ms=0, changes=0),
        Point(peak_bytes=2**29, recompute_ms=7.5, changes=3),
    )
    plan = Plan(budget_bytes=2**29, peak_bytes=2**29, subject="<b>")
    found = FitResult(
        budget_bytes=2**29,
        fits=True,
        plan=plan,
        plain=plain,
        chosen=chosen,
        front=(chosen, plain),
        proof=StepProof(exact=True),
        static_bytes=2**20,
        floor_bytes=2**20,
        notes=("<i>",),
    )
    page = found._repr_html_()
    assert page is not None
    assert "<td>512 MiB</td><td>7.50 ms</td><td>3</td><td>fits</td>" in page
    assert page.index("1.00 GiB") < page.index("<td>512 MiB")
    assert "<li>&lt;i&gt;</li>" in page


def test_other_records_are_their_fields() -> None:
    interval = Interval(median=2, low=1, high=3)
    assert str(interval) == "median=2.0 low=1.0 high=3.0"
    assert interval._repr_html_() is None
    assert interval._repr_mimebundle_() is None
