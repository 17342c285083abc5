"""A program in parts: what becomes of it when one part is right alone and wrong in its place."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from togi.core.errors import SubjectError
from togi.core.records import (
    ErrorReport,
    ForcedCalls,
    Interval,
    Outcome,
    ProgramCall,
    ProgramTree,
    Recipe,
    Timing,
    Trial,
)
from togi.decide.choose import Chosen
from togi.search.settings import Settings
from togi.study.finals import Decision
from togi.study.parts import PARTS, PartsTuner, _for_parts, _Made, _PartStudy
from togi.study.progress import Progress
from togi.techniques import is_exact, recipe

ONE = Interval(median=1.0, low=1.0, high=1.0)


def report(units: float, *forced: ForcedCalls) -> ErrorReport:
    return ErrorReport(faithful=units <= 8, units=units, rmse=0.0, max_abs=0.0, forced=forced)


def timed(speedup_x: float) -> Timing:
    return Timing(latency_ms=ONE, speedup_x=Interval(median=speedup_x, low=0.95 * speedup_x, high=1.05 * speedup_x))


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


def part(path: str, units: float, *others: Recipe, share: float = 0.4) -> Any:
    """Twice as fast with OpenVINO, then with ``others``."""
    given = SimpleNamespace(path=path, form=0, copies=(path,), share=share, calls=1, module="Linear")
    study = _PartStudy(given)  # type: ignore[arg-type]
    study.runner = SimpleNamespace(log=SimpleNamespace(trials=tuple))  # type: ignore[assignment]
    trials = [
        Trial(recipe=each, outcome=Outcome.OK, error=report(units), timing=timed(2.0))
        for each in (recipe(openvino={}), *others)
    ]
    study.finals = Choices(trials)  # type: ignore[assignment]
    study.best = _Made(trials[0], {path: Path(path)})
    return study


class Whole:
    """A program that is right as long as none of ``guilty`` is in place: a part, or what is done to it."""

    left_s = math.inf
    speeds: dict[int, float] = {}
    """Its speed-up by the number of the trial; else 1."""

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
        reason, timing = "50 units" * bool(wrong), timed(self.speeds.get(len(self.tried), 1.0))
        return Trial(recipe=composed, outcome=outcome, reason=reason, error=error, timing=None if wrong else timing)


def tuner(whole: Whole, monkeypatch: pytest.MonkeyPatch, *studies: Any) -> Any:
    made = PartsTuner(whole, None, resume=False)  # type: ignore[arg-type]
    made._studies = list(studies)
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
    given = SimpleNamespace(path="a", form=0, calls=1, share=1.0, survey=None, weights={})
    study = _PartStudy(given)  # type: ignore[arg-type]
    opened = tuner(whole, monkeypatch, study)
    monkeypatch.setattr(opened, "_pool", lambda *_: SimpleNamespace(capture=fail, close=lambda: closed.append(True)))
    opened._explore_most_promising(time.monotonic() + 60.0)
    assert closed == [True], "and it is not opened again"
    assert study.reason == "its truth cannot be made"


def test_a_part_that_makes_the_program_wrong_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = Whole({"b"}), [part("a", 1.0), part("b", 5.0), part("c", 2.0)]
    tuner(whole, monkeypatch, *parts)._try_whole()
    assert whole.tried == [{"a", "b", "c"}, {"a", "c"}]
    assert [study.best is not None for study in parts] == [True, False, True]
    assert "50 units" in parts[1].reason
    assert parts[1].best is None


def test_what_was_seen_on_the_original_calls_says_more_than_the_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    forced = [
        ForcedCalls(path="a", calls=3, units=40.0, faithful=False),
        ForcedCalls(path="b", calls=3, units=2.0, faithful=True),
    ]
    whole, parts = Whole({"a"}, *forced), [part("a", 1.0), part("b", 5.0)]
    tuner(whole, monkeypatch, *parts)._try_whole()
    assert whole.tried == [{"a", "b"}, {"b"}]


def test_where_the_best_makes_the_program_wrong_the_second_best_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, study = Whole({"openvino"}), part("a", 1.0, recipe(torchscript={}))
    tuner(whole, monkeypatch, study)._try_whole()
    assert whole.done == [{"openvino"}, {"torchscript"}]
    assert study.best is not None
    assert study.reason == ""


def test_when_the_time_is_over_no_more_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, study = Whole({"a"}), part("a", 1.0, recipe(torchscript={}))
    whole.left_s = 0.0
    tuner(whole, monkeypatch, study)._try_whole()
    assert whole.done == [{"openvino"}]


def test_nothing_is_left_where_every_part_is_guilty(monkeypatch: pytest.MonkeyPatch) -> None:
    others = recipe(torchscript={}), recipe(aot_inductor={})
    whole, parts = Whole({"a", "b"}), [part("a", 1.0), part("b", 5.0, *others)]
    made = tuner(whole, monkeypatch, *parts)
    made._try_whole()
    assert whole.tried == [{"a", "b"}, {"a", "b"}, {"a"}], "a second best has one chance, and no third"
    assert not any(study.best for study in parts)
    for study in parts:
        made._save(study)
        assert "50 units" in study.reason
    made._try_whole()
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
        parts=[SimpleNamespace(path=path, form=0, share=share, calls=1) for path, share in shares.items()]
    )
    made = tuner(whole, monkeypatch)
    monkeypatch.setattr("togi.study.parts.record_parts", lambda _pool: cuts)

    def gain(study: Any) -> None:
        gained = part(study.part.path, 1.0)
        study.runner, study.best = gained.runner, gained.best
        study.runner.close, study.runner.pool = lambda: None, SimpleNamespace(close=lambda: None)

    def explore(study: Any, *_: object, **__: object) -> None:
        if study.part.path != gains_later:
            gain(study)

    def explore_most_promising(_until: float) -> None:
        for study in made._studies:
            if study.best is None:
                gain(study)

    monkeypatch.setattr(made, "_explore", explore)
    monkeypatch.setattr(made, "_explore_most_promising", explore_most_promising)
    made.run(100.0)
    assert whole.tried == tried


@pytest.mark.parametrize(("then", "goes_back"), [(1.3, True), (1.6, True), (2.2, False)])
def test_what_is_faster_alone_and_slower_in_the_program_goes(
    then: float, goes_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.5 times as fast with the first part; the second should save a tenth: 0.57 of the time, 1.76 x."""
    whole, first, second = Whole(set()), part("a", 1.0, share=0.6), part("b", 1.0, share=0.2)
    whole.speeds = {1: 1.5, 2: then, 3: 1.7}
    joined, second.best = second.best, None
    made = tuner(whole, monkeypatch, first, second)
    made._try_whole()
    before = first.best
    assert made._untried() == 0.0
    first.best, second.best = (
        _Made(Trial(recipe=recipe(torchscript={}), outcome=Outcome.OK, timing=timed(3.0)), {}),
        joined,
    )
    assert made._untried() == pytest.approx(0.1)
    made._try_whole()
    assert whole.done == [{"openvino"}, {"torchscript", "openvino"}, *[{"openvino"}] * goes_back]
    assert (first.best is before) == goes_back
    assert second.best is joined
    made._try_whole()
    assert len(whole.done) == 2 + goes_back, "nothing is tried twice"


