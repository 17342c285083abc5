from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.search.search_landscapes import CONVOLUTIONAL, MACHINE, TRANSFORMER, Fake, engine, family, grad_mode
from togi.core.errors import TogiError, UnknownNameError
from togi.core.records import Facts, Outcome, Recipe, Stage
from togi.core.settings import ALL, Settings
from togi.search import Space
from togi.search.configurations import as_listed
from togi.techniques import all_techniques
from togi.techniques.base import Options
from togi.techniques.registry import compatible

EVERY = Settings(allow=(ALL,), max_error=1e-2)


def test_every_recipe_is_compatible_once_and_has_one_grad_mode() -> None:
    techniques = family()
    recipes = list(Space.of(CONVOLUTIONAL, EVERY, techniques).recipes())
    assert len(recipes) == len(set(recipes)) > 1000
    for recipe in recipes:
        assert len(recipe.techniques & {"no_grad", "inference_mode"}) == 1
        assert len(recipe.at(Stage.ENGINE)) <= 1
        assert compatible(techniques[c.technique] for c in recipe.choices)
        assert not recipe.find("int8") or recipe.find("vino")
        places = [list(Stage).index(c.stage) for c in recipe.choices]
        assert places == sorted(places)


@pytest.mark.parametrize(("device", "together"), [("cpu", False), ("cuda", True)])
def test_bfloat16_is_not_tried_where_onnx_runtime_cannot_multiply_it(device: str, together: bool) -> None:
    known = all_techniques()
    few = {id: known[id] for id in ("no_grad", "bf16", "onnxruntime")}
    versions = {name: version for name, version in MACHINE.versions.items() if name != "onnxruntime"}  # of either build
    machine = MACHINE.model_copy(update={"cpu_flags": ("avx512_bf16",), "onednn_limit": "", "versions": versions})
    facts = CONVOLUTIONAL.model_copy(update={"device": device, "machine": machine, "parameter_dtypes": ("float32",)})
    recipes = [recipe.techniques for recipe in Space.of(facts, EVERY, few).recipes()]
    assert {"no_grad", "bf16"} in recipes
    assert ({"no_grad", "bf16", "onnxruntime"} in recipes) is together


def test_count_is_the_product_of_the_factors() -> None:
    """fold 2, pad 3, channels_last 2, engines 1+4+4+1+2, threads 3, allocator 2, grad modes 2; nothing approximate."""
    recipes = list(Space.of(CONVOLUTIONAL, Settings(), family()).recipes())
    assert len(recipes) == 2 * 3 * 2 * 12 * 3 * 2 * 2


def test_simplest_first() -> None:
    depths = [len(r.choices) for r in Space.of(CONVOLUTIONAL, EVERY, family()).recipes()]
    assert depths == sorted(depths)


def test_enumeration_is_lazy() -> None:
    techniques = family() | {f"t{i}": Fake(f"t{i}", Stage.RUNTIME) for i in range(40)}
    space = Space.of(CONVOLUTIONAL, EVERY, techniques)
    assert len(list(itertools.islice(space.recipes(), 500))) == 500


def test_a_rewrite_without_anything_to_do_in_the_captured_graph_is_not_tried() -> None:
    some = CONVOLUTIONAL.model_copy(update={"idle_rewrites": {"pad(multiple=8)": "no channels for 8"}})
    found = {c.label for c in Space.of(some, EVERY, family()).configurations}
    assert "pad(multiple=16)" in found
    assert "pad(multiple=8)" not in found
    none = {**some.idle_rewrites, "pad(multiple=16)": "no channels for 16"}
    space = Space.of(CONVOLUTIONAL.model_copy(update={"idle_rewrites": none}), EVERY, family())
    assert not {c.label for c in space.configurations if c.technique.id == "pad"}
    (refused,) = [trial for trial in space.excluded if trial.stage == "pad"]
    assert (refused.outcome, refused.reason) == (Outcome.REFUSED, "no channels for 8")


def test_a_recipe_of_another_space_as_it_can_be_made_here() -> None:
    space = Space.of(CONVOLUTIONAL, Settings(), family())
    for recipe in itertools.islice(space.recipes(), 200):
        assert space.like(recipe) == recipe
    pad = next(recipe for recipe in space.recipes() if recipe.techniques == {"pad", "no_grad"})
    choice = pad.find("pad")
    assert choice is not None
    other = Recipe(
        choices=tuple(c if c != choice else choice.model_copy(update={"options": {"multiple": 7}}) for c in pad.choices)
    )
    assert space.like(other) == pad, "the first, of which most is expected"
    transformer = Space.of(TRANSFORMER, Settings(), family())
    assert transformer.like(next(r for r in space.recipes() if r.find("fold"))) is None
    listed = Space.listing([space.reference, pad], CONVOLUTIONAL, family())
    assert listed.like(other) == pad
    assert listed.like(Recipe()) is None


