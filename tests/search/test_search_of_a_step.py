"""The search over recipes of a training step: what takes seconds comes before what takes minutes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from tests.search.search_landscapes import MACHINE, Fake, engine, measured_trial
from togi.core.records import PLAIN_STEP_RECIPE, Facts, Outcome, Recipe, Stage, TensorFacts, Trial
from togi.core.settings import Settings
from togi.decide.budget import Budget
from togi.decide.choose import choose
from togi.search import Search
from togi.techniques.base import Technique

FACTS = Facts(
    machine=MACHINE.model_copy(update={"compiler": "g++"}),
    module_class="Net",
    functions={"conv2d": 40, "relu": 40, "add": 160, "linear": 1},
    parameter_dtypes=("float32",),
    inputs=(TensorFacts(name="x", dtype="float32", shape=(16, 3, 64, 64)),),
    latency_ms=300.0,
    train=True,
    optimizer="AdamW",
    optimizer_options=("fused", "foreach"),
)
TRANSFORMER = FACTS.model_copy(
    update={"functions": {"linear": 25, "layer_norm": 9, "scaled_dot_product_attention": 4}, "random": True}
)


def begun(facts: Facts, latency_ms: float, techniques: dict[str, Technique] | None = None) -> Search:
    """After the reference."""
    search = Search(facts.model_copy(update={"latency_ms": latency_ms}), Settings(train=True), techniques)
    assert search.next() == PLAIN_STEP_RECIPE
    search.tell(measured_trial(PLAIN_STEP_RECIPE, 1.0, cost_s=3.0 + latency_ms * 0.02))
    return search


def following(search: Search) -> Recipe:
    found = search.next()
    assert found is not None
    return found


@pytest.mark.parametrize("latency_ms", [5.0, 300.0, 2300.0])
@pytest.mark.parametrize("facts", [FACTS, TRANSFORMER], ids=["convolutions", "transformer with dropout"])
def test_the_first_gain_does_not_wait_for_a_compilation(facts: Facts, latency_ms: float) -> None:
    search = begun(facts, latency_ms)
    first = following(search)
    assert "torch_compile" not in first.techniques
    assert {"fused", "kept_memory"} <= first.techniques


def test_more_threads_than_the_training_was_given_are_not_in_the_first_trial() -> None:
    """Nothing is expected of them, and next to busy neighbours they cost a factor of ten."""
    machine = FACTS.machine.model_copy(update={"threads": 1, "cpu_cores": 2})
    search = begun(FACTS.model_copy(update={"machine": machine}), 300.0)
    first = following(search)
    assert "threads" not in first.techniques
    assert {"channels_last", "fused", "kept_memory"} <= first.techniques


GAINS = {
    "channels_last": 1.2,
    "fused": 1.04,
    "kept_memory": 1.1,
    "micro_batches": 0.97,
    "threads": 0.62,
    "returned_memory": 0.7,
}


@pytest.mark.parametrize("facts", [FACTS, TRANSFORMER], ids=["convolutions", "transformer with dropout"])
def test_what_is_compiled_has_its_turn_soon_after_the_first_gain(facts: Facts) -> None:
    search, spent_s, gained_s = begun(facts, 300.0), 0.0, list[float]()
    while "torch_compile" not in (recipe := following(search)).techniques:
        speedup_x = math.prod(GAINS.get(choice.technique, 1.0) for choice in recipe.choices)
        spent_s += 9.0
        gained_s += [spent_s] if speedup_x > 1.05 else []
        search.tell(measured_trial(recipe, speedup_x, cost_s=9.0))
    assert gained_s[0] <= 18.0
    assert spent_s <= 60.0


COMPILES_S = 90.0


def planted(compiled_x: float) -> dict[str, Technique]:
    """One costly technique next to two that are built at once."""
    step = {"trains": True, "infers": False}
    mode = frozenset({"grad_mode"})
    found: list[Technique] = [
        engine("costly", expected_speedup=compiled_x, cost_s=COMPILES_S, **step),
        Fake("fused", Stage.OPTIMIZER, expected_speedup=1.05, **step),
        Fake("kept", Stage.RUNTIME, expected_speedup=1.1, **step),
        Fake("plain_step", Stage.RUNTIME, provides=mode, conflicts=mode, **step),
    ]
    return {technique.id: technique for technique in found}


@pytest.mark.parametrize("compiled_x", [1.0, 1.07, 1.15])
def test_a_planted_costly_technique_comes_after_what_costs_nothing(compiled_x: float) -> None:
    search = begun(FACTS, 300.0, planted(compiled_x))
    first = following(search)
    assert first.techniques == {"fused", "kept", "plain_step"}
    assert search.cost_s(first) < COMPILES_S / 3


def test_a_costly_technique_comes_first_where_far_more_is_expected_of_it() -> None:
    assert "costly" in following(begun(FACTS, 300.0, planted(4.0))).techniques


def test_calls_and_steps_are_apart() -> None:
    of_calls = {
        c.technique.id for c in Search(FACTS.model_copy(update={"train": False}), Settings()).space.configurations
    }
    of_steps = {c.technique.id for c in Search(FACTS, Settings(train=True)).space.configurations}
    assert not of_calls & {
        "plain_step",
        "fused",
        "kept_memory",
        "micro_batches",
        "recompute",
        "fused_loss",
        "returned_memory",
    }
    assert not of_steps & {"no_grad", "inference_mode", "openvino", "torchscript"}
    assert Search(FACTS, Settings(train=True)).space.originals == (PLAIN_STEP_RECIPE,)


MEMORY = {"kept_memory": 1.3, "returned_memory": 0.9, "channels_last": 1.05, "torch_compile": 1.1}
"""What choices take, next to the step as it is."""


def planted_end(recipe: Recipe) -> Trial:
    """Of a step of which seven tenths are kept for the backward pass: who keeps less of it is slower."""
    speedup_x, held, kept = 1.0, 300.0, 700.0
    for choice in recipe.choices:
        speedup_x *= GAINS.get(choice.technique, 1.12 if choice.technique == "torch_compile" else 1.0)
        held *= MEMORY.get(choice.technique, 1.0)
        if choice.technique == "recompute":
            keep = float(str(choice.options["keep"]))
            speedup_x, kept = speedup_x * (1 - 0.22 * (1 - keep)), kept * (0.1 + 0.9 * keep)
        if choice.technique == "micro_batches":
            parts = int(str(choice.options["parts"]))
            speedup_x, kept = speedup_x * 0.97**parts, kept / parts
    costs_s = 90.0 if "torch_compile" in recipe.techniques else 9.0
    return measured_trial(recipe, speedup_x, cost_s=costs_s, total_bytes=round(held + kept))


def within(limit_bytes: int, facts: Facts = FACTS, most: int = 30) -> tuple[Search, list[Trial]]:
    """A study with a limit of memory."""
    search = Search(facts, Settings(train=True, max_memory_bytes=limit_bytes))
    trials = list[Trial]()
    while len(trials) < most and (recipe := search.next()) is not None:
        trials.append(planted_end(recipe))
        search.tell(trials[-1])
    return search, trials


def best_that_fits(trials: Iterable[Trial], limit_bytes: int) -> float:
    return max((t.timing.speedup_x.median for t in trials if t.timing and bytes_of(t) <= limit_bytes), default=0.0)


def bytes_of(trial: Trial) -> int:
    assert trial.footprint is not None
    return trial.footprint.total_bytes


@pytest.mark.parametrize("limit_bytes", [800, 600, 450])
def test_under_a_limit_the_fastest_that_fits_is_found(limit_bytes: int) -> None:
    search, trials = within(limit_bytes)
    first = next(number for number, trial in enumerate(trials) if bytes_of(trial) <= limit_bytes)
    assert first <= 5, "what fits has its turn soon"
    of_all = best_that_fits(map(planted_end, search.space.recipes()), limit_bytes)
    assert best_that_fits(trials, limit_bytes) >= 0.97 * of_all
    chosen = choose(trials, Budget(max_memory_bytes=limit_bytes)).trial
    assert chosen is not None
    assert bytes_of(chosen) <= limit_bytes


def test_a_limit_that_the_step_keeps_is_no_reason_to_recompute() -> None:
    search, trials = within(2000)
    assert best_that_fits(trials, 2000) >= 0.97 * best_that_fits(map(planted_end, search.space.recipes()), 2000)
    fastest = best_that_fits(trials, 2000)
    until = next(n for n, trial in enumerate(trials) if trial.timing and trial.timing.speedup_x.median == fastest)
    assert sum("recompute" in trial.recipe.techniques for trial in trials[:until]) <= 1
    assert not any("recompute" in trial.recipe.techniques for trial in trials[:5])


@pytest.mark.parametrize("beyond", [1.004, 1.02])
def test_a_limit_that_is_missed_by_little_is_looked_for_on(beyond: float) -> None:
    """What is left to save is less than the share of a gain by which a search ends."""
    search = Search(FACTS, Settings(train=True, max_memory_bytes=600))
    halved = next(r for r in search.space.recipes() if r.label == "micro_batches(parts=2) + plain_step")
    for tried, taken_bytes in {PLAIN_STEP_RECIPE: 1000, halved: round(600 * beyond)}.items():
        search.tell(measured_trial(tried, 1.0, cost_s=9.0, total_bytes=taken_bytes))
    trials = list[Trial]()
    while not search.gained():
        trials.append(planted_end(following(search)))
        search.tell(trials[-1])
    assert len(trials) <= 5


@pytest.mark.parametrize("limit_bytes", [600, 480, 450])
def test_what_saves_much_goes_before_what_may_be_faster_until_something_fits(limit_bytes: int) -> None:
    search, trials = Search(FACTS, Settings(train=True, max_memory_bytes=limit_bytes)), list[Trial]()
    while not search.gained():
        trials.append(planted_end(following(search)))
        search.tell(trials[-1])
    assert len(trials) <= 3


def test_what_was_refused_says_nothing_of_what_trials_take() -> None:
    search = Search(FACTS, Settings(train=True, max_memory_bytes=600))
    search.tell(measured_trial(PLAIN_STEP_RECIPE, 1.0, cost_s=9.0, total_bytes=1000))
    recipes = {recipe.label: recipe for recipe in search.space.recipes()}
    halved = recipes["micro_batches(parts=2) + plain_step"]
    before_s = search.cost_s(halved)
    refused = recipes["channels_last + micro_batches(parts=4) + plain_step"]
    search.tell(Trial(recipe=refused, outcome=Outcome.REFUSED, stage="channels_last", reason="no", cost_s=0.5))
    assert search.cost_s(halved) == before_s


def test_where_nothing_fits_the_least_is_named_with_what_it_costs() -> None:
    search, trials = within(200)
    least = min(bytes_of(planted_end(recipe)) for recipe in search.space.recipes())
    assert min(map(bytes_of, trials)) <= 1.1 * least
    chosen = choose(trials, Budget(max_memory_bytes=200))
    assert chosen.trial is None
    assert "the smallest is" in chosen.reason
    assert "x the speed of plain eager" in chosen.reason


def test_without_a_limit_nothing_is_recomputed() -> None:
    saving = {"recompute", "returned_memory"}
    assert not any(saving & recipe.techniques for recipe in Search(FACTS, Settings(train=True)).space.recipes())
    limited = Search(FACTS, Settings(train=True, max_memory_bytes=600))
    assert any("returned_memory" in recipe.techniques for recipe in limited.space.recipes())