def test_the_tree_tells_what_is_in_the_chosen_program(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, first, second = Whole(set()), part("a", 1.0, share=0.6), part("b", 1.0, share=0.2)
    joined, second.best = second.best, None
    made = tuner(whole, monkeypatch, first, second)
    tree = ProgramTree(calls=(ProgramCall(path="", module="Program", parent=None, calls=1, ms=1.0),))
    made._cuts = SimpleNamespace(tree=tree, obstacles=())
    assert [result.recipe for result in made.tree(None).parts] == [recipe(openvino={}), None], "as it would be"
    made._try_whole()
    assert [result.recipe for result in made.tree(None).parts] == [None, None], "the original was chosen"
    second.best = joined
    made._try_whole()
    alone, together = (each.trial for each in made._tried)
    assert [result.recipe for result in made.tree(together).parts] == [recipe(openvino={})] * 2
    left = made.tree(alone).parts
    assert [result.recipe for result in left] == [recipe(openvino={}), None]
    assert left[1].reason == "openvino is faster alone, and the program was not faster with it"


def test_the_part_of_which_most_is_expected_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its share of the program's time, which falls as it becomes faster."""
    explored = list[str]()
    whole = Whole(set())
    whole.progress = Progress()  # type: ignore[assignment]

    def with_promises(path: str, share: float, *promises: float) -> Any:
        study, left = part(path, 1.0, share=share), [*promises]

        def explore(*_: object, **__: object) -> None:
            explored.append(path)
            left.pop(0)

        study.runner = SimpleNamespace(promises=lambda _s: left[0] if left else 0.0, explore=explore)
        return study

    studies = [with_promises("a", 0.8, 0.03, 0.01, 0.001), with_promises("b", 0.2, 0.05, 0.02)]
    made = tuner(whole, monkeypatch, *studies)
    made._explore_most_promising(time.monotonic() + 60.0)
    assert explored == ["a", "b", "a", "b", "a"]
    studies[0].ended = True
    made._explore_most_promising(time.monotonic() - 1.0)
    assert len(explored) == 5
