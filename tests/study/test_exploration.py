"""What a study tries: the whole, or its parts, also where engines of the whole disagree about sizes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.study.stand_ins import MACHINE, WRONG, Does, compose, open_study, pool_of, trial
from togi.core.recipe import PartKey, ProgramRecipe
from togi.core.records import REFERENCE_RECIPE, ErrorReport, Facts, Recipe, Trial
from togi.journal import Journal
from togi.study import run
from togi.study.failures import OutOfTime
from togi.study.run import Exploration
from togi.study.runner import StudyRunner
from togi.techniques import recipe

OTHER_SIZES = WRONG.model_copy(update={"other_sizes": True, "problems": ("output has shape (9,), the original (8,)",)})
OTHER_DECISIONS = WRONG.model_copy(update={"other_decisions": True})
PROGRAM = ProgramRecipe.of({PartKey(path="layer"): recipe(openvino={})})


class Parts:
    """What a program is cut into: nothing."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def run(self, left_s: float, *why: str) -> None:
        self.asked.append(("run", left_s > 0, *why))

    def try_settings(self) -> None:
        self.asked.append("settings")

    def tree(self, chosen: Trial | None) -> Any:
        return "tree"


class Built(dict[Recipe, list[Does]]):
    def __init__(self, engine: Does) -> None:
        super().__init__()
        self._engine = engine

    def __missing__(self, asked: Recipe) -> list[Does]:
        return [Does() if asked.is_reference or not asked.find("openvino") else self._engine]


def explored(folder: Path, engine: Does, *, exportable: bool = True) -> tuple[Exploration, Parts, list[Recipe]]:
    facts = Facts(machine=MACHINE, module_class="Net", exportable=exportable, export_error=None if exportable else "no")
    study, parts = open_study(folder, facts=facts, only=("openvino", "inference_mode"), time_limit_s=100), Parts()
    pool: Any = pool_of(study)
    pool.built, pool.make_truth = Built(engine), lambda facts, *_, **__: facts
    exploration = Exploration(StudyRunner(study), parts)  # type: ignore[arg-type]
    exploration.run()
    return exploration, parts, [trial.recipe for trial in study.log.trials()]


@pytest.mark.parametrize("engine", [Does.faster(2.0), Does(), Does(error=WRONG)])
def test_what_can_be_captured_is_not_cut(tmp_path: Path, engine: Does) -> None:
    exploration, parts, tried = explored(tmp_path, engine)
    assert parts.asked == []
    assert exploration.tree(None) is None
    assert tried[0] == REFERENCE_RECIPE


def test_what_cannot_be_captured_is_cut_at_once(tmp_path: Path) -> None:
    exploration, parts, _ = explored(tmp_path, Does(), exportable=False)
    assert parts.asked[0] == ("run", True)
    assert parts.asked.count("settings") == 2
    assert exploration.tree(None) == "tree"


@pytest.mark.parametrize("error", [OTHER_SIZES, OTHER_DECISIONS])
def test_what_decides_by_values_is_cut_where_a_first_engine_disagrees(tmp_path: Path, error: ErrorReport) -> None:
    exploration, parts, tried = explored(tmp_path, Does(error=error))
    ran, _, why = parts.asked[0]
    assert (ran, "decides by values" in why) == ("run", True)
    assert sum(found == "settings" for found in parts.asked) == 2
    assert exploration.tree(None) == "tree"
    assert len(tried) > 2, "what is left of the whole is tried after its parts"


@pytest.mark.parametrize(("ends", "raced"), [(0.3, True), (0.01, None), (None, False)])
def test_what_may_be_a_gain_keeps_time_for_its_race(tmp_path: Path, ends: float | None, raced: bool | None) -> None:
    """1.3 to 2.5 times as fast: a race tells whether it is one. What is one beyond doubt ends the exploring."""
    facts = Facts(machine=MACHINE, module_class="Net", exportable=False, export_error="no")
    study, seconds = open_study(tmp_path, facts=facts, time_limit_s=100), list[float]()

    class Found(Parts):
        def run(self, left_s: float, *why: str) -> None:
            if ends is not None:
                study.search.tell(trial(PROGRAM, 1.9, ends=ends))

    runner: Any = SimpleNamespace(
        study=study,
        try_reference=lambda: None,
        try_original=lambda: None,
        explore=lambda left_s, **_: seconds.append(left_s),
    )
    Exploration(runner, Found()).run()  # type: ignore[arg-type]
    expected = [] if raced is None else [study.budget.explore_s(race=raced), study.budget.explore_s()]
    assert seconds == expected


@pytest.mark.parametrize("gained", [True, False])
def test_a_program_is_kept_where_the_time_is_over_before_the_originals_own_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gained: bool
) -> None:
    """Without any gain nothing could be tried."""

    class Late(Exploration):
        def run(self) -> None:
            raise OutOfTime("the time limit was over while the original was still in measure")

    monkeypatch.setattr(run, "Exploration", Late)
    study = open_study(tmp_path, *[trial(PROGRAM, 2.0)] * gained)
    if gained:
        compose(study, tmp_path, PROGRAM)
    journal = Journal.open(tmp_path / "parts.sqlite")
    record, folder = run._explored_and_decided(study, journal, tmp_path / "artifacts", resume=False)
    assert record.best == (PROGRAM if gained else REFERENCE_RECIPE)
    assert (folder is not None) is gained
    assert record.verdict.startswith("Nothing could be tried") is not gained