def test_what_is_not_tried_is_explained() -> None:
    space = Space.of(TRANSFORMER, Settings(without=("onnx",)), family())
    explained = {trial.stage: trial for trial in space.excluded}
    outcomes = {id: trial.outcome for id, trial in explained.items()}
    assert outcomes == {
        "fold": Outcome.REFUSED,
        "pad": Outcome.REFUSED,
        "channels_last": Outcome.REFUSED,
        "bf16": Outcome.REFUSED,
        "int8": Outcome.REFUSED,
        "int4": Outcome.REFUSED,
        "onnx": Outcome.REFUSED,
        "absent": Outcome.MISSING,
        "cuda_only": Outcome.REFUSED,
    }
    assert explained["fold"].reason == "the model never calls batch_norm"
    assert "--allow bf16" in explained["bf16"].reason
    assert explained["absent"].fix == "pip install 'togi[absent]'"
    assert "cuda" in explained["cuda_only"].reason
    assert all(trial.recipe.find(id) and trial.recipe.find("no_grad") for id, trial in explained.items())


@pytest.mark.parametrize(
    ("settings", "tried"),
    [({}, False), ({"max_memory_bytes": 2**30}, True), ({"only": ("grows",)}, True)],
)
def test_what_saves_memory_alone_is_tried_where_somebody_wants_that(settings: dict[str, Any], tried: bool) -> None:
    grows = Fake("grows", Stage.RUNTIME, saves_memory_alone=True)
    techniques = {"no_grad": grad_mode("no_grad"), "grows": grows}
    space = Space.of(CONVOLUTIONAL, Settings(**settings), techniques)
    assert any(recipe.find("grows") for recipe in space.recipes()) is tried
    assert [trial.reason.partition(",")[0] for trial in space.excluded] == ["it saves memory and no time"][tried:]


def test_missing_package_of_a_needed_engine_is_passed_on() -> None:
    explained = {trial.stage: trial for trial in Space.of(CONVOLUTIONAL, EVERY, family()).excluded}
    assert explained["int4"].outcome is Outcome.MISSING
    assert explained["int4"].fix == "pip install 'togi[absent]'"


def test_third_party_technique_that_raises_is_a_failure_with_traceback() -> None:
    class Raises(Fake):
        def applies(self, facts: Facts):
            raise ZeroDivisionError("oops")

    class Lies(Fake):
        def expected_speedup(self, facts, options):
            return float("nan")

    techniques = family() | {"raises": Raises("raises", Stage.LAYOUT), "lies": Lies("lies", Stage.LAYOUT)}
    explained = {t.stage: t for t in Space.of(CONVOLUTIONAL, EVERY, techniques).excluded}
    assert explained["raises"].outcome is Outcome.FAILED
    assert "oops" in explained["raises"].reason
    assert "Traceback" in explained["raises"].traceback
    assert explained["lies"].outcome is Outcome.FAILED
    assert "nan" in explained["lies"].reason


def test_only_keeps_the_reference_and_allow_takes_beginnings() -> None:
    space = Space.of(CONVOLUTIONAL, Settings(only=("vino",)), family())
    assert {r.label for r in space.recipes()} == {"no_grad", "vino + no_grad", "vino(hint=latency) + no_grad"}
    techniques = family() | {"int8_vino": Fake("int8_vino", Stage.PRECISION, exact=False)}
    offered = {
        o.technique.id
        for o in Space.of(CONVOLUTIONAL, Settings(allow=("int8",), max_error=1e-2), techniques).configurations
    }
    assert {"int8", "int8_vino"} <= offered
    assert "bf16" not in offered


@pytest.mark.parametrize(
    ("field", "name", "hint"), [("only", "vinno", "vino"), ("without", "fol", "fold"), ("allow", "bf61", "bf16")]
)
def test_unknown_names_get_the_nearest(field: str, name: str, hint: str) -> None:
    with pytest.raises(UnknownNameError, match=f"did you mean '{hint}'"):
        Space.of(CONVOLUTIONAL, Settings(**{field: (name,)}, max_error=1e-2), family())


