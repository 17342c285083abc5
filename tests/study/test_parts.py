"""A program in parts: what becomes of it when one part is right alone and wrong in its place."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from togi.artifact.load import load
from togi.artifact.manifest import PARTS, Saved, read_manifest
from togi.core.errors import SubjectError, TogiError
from togi.core.records import (
    REFERENCE_RECIPE,
    ErrorReport,
    Facts,
    ForcedCalls,
    Interval,
    Outcome,
    ProgramCall,
    ProgramTree,
    Recipe,
    Timing,
    Trial,
)
from togi.core.settings import Settings
from togi.decide.choose import Chosen
from togi.machine.describe import machine
from togi.program.parts import Uncaptured
from togi.search.configurations import configurations_for
from togi.study.composed import Made, fastest_before
from togi.study.conclusion import NOTHING_FASTER
from togi.study.finals import Decision
from togi.study.in_place import InPlace
from togi.study.parts import PartsTuner, _for_parts, _PartStudy
from togi.study.progress import Progress
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.techniques import all_techniques, is_exact, recipe
from togi.worker.deadline import Deadline

ONE = Interval(median=1.0, low=1.0, high=1.0)


def report(units: float, *forced: ForcedCalls) -> ErrorReport:
    return ErrorReport(faithful=units <= 8, units=units, rmse=0.0, max_abs=0.0, forced=forced)


def timed(speedup_x: float) -> Timing:
    return Timing(latency_ms=ONE, speedup_x=Interval(median=speedup_x, low=0.95 * speedup_x, high=1.05 * speedup_x))


class Choices:
    """In place of ``Finals``: what is best, and what comes after it once that is set aside."""

    def __init__(self, trials: list[Trial]) -> None:
        self.trials = trials

        self.unusable: dict[Recipe, str] = {}
        self.saved: Decision | None = None

    def choice(self) -> Chosen:
        return Chosen(trial=self.trials[0] if self.trials else None, reason="")

    def save_only(self, first: Recipe | None = None) -> Decision:
        if not self.trials:
            return Decision(Chosen(trial=None, reason=""), None, ())
        trial = next((trial for trial in self.trials if trial.recipe == first), self.trials[0])
        if self.saved is None or self.saved.chosen.trial != trial:
            self.saved = Decision(Chosen(trial=trial, reason=""), Path("saved"), ())
        return self.saved

    def set_aside(self, candidate: Recipe, why: str) -> None:
        self.unusable[candidate] = why
        self.trials = [trial for trial in self.trials if trial.recipe != candidate]


def part(path: str, units: float, *others: Recipe, share: float = 0.4) -> Any:
    """Twice as fast with OpenVINO, then with ``others``."""
    given = SimpleNamespace(path=path, form=0, copies=(path,), share=share, calls=1, module="Linear")
    study = _PartStudy(given)  # type: ignore[arg-type]
    trials = [
        Trial(recipe=each, outcome=Outcome.OK, error=report(units), timing=timed(2.0))
        for each in (recipe(openvino={}), *others)
    ]
    opened = SimpleNamespace(
        budget=SimpleNamespace(ask_s=2.0),
        log=SimpleNamespace(trials=lambda: trials),
        search=SimpleNamespace(stopped="the time is over"),
        processes=SimpleNamespace(),
        subject=SimpleNamespace(),
    )
    study.runner = SimpleNamespace(study=opened)  # type: ignore[assignment]
    study.finals = Choices(trials)  # type: ignore[assignment]
    study.best = Made(trials[0], {path: Path(path)})
    return study


def not_yet_faster(path: str, units: float, share: float = 0.4) -> Any:
    study = part(path, units, share=share)
    study.best, study.finals.trials = None, []
    return study


def gain(study: Any, speedup_x: float = 2.0, units: float = 1.0, **engine: Any) -> Recipe:
    """It is so much faster now, with ``engine``."""
    found = recipe(**engine) if engine else recipe(openvino={})
    trial = Trial(recipe=found, outcome=Outcome.OK, error=report(units), timing=timed(speedup_x), cost_s=5.0)
    study.finals.trials.insert(0, trial)
    return found


class Whole:
    """A program that is right as long as none of ``guilty`` is in place: a part, or what is done to it."""

    left_s = math.inf
    fault = Outcome.WRONG
    """How it ends with the guilty."""
    speeds: dict[int, float] = {}
    """Its speed-up by the number of the trial; else 1."""

    def __init__(self, guilty: set[str], *forced: ForcedCalls) -> None:
        self.guilty, self.forced, self.tried, self.done = guilty, forced, list[set[str]](), list[set[str]]()
        self.progress = None
        self.subject = SimpleNamespace(
            settings=None, pool=SimpleNamespace(deadline=Deadline()), limits=None, make_truth=lambda _tell: None
        )
        self.budget, self.proof_s, self.processes = self, 0.0, SimpleNamespace(composed={})
        self.log = SimpleNamespace(trials=tuple)

    def explore_s(self, *, race: bool = True) -> float:
        return self.left_s

    def try_composed(self, composed: Recipe, folder: Path) -> Trial:
        options = composed.find(PARTS).options  # type: ignore[union-attr]
        self.tried.append(set(options))
        self.done.append({str(work) for work in options.values()})
        wrong = self.guilty & (self.tried[-1] | self.done[-1])
        outcome = self.fault if wrong else Outcome.OK
        error = report(50.0 if wrong else 1.0, *self.forced) if outcome in (Outcome.OK, Outcome.WRONG) else None
        reason, timing = "50 units" * bool(wrong), timed(self.speeds.get(len(self.tried), 1.0))
        return Trial(recipe=composed, outcome=outcome, reason=reason, error=error, timing=None if wrong else timing)


def tuner(whole: Whole, monkeypatch: pytest.MonkeyPatch, *studies: Any) -> Any:
    made = PartsTuner(whole, whole.try_composed, None, resume=False)  # type: ignore[arg-type]
    made._studies = list(studies)
    monkeypatch.setattr("togi.study.parts.compose", lambda *_: Path("composed"))
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
    whole.subject.settings, whole.subject.name = Settings(), "program"
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
    whole.subject.name, whole.progress = "program", Progress()  # type: ignore[attr-defined,assignment]
    cuts = SimpleNamespace(
        parts=[
            SimpleNamespace(path=path, form=0, copies=(path,), share=share, calls=1) for path, share in shares.items()
        ],
        uncaptured=(),
        repeated=(),
    )
    made = tuner(whole, monkeypatch)
    monkeypatch.setattr("togi.study.parts.record_parts", lambda _pool: cuts)
    monkeypatch.setattr("togi.study.parts.conclude", lambda *_: None)

    def become_faster(study: Any) -> None:
        gained = part(study.part.path, 1.0)
        study.runner, study.finals = gained.runner, gained.finals
        opened = study.runner.study
        opened.processes.close, opened.subject.pool = lambda: None, SimpleNamespace(close=lambda: None)

    def explore(study: Any, *_: object, **__: object) -> None:
        if study.part.path != gains_later:
            become_faster(study)

    def explore_most_promising(_until: float) -> None:
        for study in made._studies:
            if study.best is None:
                become_faster(study)

    monkeypatch.setattr(made, "_explore", explore)
    monkeypatch.setattr(made, "_explore_most_promising", explore_most_promising)
    made.run(100.0)
    assert whole.tried == tried


@pytest.mark.parametrize(("then", "goes_back"), [(1.3, True), (1.6, True), (2.2, False)])
def test_what_is_faster_alone_and_slower_in_the_program_goes(
    then: float, goes_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.5 times as fast with the first part; the second should save a tenth: 0.57 of the time, 1.76 x."""
    whole, first, second = Whole(set()), part("a", 1.0, share=0.6), not_yet_faster("b", 1.0, share=0.2)
    whole.speeds = {1: 1.5, 2: then, 3: 1.7}
    made = tuner(whole, monkeypatch, first, second)
    made._try_whole()
    before = first.best
    assert made._untried() == 0.0
    gain(second)
    assert made._untried() == pytest.approx(0.1)
    gain(first, 3.0, torchscript={})
    assert made._untried() == pytest.approx(0.1 + 0.6 * (1 / 2 - 1 / 3))
    made._try_whole()
    assert whole.done == [{"openvino"}, {"torchscript", "openvino"}, *[{"openvino"}] * goes_back]
    assert (first.best is before) == goes_back
    assert second.best is not None
    made._try_whole()
    assert len(whole.done) == 2 + goes_back, "nothing is tried twice"


