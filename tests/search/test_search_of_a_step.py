"""The search over recipes of a training step: what takes seconds comes before what takes minutes."""

from __future__ import annotations

import math

import pytest

from tests.search.search_landscapes import MACHINE, Fake, engine, measured_trial
from togi.core.records import PLAIN_STEP_RECIPE, Facts, Recipe, Stage, TensorFacts
from togi.core.settings import Settings
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


GAINS = {"channels_last": 1.2, "fused": 1.04, "kept_memory": 1.1, "micro_batches": 0.97, "threads": 0.62}


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
    assert not of_calls & {"plain_step", "fused", "kept_memory", "micro_batches"}
    assert not of_steps & {"no_grad", "inference_mode", "openvino", "torchscript"}
    assert Search(FACTS, Settings(train=True)).space.originals == (PLAIN_STEP_RECIPE,)
