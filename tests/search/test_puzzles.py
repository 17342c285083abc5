"""A recipe that is slow because of one choice, or of two together, does not end the search: its parts follow."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.search.search_landscapes import MACHINE, Fake, measured_trial
from togi.core.records import Facts, Stage, Trial
from togi.core.settings import Settings
from togi.search import Search
from togi.techniques.base import Technique

GAINS = {"fused": 1.1, "kept": 1.2, "tiled": 1.15, "spread": 1.05}
MOST_SLOW = 5
"""Trials that may be slow: they take long."""
Slow = Callable[[frozenset[str]], bool]
TOGETHER: dict[str, Slow] = {
    "one choice": lambda chosen: "spread" in chosen,
    "two choices": lambda chosen: {"spread", "kept"} <= chosen,
    "the other two": lambda chosen: {"fused", "tiled"} <= chosen,
}


def facts(*, train: bool) -> Facts:
    return Facts(machine=MACHINE, module_class="Net", functions={"linear": 20}, latency_ms=200.0, train=train)


def techniques(*, train: bool) -> dict[str, Technique]:
    """Their authors believe in all of them."""
    kind = {"trains": train, "infers": not train}
    mode = "plain_step" if train else "no_grad"
    found: list[Technique] = [
        Fake("tiled", Stage.LAYOUT, expected_speedup=1.15, **kind),
        Fake("fused", Stage.OPTIMIZER if train else Stage.REWRITE, expected_speedup=1.1, **kind),
        Fake("kept", Stage.RUNTIME, expected_speedup=1.2, **kind),
        Fake("spread", Stage.RUNTIME, expected_speedup=1.2, options=({"count": 2},), **kind),
        Fake(mode, Stage.RUNTIME, provides=frozenset({"grad_mode"}), conflicts=frozenset({"grad_mode"}), **kind),
    ]
    return {technique.id: technique for technique in found}


def speed(chosen: frozenset[str], slow: Slow, factor: float) -> float:
    return math.prod(GAINS[id] for id in chosen if id in GAINS) * (factor if slow(chosen) else 1.0)


def studied(slow: Slow, factor: float, *, train: bool, most: int = 30) -> list[Trial]:
    search, trials = Search(facts(train=train), Settings(train=train), techniques(train=train)), list[Trial]()
    while len(trials) < most and (recipe := search.next()) is not None:
        trials.append(measured_trial(recipe, speed(recipe.techniques, slow, factor)))
        search.tell(trials[-1])
    return trials


def fastest(trials: list[Trial]) -> float:
    return max(trial.timing.speedup_x.median for trial in trials if trial.timing)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("factor", [0.01, 0.09, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("cause", TOGETHER)
def test_what_is_slow_in_company_does_not_end_the_search(cause: str, factor: float, train: bool) -> None:
    slow = TOGETHER[cause]
    names = list(GAINS)
    subsets = [frozenset(n for i, n in enumerate(names) if bits >> i & 1) for bits in range(1 << len(names))]
    best = max(speed(chosen, slow, factor) for chosen in subsets)
    trials = studied(slow, factor, train=train)
    much_slower = factor < 0.5  # a little slower is not a puzzle: it is learned as any effect is
    assert fastest(trials) >= (0.98 if much_slower else 0.9) * best
    if much_slower:
        assert sum(speed(trial.recipe.techniques, slow, factor) < 1 for trial in trials) <= MOST_SLOW