def test_the_tree_tells_what_is_in_the_chosen_program(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, first, second = Whole(set()), part("a", 1.0, share=0.6), not_yet_faster("b", 1.0, share=0.2)
    made = tuner(whole, monkeypatch, first, second)
    tree = ProgramTree(calls=(ProgramCall(path="", module="Program", parent=None, calls=1, ms=1.0),))
    made._cuts = SimpleNamespace(tree=tree, obstacles=())
    untried = made.tree(None).parts
    assert [result.recipe for result in untried] == [None, None]
    assert untried[0].reason == "openvino is faster alone, and it was not tried in the program"
    made._try_whole()
    assert [result.recipe for result in made.tree(None).parts] == [None, None], "the original was chosen"
    gain(second)
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


def test_what_joined_is_to_blame_before_what_was_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself the first errs more, and the program was right with it."""
    whole, first, second = Whole({"b"}), part("a", 5.0), not_yet_faster("b", 1.0)
    made = tuner(whole, monkeypatch, first, second)
    made._try_whole()
    gain(second)
    made._try_whole()
    assert whole.tried == [{"a"}, {"a", "b"}]
    assert first.best is not None
    assert second.best is None


@pytest.mark.parametrize("fault", [Outcome.FAILED, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY])
def test_a_program_that_ends_is_tried_without_the_part_it_ended_with(
    fault: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = Whole({"b"}), [part("a", 1.0), part("b", 5.0)]
    whole.fault = fault
    freed = [True, False]
    parts[0].runner.study.processes.free_memory = lambda: freed.pop(0) if fault is Outcome.OUT_OF_MEMORY else False
    parts[1].runner.study.processes.free_memory = lambda: False
    made = tuner(whole, monkeypatch, *parts)
    made._try_whole()
    again = [{"a", "b"}] * (fault is Outcome.OUT_OF_MEMORY)
    assert whole.tried == [{"a", "b"}, *again, {"a"}], "once more where memory was freed"
    assert parts[1].reason.startswith("the program ended with it")


def test_a_program_that_could_not_be_judged_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, study = Whole({"a"}), part("a", 1.0)
    whole.fault = Outcome.UNSTABLE
    made = tuner(whole, monkeypatch, study)
    for _ in range(3):
        made._try_whole()
    assert whole.tried == [{"a"}] * 2
    assert "the program ended with it: 50 units" in made_tree(made, None).parts[0].reason


def made_tree(made: Any, chosen: Trial | None) -> ProgramTree:
    call = ProgramCall(path="", module="Program", parent=None, calls=1, ms=1.0)
    made._cuts = SimpleNamespace(tree=ProgramTree(calls=(call,)), obstacles=())
    return made.tree(chosen)  # type: ignore[no-any-return]


def test_what_the_program_went_back_to_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest alone is saved again and again, and it is known: the program is slower with it."""
    whole, first, second = Whole(set()), part("a", 1.0, share=0.6), not_yet_faster("b", 1.0, share=0.2)
    whole.speeds = {1: 1.5, 2: 1.3, 3: 1.7}
    made = tuner(whole, monkeypatch, first, second)
    made._try_whole()
    before = first.best
    gain(first, 3.0, torchscript={})
    gain(second)
    made._try_whole()
    assert first.best is before
    made._try_whole()
    assert first.best is before
    trial = first.finals.trials[0]
    first.left_out.add(before.recipe)
    first.best = Made(trial, {"a": Path("a")})
    assert not made._go_back(), "and not to what was wrong"


def test_options_tell_two_recipes_of_a_part_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the second was tried after the first was in the program."""
    whole, study = Whole(set()), part("a", 1.0)
    made = tuner(whole, monkeypatch, study)
    study.finals.trials = []
    for options in ({"stateful": True}, {}):
        gain(study, openvino=options)
        made._try_whole()
    assert whole.done == [{"openvino(stateful=True)"}, {"openvino"}]


def test_a_program_that_an_earlier_study_chose_is_put_together_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with what is fastest alone, with which it was slower."""

    def program(work: str, speedup_x: float) -> Trial:
        return Trial(recipe=recipe(parts={"a": work}, no_grad={}), outcome=Outcome.OK, timing=timed(speedup_x))

    whole, study = Whole(set()), part("a", 1.0, recipe(torchscript={}))
    wrong = program("aot_inductor", 3.0).model_copy(update={"outcome": Outcome.WRONG})
    study.best = None
    made = tuner(whole, monkeypatch, study)
    made._before = fastest_before([program("torchscript", 1.5), program("openvino", 1.2), wrong])
    for _ in range(2):
        made._try_whole()
    assert whole.done == [{"torchscript"}, {"openvino"}]
    assert fastest_before([wrong]) == {}
    assert fastest_before([]) == {}


def test_forms_of_one_module_keep_their_copies_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole, saved = Whole(set()), list[Path]()
    whole.subject.pool, whole.subject.name = SimpleNamespace(folder=tmp_path), "program"
    made = tuner(whole, monkeypatch)

    class Running:
        error = None

        def __enter__(self) -> Running:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def save(self, folder: Path, _ask_s: float) -> Any:
            saved.append(folder)
            return Saved()

    survey = SimpleNamespace(facts=None, signature=SimpleNamespace(within=lambda _: None))
    pool = SimpleNamespace(
        capture=lambda *_, **__: survey, make_truth=lambda *_: None, start=lambda *_: Running(), close=lambda: None
    )
    monkeypatch.setattr(made, "_pool", lambda *_: pool)
    monkeypatch.setattr("togi.study.parts.write_manifest", lambda *_, **__: None)
    for form in range(2):
        study = part("l.0", 1.0)
        study.part.form, study.part.copies, study.part.survey = form, ("l.0", "l.1"), None
        study.runner.study.subject.accepted = lambda _: (Outcome.OK, "")  # the bounds of a part, not the program's
        assert made._copy(study, "l.1", recipe(openvino={})) == saved[-1]
    assert len(set(saved)) == 2


def test_copies_that_could_not_be_made_save_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where no time is left, none is made: the program is to be tried yet."""
    whole, study = Whole(set()), part("l.0", 1.0, share=0.8)
    study.part.copies, study.best = ("l.0", "l.1", "l.2", "l.3"), None
    made = tuner(whole, monkeypatch, study)
    monkeypatch.setattr(made, "_copy", lambda _, path, __: None if path == "l.2" else Path(path))
    made._save(study)
    assert study.saves(study.best) == pytest.approx(0.4 * 3 / 4)
    made._try_whole()
    assert "in 3 of 4 alike" in made_tree(made, made._tried[-1].trial).parts[0].reason
    whole.left_s, study.best, study.decision = -1.0, None, None
    made._save(study)
    assert study.saves(study.best) == pytest.approx(0.4 / 4)


def test_opening_a_part_takes_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, allowed = Whole(set()), list[float]()
    study, clock = _PartStudy(SimpleNamespace(path="a", form=0, share=1.0)), [0.0]  # type: ignore[arg-type]
    whole.subject.pool = SimpleNamespace(folder=Path(), deadline=Deadline())
    made = tuner(whole, monkeypatch, study)
    monkeypatch.setattr("togi.study.parts.time", SimpleNamespace(monotonic=lambda: clock[0]))

    def opened(*_: object) -> Any:
        clock[0] += 7.0
        return SimpleNamespace(
            study=SimpleNamespace(subject=SimpleNamespace(settings=Settings())),
            try_reference=lambda: None,
            explore=lambda seconds, **_: allowed.append(seconds),
        )

    monkeypatch.setattr(made, "_open", opened)
    made._explore(study, 10.0)
    made._explore(study, 5.0)
    assert allowed == [3.0, 5.0]


@pytest.mark.parametrize(("left_s", "at_least"), [(3600.0, 2500.0), (math.inf, 500.0)])
def test_parts_have_the_time_that_there_is(left_s: float, at_least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, until = Whole(set()), list[float]()
    whole.subject.name, whole.progress = "program", Progress()  # type: ignore[attr-defined,assignment]
    made = tuner(whole, monkeypatch)
    monkeypatch.setattr(
        "togi.study.parts.record_parts", lambda _pool: SimpleNamespace(parts=[], uncaptured=(), repeated=())
    )
    monkeypatch.setattr(made, "_explore_most_promising", until.append)
    made.run(left_s)
    assert at_least < until[0] - time.monotonic() < math.inf


def test_a_part_whose_reference_fails_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, tried = Whole(set()), list[str]()
    whole.subject.pool, whole.progress = SimpleNamespace(folder=Path(), deadline=Deadline()), Progress()
    study = _PartStudy(SimpleNamespace(path="a", form=0, share=1.0, calls=1))  # type: ignore[arg-type]
    made = tuner(whole, monkeypatch, study)

    def fail() -> None:
        tried.append("reference")
        raise SubjectError("its reference ran out of memory")

    opened = SimpleNamespace(subject=SimpleNamespace(settings=Settings()))
    runner = SimpleNamespace(study=opened, try_reference=fail, explore=tried.append)
    monkeypatch.setattr(made, "_open", lambda *_: runner)
    made._explore_most_promising(time.monotonic() + 60.0)
    assert tried == ["reference"]
    assert (study.reason, study.ended) == ("its reference ran out of memory", True)


def test_it_is_told_why_a_part_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, study = Whole(set()), part("a", 1.0)
    made = tuner(whole, monkeypatch, study)
    study.best, study.finals.trials = None, []
    study.finals.unusable[recipe(openvino={})] = "it has no file form here"
    made._save(study)
    assert study.reason == "openvino was set aside: it has no file form here"
    study.finals.unusable.clear()
    made._save(study)
    assert study.reason == NOTHING_FASTER
    study.runner.study.log.trials = lambda: [Trial(recipe=REFERENCE_RECIPE, outcome=Outcome.OK)]
    made._save(study)
    assert study.reason == "nothing was tried on it: the time is over"


def test_the_program_tells_which_of_two_engines_is_faster_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is faster alone by less than what a part's place in the program may do."""
    whole, study = Whole(set()), part("a", 1.0)
    fastest = study.finals.trials.pop()
    gain(study, 1.5, aot_inductor={})
    other = gain(study, 1.9, torchscript={})
    gain(study, 1.95, openvino={"streams": 2})
    study.finals.trials.insert(0, fastest)
    study.runner.study.log.trials = lambda: study.finals.trials
    whole.speeds = {1: 1.4, 2: 1.6}
    made = tuner(whole, monkeypatch, study)
    made._try_whole()
    whole.left_s = 4.0
    made._try_rivals()
    assert whole.done == [{"openvino"}], "building it would take longer"
    whole.left_s = 100.0
    made._try_rivals()
    assert whole.done == [{"openvino"}, {"torchscript"}]
    assert made._fastest.recipes == {"a": other}
    made._try_rivals()
    assert len(whole.done) == 2


def test_a_part_that_gains_nothing_alone_is_tried_beside_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original of the second, between calls of an engine, is in its way."""
    whole, first, second = Whole(set()), part("a", 0.8), not_yet_faster("b", 0.2)
    whole.speeds = {1: 1.4, 2: 1.6}
    made = tuner(whole, monkeypatch, first, second)
    made._try_whole()
    assert made._fastest.made.keys() == {"a"}
    gain(second, 0.8, onnxruntime={})
    near = gain(second, 0.97, openvino={"streams": 2})
    second.runner.study.log.trials = lambda: second.finals.trials
    whole.left_s = 100.0
    made._try_rivals()
    assert made._fastest.recipes["b"] == near
    assert len(whole.done) == 2, "what is slower by a fifth is not tried"


def test_the_program_is_tried_again_as_soon_as_its_parts_should_save_a_tenth_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, study = Whole(set()), part("a", 1.0, share=0.8)
    made = tuner(whole, monkeypatch, study)
    made._try_whole(0.1)
    for speedup_x, tries in ((2.2, 1), (3.0, 2)):
        gain(study, speedup_x, onnxruntime={"opset": round(10 * speedup_x)})
        made._try_whole(0.1)
        assert len(whole.tried) == tries
    study.left_out |= {recipe(openvino={}), recipe(torchscript={})}
    study.best = None
    assert study.should_save == 0.0


def in_place(path: str, *engines: Recipe, alike: tuple[str, ...] = ()) -> Any:
    """A module that is not captured, or blocks that are alike, with what is tried on it."""
    places = [Uncaptured(path=each, module="Network", share=0.4, calls=1, weights="") for each in (path, *alike)]
    found = InPlace(None, *places)  # type: ignore[arg-type]
    left = [Made(Trial(recipe=each, outcome=Outcome.OK), {path: Path("options")}) for each in engines]
    found.next = lambda: left.pop(0) if left else None  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(
    ("engine", "at_once"),
    [({"torchscript": {}}, True), ({"aot_inductor": {}}, True), ({"openvino": {}}, False), ({}, True)],
    ids=["torchscript", "aot_inductor", "openvino", "none"],
)
def test_what_is_not_captured_is_compiled_at_once_where_torchs_own_engines_are_fastest(
    engine: dict[str, Any], at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of the parts inside of it, and beside those outside of it."""
    whole, inside, outside = Whole(set()), not_yet_faster("net.layers.0", 1.0), part("network", 1.0)
    if engine:
        gain(inside, **engine)
    whole.speeds = {1: 1.5, 2: 1.8}
    made = tuner(whole, monkeypatch, inside, outside)
    made._in_place = [in_place("net", recipe(torch_compile={"freezing": True}))]
    made._try_whole()
    both = {"network", "net.layers.0"} if engine else {"network"}
    made._try_in_place(first=True)
    assert whole.tried == [both, *[{"network", "net"}] * at_once]
    made._try_in_place()
    assert whole.tried == [both, {"network", "net"}]
    assert whole.done[1] == {"openvino", "torch_compile(freezing=True)"}
    parts = {each.path: each for each in made_tree(made, made._tried[1].trial).parts}
    assert {path for path, each in parts.items() if each.recipe is not None} == {"network", "net"}
    if engine:
        assert parts["net.layers.0"].reason.endswith("is faster alone, and the program is faster without it")
    parts = {each.path: each for each in made_tree(made, made._tried[0].trial).parts}
    assert parts["net"].recipe is None
    assert parts["net"].reason == "compiled where it stands: the program is faster without it"


def test_how_it_is_compiled_where_it_stands_is_its_whole_artifact(tmp_path: Path) -> None:
    """Each way is tried once, where there is time for it and its proof."""
    facts = Facts(device="cpu", machine=machine("cpu").model_copy(update={"compiler": "g++"}), module_class="Network")
    configurations, _ = configurations_for(facts, Settings(), all_techniques())
    layer, sample = nn.Linear(2, 2), Inputs((torch.ones(1, 2),))
    whole: Any = Whole(set())
    whole.search = SimpleNamespace(space=SimpleNamespace(configurations=configurations))
    whole.subject.pool, whole.subject.name, whole.subject.facts = SimpleNamespace(folder=tmp_path), "program", facts
    whole.subject.signature = Signature.of(layer, [sample], [layer(*sample.args)])
    found = InPlace(whole, Uncaptured(path="", module="Network", share=1.0, calls=1, weights="hash"))
    assert found.holds("net.layers")
    whole.left_s = 7.0
    assert found.next() is None
    whole.left_s = 8.0
    made = [found.next(), found.next()]
    assert found.next() is None
    for freezing, each in zip((True, False), made, strict=True):
        assert each is not None
        ((entry, folder),) = found.placed(each)
        (link,) = read_manifest(folder).chain
        assert (entry.path, entry.module, entry.weights) == ("", "Network", "hash")
        assert (link.engine, link.meta["options"]["freezing"]) == ("torch_compile", freezing)
        assert [choice.technique for choice in link.runtime] == ["no_grad"], "as the original was measured"
        loaded = load(folder)
        assert loaded.in_place
        with pytest.raises(TogiError, match=r"togi.load\(path\).into\(program\)"):
            loaded(torch.ones(1, 2))


def test_what_settings_alone_make_faster_is_tried_round_the_calls_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, quick = Whole(set()), recipe(inference_mode={})
    made = tuner(whole, monkeypatch)
    made._in_place = [in_place("a", alike=("b",)), in_place("net"), in_place("other")]
    for found in made._in_place:
        found.made = lambda chosen: Made(Trial(recipe=chosen, outcome=Outcome.OK), {"0": Path("settings")})
    whole.subject.facts = Facts(device="cpu", machine=machine("cpu"), module_class="Network")
    made.try_settings()
    assert whole.tried == []
    faster = Trial(recipe=quick, outcome=Outcome.OK, timing=timed(1.3), error=report(1.0))
    whole.log.trials = lambda: (faster,)
    made.try_settings()
    assert whole.tried == [{"net", "other"}]
    assert whole.done == [{"inference_mode"}]
    whole.processes.composed[made._tried[0].recipe] = Path("settings")
    made.try_settings()
    assert len(whole.tried) == 1


def test_blocks_that_repeat_come_before_what_they_are_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """And instead of it; at once until one is faster."""
    whole, blocks = Whole(set()), [part("net.layers.0", 1.0), part("head", 1.0)]
    whole.speeds = {1: 1.5, 2: 1.8}
    made = tuner(whole, monkeypatch, *blocks)
    gain(blocks[0], torchscript={})
    compiled = [recipe(torch_compile={"freezing": freezing}) for freezing in (False, True)]
    made._in_place = [in_place("net.layers.0", compiled[0], alike=("net.layers.1",)), in_place("", compiled[1])]
    made._try_whole()
    made._try_in_place(first=True)
    made._try_in_place()
    both, repeated = {"net.layers.0", "head"}, {"net.layers.0 and 1 alike", "head"}
    assert whole.tried == [both, repeated, {"program"}]
    part_of = {each.path: each for each in made_tree(made, made._tried[1].trial).parts if each.recipe is not None}
    assert part_of["net.layers.0"].copies == ("net.layers.0", "net.layers.1")
    assert "head" in part_of


def test_what_is_compiled_for_a_block_holds_no_weights() -> None:
    """Or each would be compiled by itself. It takes less than the whole."""
    facts = Facts(device="cpu", machine=machine("cpu").model_copy(update={"compiler": "g++"}), module_class="Network")
    configurations, _ = configurations_for(facts, Settings(), all_techniques())
    whole: Any = Whole(set())
    whole.search = SimpleNamespace(space=SimpleNamespace(configurations=configurations))
    blocks = [Uncaptured(path=path, module="Block", share=0.4, calls=1, weights="hash") for path in ("a", "b", "a")]
    found = InPlace(whole, *blocks)
    made: list[Recipe] = []
    found.made = lambda chosen: made.append(chosen) or True  # type: ignore[method-assign,assignment,func-returns-value,return-value]
    whole.left_s = 3.0
    assert found.next() is None
    whole.left_s = 4.0
    assert found.next() is not None
    assert found.next() is None
    assert made == [recipe(torch_compile={"mode": "default", "freezing": False}, no_grad={})]


@pytest.mark.parametrize(
    ("path", "held"),
    [("net", [True, True, False]), ("", [True, True, True]), ("net.layers", [False, True, False])],
)
def test_which_parts_are_inside(path: str, held: list[bool]) -> None:
    found = in_place(path)
    assert [found.holds(part) for part in ("net", "net.layers", "network")] == held
