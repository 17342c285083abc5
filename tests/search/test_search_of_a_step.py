"""The search over recipes of a training step has techniques and a reference of its own."""

from __future__ import annotations

from tests.search.search_landscapes import MACHINE
from togi.core.records import PLAIN_STEP_RECIPE, Facts, TensorFacts
from togi.core.settings import Settings
from togi.search import Search

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


def test_calls_and_steps_are_apart() -> None:
    of_calls = {
        c.technique.id for c in Search(FACTS.model_copy(update={"train": False}), Settings()).space.configurations
    }
    of_steps = {c.technique.id for c in Search(FACTS, Settings(train=True)).space.configurations}
    assert not of_calls & {"plain_step", "fused", "kept_memory", "micro_batches"}
    assert not of_steps & {"no_grad", "inference_mode", "openvino", "torchscript"}
    assert Search(FACTS, Settings(train=True)).space.originals == (PLAIN_STEP_RECIPE,)
