"""A program in parts: what becomes of it when one part is right alone and wrong in its place."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from togi.core.errors import SubjectError
from togi.core.records import ErrorReport, ForcedCalls, Interval, Outcome, Recipe, Timing, Trial
from togi.decide.choose import Chosen
from togi.search.settings import Settings
from togi.study.finals import Decision
from togi.study.parts import PARTS, PartsTuner, _for_parts, _PartStudy
from togi.study.progress import Progress
from togi.techniques import is_exact, recipe

ONE = Interval(median=1.0, low=1.0, high=1.0)


def report(units: float, *forced: ForcedCalls) -> ErrorReport:
    return ErrorReport(faithful=units <= 8, units=units, rmse=0.0, max_abs=0.0, forced=forced)


class Choices:
    """In place of ``Finals``: what is best, and what comes after it once that is set aside."""

    def __init__(self, trials: list[Trial]) -> None:
        self.trials = trials

    def save_only(self) -> Decision:
        if not self.trials:
            return Decision(Chosen(trial=None, reason=""), None, ())
        return Decision(Chosen(trial=self.trials[0], reason=""), Path("saved"), ())

    def set_aside(self, candidate: Recipe, why: str) -> None:
        self.trials = [trial for trial in self.trials if trial.recipe != candidate]


def part(path: str, units: float, *others: Recipe) -> Any:
    """Twice as fast with OpenVINO, then with ``others``."""
    study = _PartStudy(SimpleNamespace(path=path, form=0, copies=(path,)))  # type: ignore[arg-type]
    study.runner = SimpleNamespace(log=SimpleNamespace(trials=tuple))  # type: ignore[assignment]
    timing = Timing(latency_ms=ONE, speedup_x=Interval(median=2.0, low=1.9, high=2.1))
    trials = [
        Trial(recipe=each, outcome=Outcome.OK, error=report(units), timing=timing)
        for each in (recipe(openvino={}), *others)
    ]
    study.finals = Choices(trials)  # type: ignore[assignment]
    study.best, study.folders = trials[0], {path: Path(path)}
    return study


class Whole:
    """A program that is right as long as none of ``guilty`` is in place: a part, or what is done to it."""

    left_s = math.inf

    def __init__(self, guilty: set[str], *forced: ForcedCalls) -> None:
        self.guilty, self.forced, self.tried, self.done = guilty, forced, list[set[str]](), list[set[str]]()
        self.settings = self.progress = self.pool = None

    def make_truth(self) -> None:
        pass

    def explore_s(self) -> float:
        return self.left_s

    def try_composed(self, composed: Recipe, folder: Path) -> None:
        options = composed.find(PARTS).options  # type: ignore[union-attr]
        self.tried.append(set(options))
        self.done.append({str(work) for work in options.values()})

    def last(self, composed: Recipe) -> Trial:
        wrong = self.guilty & (self.tried[-1] | self.done[-1])
        outcome = Outcome.WRONG if wrong else Outcome.OK
        error = report(50.0 if wrong else 1.0, *self.forced)
        return Trial(recipe=composed, outcome=outcome, reason="50 units" * bool(wrong), error=error)


def tuner(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = PartsTuner(whole, None, resume=False)  # type: ignore[arg-type]
    monkeypatch.setattr(made, "_composed", lambda *_: Path("composed"))
    return made


def test_a_bound_on_the_metric_allows_a_part_nothing() -> None:
    """The metric is the program's. An error is the part's own, and what is done to it tells what the program is."""
    assert not _for_parts(Settings(max_drop=0.01, allow=("bf16",))).has_bound
    assert _for_parts(Settings(max_drop=0.01, max_error=0.01, allow=("bf16",))).allow == ("bf16",)
    assert is_exact(recipe(parts={"a": "fold_batch_norm+openvino", "b": "onnxruntime(spinning=True)"}))
    assert not is_exact(recipe(parts={"a": "fold_batch_norm+openvino", "b": "bf16+openvino"}))


def test_a_part_that_cannot_be_opened_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    def fail(*_: Any, **__: Any) -> Any:
        raise SubjectError("its truth cannot be made")

    whole = Whole(set())
    whole.settings, whole.limits, whole.subject = Settings(), None, "program"  # type: ignore[assignment,attr-defined]
    whole.progress = Progress()  # type: ignore[assignment]
    opened = tuner(whole, monkeypatch)
    monkeypatch.setattr(opened, "_pool", lambda *_: SimpleNamespace(capture=fail, close=lambda: closed.append(True)))
    given = SimpleNamespace(path="a", form=0, calls=1, share=1.0, survey=None, weights={})
    study = _PartStudy(given)  # type: ignore[arg-type]
    opened._go_on(study, 60.0, [study], first_gain=True)
    assert closed == [True]
    assert study.reason == "its truth cannot be made"


def test_a_part_that_makes_the_program_wrong_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = Whole({"b"}), [part("a", 1.0), part("b", 5.0), part("c", 2.0)]
    tuner(whole, monkeypatch)._try_whole(parts)
    assert whole.tried == [{"a", "b", "c"}, {"a", "c"}]
    assert [bool(study.folders) for study in parts] == [True, False, True]
    assert "50 units" in parts[1].reason
    assert parts[1].best is None


def test_what_was_seen_on_the_original_calls_says_more_than_the_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    forced = [
        ForcedCalls(path="a", calls=3, units=40.0, faithful=False),
        ForcedCalls(path="b", calls=3, units=2.0, faithful=True),
    ]
    whole, parts = Whole({"a"}, *forced), [part("a", 1.0), part("b", 5.0)]
    tuner(whole, monkeypatch)._try_whole(parts)
    assert whole.tried == [{"a", "b"}, {"b"}]


def test_where_the_best_makes_the_program_wrong_the_second_best_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, study = Whole({"openvino"}), part("a", 1.0, recipe(torchscript={}))
    tuner(whole, monkeypatch)._try_whole([study])
    assert whole.done == [{"openvino"}, {"torchscript"}]
    assert study.folders
    assert study.reason == ""


def test_when_the_time_is_over_no_more_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, study = Whole({"a"}), part("a", 1.0, recipe(torchscript={}))
    whole.left_s = 0.0
    tuner(whole, monkeypatch)._try_whole([study])
    assert whole.done == [{"openvino"}]


def test_nothing_is_left_where_every_part_is_guilty(monkeypatch: pytest.MonkeyPatch) -> None:
    others = recipe(torchscript={}), recipe(aot_inductor={})
    whole, parts = Whole({"a", "b"}), [part("a", 1.0), part("b", 5.0, *others)]
    made = tuner(whole, monkeypatch)
    made._try_whole(parts)
    assert whole.tried == [{"a", "b"}, {"a", "b"}, {"a"}], "a second best has one chance, and no third"
    assert not any(study.folders for study in parts)
    for study in parts:
        made._save(study)
        assert "50 units" in study.reason
    made._try_whole(parts)
    assert len(whole.tried) == 3, "what was wrong is not tried again"


@pytest.mark.parametrize(
    ("shares", "gains_later", "tried"),
    [
        ({"a": 0.6, "b": 0.15, "c": 0.1}, "", [{"a"}, {"a", "b", "c"}]),
        ({"a": 0.6, "b": 0.15, "c": 0.1}, "a", [{"b", "c"}, {"a", "b", "c"}]),
        ({"a": 0.1, "b": 0.05, "c": 0.02}, "", [{"a", "b", "c"}]),
    ],
)
def test_the_program_is_tried_as_soon_as_its_parts_should_save_a_tenth(
    shares: dict[str, float], gains_later: str, tried: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is most worth first, and once more with everything: not with each part that joins. Where they save
    less, once every part had its turn."""
    whole = Whole(set())
    whole.subject, whole.progress = "program", Progress()  # type: ignore[attr-defined]
    cuts = SimpleNamespace(
        parts=[SimpleNamespace(path=path, form=0, share=share) for path, share in shares.items()],
        tree=SimpleNamespace(model_copy=lambda update: update),
        obstacles=(),
    )
    made = tuner(whole, monkeypatch)
    monkeypatch.setattr("togi.study.parts.record_parts", lambda _pool: cuts)

    def go_on(study: Any, *_: object, first_gain: bool) -> None:
        if first_gain != (study.part.path == gains_later):
            gained = part(study.part.path, 1.0)
            study.runner, study.best, study.folders = gained.runner, gained.best, gained.folders
            study.runner.close, study.runner.pool = lambda: None, SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(made, "_go_on", go_on)
    monkeypatch.setattr(_PartStudy, "result", lambda study: study.part.path)
    assert made.run(100.0)["parts"] == ("a", "b", "c")
    assert whole.tried == tried
