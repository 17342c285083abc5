"""The order in which parts are tuned and the program is tried with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.study.parts.part_fakes import OPENVINO, Program, Trials, part, trial
from tests.study.stand_ins import Clock
from togi.core.records import ProgramCall, ProgramTree, Recipe, Trial
from togi.program.parts import Cuts, Part
from togi.study.parts import PartsTuner
from togi.study.parts.part_runner import PartRunner
from togi.study.progress import Progress
from togi.techniques import recipe


class Whole:
    """The study of a program, whose parts are found and opened without a process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *parts: Part, trials: Mapping[str, Trials] | None = None):
        self.program, self.opened = Program(), list[str]()
        self.trials = dict(trials or {each.key.path: Trials() for each in parts})
        tree = ProgramTree(calls=(ProgramCall(path="", module="Program", parent=None, calls=1, ms=1.0),))
        cuts = Cuts.model_construct(tree=tree, parts=parts, obstacles=(), uncaptured=(), repeated=())
        monkeypatch.setattr("togi.study.parts.tuner.record_parts", lambda _pool: cuts)
        monkeypatch.setattr("togi.study.parts.tuner.write_assembly", lambda _whole, assembly: assembly)
        monkeypatch.setattr(PartRunner, "open", self._open)
        self.subject = SimpleNamespace(name="program", pool=None)
        self.progress, self.budget = Progress(), self.program
        self.log = SimpleNamespace(trials=tuple)
        self.notes: list[str] = []

    def make_truth(self) -> None:
        """It is there."""

    def _open(self, _whole: object, _journal: object, of: Part, *_: object, **__: object) -> Trials:
        self.opened.append(of.key.path)
        return self.trials[of.key.path]

    def tuner(self) -> PartsTuner:
        whole: Any = self
        journal: Any = None
        return PartsTuner(whole, self._try_composed, journal, resume=False)

    def _try_composed(self, _recipe: object, assembly: Any) -> Trial:
        return self.program.attempt(assembly)


def tuned(whole: Whole, left_s: float = 100.0) -> PartsTuner:
    tuner = whole.tuner()
    tuner.run(left_s)
    return tuner


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
    trials = {path: Trials() for path in shares}
    for path, of_part in trials.items():
        of_part.later = [trial(OPENVINO)]
        if path == gains_later:
            explore, of_part.promised = of_part.explore, [0.01]

            def later(
                seconds: float, *, first_gain: bool = False, trials: int | None = None, explore: Any = explore
            ) -> None:
                if not first_gain:
                    explore(seconds, first_gain=first_gain, trials=trials)

            monkeypatch.setattr(of_part, "explore", later)
    whole = Whole(monkeypatch, *(part(path, share=share) for path, share in shares.items()), trials=trials)
    tuned(whole)
    assert whole.program.tried == tried
    assert all(of_part.closed for of_part in trials.values())


def test_the_part_of_which_most_is_expected_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its share of the program's time."""
    explored: list[str] = []

    class Noted(Trials):
        def __init__(self, path: str, *promised: float) -> None:
            super().__init__()
            self.path, self.promised = path, [*promised]

        def explore(self, seconds: float, *, first_gain: bool = False, trials: int | None = None) -> None:
            explored.append(self.path)
            super().explore(seconds, first_gain=first_gain, trials=trials)

    trials = {"a": Noted("a", 0.03, 0.01, 0.001), "b": Noted("b", 0.05, 0.02)}
    tuned(Whole(monkeypatch, part("a", share=0.8), part("b", share=0.2), trials=trials))
    assert explored[:2] == ["a", "b"], "each once before"
    assert explored[2:] == ["a", "b", "a", "b", "a"]


@pytest.mark.parametrize(("left_s", "at_least"), [(3600.0, 2500.0), (math.inf, 500.0)])
def test_parts_have_the_time_that_there_is(left_s: float, at_least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials()
    tuned(Whole(monkeypatch, part("a", share=1.0), trials={"a": trials}), left_s)
    assert at_least < trials.explored[0] < math.inf


def test_a_part_for_which_no_time_is_left_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Whole(monkeypatch, part("a", share=1.0))
    tree = tuned(whole, 5.0).tree(None)
    assert whole.opened == []
    assert tree is not None
    assert [found.reason for found in tree.parts] == ["only 3 s were left for it"]


def test_what_was_not_recorded_has_no_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Whole(monkeypatch).tuner().tree(None) is None


def test_what_parts_in_8_bits_are_calibrated_on_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    int8 = recipe(openvino={}, int8_openvino={"preset": "performance"})
    for of, said in ((OPENVINO, 0), (int8, 1)):
        trials = Trials()
        trials.later = [trial(of)]
        whole = Whole(monkeypatch, part("a"), trials={"a": trials})
        tuned(whole)
        assert len(whole.notes) == said
        assert all("calibrated on the calls" in note for note in whole.notes)


def test_another_part_begins_with_what_is_faithful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that won elsewhere the approximate one waits, as it does in every study."""
    int8 = recipe(openvino={}, int8_openvino={"preset": "performance"})
    given: dict[str, list[Recipe]] = {}

    def opened(_whole: Any, _journal: Any, of: Part, firsts: Iterable[Recipe], *_: Any, **__: Any) -> Trials:
        given[of.key.path] = list(firsts)
        return whole.trials[of.key.path]

    trials = {path: Trials() for path in "abc"}
    for path, found in (("a", int8), ("b", OPENVINO)):
        trials[path].later = [trial(found)]
    shares = {"a": 0.5, "b": 0.3, "c": 0.1}
    whole = Whole(monkeypatch, *(part(path, share=share) for path, share in shares.items()), trials=trials)
    whole.program.speeds = {1: 1.5, 2: 2.0}
    monkeypatch.setattr(PartRunner, "open", opened)
    tuned(whole)
    assert given == {"a": [], "b": [], "c": [OPENVINO]}


def test_what_trials_of_the_program_took_comes_from_what_is_kept_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """And time for one more stays, so that what the next part gains can be tried in it."""
    clock = Clock()
    monkeypatch.setattr("togi.study.parts.tuner.time", SimpleNamespace(monotonic=clock))
    trials = {path: Trials() for path in "ab"}
    for of_part in trials.values():
        of_part.later = [trial(OPENVINO)]
    whole = Whole(monkeypatch, part("a", share=0.5), part("b", share=0.5), trials=trials)
    attempt = whole.program.attempt

    def takes_20_s(assembly: Any) -> Trial:
        clock.now_s += 20.0
        return attempt(assembly)

    monkeypatch.setattr(whole.program, "attempt", takes_20_s)
    tuned(whole, 100.0)
    given = [of_part.explored[0] for of_part in trials.values()]
    assert given == pytest.approx([0.5 * (100.0 - 30.0), 0.5 * (100.0 - 20.0 - 20.0)], abs=1.0)


def test_parts_have_what_race_and_proof_are_found_not_to_need(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = {path: Trials() for path in "ab"}
    trials["a"].later = [trial(OPENVINO)]
    whole = Whole(monkeypatch, part("a", share=0.5), part("b", share=0.5), trials=trials)
    whole.program.left_s, attempt = 100.0, whole.program.attempt

    def learns(assembly: Any) -> Trial:
        whole.program.left_s = 120.0
        return attempt(assembly)

    monkeypatch.setattr(whole.program, "attempt", learns)
    tuned(whole, 100.0)
    given = [of_part.explored[0] for of_part in trials.values()]
    assert given == pytest.approx([0.5 * (100.0 - 30.0), 0.5 * (120.0 - 30.0)], abs=1.0)