def test_neighbours_differ_in_one_factor_and_bring_what_is_needed() -> None:
    space = Space.of(CONVOLUTIONAL, EVERY, family())
    start = space.reference
    neighbours = list(space.neighbours(start))
    assert any(r.techniques == {"channels_last", "no_grad"} for r in neighbours)
    assert any(r.techniques == {"inference_mode"} for r in neighbours)
    assert any(r.techniques == {"int8", "vino", "no_grad"} for r in neighbours)
    assert all(len(r.techniques & {"no_grad", "inference_mode"}) == 1 for r in neighbours)
    assert start not in neighbours
    assert all(len(r.techniques & {"no_grad", "inference_mode"}) == 1 for r in space.neighbours(Recipe()))


def test_what_a_needed_engine_brings_leaves_the_rest_as_it_was() -> None:
    space = Space.of(CONVOLUTIONAL, EVERY, family())
    every = set(space.recipes())
    start = next(r for r in every if r.techniques == {"fold", "channels_last", "onnx", "threads", "no_grad"})
    neighbours = list(space.neighbours(start))
    assert set(neighbours) <= every
    assert all(len({*r.choices} - {*start.choices}) <= 2 for r in neighbours)
    assert all(len({*start.choices} - {*r.choices}) <= 1 for r in neighbours)
    quantized = {r for r in neighbours if r.find("int8")}
    assert {r.techniques for r in quantized} == {
        frozenset({"fold", "channels_last", "int8", "vino", "threads", "no_grad"})
    }


def test_features_hold_how_much_each_usually_matters() -> None:
    space = Space.of(CONVOLUTIONAL, EVERY, family())
    recipe = next(r for r in space.recipes() if r.techniques == {"channels_last", "onnx", "no_grad"})
    spreads = [0.4, 0.3, 0.25, 0.25 * 0.8, 0.25 * 0.3, 0.04, 0.04 * 0.8, 0.04 * 0.3]
    assert list(space.features(recipe).spreads) == pytest.approx(spreads)
    assert space.features(recipe).variance == pytest.approx(sum(spread**2 for spread in spreads))


def test_what_is_known_of_an_engine_does_not_depend_on_the_number_of_its_options() -> None:
    def of(options: Options) -> float:
        engine = as_listed(family()["vino"], CONVOLUTIONAL, options)
        grad_mode = as_listed(family()["no_grad"], CONVOLUTIONAL, {})
        space = Space((engine, grad_mode))
        return space.features(space.recipe((engine, grad_mode))).variance

    assert of({"a": 1}) == pytest.approx(of({"a": 1, "b": True, "c": "x"}))


def test_no_reference_no_search() -> None:
    with pytest.raises(TogiError, match="no_grad"):
        Space([])


def test_eager_engine_is_not_a_choice_of_its_own() -> None:
    space = Space.of(CONVOLUTIONAL, EVERY, family() | {"eager": engine("eager")})
    assert not any(r.find("eager") for r in space.recipes())


RESNET = Facts(
    machine=MACHINE.model_copy(update={"compiler": "g++ 12"}),
    module_class="ResNet",
    modules={"Conv2d": 20, "BatchNorm2d": 20, "Linear": 1, "ReLU": 17},
    functions={"conv2d": 20, "batch_norm": 20, "linear": 1},
    parameters=11_000_000,
    parameter_bytes=44_000_000,
    parameter_dtypes=("float32",),
    inputs=({"name": "x", "dtype": "float32", "shape": (1, 3, 224, 224)},),
    outputs=({"name": "output", "dtype": "float32", "shape": (1, 1000)},),
)
BERT = RESNET.model_copy(
    update={
        "module_class": "BertModel",
        "modules": {"Linear": 37, "LayerNorm": 13, "Embedding": 3},
        "functions": {"linear": 37, "layer_norm": 13, "scaled_dot_product_attention": 6},
    }
)


def test_installed_techniques_enumerate_sensibly() -> None:
    """The real ones: a convolutional model may fold batch norms and change layout, a transformer may not."""
    for facts, convolutional in ((RESNET, True), (BERT, False)):
        space = Space.of(facts, Settings(), all_techniques())
        recipes = list(itertools.islice(space.recipes(), 5000))
        assert space.reference in recipes
        used = {technique for recipe in recipes for technique in recipe.techniques}
        assert ("fold_batch_norm" in used) == convolutional
        assert ("channels_last" in used) == convolutional
        assert not {"bf16", "fp16", "int8_openvino"} & used
        assert {"torchscript", "torch_compile", "inference_mode"} <= used
        assert all(trial.reason for trial in space.excluded)
