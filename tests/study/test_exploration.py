"""What a study tries: the whole, or its parts, also where engines of the whole disagree about sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.study.stand_ins import MACHINE, WRONG, Does, open_study, pool_of
from togi.core.records import REFERENCE_RECIPE, ErrorReport, Facts, Recipe, Trial
from togi.study.run import Exploration
from togi.study.runner import StudyRunner

OTHER_SIZES = WRONG.model_copy(update={"other_sizes": True, "problems": ("output has shape (9,), the original (8,)",)})
OTHER_DECISIONS = WRONG.model_copy(update={"other_decisions": True})


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
    pool.built, pool.make_truth = Built(engine), lambda facts, *_: facts
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
