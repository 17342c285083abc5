"""The replay in ``benchmarks/search.py``, on synthetic landscapes (its results come from recorded studies only)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from benchmarks import search as benchmark

from tests.search.search_landscapes import CONVOLUTIONAL, Landscape, family
from togi.core.choices import Effort
from togi.core.records import Recipe, Study
from togi.core.settings import Settings
from togi.search import Space
from togi.techniques import all_techniques, compatible, technique


@pytest.fixture(scope="module")
def recorded():
    settings = Settings(without=("allocator", "pad", "compile"))
    landscape = Landscape(5)
    recipes = [Recipe(), *Space.of(CONVOLUTIONAL, settings, family()).recipes()]
    trials = tuple(landscape.trial(recipe) for recipe in recipes)
    raced = trials[3].model_copy(update={"cost_s": 999.0})
    return benchmark.Recorded.of(Study(id="s", subject="synthetic", facts=CONVOLUTIONAL, trials=(*trials, raced)))


def test_every_strategy_stays_within_the_recording(recorded) -> None:
    for tried in (
        benchmark.by_togi(recorded, family(), 0, Effort.NORMAL),
        benchmark.by_random(recorded, 0),
        benchmark.by_tpe(recorded, 0),
    ):
        assert tried[0] == recorded.reference
        assert len(set(tried)) == len(tried)
        assert set(tried) <= set(recorded.trials)
    assert set(benchmark.by_random(recorded, 1)) == set(recorded.trials)
    assert benchmark.by_random(recorded, 1) != benchmark.by_random(recorded, 2)


def test_race_trials_are_not_part_of_the_recording(recorded) -> None:
    assert max(trial.cost_s for trial in recorded.trials.values()) < 999


def test_curve_counts_cost_once_and_ends_at_the_best(recorded) -> None:
    everything = list(recorded.trials)
    curve = benchmark.curve(recorded, [recorded.reference, *everything, *everything])
    spent, regrets = zip(*curve.steps, strict=True)
    assert len(curve.steps) == len(recorded.trials)
    assert spent[-1] == pytest.approx(1)
    assert regrets[-1] == 0
    assert list(regrets) == sorted(regrets, reverse=True)
    assert curve.regret(1.0) == 0
    assert curve.regret(0.0) == regrets[0]
    assert math.isinf(benchmark.curve(recorded, [recorded.reference]).cost_to_near)


def test_tree_reaches_every_recipe_and_only_those(recorded) -> None:
    class First:
        """Chooses like a path through the tree, written down."""

        def __init__(self, wanted):
            self.wanted = set(wanted.values())

        def suggest_categorical(self, name, values):
            return next((v for v in values if v in self.wanted), "")

    tree = benchmark.Tree(list(recorded.trials))
    for recipe in recorded.trials:
        assert tree.suggest(First(benchmark.parameters(recipe))) == recipe


def test_report_and_command_line(recorded, tmp_path: Path, capsys, monkeypatch) -> None:
    study = Study(id="s", subject="synthetic", facts=CONVOLUTIONAL, trials=tuple(recorded.trials.values()))
    (tmp_path / "synthetic.json").write_text(study.to_json(), encoding="utf-8")
    monkeypatch.setattr(benchmark, "all_techniques", family)
    arguments = ["--data", str(tmp_path), "--random-seeds", "5", "--tpe-seeds", "1"]
    assert benchmark.main(arguments) == 0
    printed = capsys.readouterr().out
    assert f"synthetic: {len(recorded.trials)} recipes" in printed
    assert "within 2 % at <= 20 % of the cost: yes" in printed
    assert [line.split()[0] for line in printed.splitlines()[2:5]] == ["togi", "random", "tpe"]


def test_recorded_studies_with_outdated_combinations_are_read() -> None:
    """They were recorded when ``inference_mode`` was tried round engines that compute outside of torch."""
    techniques = dict(all_techniques())
    for path in sorted(benchmark.DATA.glob("*.json")):
        study = benchmark.Recorded.of(Study.from_json(path.read_bytes()))
        space = Space.listing(study.trials, study.facts, techniques)
        assert {*space.recipes(), Recipe()} >= set(study.trials), path.name
        of_before = [r for r in study.trials if {"openvino", "inference_mode"} <= r.techniques]
        assert of_before, path.name
        assert not [r for r in of_before if compatible(technique(id) for id in r.techniques)], path.name
    tried = benchmark.by_togi(study, techniques, 0, Effort.QUICK)
    assert set(tried) <= set(study.trials)


def test_what_other_studies_teach_shortens_the_way_without_guesses(recorded) -> None:
    def elsewhere(seed: int) -> Study:
        trials = tuple(Landscape(seed).trial(recipe) for recipe in recorded.trials)
        return Study(id=str(seed), subject=str(seed), facts=CONVOLUTIONAL, trials=trials)

    found = benchmark.with_earlier(recorded, [elsewhere(seed) for seed in (6, 7, 8)], family())
    assert found["no guesses, earlier studies"][1] < found["no guesses"][1]
    assert (
        found["guesses"][0]
        == benchmark.curve(recorded, benchmark.by_togi(recorded, family(), 0, Effort.THOROUGH)).cost_to_near
    )
    lines = list(
        benchmark.means([{"cost_to_near": {"guesses": (0.1, 2.0)}}, {"cost_to_near": {"guesses": (0.3, 4.0)}}])
    )
    assert lines[1] == "  guesses: 20.0%, 3 s"


def test_nothing_recorded_is_reported(tmp_path: Path, capsys) -> None:
    assert benchmark.main(["--data", str(tmp_path)]) == 2
    assert "--record" in capsys.readouterr().err
