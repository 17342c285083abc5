from __future__ import annotations

import itertools

from search_landscapes import measured_trial

from togi.core.records import Choice, Outcome, Recipe, Stage, Trial
from togi.search import acceptable, choose, front

NO_GRAD = Choice(stage=Stage.RUNTIME, technique="no_grad")
REFERENCE = Recipe(choices=(NO_GRAD,))


def recipe(name: str, *more: str) -> Recipe:
    choices = (Choice(stage=Stage.ENGINE, technique=t) for t in (name, *more))
    return Recipe(choices=(*choices, NO_GRAD))


def labels(trials: tuple[Trial, ...]) -> list[str]:
    return [t.recipe.choices[0].technique for t in trials]


def test_front_holds_exactly_what_nothing_beats() -> None:
    points = list(itertools.product((1.0, 2.0, 3.0), (100, 200), (True, False)))
    trials = [
        measured_trial(recipe(f"r{i}"), speed, total_bytes=size, faithful=faithful, rmse=1e-2)
        for i, (speed, size, faithful) in enumerate(points)
    ]
    assert [points[int(name[1:])] for name in labels(front(trials))] == [(3.0, 100, True)]
    trials = [measured_trial(recipe("fast"), 3, total_bytes=300), measured_trial(recipe("small"), 2, total_bytes=100)]
    trials += [measured_trial(recipe("beaten"), 1.9, total_bytes=100)]
    trials += [measured_trial(recipe("rough"), 4, total_bytes=300, faithful=False, rmse=1e-2)]
    assert labels(front(trials)) == ["rough", "fast", "small"]


def test_front_ignores_failures_and_takes_the_last_trial() -> None:
    bad = Trial(recipe=recipe("bad"), outcome=Outcome.WRONG)
    trials = [measured_trial(recipe("a"), 9.0), bad, measured_trial(recipe("b"), 2.0), measured_trial(recipe("a"), 1.0)]
    assert labels(front(trials)) == ["b"]
    assert front([]) == ()


def test_unknown_footprint_never_meets_a_limit_nor_beats_a_known_one() -> None:
    unknown = measured_trial(recipe("u"), 2.0, total_bytes=None)
    assert not acceptable(unknown, max_memory_bytes=10**12)
    assert acceptable(unknown)
    assert labels(front([unknown, measured_trial(recipe("k"), 1.5)])) == ["u", "k"]


def test_fastest_within_limits_is_chosen() -> None:
    trials = [
        measured_trial(REFERENCE, 1.0, total_bytes=100),
        measured_trial(recipe("big"), 4.0, total_bytes=300),
        measured_trial(recipe("rough"), 3.0, faithful=False, rmse=1e-1, total_bytes=100),
        measured_trial(recipe("fine"), 2.0, total_bytes=100),
    ]
    assert choose(trials).trial == trials[1]
    assert choose(trials, max_memory_bytes=200).trial == trials[2]
    chosen = choose(trials, max_memory_bytes=200, max_error=1e-2)
    assert chosen.trial == trials[3]
    assert "2.00x (1.96 to 2.04)" in chosen.verdict
    assert "faithful" in chosen.verdict


def test_original_wins_unless_beaten_beyond_doubt() -> None:
    reference = measured_trial(REFERENCE, 1.0)
    doubtful = measured_trial(recipe("doubtful"), 1.05, width=0.06)
    chosen = choose([reference, doubtful])
    assert chosen.trial == reference
    assert "beyond doubt" in chosen.verdict
    assert "doubtful" in chosen.verdict
    sure = measured_trial(recipe("sure"), 1.04, width=0.01)
    assert choose([reference, doubtful, sure]).trial == sure


def test_among_equals_the_plainer_one() -> None:
    reference = measured_trial(REFERENCE, 1.0)
    plain, laden = measured_trial(recipe("a"), 2.0), measured_trial(recipe("a", "b"), 2.015)
    rough = measured_trial(recipe("r"), 2.01, faithful=False)
    assert choose([reference, laden, plain, rough]).trial == plain
    faster = measured_trial(recipe("a", "c"), 2.2)
    assert choose([reference, plain, faster]).trial == faster


def test_nothing_within_limits_says_what_the_smallest_needs() -> None:
    trials = [measured_trial(REFERENCE, 1.0, total_bytes=2000), measured_trial(recipe("a"), 2.0, total_bytes=3000)]
    chosen = choose(trials, max_memory_bytes=1000)
    assert chosen.trial is None
    assert "no_grad with 2,000 bytes, the limit is 1,000" in chosen.verdict
    assert choose([]).trial is None


def test_slower_but_small_enough_is_chosen_when_the_original_is_too_large() -> None:
    trials = [measured_trial(REFERENCE, 1.0, total_bytes=2000), measured_trial(recipe("a"), 0.5, total_bytes=900)]
    chosen = choose(trials, max_memory_bytes=1000)
    assert chosen.trial == trials[1]
    assert "plain eager itself is not within the limits" in chosen.verdict
